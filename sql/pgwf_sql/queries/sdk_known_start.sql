select
  r.n,
  r.run_id,
  r.workflow,
  e.payload,
  e.encoding
from pgwf_sdk.run as r
join pgwf_journal.entry as e on e.n = r.n and e.seq = 1
where r.run_id = %(run_id)s::text
