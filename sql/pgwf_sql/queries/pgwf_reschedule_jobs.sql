select
  job_id,
  status,
  ord
from pgwf.reschedule_jobs(
  p_worker_id => %(worker_id)s,
  p_job_ids => %(job_ids)s::text[],
  p_lease_ids => %(lease_ids)s::text[],
  p_next_needs => %(next_needs)s::text[],
  p_wait_for => %(wait_for)s::jsonb,
  p_singleton_keys => %(singleton_keys)s::text[],
  p_available_at => %(available_at)s::timestamptz[],
  p_busy_ok => %(busy_ok)s)
order by ord
