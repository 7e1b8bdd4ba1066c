-- Each status has a source of its own, so that a rare one is not looked for among all runs: the index of stored statuses,
-- leases, live jobs. Each gives its runs in order, newest first, and they are merged only until the page is full.
-- Those that are not asked for cost nothing (their conditions are constants of the call).
-- offset 0 keeps the planner from computing the view for every run before it joins.
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
  r.singleton_key
from (
  select c.n, c.parent_key
  from (
    (select r.* from pgwf_sdk.run r where %(are_all)s::boolean order by r.n desc)
    union all
    (
      select r.*
      from pgwf_sdk.attribute a
      join pgwf_sdk.run r on r.n = a.n
      where a.name = (%(attribute_names)s::text[])[1]
        and (a.value #>> '{}') = ((%(attribute_values)s::jsonb[])[1] #>> '{}')
      order by a.n desc
    )
    union all
    (select r.* from pgwf_sdk.run r where r.status = 'failed' and 'failed' = any (%(rare)s::text[]) order by r.n desc)
    union all
    (select r.* from pgwf_sdk.run r where r.status = 'cancelled' and 'cancelled' = any (%(rare)s::text[]) order by r.n desc)
    union all
    (select r.* from pgwf_sdk.run r where r.status = 'terminated' and 'terminated' = any (%(rare)s::text[]) order by r.n desc)
    union all
    (select r.* from pgwf_sdk.run r where r.status = 'continued' and 'continued' = any (%(rare)s::text[]) order by r.n desc)
    union all
    (select r.* from pgwf_sdk.run r where r.status = 'paused' and 'paused' = any (%(rare)s::text[]) order by r.n desc)
    union all
    (select r.* from pgwf_sdk.run r where r.status = 'blocked' and 'blocked' = any (%(rare)s::text[]) order by r.n desc)
    union all
    (
      select r.*
      from pgwf.archive a
      join pgwf_sdk.run r on r.n = a.n
      where a.outcome = 'cancelled' and r.status is null and 'terminated' = any (%(rare)s::text[])
      order by a.n desc
    )
    union all
    (
      select r.*
      from pgwf.lease l
      join pgwf_sdk.run r on r.n = l.n
      where r.status is null
        and case when l.until > pgwf._now() then 'running' = any (%(rare)s::text[])
          else 'crash_concern' = any (%(rare)s::text[]) and not %(is_live)s::boolean end
        and %(rare)s::text[] && array['running', 'crash_concern']
      order by l.n desc
    )
    union all
    (
      select r.*
      from pgwf.job j
      join pgwf_sdk.run r on r.n = j.n
      where j.shelved and r.status is null and 'crash_concern' = any (%(rare)s::text[]) and not %(is_live)s::boolean
        and not exists (select from pgwf.lease l where l.n = j.n)
      order by j.n desc
    )
    union all
    (
      select r.*
      from pgwf.job j
      join pgwf_sdk.run r on r.n = j.n
      where r.status is null and %(is_live)s::boolean
        and not exists (select from pgwf.lease l where l.n = j.n and l.until > pgwf._now())
      order by j.n desc
    )
  ) c
  where (%(before)s::bigint is null or c.n < %(before)s::bigint)
    and (not %(is_root)s::boolean or c.parent is null)
    and (%(workflows)s::text[] is null or c.workflow = any (%(workflows)s::text[]))
    and (%(not_workflows)s::text[] is null or c.workflow <> all (%(not_workflows)s::text[]))
    and (%(attribute_names)s::text[] is null or not exists (
      select from unnest(%(attribute_names)s::text[], %(attribute_values)s::jsonb[]) w(name, value)
      where not exists (
        select from pgwf_sdk.attribute a where a.n = c.n and a.name = w.name and (a.value #>> '{}') = (w.value #>> '{}'))))
    and (%(builds)s::text[] is null or c.build = any (%(builds)s::text[]))
    and (%(id_prefix)s::text is null or starts_with(c.run_id, %(id_prefix)s::text))
    and (%(parent)s::text is null or c.parent = (select m.n from pgwf.name m where m.job_id = %(parent)s::text))
    and (%(root)s::text is null or c.root = (select m.n from pgwf.name m where m.job_id = %(root)s::text))
    and (%(younger_than)s::interval is null or c.created_at > pgwf._now() - %(younger_than)s::interval)
    and (%(older_than)s::interval is null or c.created_at < pgwf._now() - %(older_than)s::interval)
    and (%(longer_than)s::interval is null
      or coalesce(c.finished_at, pgwf._now()) - c.created_at > %(longer_than)s::interval)
    and (%(shorter_than)s::interval is null
      or coalesce(c.finished_at, pgwf._now()) - c.created_at < %(shorter_than)s::interval)
    and (%(statuses)s::text[] is null
      or coalesce(c.status, (select v.status from pgwf_sdk.runs v where v.n = c.n)) = any (%(statuses)s::text[]))
    and (%(not_statuses)s::text[] is null
      or coalesce(c.status, (select v.status from pgwf_sdk.runs v where v.n = c.n)) <> all (%(not_statuses)s::text[]))
    and (%(needs)s::text[] is null
      or case when c.finished_at is null then (select j.need from pgwf.job j where j.n = c.n) else c.need end
        = any (%(needs)s::text[]))
    and (%(not_needs)s::text[] is null
      or case when c.finished_at is null then (select j.need from pgwf.job j where j.n = c.n) else c.need end
        <> all (%(not_needs)s::text[]))
    and (%(workers)s::text[] is null
      or c.n = any (array(
        select l.n from pgwf.lease l where l.worker_id = any (%(workers)s::text[]) and l.until > pgwf._now())))
  order by c.n desc
  limit %(limit)s
) b
cross join lateral (select v.* from pgwf_sdk.runs v where v.n = b.n offset 0) r
order by b.n desc
