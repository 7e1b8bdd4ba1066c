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
  r.singleton_key,
  r.successor_run_id,
  case when before.status <> 'continued' then before.run_id end as retry_of_run_id,
  case when before.status = 'continued' then before.run_id end as continues_run_id
from pgwf_sdk.run b
cross join lateral (select v.* from pgwf_sdk.runs v where v.n = b.n offset 0) r
left join lateral (
  -- The first run of a chain does not name it.
  select p.run_id, p.status
  from pgwf_sdk.run p
  where p.n = coalesce(
    (select x.n from pgwf_sdk.run x where x.chain = b.chain and x.n < b.n order by x.chain desc, x.n desc limit 1), b.chain)
) before on true
where b.n = (
  select coalesce(
    (
      select x.n
      from pgwf_sdk.run x
      where x.chain = coalesce(o.chain, o.n) and %(is_chain)s::boolean
      order by x.chain desc, x.n desc
      limit 1
    ),
    o.n)
  from pgwf.name m
  join pgwf_sdk.run o on o.n = m.n
  where m.job_id = %(run_id)s)
