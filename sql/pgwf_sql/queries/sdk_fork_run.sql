select n, run_id, created
from pgwf_sdk.fork_run(
  p_run_id => %(run_id)s::text,
  p_before => %(before)s::text,
  p_new_run_id => %(new_run_id)s::text,
  p_by => %(by)s::text)
