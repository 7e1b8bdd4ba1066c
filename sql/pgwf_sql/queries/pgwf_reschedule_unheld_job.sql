select
  job_id,
  next_need,
  wait_for,
  singleton_key,
  available_at
from pgwf.reschedule_unheld_job(
  p_job_id => %(job_id)s,
  p_worker_id => %(worker_id)s,
  p_next_need => %(next_need)s,
  p_wait_for => %(wait_for)s::text[],
  p_singleton_key => %(singleton_key)s,
  p_available_at => %(available_at)s::timestamptz)
