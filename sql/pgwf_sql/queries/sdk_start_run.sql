select n, run_id, created
from pgwf_sdk.start_run(
  p_run_id => %(run_id)s,
  p_workflow => %(workflow)s,
  p_need => %(need)s,
  p_input => %(input)s,
  p_encoding => %(encoding)s,
  p_priority => %(priority)s,
  p_start_at => %(start_at)s,
  p_deadline => %(deadline)s,
  p_build => %(build)s,
  p_trace => %(trace)s,
  p_started_by => %(started_by)s,
  p_attributes => %(attributes)s::jsonb,
  p_singleton_key => %(singleton_key)s)
