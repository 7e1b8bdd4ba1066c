select pgwf_journal.open(p_journal_id => %(journal_id)s)
