select
  job_id,
  status,
  lease_expires_at,
  ord
from pgwf.extend_leases(
  p_worker_id => %(worker_id)s,
  p_job_ids => %(job_ids)s::text[],
  p_lease_ids => %(lease_ids)s::text[],
  p_additional_seconds => %(additional_seconds)s::double precision,
  p_busy_ok => %(busy_ok)s)
order by ord
