select pgwf.drain_worker(p_worker_id => %(worker_id)s, p_draining => %(draining)s)
