select
  r.run_id,
  r.status,
  case when r.encoding in (1, 2, 3) then convert_from(r.payload, 'UTF8') end as payload,
  r.encoding,
  r.finished_at
from pgwf_sdk.run_result(p_run_id => %(run_id)s) r
