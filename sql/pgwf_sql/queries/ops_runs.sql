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
  r.attempts
from pgwf_sdk.run b
join pgwf_sdk.runs r on r.n = b.n
where (%(before)s::bigint is null or b.n < %(before)s::bigint)
  and (%(statuses)s::text[] is null or r.status = any (%(statuses)s::text[]))
  and (%(not_statuses)s::text[] is null or r.status <> all (%(not_statuses)s::text[]))
  and (%(workflows)s::text[] is null or b.workflow = any (%(workflows)s::text[]))
  and (%(not_workflows)s::text[] is null or b.workflow <> all (%(not_workflows)s::text[]))
  and (%(needs)s::text[] is null or coalesce(r.current_need, b.need) = any (%(needs)s::text[]))
  and (%(not_needs)s::text[] is null or coalesce(r.current_need, b.need) <> all (%(not_needs)s::text[]))
  and (%(workers)s::text[] is null or r.worker_id = any (%(workers)s::text[]))
  and (%(builds)s::text[] is null or b.build = any (%(builds)s::text[]))
  and (%(id_prefix)s::text is null or starts_with(b.run_id, %(id_prefix)s::text))
  and (not %(is_root)s::boolean or b.parent is null)
  and (%(parent)s::text is null or b.parent = (select m.n from pgwf.name m where m.job_id = %(parent)s::text))
  and (%(root)s::text is null or b.root = (select m.n from pgwf.name m where m.job_id = %(root)s::text))
  and (%(younger_than)s::interval is null or b.created_at > pgwf._now() - %(younger_than)s::interval)
  and (%(older_than)s::interval is null or b.created_at < pgwf._now() - %(older_than)s::interval)
  and (%(longer_than)s::interval is null
    or coalesce(b.finished_at, pgwf._now()) - b.created_at > %(longer_than)s::interval)
  and (%(shorter_than)s::interval is null
    or coalesce(b.finished_at, pgwf._now()) - b.created_at < %(shorter_than)s::interval)
order by b.n desc
limit %(limit)s
