select
  r.n,
  r.run_id,
  r.workflow,
  r.seed
from pgwf_sdk.run r
where r.run_id = %(run_id)s::text
  and r.n = (select m.n from pgwf.name m where m.job_id = %(run_id)s::text)
