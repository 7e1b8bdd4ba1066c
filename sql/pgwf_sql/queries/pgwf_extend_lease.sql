select pgwf.extend_lease(
  p_job_id => %(job_id)s,
  p_lease_id => %(lease_id)s,
  p_worker_id => %(worker_id)s,
  p_additional_seconds => %(additional_seconds)s)
