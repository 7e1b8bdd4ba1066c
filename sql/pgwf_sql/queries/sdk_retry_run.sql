select n, run_id
from pgwf_sdk.retry_run(p_run_id => %(run_id)s, p_by => %(by)s)
