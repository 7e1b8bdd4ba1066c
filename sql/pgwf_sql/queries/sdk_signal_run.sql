select pgwf_sdk.signal_run(
  p_run_id => %(run_id)s,
  p_name => %(name)s,
  p_payload => %(payload)s,
  p_encoding => %(encoding)s,
  p_dedup_id => %(dedup_id)s)
