with recursive ready_needs as (
  (select r.need from pgwf.ready r order by r.need limit 1)
  union all
  select (select r.need from pgwf.ready r where r.need > n.need order by r.need limit 1)
  from ready_needs n
  where n.need is not null
), live_workers as (
  select w.worker_id, w.capabilities
  from pgwf.worker w
  where not w.draining and w.heartbeat_at > pgwf._now() - make_interval(secs => %(live_seconds)s)
), needs as (
  select n.need from ready_needs n where n.need is not null
  union
  select l.need from pgwf.lease l
  union
  select c.need from live_workers w cross join unnest(w.capabilities) c(need)
  union
  select s.need from pgwf.need_setting s
)
select
  n.need,
  (select count(*) from (
    select from pgwf.ready r where r.need = n.need limit %(count_max)s) counted)::int as ready,
  (select count(*) from pgwf.lease l where l.need = n.need and l.until > pgwf._now())::int as running,
  (select count(*) from live_workers w where n.need = any (w.capabilities))::int as workers,
  (select min(first.ready_at)
    from generate_series(1, 4) p(priority)
    cross join lateral (
      select r.ready_at from pgwf.ready r
      where r.need = n.need and r.priority = p.priority
      order by r.pos
      limit 1) first) as oldest_ready_at,
  coalesce(s.paused, false) as is_paused,
  s.max_active,
  s.rate
from needs n
left join pgwf.need_setting s on s.need = n.need
order by n.need
limit %(limit)s
