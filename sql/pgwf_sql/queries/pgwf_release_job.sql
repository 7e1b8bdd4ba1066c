select pgwf.release_job(
  p_job_id => %(job_id)s,
  p_lease_id => %(lease_id)s,
  p_worker_id => %(worker_id)s,
  p_error => %(error)s,
  p_delay_seconds => %(delay_seconds)s::double precision)
