-- Calls on jobs that nobody holds.

-- Finds a job by id and locks its row FOR UPDATE; refuses unless it could be leased but for crash concern and expiry. It
-- may have a lease that is past its time (_end_lapsed); whether it is leased shows in _catch.
create or replace function pgwf._lock_unheld(p_job_id text, p_now timestamptz, p_verb text)
returns pgwf.job
language plpgsql
volatile
as $$
declare
  v_n bigint := pgwf._number(p_job_id, p_now);
  v_job pgwf.job;
begin
  select j.* into v_job from pgwf.job as j where j.n = v_n for update;
  perform pgwf._refuse_unheld(v_job, v_n, p_job_id, p_now, p_verb);
  return v_job;
end
$$;

-- The number of a job, NULL when nobody ever used the id. If its lease is past its time, the caller may end it.
create or replace function pgwf._number(p_job_id text, p_now timestamptz)
returns bigint
language plpgsql
volatile
as $$
declare
  v_n bigint;
begin
  perform pgwf._require_job_id(p_job_id);
  select nm.n into v_n from pgwf.name as nm where nm.job_id = p_job_id;
  if exists (select from pgwf.lease as l where l.n = v_n and l.until <= p_now) then
    -- Tried by a sweep; waited for here, where it is the first lock of the call.
    perform pg_advisory_xact_lock_shared(pgwf._threshold_lock());
  end if;
  return v_n;
end
$$;

-- Ends the lease of a job if that is past its time. L6, so the caller holds what it needs of L3 and L5, the job's row FOR
-- UPDATE. Returns the job as it is then.
create or replace function pgwf._end_lapsed(p_n bigint, p_worker_id text, p_now timestamptz)
returns pgwf.job
language plpgsql
volatile
as $$
declare
  v_job pgwf.job;
begin
  if exists (select from pgwf.lease as l where l.n = p_n and l.until <= p_now) then
    perform pgwf._lock_keys(array(
      select l.singleton_key from pgwf.lease as l where l.n = p_n and l.singleton_key is not null));
    perform pgwf._lapse(array[p_n], p_worker_id, p_now);
  end if;
  select j.* into v_job from pgwf.job as j where j.n = p_n;
  return v_job;
end
$$;

create or replace function pgwf._refuse_unheld(
  p_job pgwf.job,
  p_n bigint,
  p_job_id text,
  p_now timestamptz,
  p_verb text
)
returns void
language plpgsql
immutable
as $$
begin
  if p_n is null then
    perform pgwf._refuse('WF004', format('job %s is not available to %s: it does not exist', p_job_id, p_verb));
  elsif p_job.n is null then
    perform pgwf._refuse('WF010', format('job %s is not available to %s: it has already completed', p_job_id, p_verb));
  elsif p_job.cancel_at is not null then
    perform pgwf._refuse('WF003', format('job %s is not available to %s: it is cancelled', p_job_id, p_verb));
  elsif p_job.available_at > p_now then
    perform pgwf._refuse(
      'WF005', format('job %s is not available to %s: it waits until %s', p_job_id, p_verb, p_job.available_at));
  elsif p_job.pending > 0 then
    perform pgwf._refuse(
      'WF005', format('job %s is not available to %s: it waits for %s jobs', p_job_id, p_verb, p_job.pending));
  end if;
end
$$;

-- Change a job that nobody holds (READY, CRASH_CONCERN or EXPIRED) as reschedule_job changes a leased one.
-- Locks: the job FOR UPDATE, its dependencies FOR KEY SHARE; its key. Errors: 23502, WF001, WF003 cancelled, WF004
-- unknown, WF005 any other status, WF010 finished, WF011 unknown dependency, WF012 cycle, WF020. Wakes workers that
-- offer next_need.
create or replace function pgwf.reschedule_unheld_job(
  p_job_id text,
  p_worker_id text,
  p_next_need text,
  p_wait_for text[] default '{}',
  p_singleton_key text default null,
  p_available_at timestamptz default null
)
returns table (job_id text, next_need text, wait_for text[], singleton_key text, available_at timestamptz)
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
  v_now timestamptz := pgwf._now();
  v_wait_for text[] := pgwf._listed(p_wait_for);
  v_ords int[] := array_fill(1, array[cardinality(v_wait_for)]);
  v_children bigint[] := pgwf._numbers(v_wait_for);
  v_flaw text := pgwf._place_flaw(p_next_need, 3, p_singleton_key);
  v_status text;
  v_job pgwf.job;
  v_n bigint;
begin
  perform pgwf._require_read_committed();
  perform pgwf._require_worker(p_worker_id);
  if v_flaw is not null then
    perform pgwf._refuse(case when p_next_need is null then '23502' else 'WF001' end, v_flaw);
  end if;
  v_n := pgwf._number(p_job_id, v_now);
  if v_n is null then
    perform pgwf._refuse_unheld(null, v_n, p_job_id, v_now, 'reschedule');
  end if;
  -- Of the pass of L3 what comes before this job, and it: if it waits for jobs, whoever ends one of them wants its row,
  -- and must not be waited for behind it.
  perform pgwf._lock_jobs(array[v_n], array(select c.n from unnest(v_children) as c(n) where c.n < v_n));
  select j.* into v_job from pgwf.job as j where j.n = v_n;
  perform pgwf._refuse_unheld(v_job, v_n, p_job_id, v_now, 'reschedule');
  v_status := (pgwf._depend(array[v_n], array['ok'], v_ords, v_children, false))[1];
  if v_status = any ('{unknown,cycle}') then
    perform pgwf._refuse_reschedule(v_status, p_job_id, null, p_next_need, p_singleton_key, v_wait_for);
  end if;
  perform pgwf._end_lapsed(v_n, p_worker_id, v_now);
  if pgwf._catch(v_n, v_now) = 'lease' then
    perform pgwf._refuse('WF005', format('job %s is not available to reschedule: it is ACTIVE', p_job_id));
  end if;
  perform pgwf._trace_reschedule(
    array[v_n], array['ok'], array[p_next_need], array[p_singleton_key], array[p_available_at], v_ords, v_wait_for,
    p_worker_id, v_now);
  perform pgwf._rewrite(
    array[v_n], array['ok'], array[p_next_need], array[p_singleton_key], array[p_available_at], v_ords, v_children,
    v_now);
  perform pgwf._place(array[v_n], v_now);
  return query
  select j.job_id, j.need, pgwf._remaining(j.n, j.wait_for), j.singleton_key, j.available_at
  from pgwf.job as j
  where j.n = v_n;
end
$$;

-- Complete a job that nobody holds (READY, CRASH_CONCERN or EXPIRED) in one call. Returns true.
-- Locks: the job FOR UPDATE; its waiters; its key. Errors: 23502, WF003 cancelled, WF004 unknown, WF005 any other
-- status, WF010 finished, WF020. Wakes workers for waiters that became runnable and for the next job of its key.
create or replace function pgwf.complete_unheld_job(p_job_id text, p_worker_id text)
returns boolean
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
as $$
declare
  v_now timestamptz := pgwf._now();
  v_job pgwf.job;
begin
  perform pgwf._require_read_committed();
  perform pgwf._require_worker(p_worker_id);
  v_job := pgwf._lock_unheld(p_job_id, v_now, 'complete');
  -- The waiters before the key that _end_lapsed and _catch take: L5 before L6.
  perform pgwf._lock_waiters(array[v_job.n]);
  perform pgwf._end_lapsed(v_job.n, p_worker_id, v_now);
  if pgwf._catch(v_job.n, v_now) = 'lease' then
    perform pgwf._refuse('WF005', format('job %s is not available to complete: it is ACTIVE', p_job_id));
  end if;
  perform pgwf._end(array[v_job.n], null, 'completed', p_worker_id, v_now, false);
  return true;
end
$$;

-- Locks those of p_n that are there FOR NO KEY UPDATE, and returns them. Whoever ends a job holds it while waiting for its
-- waiters (L5 after L3), so while this waits for a row it holds none of a job that waits for jobs. A statement that finds a
-- row changed locks it before it looks at it again: only the end of a block that failed gives it back.
create or replace function pgwf._lock_to_wake(p_n bigint[])
returns bigint[]
language plpgsql
volatile
as $$
declare
  v_free bigint[];
  v_mine bigint[];
  v_busy bigint;
begin
  if cardinality(p_n) = 1 then
    return array(select j.n from pgwf.job as j where j.n = any (p_n) for no key update);
  end if;
  loop
    v_free := array(select j.n from pgwf.job as j where j.n = any (p_n) and j.pending = 0);
    v_busy := null;
    begin
      v_mine := array(
        select j.n
        from pgwf.job as j
        where j.n = any (v_free)
          and (j.pending = 0 or pgwf._refuse('40001', format('job %s has begun to wait', j.n)) is null)
        order by j.n
        for no key update);
      v_mine := v_mine || array(
        select j.n
        from pgwf.job as j
        where j.n = any (array(select i.n from unnest(p_n) as i(n) except select m.n from unnest(v_mine) as m(n)))
        for no key update skip locked);
      v_busy := (
        select j.n
        from pgwf.job as j
        where j.n = any (p_n)
          and j.n not in (select m.n from unnest(v_mine) as m(n))
        limit 1);
      if v_busy is null then
        return v_mine;
      end if;
      perform pgwf._refuse('40001', format('job %s is busy', v_busy));
    exception when serialization_failure then
      null;
    end;
    begin
      perform from pgwf.job as j where j.n = v_busy for no key update;
      perform pgwf._refuse('40001', format('job %s was waited for', v_busy));
    exception when serialization_failure then
      null;
    end;
  end loop;
end
$$;

-- Sleeping jobs become available now; leased, runnable and cancelled jobs are left alone. Answers one row per job in
-- order: status 'woken', 'unchanged', 'finished', 'unknown'. Locks: the job rows FOR NO KEY UPDATE, in n order, those
-- that wait for jobs last (_lock_to_wake). Errors: 23502, WF020.
-- Wakes workers for what became runnable.
create or replace function pgwf.wake_jobs(p_worker_id text, p_job_ids text[])
returns table (ord int, job_id text, status text)
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
as $$
declare
  v_now timestamptz := pgwf._now();
  v_items bigint[];
  v_there bigint[];
  v_woken bigint[];
begin
  perform pgwf._require_read_committed();
  perform pgwf._require_worker(p_worker_id);
  v_items := pgwf._numbers(p_job_ids);
  v_there := pgwf._lock_to_wake(v_items);
  v_woken := pgwf._wake_jobs(v_there, v_now);
  if pgwf._tracing() then
    insert into pgwf.trace (event_at, event_type, n, worker_id, output_data)
    select v_now, 'wake_jobs', j.n, p_worker_id, pgwf._job_facts(j)
    from pgwf.job as j
    where j.n = any (v_woken);
  end if;
  return query
  select
    i.ord::int,
    i.job_id,
    case
      when i.n is null then 'unknown'
      when i.n in (select w.n from unnest(v_woken) as w(n)) then 'woken'
      when i.n in (select t.n from unnest(v_there) as t(n)) then 'unchanged'
      else 'finished'
    end
  from unnest(p_job_ids, v_items) with ordinality as i(job_id, n, ord)
  order by i.ord;
end
$$;

-- Give a job another priority: 1 is most urgent, 4 least. A runnable job draws a new position; a leased job keeps its
-- lease and has the priority when it comes back. Locks: the job FOR UPDATE; its key. Errors: 23502, WF001, WF003
-- cancelled, WF004 unknown, WF010 finished, WF020. Wakes workers that offer its need, if it is runnable.
create or replace function pgwf.set_priority(p_job_id text, p_worker_id text, p_priority int)
returns void
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
as $$
declare
  v_now timestamptz := pgwf._now();
  v_n bigint;
  v_job pgwf.job;
  v_place text;
begin
  perform pgwf._require_read_committed();
  perform pgwf._require_worker(p_worker_id);
  if p_priority is null or p_priority not between 1 and 4 then
    perform pgwf._refuse('WF001', format('priority must be 1 (most urgent) to 4, not %s', p_priority));
  end if;
  v_n := pgwf._number(p_job_id, v_now);
  select j.* into v_job from pgwf.job as j where j.n = v_n for update;
  perform pgwf._refuse_absent(v_job, v_n, p_job_id, 'changed');
  if v_job.priority = p_priority then
    return;
  end if;
  perform pgwf._end_lapsed(v_n, p_worker_id, v_now);
  v_place := pgwf._catch(v_n, v_now);
  update pgwf.job set priority = p_priority where n = v_n;
  if v_place in ('timer', 'ready', 'parked') then
    perform pgwf._place(array[v_n], v_now);
  end if;
  if pgwf._tracing() then
    perform pgwf._trace(
      'set_priority', v_n, p_worker_id, null, jsonb_build_object('priority', p_priority),
      jsonb_build_object('previous_priority', v_job.priority), v_now);
  end if;
end
$$;

-- Refuses a job that is unknown, finished or cancelled.
create or replace function pgwf._refuse_absent(p_job pgwf.job, p_n bigint, p_job_id text, p_participle text)
returns void
language plpgsql
immutable
as $$
begin
  if p_n is null then
    perform pgwf._refuse('WF004', format('job %s does not exist', p_job_id));
  elsif p_job.n is null then
    perform pgwf._refuse('WF010', format('job %s has already completed and cannot be %s', p_job_id, p_participle));
  elsif p_job.cancel_at is not null and p_participle <> 'cancelled' then
    perform pgwf._refuse('WF003', format('job %s is cancelled and cannot be %s', p_job_id, p_participle));
  end if;
end
$$;
