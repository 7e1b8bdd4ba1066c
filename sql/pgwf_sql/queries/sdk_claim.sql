-- A claim that a crash of the server takes back is one that was never made: it need not wait for the disk. What the run
-- records does, and takes the claim there with it.
select a.*
from (select pg_catalog.set_config('synchronous_commit', 'off', true)) as not_durable
cross join lateral pgwf_sdk.advance(
  p_worker_id => %(worker_id)s::text,
  p_worker_caps => %(worker_caps)s::text[],
  p_slots => %(slots)s::int,
  p_lease_seconds => %(lease_seconds)s::double precision,
  p_position => %(position)s::bigint[]
) as a
