select
  pg_snapshot_xmin(pg_current_snapshot()) >= %(xid)s::xid8 as is_seen_by_all,
  case when o.wakeup_at < 'infinity' then extract(epoch from o.wakeup_at - pgwf._now())::float8 end as wakeup_seconds
from (select pgwf.next_wakeup(p_worker_caps => %(worker_caps)s::text[]) as wakeup_at) o
