select pgwf.forget_worker(p_worker_id => %(worker_id)s::text) as was_known
