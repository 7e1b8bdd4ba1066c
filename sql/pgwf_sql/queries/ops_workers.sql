select
  w.worker_id,
  w.capabilities,
  w.build,
  w.started_at,
  w.heartbeat_at as last_seen_at,
  w.draining,
  w.heartbeat_at > pgwf._now() - make_interval(secs => %(live_seconds)s) as is_live,
  (select count(*) from pgwf.lease l where l.worker_id = w.worker_id and l.until > pgwf._now())::int as leases,
  w.slots
from pgwf.worker w
where not %(only_live)s::boolean or w.heartbeat_at > pgwf._now() - make_interval(secs => %(live_seconds)s)
order by w.heartbeat_at desc, w.worker_id
limit %(limit)s
