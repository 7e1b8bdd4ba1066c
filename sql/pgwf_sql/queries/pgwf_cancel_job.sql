select
  job_id,
  cancelled_at,
  cancelled_by,
  cancel_reason
from pgwf.cancel_job(
  p_job_id => %(job_id)s,
  p_worker_id => %(worker_id)s,
  p_reason => %(reason)s)
