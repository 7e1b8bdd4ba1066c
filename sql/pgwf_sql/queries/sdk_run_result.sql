select n, run_id, status, payload, encoding, finished_at, addressed_n
from pgwf_sdk.run_result(p_run_id => %(run_id)s)
