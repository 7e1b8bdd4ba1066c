select pgwf.set_priority(p_job_id => %(job_id)s, p_worker_id => %(worker_id)s, p_priority => %(priority)s)
