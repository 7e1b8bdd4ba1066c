select *
from pgwf_sdk.fork_price(p_run_id => %(run_id)s::text, p_before => %(before)s::text)
