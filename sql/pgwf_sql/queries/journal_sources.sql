select
  e.seq,
  c.build,
  c.file,
  c.line
from pgwf_journal.entry e
join pgwf_journal.code c on c.code = e.code
where e.n = %(n)s::bigint
  and e.seq = any (%(seqs)s::bigint[])
