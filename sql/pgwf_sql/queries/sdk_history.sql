select seq, call, kind, phase, scope, name, occurrence, payload, encoding, recorded_at, lease_no
from pgwf_journal.read(p_journal_id => %(run_id)s::text, p_after_seq => %(after_seq)s::bigint, p_limit => %(limit)s::int)
