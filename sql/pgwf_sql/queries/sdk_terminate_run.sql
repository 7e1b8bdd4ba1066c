select pgwf_sdk.terminate_run(p_run_id => %(run_id)s, p_by => %(by)s, p_reason => %(reason)s)
