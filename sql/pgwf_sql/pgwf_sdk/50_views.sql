-- The clock stands in FROM as a function: so it is read once a statement, and the planner still sees through the view.

-- Runs as people see them. The stored status wins; otherwise the job and its lease tell, as in pgwf.jobs_with_status: a
-- lease that has ended counts as lapsed before a sweep has seen it.
create or replace view pgwf_sdk.runs as
select
  r.run_id,
  r.n,
  r.workflow,
  r.need,
  j.need as current_need,
  case
    when r.status is not null then r.status
    when j.n is null then 'terminated'
    when l.until > clock.now then 'running'
    when j.available_at > clock.now then 'waiting'
    when j.shelved or (lapse.pending = 1 and j.streak + 1 > s.crash_concern_threshold) then 'crash_concern'
    else 'ready'
  end as status,
  r.build,
  (select p.run_id from pgwf_sdk.run p where p.n = r.parent) as parent_run_id,
  (select p.run_id from pgwf_sdk.run p where p.n = r.root) as root_run_id,
  (select s.run_id from pgwf_sdk.run s where s.n = r.successor) as successor_run_id,
  coalesce(j.priority, a.priority)::int as priority,
  (select coalesce(max(e.seq), 0) from pgwf_journal.entry e where e.n = r.n) as entry_count,
  case when l.until > clock.now then l.worker_id end as worker_id,
  case when l.until > clock.now then l.until end as lease_until,
  j.available_at,
  r.deadline,
  r.created_at,
  r.finished_at,
  coalesce(j.lapses + lapse.pending, a.lapses) as lapses,
  coalesce(j.streak + lapse.pending, 0) as streak,
  (select coalesce(sum(t.no), 0)::int from pgwf_sdk.attempt t where t.n = r.n) as attempts,
  r.note,
  r.trace,
  r.started_by,
  (select f.run_id from pgwf_sdk.run f where f.n = r.fork_of) as fork_of_run_id,
  r.fork_before,
  coalesce((select jsonb_object_agg(x.name, x.value) from pgwf_sdk.attribute x where x.n = r.n), '{}') as attributes,
  coalesce(j.singleton_key, a.singleton_key) as singleton_key
from pgwf_sdk.run r
cross join pgwf_sdk._now() clock(now)
cross join pgwf.setting s
left join pgwf.job j on j.n = r.n
left join pgwf.lease l on l.n = r.n
cross join lateral (select (case when l.counted and l.until <= clock.now then 1 else 0 end) as pending) lapse
left join pgwf.archive a on a.n = r.n and j.n is null;

-- Human tasks; holder and claim_until only while the claim lasts.
create or replace view pgwf_sdk.tasks as
select
  t.task_id,
  r.run_id,
  t.n as run_n,
  t.key,
  t.name,
  coalesce(t.title, t.name) as title,
  t.need,
  convert_from(t.subject, 'UTF8') as subject,
  t.decision_schema,
  t.prefill,
  t.assigned,
  t.excluded,
  case when t.state = 'open' and l.until > clock.now then 'claimed' else t.state end as state,
  case when t.state <> 'open' or l.until > clock.now then s.holder end as holder,
  case when t.state = 'open' and l.until > clock.now then l.until end as claim_until,
  t.due_at,
  t.expires_at,
  convert_from(t.decision, 'UTF8') as decision,
  t.decided_by,
  t.decided_at,
  t.created_at,
  t.state = 'open' as is_undecided,
  coalesce(t.first_need, t.need) as first_need,
  t.escalate_need,
  t.escalated_at
from pgwf_sdk.task t
cross join pgwf_sdk._now() clock(now)
join pgwf_sdk.run r on r.n = t.n
join pgwf_sdk.seat s on s.n = t.n and s.key = t.key
left join pgwf.lease l on l.n = s.seat;
