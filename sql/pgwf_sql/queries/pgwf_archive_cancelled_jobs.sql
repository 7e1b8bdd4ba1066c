select pgwf.archive_cancelled_jobs(p_worker_id => %(worker_id)s, p_limit => %(limit)s)
