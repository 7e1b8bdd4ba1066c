select pgwf_sdk.cancel_run(
  p_run_id => %(run_id)s, p_by => %(by)s, p_reason => %(reason)s, p_grace_seconds => %(grace_seconds)s::double precision)
