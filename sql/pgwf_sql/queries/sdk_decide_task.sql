select pgwf_sdk.decide_task(
  p_task_id => %(task_id)s,
  p_by => %(by)s,
  p_payload => %(payload)s,
  p_encoding => %(encoding)s)
