select
  job_id,
  status,
  ord
from pgwf.wake_jobs(
  p_worker_id => %(worker_id)s,
  p_job_ids => %(job_ids)s::text[])
order by ord
