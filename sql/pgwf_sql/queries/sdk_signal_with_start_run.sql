select n, run_id, created, sent
from pgwf_sdk.signal_with_start_run(
  p_run_id => %(run_id)s,
  p_workflow => %(workflow)s,
  p_need => %(need)s,
  p_input => %(input)s,
  p_encoding => %(encoding)s,
  p_signal => %(signal)s,
  p_payload => %(payload)s,
  p_payload_encoding => %(payload_encoding)s,
  p_dedup_id => %(dedup_id)s,
  p_priority => %(priority)s,
  p_start_at => %(start_at)s,
  p_deadline => %(deadline)s,
  p_build => %(build)s,
  p_trace => %(trace)s,
  p_started_by => %(started_by)s,
  p_attributes => %(attributes)s::jsonb,
  p_singleton_key => %(singleton_key)s)
