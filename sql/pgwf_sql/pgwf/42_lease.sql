-- Taking and keeping leases.

-- Lease up to p_limit_jobs runnable jobs whose next_need is one of p_worker_caps, for p_lease_seconds. Most urgent
-- first: by the time a job became ready plus aging_seconds per priority level, then by position. No rows when nothing
-- is runnable. A call that came back short, or finds the last sweep more than a second old, sweeps on the way.
-- Locks: the rows it hands out; never waits. Errors: 23502, WF001, WF020. With notify on, an empty call makes this
-- session LISTEN on the channel of each capability, from its commit on.
create or replace function pgwf.get_work(
  p_worker_id text,
  p_worker_caps text[],
  p_lease_seconds int default 60,
  p_limit_jobs int default 1
)
returns table (
  job_id text,
  lease_id text,
  next_need text,
  singleton_key text,
  wait_for text[],
  available_at timestamptz,
  lease_expires_at timestamptz,
  n bigint,
  lease_no bigint,
  priority int
)
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
  STEP constant interval := '20 ms';  -- A position is moved on at most so often.
  v_now timestamptz := pgwf._now();
  v_caps text := md5(p_worker_caps::text);
  v_found int := 0;
  v_moved int;
  v_position record;
  v_starts bigint[];
  v_claim record;
  v_need text;
begin
  if p_worker_id is null or current_setting('transaction_isolation') <> 'read committed' then
    perform pgwf._require_read_committed();
    perform pgwf._require_worker(p_worker_id);
  end if;
  if p_worker_caps is null or cardinality(pgwf._listed(p_worker_caps)) = 0 then
    perform pgwf._refuse('WF001', 'worker_caps cannot be empty', 'name at least one need this worker can serve');
  elsif p_lease_seconds is null or p_lease_seconds <= 0 then
    perform pgwf._refuse_nonpositive('lease_seconds', p_lease_seconds);
  elsif p_limit_jobs is null or p_limit_jobs <= 0 then
    perform pgwf._refuse_nonpositive('limit_jobs', p_limit_jobs);
  end if;

  select q.starts, q.made_at into v_position from pgwf.position as q where q.caps = v_caps order by q.gen desc limit 1;
  v_starts := coalesce(v_position.starts, '{}');
  for attempt in 1..2 loop
    v_claim := pgwf._claim(p_worker_id, p_worker_caps, p_limit_jobs - v_found, p_lease_seconds, v_now, v_starts);
    if v_claim.next_position is not null
      and (v_claim.is_whole or clock_timestamp() not between v_position.made_at and v_position.made_at + STEP)
    then
      insert into pgwf.position (caps, starts, made_at) values (v_caps, v_claim.next_position, clock_timestamp());
    end if;
    -- In a statement of its own: the claim may have leased a job that the statement around it is too old to see. Rows
    -- that are looked up one by one stay in the order of the list.
    return query
    select
      j.job_id, c.lease_id::text, j.need, j.singleton_key, '{}'::text[], j.available_at, v_claim.until, c.n, c.lease_no,
      j.priority::int
    from unnest(v_claim.n, v_claim.lease_ids, v_claim.lease_nos) as c(n, lease_id, lease_no)
    cross join lateral (
      select q.job_id, q.need, q.singleton_key, q.available_at, q.priority from pgwf.job as q where q.n = c.n offset 0) as j;
    v_found := v_found + cardinality(v_claim.n);
    exit when attempt = 2 or (v_found = p_limit_jobs and not pgwf._sweep_is_due(v_now));
    -- After the claim, never before: a sweep may hold job rows, and a claim waits for nobody.
    v_moved := pgwf.sweep(p_worker_id);
    exit when v_found = p_limit_jobs or (v_moved = 0 and v_claim.is_whole);
    v_starts := '{}';  -- Who is told that there is no more has looked at everything.
  end loop;

  if v_found = 0 and (select s.notify_enabled from pgwf.setting as s where s.only_row) then
    foreach v_need in array array_remove(p_worker_caps, null) loop
      execute format('listen %I', pgwf.channel('need.' || v_need));
    end loop;
  end if;
end
$$;

-- Lease this one job, past its turn: for people, who choose what they work on. Its lapse is not counted as a crash.
-- Limits of the need do not apply, nor does a rate of the key. p_worker_caps, if given, must offer the job's need.
-- Locks: the job row FOR UPDATE, its key. Errors: 23502, WF001, WF004 unknown, WF005 not READY, WF006 its key is
-- held, WF010 finished, WF020.
create or replace function pgwf.lease_job(
  p_job_id text,
  p_worker_id text,
  p_worker_caps text[] default null,
  p_lease_seconds int default 60
)
returns table (job_id text, lease_id text, next_need text, lease_expires_at timestamptz, n bigint, lease_no bigint)
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
  v_now timestamptz := pgwf._now();
  v_job pgwf.job;
  v_place text;
begin
  perform pgwf._require_read_committed();
  perform pgwf._require_worker(p_worker_id);
  if p_lease_seconds is null or p_lease_seconds <= 0 then
    perform pgwf._refuse_nonpositive('lease_seconds', p_lease_seconds);
  end if;
  v_job := pgwf._lock_unheld(p_job_id, v_now, 'lease');
  v_job := pgwf._end_lapsed(v_job.n, p_worker_id, v_now);
  if v_job.shelved or v_job.expires_at <= v_now then
    perform pgwf._refuse('WF005', format('job %s is not available to lease: it is %s', p_job_id,
      case when v_job.shelved then 'CRASH_CONCERN' else 'EXPIRED' end));
  elsif not v_job.need = any (coalesce(p_worker_caps, array[v_job.need])) then
    perform pgwf._refuse(
      'WF005', format('job %s needs %s, this worker offers %s', p_job_id, v_job.need, p_worker_caps));
  elsif exists (select from pgwf.need_setting as s where s.need = v_job.need and s.paused) then
    perform pgwf._refuse('WF005', format('job %s is not available to lease: need %s is paused', p_job_id, v_job.need));
  end if;
  v_place := pgwf._catch(v_job.n, v_now);
  if v_place = 'lease' then
    perform pgwf._refuse('WF005', format('job %s is not available to lease: it is ACTIVE', p_job_id));
  elsif (select r.places <= 0 from pgwf._key_room(v_job.singleton_key, v_now) as r) then
    perform pgwf._refuse('WF006', format('job %s: its singleton key %s is held', p_job_id, v_job.singleton_key));
  end if;
  insert into pgwf.held (singleton_key, n) select v_job.singleton_key, v_job.n where v_job.singleton_key is not null;
  insert into pgwf.lease (n, lease_id, lease_no, until, worker_id, leased_at, need, singleton_key, counted)
  values (
    v_job.n, gen_random_uuid(), nextval('pgwf.lease_no'), v_now + make_interval(secs => p_lease_seconds), p_worker_id,
    v_now, v_job.need, v_job.singleton_key, false);
  if pgwf._tracing() then
    insert into pgwf.trace (event_at, event_type, n, lease_no, worker_id, input_data, output_data)
    select v_now, 'lease_job', v_job.n, l.lease_no, p_worker_id,
      jsonb_build_object('worker_caps', p_worker_caps, 'lease_seconds', p_lease_seconds),
      jsonb_build_object('lease_expires_at', l.until)
    from pgwf.lease as l
    where l.n = v_job.n;
  end if;
  return query
  select v_job.job_id, l.lease_id::text, l.need, l.until, l.n, l.lease_no from pgwf.lease as l where l.n = v_job.n;
end
$$;

-- L2. Finds and locks the callers' leases in n order. By item: the job's number and 'ok', 'lease_lost', 'invalid',
-- 'duplicate', or with p_busy_ok 'busy' (somebody else's call on that lease is in flight). Lease ids are compared as
-- the text in which they were handed out.
create or replace function pgwf._lock_leases(
  p_job_ids text[],
  p_lease_ids text[],
  p_busy_ok boolean,
  out items bigint[],
  out statuses text[]
)
language plpgsql
volatile
as $$
declare
  v_locked bigint[];  -- by item, not by job: one job may be given twice, with a good lease and with a lost one
begin
  items := pgwf._numbers(p_job_ids);
  if p_busy_ok then
    v_locked := array(
      select i.ord
      from (
        select q.* from unnest(items, p_lease_ids) with ordinality as q(n, lease_id, ord) order by q.n
      ) as i
      cross join lateral (
        select from pgwf.lease as l
        where l.n = i.n and l.lease_id::text = i.lease_id
        for no key update skip locked
      ) as l);
  else
    v_locked := array(
      select i.ord
      from (
        select q.* from unnest(items, p_lease_ids) with ordinality as q(n, lease_id, ord) order by q.n
      ) as i
      cross join lateral (
        select from pgwf.lease as l where l.n = i.n and l.lease_id::text = i.lease_id for no key update
      ) as l);
  end if;
  statuses := array(
    select case
      when i.job_id is null or i.lease_id is null then 'invalid'
      when row_number() over (partition by i.job_id, i.lease_id order by i.ord) > 1 then 'duplicate'
      when i.ord in (select k.ord from unnest(v_locked) as k(ord)) then 'ok'
      when p_busy_ok
        and exists (select from pgwf.lease as l where l.n = i.n and l.lease_id::text = i.lease_id offset 0)
      then 'busy'
      else 'lease_lost'
    end
    from unnest(p_job_ids, p_lease_ids, items) with ordinality as i(job_id, lease_id, n, ord)
    order by i.ord);
end
$$;

-- Extends leases, each to at least p_now + p_seconds; never shortens one. Status by item: 'ok', 'lease_lost',
-- 'cancelled', 'invalid' (NULL id), 'duplicate', and with p_busy_ok 'busy'. A lease past its time is still this
-- caller's until somebody takes it away.
create or replace function pgwf._extend(
  p_job_ids text[],
  p_lease_ids text[],
  p_seconds double precision,
  p_worker_id text,
  p_now timestamptz,
  p_busy_ok boolean default false
)
returns table (ord int, status text, until timestamptz)
language plpgsql
volatile
as $$
#variable_conflict use_column
declare
  v_lines record;
begin
  select k.items, k.statuses into v_lines from pgwf._lock_leases(p_job_ids, p_lease_ids, p_busy_ok) as k;
  return query
  with item as materialized (
    select
      i.ord,
      i.n,
      case
        when i.status = 'ok'
          and exists (select from pgwf.job as j where j.n = i.n and j.cancel_at is not null offset 0)
        then 'cancelled'
        else i.status
      end as status
    from unnest(v_lines.items, v_lines.statuses) with ordinality as i(n, status, ord)
  ), extended as (
    update pgwf.lease as l
    set until = greatest(l.until, p_now + make_interval(secs => p_seconds))
    where l.n = any (array(select i.n from item as i where i.status = 'ok'))
    returning l.n, l.lease_no, l.until
  ), traced as (
    insert into pgwf.trace (event_at, event_type, n, lease_no, worker_id, input_data, output_data)
    select
      p_now,
      'extend_lease',
      e.n,
      e.lease_no,
      p_worker_id,
      jsonb_build_object('additional_seconds', p_seconds),
      jsonb_build_object('previous_lease_expires_at', before.until, 'lease_expires_at', e.until)
    from extended as e
    cross join lateral (select l.until from pgwf.lease as l where l.n = e.n offset 0) as before
    where (select pgwf._tracing())
  )
  select i.ord::int, i.status, e.until
  from item as i
  full join extended as e on e.n = case when i.status = 'ok' then i.n end
  order by i.ord;
end
$$;

-- Keep a lease: it now ends p_additional_seconds from now, or later if it did already. Returns when.
-- A lease past its time is still the caller's until a sweep, a release or another lease takes it away.
-- Locks: the lease row. Errors: 23502, WF001, WF002 lease lost, WF003 cancelled, WF020.
create or replace function pgwf.extend_lease(
  p_job_id text,
  p_lease_id text,
  p_worker_id text,
  p_additional_seconds int default 60
)
returns timestamptz
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
as $$
declare
  v_result record;
begin
  perform pgwf._require_read_committed();
  perform pgwf._require_worker(p_worker_id);
  perform pgwf._require_lease_id(p_job_id, p_lease_id);
  if p_additional_seconds is null or not (p_additional_seconds > 0 and p_additional_seconds <= 1e10) then
    perform pgwf._refuse(
      'WF001', format('additional_seconds must be positive and at most 1e10, not %s', coalesce(p_additional_seconds::text, 'NULL')));
  end if;
  select e.status, e.until
  into v_result
  from pgwf._extend(
    array[p_job_id], array[p_lease_id], p_additional_seconds, p_worker_id, pgwf._now()) as e;
  if v_result.status = 'cancelled' then
    perform pgwf._refuse(
      'WF003', format('job %s is cancelled, its lease cannot be extended', p_job_id),
      'complete the job or stop working on it; it is archived when the lease ends');
  elsif v_result.status <> 'ok' then
    perform pgwf._refuse(
      'WF002', format('active lease not found for job %s with lease %s', p_job_id, p_lease_id),
      'another worker may have the job; stop working on it');
  end if;
  return v_result.until;
end
$$;

-- Keep many leases in one call. Answers one row per job in order: status 'ok', 'lease_lost', 'cancelled', 'invalid',
-- 'duplicate', 'busy'. With p_busy_ok the call skips leases somebody else's call has locked ('busy'), otherwise it
-- waits at most 100 ms for each (55P03: repeat with p_busy_ok). Locks: lease rows, in n order. Errors: 23502, WF001,
-- WF020, WF021.
create or replace function pgwf.extend_leases(
  p_worker_id text,
  p_job_ids text[],
  p_lease_ids text[],
  p_additional_seconds double precision default 60,
  p_busy_ok boolean default false
)
returns table (ord int, job_id text, status text, lease_expires_at timestamptz)
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
set lock_timeout = '100ms'
as $$
begin
  perform pgwf._require_read_committed();
  perform pgwf._require_worker(p_worker_id);
  perform pgwf._require_parallel(pgwf._bounds(p_job_ids), pgwf._bounds(p_lease_ids));
  if p_additional_seconds is null or not (p_additional_seconds > 0 and p_additional_seconds <= 1e10) then
    perform pgwf._refuse(
      'WF001', format('additional_seconds must be positive and at most 1e10, not %s', coalesce(p_additional_seconds::text, 'NULL')));
  end if;
  return query
  select e.ord, p_job_ids[e.ord], e.status, e.until
  from pgwf._extend(p_job_ids, p_lease_ids, p_additional_seconds, p_worker_id, pgwf._now(), p_busy_ok) as e;
end
$$;
