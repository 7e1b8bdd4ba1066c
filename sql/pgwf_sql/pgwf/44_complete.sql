-- The end of a job.

-- Ends jobs with one outcome (completed, cancelled, expired): lease and job go, the archive gets a row, waiters are
-- released, keys freed. With p_lease_ids only those that are leased so; without, the caller holds the leases (if any)
-- and FOR UPDATE the job rows, and has caught what is not leased. L2 and L3: the deletions lock, in n order. Then L5
-- and L6; with p_skip it waits for no waiter. Traces when trace is on. Wakes needs that got work or a free slot. Returns
-- the ended jobs with the leases they had.
create or replace function pgwf._end(
  p_n bigint[],
  p_lease_ids text[],
  p_outcome text,
  p_worker_id text,
  p_now timestamptz,
  p_skip boolean,
  out n bigint[],
  out lease_ids uuid[]
)
language plpgsql
volatile
as $$
#variable_conflict use_column
declare
  v_event_type text := case p_outcome
    when 'completed' then 'complete_job'
    when 'cancelled' then 'job_cancel_archived'
    else 'job_expire_archived'
  end;
  v_held pgwf.held[];
  v_needs text[];
begin
  with dropped as (
    delete from pgwf.lease as l
    where l.n = any (p_n)
      and (
        p_lease_ids is null
        or (l.n, l.lease_id::text) in (select i.n, i.lease_id from unnest(p_n, p_lease_ids) as i(n, lease_id)))
    returning l.n, l.lease_id, l.lease_no, l.worker_id, l.need, l.capped
  ), jobs as (
    -- An array, so that all leases are locked before the first job is.
    delete from pgwf.job as j
    where j.n = any (array(select d.n from dropped as d) || case when p_lease_ids is null then p_n end)
    returning j.*
  ), archived as (
    insert into pgwf.archive (
      n, job_id, outcome, need, priority, singleton_key, wait_for, unmet, available_at, expires_at, lapses, cancel_at,
      cancel_by, cancel_reason, last_error, lease_id, lease_no, worker_id, created_at, archived_at)
    select
      j.n, j.job_id, p_outcome, j.need, j.priority, j.singleton_key, j.wait_for,
      case when j.pending > 0 then array(select w.child from pgwf.edge as w where w.waiter = j.n) end,
      j.available_at, j.expires_at, j.lapses, j.cancel_at, j.cancel_by, j.cancel_reason, j.last_error, d.lease_id,
      d.lease_no, coalesce(d.worker_id, p_worker_id), j.created_at, p_now
    from jobs as j
    full join dropped as d on d.n = j.n  -- There is no lease without a job.
    returning n, lease_id, lease_no, singleton_key
  ), traced as (
    insert into pgwf.trace (event_at, event_type, n, lease_no, worker_id)
    select p_now, v_event_type, a.n, a.lease_no, p_worker_id
    from archived as a
    where (select s.trace_enabled from pgwf.setting as s where s.only_row)
  )
  select
    array_agg(a.n),
    array_agg(a.lease_id),
    -- A lease holds the key that its job has.
    array_agg((a.singleton_key, a.n)::pgwf.held) filter (where a.singleton_key is not null and a.lease_no is not null),
    (select array_agg(d.need) from dropped as d where d.capped)
  into n, lease_ids, v_held, v_needs
  from archived as a;
  if n is null then
    return;
  end if;
  -- Not in the statement that took the job rows: edges of waiters that registered before are seen here.
  if exists (select from pgwf.edge as e where e.child = any (_end.n)) then
    perform pgwf._release_waiters(n, p_now, p_skip);
  end if;
  if p_outcome = 'cancelled' then
    delete from pgwf.edge as e where e.waiter = any (_end.n);
  end if;
  if v_held is not null then
    perform pgwf._free_keys(v_held, p_now);
  end if;
  if v_needs is not null then
    perform pgwf._wake_needs(v_needs);
  end if;
end
$$;

-- Completes leased jobs. L2 to L6. Status by item: 'ok', 'lease_lost', 'invalid', 'duplicate'; NULL: all are 'ok'.
create or replace function pgwf._complete(p_job_ids text[], p_lease_ids text[], p_worker_id text, p_now timestamptz)
returns text[]
language plpgsql
volatile
as $$
declare
  v_items bigint[] := pgwf._numbers(p_job_ids);
  v_ended record;
begin
  v_ended := pgwf._end(v_items, p_lease_ids, 'completed', p_worker_id, p_now, false);
  if cardinality(v_ended.n) = cardinality(p_job_ids) then
    return null;
  end if;
  return array(
    select case
      when i.job_id is null or i.lease_id is null then 'invalid'
      when row_number() over (partition by i.job_id, i.lease_id order by i.ord) > 1 then 'duplicate'
      when e.n is not null then 'ok'
      else 'lease_lost'
    end
    from unnest(p_job_ids, p_lease_ids, v_items) with ordinality as i(job_id, lease_id, n, ord)
    left join unnest(v_ended.n, v_ended.lease_ids) as e(n, lease_id) on e.n = i.n and e.lease_id::text = i.lease_id
    order by i.ord);
end
$$;

-- The same without waiting for anybody: items whose lease, job, waiters or key others have locked are 'busy'.
-- Everything is locked before anything is deleted.
create or replace function pgwf._complete_free(
  p_job_ids text[],
  p_lease_ids text[],
  p_worker_id text,
  p_now timestamptz
)
returns text[]
language plpgsql
volatile
as $$
declare
  v_items bigint[];
  v_status text[];
  v_ok bigint[];
begin
  select k.items, k.statuses into v_items, v_status from pgwf._lock_leases(p_job_ids, p_lease_ids, true) as k;
  v_ok := pgwf._not_busy(
    array(select i.n from unnest(v_items, v_status) as i(n, status) where i.status = 'ok'));
  if cardinality(v_ok) > 0 then
    perform pgwf._end(v_ok, null, 'completed', p_worker_id, p_now, false);
  end if;
  return array(
    select case when i.status = 'ok' and i.n not in (select o.n from unnest(v_ok) as o(n)) then 'busy' else i.status end
    from unnest(v_items, v_status) with ordinality as i(n, status, ord)
    order by i.ord);
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
  v_status := (pgwf._complete(array[p_job_id], array[p_lease_id], p_worker_id, pgwf._now()))[1];
  if v_status is not null then
    perform pgwf._refuse(
      'WF002', format('job %s is not actively leased by %s with lease %s', p_job_id, p_worker_id, p_lease_id),
      'it was completed before, or another worker may have it; either way this lease is over');
  end if;
  return true;
end
$$;

-- Complete many leased jobs in one call. Answers one row per job in order: status 'ok', 'lease_lost', 'invalid',
-- 'duplicate', 'busy'. Waits at most 100 ms for a row (55P03: repeat with p_busy_ok, which leaves out, as 'busy',
-- jobs whose row, waiters or key others have locked). Locks and wake-ups as complete_job. Errors: 23502, WF001,
-- WF020, WF021.
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
declare
  v_status text[];
begin
  if p_worker_id is null
    or current_setting('transaction_isolation') <> 'read committed'
    or (
      array_ndims(p_job_ids) = 1 and array_lower(p_job_ids, 1) = 1 and array_dims(p_job_ids) = array_dims(p_lease_ids)
    ) is not true
  then
    perform pgwf._require_read_committed();
    perform pgwf._require_worker(p_worker_id);
    perform pgwf._require_parallel(pgwf._bounds(p_job_ids), pgwf._bounds(p_lease_ids));
  end if;
  if p_busy_ok then
    v_status := pgwf._complete_free(p_job_ids, p_lease_ids, p_worker_id, pgwf._now());
  else
    v_status := pgwf._complete(p_job_ids, p_lease_ids, p_worker_id, pgwf._now());
  end if;
  return query
  select i.ord::int, i.job_id, coalesce(i.status, 'ok')
  from unnest(p_job_ids, v_status) with ordinality as i(job_id, status, ord);
end
$$;
