select pgwf.complete_job(p_job_id => %(job_id)s, p_lease_id => %(lease_id)s, p_worker_id => %(worker_id)s)
