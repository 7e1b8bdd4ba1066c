select n, lost, unread, cancel, paused
from pgwf_sdk.keepalive(
  p_worker_id => %(worker_id)s::text,
  p_n => %(n)s::bigint[],
  p_lease_ids => %(lease_ids)s::uuid[],
  p_inbox_seen => %(inbox_seen)s::bigint[],
  p_lease_seconds => %(lease_seconds)s::double precision
)
