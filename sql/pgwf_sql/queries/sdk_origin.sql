select r.workflow, r.seed
from pgwf_sdk.run as r
where r.run_id = %(run_id)s::text
