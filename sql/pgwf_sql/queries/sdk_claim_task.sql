select pgwf_sdk.claim_task(p_task_id => %(task_id)s, p_by => %(by)s, p_seconds => %(seconds)s)
