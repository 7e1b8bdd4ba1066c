select pgwf_journal.head(p_journal_id => %(journal_id)s)
