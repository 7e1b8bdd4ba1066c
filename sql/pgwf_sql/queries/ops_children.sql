-- offset 0 keeps the planner from computing the view for every run there is before it joins.
select
  r.run_id,
  r.n,
  r.workflow,
  r.need,
  r.current_need,
  r.status,
  r.build,
  r.parent_run_id,
  b.parent_key,
  r.root_run_id,
  r.priority,
  r.entry_count,
  r.worker_id,
  r.lease_until,
  nullif(r.available_at, 'infinity') as available_at,
  nullif(r.deadline, 'infinity') as deadline,
  r.created_at,
  r.finished_at,
  r.lapses,
  r.streak,
  r.attempts,
  r.attributes,
  (select min(t.event_at) from pgwf.trace t where t.n = b.n and t.event_type = 'get_work') as first_leased_at
from (
  select c.n, c.run_id, c.parent_key
  from pgwf_sdk.run c
  where c.parent = %(n)s
    and (%(parent_keys)s::text[] is null or c.parent_key = any (%(parent_keys)s::text[]))
  order by (%(parent_keys)s::text[] is not null and c.finished_at is not null), c.n
  limit %(limit)s
) b
cross join lateral (select v.* from pgwf_sdk.runs v where v.n = b.n offset 0) r
order by b.n
