select
  job_id,
  lease_id,
  next_need,
  singleton_key,
  wait_for,
  available_at,
  lease_expires_at,
  n,
  lease_no,
  priority
from pgwf.get_work(
  p_worker_id => %(worker_id)s,
  p_worker_caps => %(worker_caps)s::text[],
  p_lease_seconds => %(lease_seconds)s,
  p_limit_jobs => %(limit_jobs)s)
