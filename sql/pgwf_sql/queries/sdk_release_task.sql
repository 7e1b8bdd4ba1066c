select pgwf_sdk.release_task(p_task_id => %(task_id)s, p_by => %(by)s)
