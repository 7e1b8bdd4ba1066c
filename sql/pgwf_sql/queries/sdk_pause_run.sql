select pgwf_sdk.pause_run(p_run_id => %(run_id)s, p_by => %(by)s)
