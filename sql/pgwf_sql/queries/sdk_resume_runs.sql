select n, run_id
from pgwf_sdk.resume_runs(
  p_workflow => %(workflow)s::text,
  p_by => %(by)s::text,
  p_before => %(before)s::bigint,
  p_limit => %(limit)s::int)
