select pgwf.sweep(p_worker_id => %(worker_id)s, p_limit => %(limit)s)
