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
  (select min(t.event_at) from pgwf.trace t where t.job_id = b.run_id and t.event_type = 'get_work') as first_leased_at
from pgwf_sdk.run b
join pgwf_sdk.runs r on r.n = b.n
where b.parent = %(n)s
order by b.n
limit %(limit)s
