select pgwf_sdk.resume_run(p_run_id => %(run_id)s, p_by => %(by)s)
