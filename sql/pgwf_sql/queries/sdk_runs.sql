select
  r.run_id,
  r.n,
  r.workflow,
  r.need,
  r.current_need,
  r.status,
  r.build,
  r.parent_run_id,
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
from pgwf_sdk.runs r
where (%(statuses)s::text[] is null or r.status = any (%(statuses)s))
  and (%(workflow)s::text is null or r.workflow = %(workflow)s)
  and (%(need)s::text is null or r.current_need = %(need)s)
  and r.parent_run_id is not distinct from %(parent_run_id)s::text
  and (%(before)s::bigint is null or r.n < %(before)s)
order by r.n desc
limit %(limit)s
