select pgwf.clear_crash_concern(p_job_id => %(job_id)s, p_worker_id => %(worker_id)s, p_reason => %(reason)s)
