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
  v_ended record;
begin
  with dropped as (
    delete from pgwf.lease as l where l.n = any (p_n)
    returning l.n, l.lease_id, l.lease_no, l.worker_id, l.need, l.singleton_key, l.capped
  )
  select
    array_agg(d.n) as n,
    array_agg(d.lease_id) as lease_ids,
    array_agg(d.lease_no) as lease_nos,
    array_agg(d.worker_id) as worker_ids,
    array_agg(d.singleton_key) filter (where d.singleton_key is not null) as keys,
    array_agg(d.need) filter (where d.capped) as needs
  into v_ended
  from dropped as d;
  perform pgwf._archive(
    p_n, v_ended.n, v_ended.lease_ids, v_ended.lease_nos, v_ended.worker_ids, p_outcome, p_worker_id, p_now);
  perform pgwf._let_go(p_n, p_outcome, p_now, p_skip, v_ended.keys, v_ended.needs);
end
$$;

-- Moves jobs to the archive, with what the leases p_leased, which were theirs, say of them. Locks each job row FOR
-- UPDATE, in n order, unless the caller did. Traces when trace is on.
create or replace function pgwf._archive(
  p_n bigint[],
  p_leased bigint[],
  p_lease_ids uuid[],
  p_lease_nos bigint[],
  p_worker_ids text[],
  p_outcome text,
  p_worker_id text,
  p_now timestamptz
)
returns void
language plpgsql
volatile
as $$
declare
  v_tracing boolean := pgwf._tracing();
begin
  with jobs as materialized (
    delete from pgwf.job as j where j.n = any (p_n) returning j.*
  ), ended as materialized (
    select j.*, l.lease_id, l.lease_no, coalesce(l.worker_id, p_worker_id) as worker_id
    from jobs as j
    left join unnest(p_leased, p_lease_ids, p_lease_nos, p_worker_ids) as l(n, lease_id, lease_no, worker_id)
      on l.n = j.n
  ), traced as (
    insert into pgwf.trace (event_at, event_type, job_id, lease_no, worker_id, input_data, output_data)
    select
      p_now,
      case p_outcome
        when 'completed' then 'complete_job'
        when 'cancelled' then 'job_cancel_archived'
        else 'job_expire_archived'
      end,
      e.job_id,
      e.lease_no,
      p_worker_id,
      '{}',
      jsonb_build_object(
        'next_need', e.need,
        'pending', e.pending,
        'singleton_key', e.singleton_key,
        'priority', e.priority,
        'available_at', e.available_at,
        'expires_at', e.expires_at,
        'lease_expiration_count', e.lapses,
        'consecutive_expirations', e.streak,
        'outcome', p_outcome,
        'completed_without_lease', e.lease_no is null,
        'created_at', e.created_at)
    from ended as e
    where v_tracing
  )
  insert into pgwf.archive (
    n, job_id, outcome, need, priority, singleton_key, wait_for, unmet, available_at, expires_at, lapses, cancel_at,
    cancel_by, cancel_reason, last_error, lease_id, lease_no, worker_id, created_at, archived_at)
  select
    e.n, e.job_id, p_outcome, e.need, e.priority, e.singleton_key, e.wait_for,
    case when e.pending > 0 then array(select w.child from pgwf.edge as w where w.waiter = e.n) end,
    e.available_at, e.expires_at, e.lapses, e.cancel_at, e.cancel_by, e.cancel_reason, e.last_error, e.lease_id,
    e.lease_no, e.worker_id, e.created_at, p_now
  from ended as e;
end
$$;

-- What the end of jobs sets free: L5 their waiters, L6 the keys their leases held, slots of limited needs.
create or replace function pgwf._let_go(
  p_n bigint[],
  p_outcome text,
  p_now timestamptz,
  p_skip boolean,
  p_keys text[],
  p_needs text[]
)
returns void
language plpgsql
volatile
as $$
begin
  -- Not in the statement that took the job rows: edges of waiters that registered before are seen here.
  perform pgwf._release_waiters(p_n, p_now, p_skip);
  if p_outcome = 'cancelled' then
    delete from pgwf.edge as e where e.waiter = any (p_n);
  end if;
  if p_keys is not null then
    perform pgwf._free_keys(p_keys);
  end if;
  if p_needs is not null then
    perform pgwf._wake_needs(p_needs);
  end if;
end
$$;

-- Completes leased jobs. L2 to L6: the deletions are what locks leases and jobs. Status by item: 'ok', 'lease_lost',
-- 'invalid', 'duplicate'.
create or replace function pgwf._complete(p_job_ids text[], p_lease_ids text[], p_worker_id text, p_now timestamptz)
returns table (ord int, status text)
language plpgsql
volatile
as $$
#variable_conflict use_column
declare
  v_items bigint[] := pgwf._numbers(p_job_ids);
  v_ended record;
begin
  with dropped as (
    delete from pgwf.lease as l
    using (
      -- In n order, whichever side the join begins with.
      select i.n, i.lease_id from unnest(v_items, p_lease_ids) as i(n, lease_id) order by i.n offset 0
    ) as given
    where l.n = given.n
      and l.n = any (v_items)
      and l.lease_id::text = given.lease_id
    returning l.n, l.lease_id, l.lease_no, l.worker_id, l.need, l.singleton_key, l.capped
  )
  select
    array_agg(d.n) as n,
    array_agg(d.lease_id) as lease_ids,
    array_agg(d.lease_no) as lease_nos,
    array_agg(d.worker_id) as worker_ids,
    array_agg(d.singleton_key) filter (where d.singleton_key is not null) as keys,
    array_agg(d.need) filter (where d.capped) as needs
  into v_ended
  from dropped as d;
  if v_ended.n is not null then
    perform pgwf._archive(
      v_ended.n, v_ended.n, v_ended.lease_ids, v_ended.lease_nos, v_ended.worker_ids, 'completed', p_worker_id, p_now);
    perform pgwf._let_go(v_ended.n, 'completed', p_now, false, v_ended.keys, v_ended.needs);
  end if;
  if cardinality(v_ended.n) = cardinality(p_job_ids) then
    return query select i.ord::int, 'ok' from generate_series(1, cardinality(p_job_ids)) as i(ord);
    return;
  end if;
  return query
  select
    i.ord::int,
    case
      when i.job_id is null or i.lease_id is null then 'invalid'
      when row_number() over (partition by i.job_id, i.lease_id order by i.ord) > 1 then 'duplicate'
      when e.n is not null then 'ok'
      else 'lease_lost'
    end
  from unnest(p_job_ids, p_lease_ids, v_items) with ordinality as i(job_id, lease_id, n, ord)
  left join unnest(v_ended.n, v_ended.lease_ids) as e(n, lease_id) on e.n = i.n and e.lease_id::text = i.lease_id
  order by i.ord;
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
  select k.items, k.statuses into v_items, v_status from pgwf._lock_leases(p_job_ids, p_lease_ids, true) as k;
  v_ok := pgwf._not_busy(
    array(select i.n from unnest(v_items, v_status) as i(n, status) where i.status = 'ok'));
  if cardinality(v_ok) > 0 then
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
  if p_busy_ok then
    return query
    select c.ord, p_job_ids[c.ord], c.status
    from pgwf._complete_free(p_job_ids, p_lease_ids, p_worker_id, pgwf._now()) as c;
  else
    return query
    select c.ord, p_job_ids[c.ord], c.status
    from pgwf._complete(p_job_ids, p_lease_ids, p_worker_id, pgwf._now()) as c;
  end if;
end
$$;
