select
  job_id,
  n,
  status,
  ord
from pgwf.submit_jobs(
  p_worker_id => %(worker_id)s,
  p_job_ids => %(job_ids)s::text[],
  p_next_needs => %(next_needs)s::text[],
  p_wait_for => %(wait_for)s::jsonb,
  p_singleton_keys => %(singleton_keys)s::text[],
  p_available_at => %(available_at)s::timestamptz[],
  p_expires_at => %(expires_at)s::timestamptz[],
  p_priorities => %(priorities)s::int[])
order by ord
