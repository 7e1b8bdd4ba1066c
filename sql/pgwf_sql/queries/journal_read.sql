select
  e.seq,
  e.call,
  e.kind,
  e.phase,
  e.scope,
  e.name,
  e.occurrence,
  e.payload,
  e.encoding,
  e.recorded_at,
  e.lease_no,
  e.code
from pgwf_journal.read(
  p_journal_id => %(journal_id)s,
  p_after_seq => %(after_seq)s::bigint,
  p_limit => %(limit)s::int) e
order by e.seq
