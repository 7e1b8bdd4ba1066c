select
  job_id,
  lease_id,
  next_need,
  lease_expires_at,
  n,
  lease_no
from pgwf.lease_job(
  p_job_id => %(job_id)s,
  p_worker_id => %(worker_id)s,
  p_worker_caps => %(worker_caps)s::text[],
  p_lease_seconds => %(lease_seconds)s)
