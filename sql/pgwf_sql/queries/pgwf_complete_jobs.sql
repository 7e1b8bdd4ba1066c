select
  job_id,
  status,
  ord
from pgwf.complete_jobs(
  p_worker_id => %(worker_id)s,
  p_job_ids => %(job_ids)s::text[],
  p_lease_ids => %(lease_ids)s::text[],
  p_busy_ok => %(busy_ok)s)
order by ord
