select pgwf.resume_need(p_need => %(need)s, p_worker_id => %(worker_id)s)
