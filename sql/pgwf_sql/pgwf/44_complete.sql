-- The end of a job.

-- Ends jobs with one outcome (completed, cancelled, expired): lease and job go, the archive gets a row, waiters are
-- released, keys freed. The caller holds the leases (if any) and FOR UPDATE the job rows, and has caught what is not
-- leased. L5 and L6; with p_skip it waits for no waiter. Wakes needs that got work or a free slot.
create or replace function pgwf._end(
  p_n bigint[],
  p_outcome text,
  p_worker_id text,
  p_now timestamptz,
  p_skip boolean default false
)
returns void
language plpgsql
volatile
as $$
declare
  v_keys text[];
  v_needs text[];
begin
  if pgwf._tracing() then
    insert into pgwf.trace (event_at, event_type, job_id, lease_no, worker_id, input_data, output_data)
    select
      p_now,
      case p_outcome
        when 'completed' then 'complete_job'
        when 'cancelled' then 'job_cancel_archived'
        else 'job_expire_archived'
      end,
      j.job_id,
      l.lease_no,
      p_worker_id,
      '{}',
      pgwf._job_facts(j)
        || jsonb_build_object('outcome', p_outcome, 'completed_without_lease', l.n is null, 'created_at', j.created_at)
    from pgwf.job as j
    left join pgwf.lease as l on l.n = j.n and l.n = any (p_n)
    where j.n = any (p_n);
  end if;
  with leases as materialized (
    delete from pgwf.lease as l where l.n = any (p_n)
    returning l.n, l.lease_id, l.lease_no, l.worker_id, l.need, l.singleton_key, l.capped
  ), jobs as materialized (
    delete from pgwf.job as j where j.n = any (p_n) returning j.*
  ), archived as (
    insert into pgwf.archive (
      n, job_id, outcome, need, priority, singleton_key, wait_for, unmet, available_at, expires_at, lapses, cancel_at,
      cancel_by, cancel_reason, last_error, lease_id, lease_no, worker_id, created_at, archived_at)
    select
      j.n, j.job_id, p_outcome, j.need, j.priority, j.singleton_key, j.wait_for,
      case when j.pending > 0 then array(select e.child from pgwf.edge as e where e.waiter = j.n) end,
      j.available_at, j.expires_at, j.lapses, j.cancel_at, j.cancel_by, j.cancel_reason, j.last_error, l.lease_id,
      l.lease_no, coalesce(l.worker_id, p_worker_id), j.created_at, p_now
    from jobs as j
    left join leases as l on l.n = j.n
  )
  select
    array_agg(l.singleton_key) filter (where l.singleton_key is not null),
    array_agg(distinct l.need) filter (where l.capped)
  into v_keys, v_needs
  from leases as l;

  -- In a new statement: edges of waiters that registered before we had the job rows.
  perform pgwf._release_waiters(p_n, p_now, p_skip);
  if p_outcome = 'cancelled' then
    delete from pgwf.edge as e where e.waiter = any (p_n);
  end if;
  perform pgwf._free_keys(v_keys);
  perform pgwf._wake_needs(v_needs);
end
$$;

-- Completes leased jobs. L2 to L6. Status by item: 'ok', 'lease_lost', 'invalid', 'duplicate', with p_busy_ok 'busy'.
create or replace function pgwf._complete(
  p_job_ids text[],
  p_lease_ids text[],
  p_worker_id text,
  p_now timestamptz,
  p_busy_ok boolean default false
)
returns table (ord int, status text)
language plpgsql
volatile
as $$
#variable_conflict use_column
declare
  v_items bigint[];
  v_status text[];
  v_ok bigint[];
begin
  select k.items, k.statuses into v_items, v_status from pgwf._lock_leases(p_job_ids, p_lease_ids, p_busy_ok) as k;
  v_ok := array(select i.n from unnest(v_items, v_status) as i(n, status) where i.status = 'ok');
  if cardinality(v_ok) > 0 then
    if p_busy_ok then
      v_ok := pgwf._not_busy(v_ok);
    else
      perform pgwf._lock_jobs(v_ok, '{}');
    end if;
    perform pgwf._end(v_ok, 'completed', p_worker_id, p_now);
  end if;
  return query
  select i.ord::int, case when i.status = 'ok' and i.n <> all (v_ok) then 'busy' else i.status end
  from unnest(v_items, v_status) with ordinality as i(n, status, ord)
  order by i.ord;
end
$$;

-- L3, L5 and L6 by try: of leased jobs, those whose own row, waiters and key are all locked by this transaction now.
create or replace function pgwf._not_busy(p_n bigint[])
returns bigint[]
language plpgsql
volatile
as $$
declare
  v_mine bigint[];
begin
  v_mine := array(select j.n from pgwf.job as j where j.n = any (p_n) order by j.n for update skip locked);
  return pgwf._try_keys(pgwf._with_free_waiters(v_mine));
end
$$;

-- Complete a leased job: it moves to the archive, the jobs that wait for it wait for one less, its key is free.
-- Allowed on a cancelled job. Returns true.
-- Locks: the lease; the job FOR UPDATE; its waiters; its key. Errors: 23502, WF002 lease lost, WF020.
-- Wakes workers for waiters that became runnable, for the next job of its key, and for a free slot of a limited need.
create or replace function pgwf.complete_job(p_job_id text, p_lease_id text, p_worker_id text)
returns boolean
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
as $$
declare
  v_status text;
begin
  perform pgwf._require_read_committed();
  perform pgwf._require_worker(p_worker_id);
  perform pgwf._require_lease_id(p_job_id, p_lease_id);
  v_status := (
    select c.status
    from pgwf._complete(array[p_job_id], array[p_lease_id], p_worker_id, pgwf._now()) as c);
  if v_status <> 'ok' then
    perform pgwf._refuse(
      'WF002', format('job %s is not actively leased by %s with lease %s', p_job_id, p_worker_id, p_lease_id),
      'it was completed before, or another worker may have it; either way this lease is over');
  end if;
  return true;
end
$$;

-- Complete many leased jobs in one call. Answers one row per job in order: status 'ok', 'lease_lost', 'invalid',
-- 'duplicate', 'busy'. Waits at most 100 ms for a row (55P03: repeat with p_busy_ok, which leaves out, as 'busy',
-- jobs whose row, waiters or key others have locked). Locks and wake-ups as complete_job. Errors: 23502, WF020,
-- WF021.
create or replace function pgwf.complete_jobs(
  p_worker_id text,
  p_job_ids text[],
  p_lease_ids text[],
  p_busy_ok boolean default false
)
returns table (ord int, job_id text, status text)
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
set lock_timeout = '100ms'
as $$
begin
  perform pgwf._require_read_committed();
  perform pgwf._require_worker(p_worker_id);
  perform pgwf._require_lengths(cardinality(p_job_ids), cardinality(p_lease_ids));
  return query
  select c.ord, p_job_ids[c.ord], c.status
  from pgwf._complete(p_job_ids, p_lease_ids, p_worker_id, pgwf._now(), p_busy_ok) as c;
end
$$;
