-- What may be selected. A live job's status follows from its row and its lease alone, so that one snapshot gives
-- every job exactly one status. The clock is read once per statement; reading it for each row would let it move
-- between rows. Sub-selects instead of helper functions: a view reads tables with its owner's rights, a function with
-- the reader's.

-- A reader locks a view before the view beneath it. Replaced from below, the two would deadlock with him; so they are
-- locked from above, by a change that changes nothing (lock table would lock the tables as well).
alter view if exists pgwf.jobs_friendly_status reset (security_barrier);
alter view if exists pgwf.jobs reset (security_barrier);

create or replace view pgwf.jobs_with_status as
with clock as materialized (
  select pgwf._now() as now
)
select
  j.job_id,
  j.need as next_need,
  case
    when j.wait_for is null then '{}'::text[]
    else array(
      select child.job_id
      from pgwf.edge as e
      join pgwf.job as child on child.n = e.child
      where e.waiter = j.n
      order by array_position(j.wait_for, e.child))
  end as wait_for,
  j.singleton_key,
  j.available_at,
  j.expires_at,
  l.lease_id::text as lease_id,
  l.until as lease_expires_at,
  j.lapses + lapse.pending as lease_expiration_count,
  j.streak + lapse.pending as consecutive_expirations,
  j.created_at,
  j.cancel_at is not null as cancel_requested,
  j.cancel_at as cancelled_at,
  j.cancel_by as cancelled_by,
  j.cancel_reason,
  j.n,
  j.priority::int as priority,
  j.last_error,
  l.worker_id as leased_by,
  l.leased_at,
  l.lease_no,
  case
    when l.until > clock.now then 'ACTIVE'
    when j.cancel_at is not null then 'CANCELLED'
    when j.available_at > clock.now then 'AWAITING_FUTURE'
    when j.pending > 0 then 'PENDING_JOBS'
    when j.shelved or (lapse.pending = 1 and j.streak + 1 > s.crash_concern_threshold) then 'CRASH_CONCERN'
    when j.expires_at <= clock.now then 'EXPIRED'
    else 'READY'
  end as status
from pgwf.job as j
cross join clock
cross join pgwf.setting as s
left join pgwf.lease as l on l.n = j.n
-- A lease that has ended, although no sweep has counted it yet.
cross join lateral (select (l.counted and l.until <= clock.now) is true as ended) as q
cross join lateral (select q.ended::int as pending) as lapse;

create or replace view pgwf.jobs as
select
  job_id, next_need, wait_for, singleton_key, available_at, expires_at, lease_id, lease_expires_at,
  lease_expiration_count, consecutive_expirations, created_at, cancel_requested, cancelled_at, cancelled_by,
  cancel_reason, n, priority, last_error, leased_by, leased_at, lease_no
from pgwf.jobs_with_status;

create or replace view pgwf.jobs_friendly_status as
select
  job_id,
  status,
  created_at as creation_dt,
  case when status = 'PENDING_JOBS' then wait_for end as pending_jobs,
  case when status = 'AWAITING_FUTURE' then available_at end as sleep_until,
  case when status = 'ACTIVE' then leased_by end as worker_id,
  case when status = 'CANCELLED' then cancelled_at end as cancelled_at,
  case when status = 'CANCELLED' then cancelled_by end as cancelled_by,
  expires_at,
  lease_expiration_count,
  consecutive_expirations
from pgwf.jobs_with_status;

create or replace view pgwf.jobs_archive as
select
  a.job_id,
  a.need as next_need,
  array(
    select coalesce(live.job_id, ended.job_id)
    from unnest(a.unmet) with ordinality as i(n, ord)
    left join pgwf.job as live on live.n = i.n
    left join pgwf.archive as ended on ended.n = i.n
    order by i.ord
  ) as wait_for,
  a.singleton_key,
  a.created_at,
  a.expires_at,
  a.lease_id::text as lease_id,
  a.lapses as lease_expiration_count,
  0 as consecutive_expirations,
  a.archived_at,
  a.cancel_at is not null as cancel_requested,
  a.cancel_at as cancelled_at,
  a.cancel_by as cancelled_by,
  a.cancel_reason,
  a.n,
  a.outcome,
  a.priority::int as priority,
  a.available_at,
  a.last_error,
  a.worker_id,
  a.lease_no
from pgwf.archive as a;

create or replace view pgwf.jobs_trace as
select
  t.trace_id,
  nm.job_id,
  t.event_type,
  t.worker_id,
  t.event_at,
  case
    when t.event_type = 'submit_job' then jsonb_build_object(
      'next_need', t.need,
      'wait_for', array(
        select coalesce(live.job_id, ended.job_id)
        from unnest(t.wait_for) with ordinality as i(n, ord)
        left join pgwf.job as live on live.n = i.n
        left join pgwf.archive as ended on ended.n = i.n
        order by i.ord
      ),
      'singleton_key', t.singleton_key,
      'priority', t.priority,
      'available_at', t.available_at,
      'expires_at', t.expires_at)
    else coalesce(t.input_data, '{}')
  end as input_data,
  case
    when t.event_type = 'submit_job' then jsonb_build_object(
      'next_need', t.need,
      'pending', coalesce(t.pending, 0),
      'singleton_key', t.singleton_key,
      'priority', t.priority,
      'available_at', coalesce(t.available_at, t.event_at),
      'expires_at', t.expires_at,
      'lease_expiration_count', 0,
      'consecutive_expirations', 0)
    when a.n is not null then jsonb_build_object(
      'next_need', a.need,
      'pending', coalesce(cardinality(a.unmet), 0),
      'singleton_key', a.singleton_key,
      'priority', a.priority,
      'available_at', a.available_at,
      'expires_at', a.expires_at,
      'lease_expiration_count', a.lapses,
      'outcome', a.outcome,
      'completed_without_lease', a.lease_no is null,
      'created_at', a.created_at)
    else t.output_data
  end as output_data,
  t.lease_no
from pgwf.trace as t
left join pgwf.name as nm on nm.n = t.n
left join pgwf.archive as a
  on a.n = t.n and t.event_type in ('complete_job', 'job_cancel_archived', 'job_expire_archived');

-- How each job ended for which p_job_id was last told to wait, in the given order: outcome 'completed', 'cancelled',
-- 'expired'; NULL while it still has to end, 'forgotten' once retention removed it. Works for live and finished jobs.
-- Locks nothing. No rows for an unknown job.
create or replace function pgwf.job_dependencies(p_job_id text)
returns table (job_id text, outcome text, ended_at timestamptz)
language sql
stable
set search_path = pg_catalog, pg_temp
as $$
  select
    coalesce(j.job_id, a.job_id),
    case
      when a.n is not null then a.outcome
      when j.n is null then 'forgotten'
      when j.cancel_at is not null and l.n is null then 'cancelled'
    end,
    case
      when a.n is not null then a.archived_at
      when j.cancel_at is not null and l.n is null then j.cancel_at
    end
  from pgwf.name as nm
  left join pgwf.job as waiter on waiter.n = nm.n
  left join pgwf.archive as ended on ended.n = nm.n
  cross join lateral unnest(coalesce(waiter.wait_for, ended.wait_for)) with ordinality as i(n, ord)
  left join pgwf.job as j on j.n = i.n
  left join pgwf.lease as l on l.n = i.n
  left join pgwf.archive as a on a.n = i.n
  where nm.job_id = p_job_id
  order by i.ord
$$;
