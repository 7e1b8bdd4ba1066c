select pgwf.complete_unheld_job(p_job_id => %(job_id)s, p_worker_id => %(worker_id)s)
