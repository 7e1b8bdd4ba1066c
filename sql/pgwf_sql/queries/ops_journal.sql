select
  e.seq,
  e.key,
  e.kind,
  e.phase,
  e.scope,
  e.name,
  e.occurrence,
  e.call,
  e.payload,
  e.encoding,
  e.recorded_at,
  e.lease_no,
  e.code_file,
  e.code_line
from pgwf_journal.entries e
where e.n = %(n)s
  and e.seq > %(after_seq)s
order by e.seq
limit %(limit)s
