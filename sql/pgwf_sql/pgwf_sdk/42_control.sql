-- Effect: locks what it takes to end a run: rows of its children that still run and of who is attached, leases and jobs; who
-- waits for them, before the run's key, which taking its job out of where it stands takes.
-- The caller holds the rows of the run and its parent.
create or replace function pgwf_sdk._lock_to_end(p_n bigint, out children bigint[], out seats bigint[])
language plpgsql volatile
as $$
declare
  v_parents bigint[] := array(select r.parent from pgwf_sdk.run r where r.n = p_n and r.parent is not null);
  v_attached bigint[] := pgwf_sdk._attached_to(array[p_n]);
begin
  -- Read under the run's lock: whoever starts a child or opens a task for the run takes it as well. Children have
  -- higher numbers than their parent, so this is still one pass in n order.
  children := array(select r.n from pgwf_sdk.run r where r.parent = p_n and r.finished_at is null);
  seats := pgwf_sdk._open_seats(array[p_n]);
  perform pgwf_sdk._lock_runs(children || v_attached);
  perform from pgwf.lease l where l.n = any (p_n || seats) order by l.n for no key update;
  perform pgwf._lock_jobs(p_n || v_parents || children || v_attached || seats, '{}');
  perform pgwf._lock_waiters(p_n || seats);
end
$$;

-- Effect: ends a run that is not over: its last entry, its job to the archive as cancelled, word to parent and children.
-- A long reason is cut, as long messages of errors are.
-- The caller holds the rows of the run and its parent.  Locks: rows of children and of runs that are attached, leases, jobs.
create or replace function pgwf_sdk._terminate(p_n bigint, p_by text, p_reason text, p_now timestamptz) returns void
language plpgsql volatile
as $$
declare
  v_held record := pgwf_sdk._lock_to_end(p_n);
  v_payload bytea := convert_to(jsonb_build_object(
    'type', 'pgwf_sdk:RunTerminatedError', 'message', format('terminated by %s: %s', coalesce(p_by, 'unknown'), coalesce(left(p_reason, 8000), 'no reason given'))
    )::text, 'UTF8');
begin
  perform pgwf._tell_holders(array[p_n]);
  insert into pgwf_journal.entry (n, seq, call, kind, phase, scope, name, occurrence, payload, encoding, recorded_at, lease_no, code)
  select p_n, pgwf_journal._head(p_n) + 1, 0, 1, 6, '', r.workflow, 1, v_payload, 1, p_now, null, null
  from pgwf_sdk.run r
  where r.n = p_n;
  perform pgwf_sdk._finish(array[p_n], array['terminated'], array[v_payload], array[1::smallint], v_held.children, v_held.seats, coalesce(p_by, 'unknown'), p_now);
end
$$;

-- Effect: the live end of a run's chain, its row, its parent's and those of who is attached locked, so that it can be ended.
-- Errors: WS002.
create or replace function pgwf_sdk._lock_family(p_n bigint) returns bigint
language plpgsql volatile
as $$
declare
  v_n bigint := p_n;
begin
  loop
    v_n := pgwf_sdk._live(v_n);
    perform pgwf_sdk._lock_runs(
      v_n || pgwf_sdk._attached_to(array[v_n]) || array(select r.parent from pgwf_sdk.run r where r.n = v_n and r.parent is not null));
    exit when not exists (select from pgwf_sdk.run r where r.n = v_n and r.successor is not null);
  end loop;
  return pgwf_sdk._lock_live(v_n);
end
$$;

-- Effect: ends a run at once, without running any more of its code: no cleanup, no compensation. A worker that holds it
-- is fenced out, and told at once. Its children are asked to cancel. Returns terminated, or the final status of a run that
-- is over.
-- Locks: run rows (parent, own, children), leases, jobs.  Errors: WS002.
create or replace function pgwf_sdk.terminate_run(p_run_id text, p_by text, p_reason text default null) returns text
language plpgsql volatile
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set enable_bitmapscan = off
set jit = off
set plan_cache_mode = force_generic_plan
as $$
declare
  v_n bigint := pgwf_sdk._lock_family(pgwf_sdk._number(p_run_id));
  v_status text;
begin
  select r.status into v_status from pgwf_sdk.run r where r.n = v_n and r.finished_at is not null;
  if v_status is not null then
    return v_status;
  end if;
  perform pgwf_sdk._terminate(v_n, p_by, p_reason, pgwf_sdk._now());
  return 'terminated';
end
$$;

-- Effect: whether nothing of a run was executed: no worker has it or lost it, its journal has its input only, no step of it
-- was tried, and none asked for another need than the one that the run is at home with. Workers see it alike.
create or replace function pgwf_sdk._is_unbegun(p_n bigint) returns boolean
language plpgsql stable
as $$
begin
  return exists (
      select from pgwf_sdk.run r join pgwf.job j on j.n = r.n and j.need = r.need
      where r.n = p_n and j.lapses = 0 and j.cancel_at is null)
    and not exists (select from pgwf.lease l where l.n = p_n)
    and not exists (select from pgwf_journal.entry e where e.n = p_n and e.seq > 1)
    and not exists (select from pgwf_sdk.attempt t where t.n = p_n);
end
$$;

-- Effect: ends a run as cancelled of which nothing was executed, with the entries that a worker would have written; false
-- when a worker has it after all.
-- The caller holds the rows of the run and its parent.  Locks: rows of runs that are attached, jobs.
create or replace function pgwf_sdk._cancel_unbegun(p_n bigint, p_request bytea, p_by text, p_now timestamptz) returns boolean
language plpgsql volatile
as $$
declare
  v_held record := pgwf_sdk._lock_to_end(p_n);
  v_asked jsonb := convert_from(p_request, 'UTF8');
  v_payload bytea;
begin
  -- A claim may be under way, for which taking the job out of where it stands waits.
  if not pgwf_sdk._is_unbegun(p_n) or pgwf._catch(p_n, p_now) = 'lease' then
    return false;
  end if;
  select convert_to(jsonb_build_object(
    'type', 'pgwf_sdk._errors:RunCancelled',
    'message', format('run %s was cancelled', r.run_id) || coalesce(' by ' || nullif(v_asked ->> 'by', ''), '') || coalesce(': ' || nullif(v_asked ->> 'reason', ''), ''),
    'attributes', jsonb_strip_nulls(v_asked - 'grace_seconds'))::text, 'UTF8')
  into v_payload
  from pgwf_sdk.run r
  where r.n = p_n;

  insert into pgwf_journal.entry (n, seq, call, kind, phase, scope, name, occurrence, payload, encoding, recorded_at, lease_no, code)
  select p_n, e.seq, 0, e.kind, e.phase, '', e.name, 1, e.payload, 1, p_now, null, null
  from pgwf_sdk.run r
  cross join lateral (values (2, 11, 2, 'cancel', p_request), (3, 1, 5, r.workflow, v_payload)) e(seq, kind, phase, name, payload)
  where r.n = p_n;
  perform pgwf_sdk._finish(array[p_n], array['cancelled'], array[v_payload], array[1::smallint], v_held.children, v_held.seats, p_by, p_now);
  return true;
end
$$;

-- Effect: asks a run to cancel. The run's code sees it at its next point of waiting and may clean up before it ends; it
-- is terminated if that takes longer than p_grace_seconds (NULL: 5 minutes) from when it saw it. Compensations take their time.
-- A run of which nothing was executed is over at once, whether or not there is a worker for it.
-- Returns requested, already_requested, or the final status of a run that is over: cancelled also when this call ended it.
-- Locks: the run row (of one to be ended its parent's before), then its job.  Errors: WS002, WS004.  Wake-ups: the run's;
-- of one that is ended, its parent and who waits for it.
create or replace function pgwf_sdk.cancel_run(
  p_run_id text, p_by text, p_reason text default null, p_grace_seconds double precision default null
) returns text
language plpgsql volatile
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set enable_bitmapscan = off
set jit = off
set plan_cache_mode = force_generic_plan
as $$
declare
  v_n bigint := pgwf_sdk._live(pgwf_sdk._number(p_run_id));
  v_is_unbegun boolean := pgwf_sdk._is_unbegun(v_n);
  v_by text := coalesce(p_by, 'unknown');
  v_request bytea;
begin
  if not p_grace_seconds between 0 and 1e9 then
    raise exception using
      errcode = 'WS004', message = format('cancel run %s: grace_seconds is %s, expected 0 to 1e9', p_run_id, p_grace_seconds);
  end if;
  v_n := case when v_is_unbegun then pgwf_sdk._lock_family(v_n) else pgwf_sdk._lock_live(v_n) end;
  if exists (select from pgwf_sdk.inbox i where i.n = v_n and i.kind = 11)
    or exists (select from pgwf_journal.entry e where e.n = v_n and e.kind = 11) then
    return coalesce((select r.status from pgwf_sdk.run r where r.n = v_n and r.finished_at is not null), 'already_requested');
  end if;
  v_request := convert_to((jsonb_build_object('by', p_by, 'reason', p_reason) || case
    when p_grace_seconds is null then '{}' else jsonb_build_object('grace_seconds', p_grace_seconds) end)::text, 'UTF8');
  if v_is_unbegun and pgwf_sdk._cancel_unbegun(v_n, v_request, v_by, pgwf_sdk._now()) then
    return 'cancelled';
  end if;
  if pgwf_sdk._send(v_n, 11::smallint, v_by, 2::smallint, v_request, 1::smallint) then
    return 'requested';
  end if;
  return (select r.status from pgwf_sdk.run r where r.n = v_n);
end
$$;

-- Effect: terminates runs whose cleanup after a cancel request has taken longer than its grace period; how many.
-- Locks: as terminate_run, one run after the other; runs of which somebody else has locked a row, or the key, or a job
-- that waits for one, are left for the next time.
-- Errors: none of its own.  Wake-ups: parents and children.
create or replace function pgwf_sdk.end_overdue(p_worker_id text, p_limit int default 100) returns int
language plpgsql volatile
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set enable_bitmapscan = off
set jit = off
set plan_cache_mode = force_generic_plan
as $$
declare
  v_run record;
  v_count int := 0;
begin
  for v_run in
    select r.n, r.parent, r.grace_until from pgwf_sdk.run r where r.grace_until <= pgwf_sdk._now() order by r.grace_until limit greatest(coalesce(p_limit, 0), 0)
  loop
    continue when v_run.parent is not null and not exists (
      select from pgwf_sdk.run r where r.n = v_run.parent for no key update skip locked);
    continue when not exists (
      select from pgwf_sdk.run r where r.n = v_run.n and r.grace_until is not null for no key update skip locked);
    -- Lease, job, who waits for it, key: in their order, and by try, as whoever has one may wait for another of them.
    continue when exists (select from pgwf.lease l where l.n = v_run.n) and not exists (
      select from pgwf.lease l where l.n = v_run.n for no key update skip locked);
    continue when exists (select from pgwf.job j where j.n = v_run.n) and cardinality(pgwf._with_free_waiters(array(
      select j.n from pgwf.job j where j.n = v_run.n for update skip locked))) = 0;
    continue when exists (
      select from pgwf.job j
      where j.n = v_run.n and not pg_try_advisory_xact_lock(pgwf._key_lock(j.singleton_key)));
    perform pgwf_sdk._terminate(v_run.n, p_worker_id, format('its cleanup was not done by %s, when the grace period was over',
      to_char(v_run.grace_until at time zone 'UTC', 'YYYY-MM-DD HH24:MI:SS "UTC"')), pgwf_sdk._now());
    v_count := v_count + 1;
  end loop;
  return v_count;
end
$$;

-- Effect: when the next grace period ends, or the next task is to be handed on; NULL: there is none.  Errors: none.
create or replace function pgwf_sdk.next_overdue() returns timestamptz
language plpgsql stable
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set enable_bitmapscan = off
set jit = off
set plan_cache_mode = force_generic_plan
as $$
begin
  return least(
    (select min(r.grace_until) from pgwf_sdk.run r where r.grace_until is not null),
    (select min(t.escalates_at) from pgwf_sdk.task t where t.state = 'open' and t.escalates_at is not null));
end
$$;

-- Effect: a run that is paused is not leased again until it is resumed; a worker that holds it is told at once, and
-- stops after the step it is at. Signals and results keep arriving. Returns paused, or the final status.  Locks: the run row, then its job.  Errors: WS002.
create or replace function pgwf_sdk.pause_run(p_run_id text, p_by text) returns text
language plpgsql volatile
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set enable_bitmapscan = off
set jit = off
set plan_cache_mode = force_generic_plan
as $$
declare
  v_n bigint := pgwf_sdk._lock_live(pgwf_sdk._number(p_run_id));
  v_status text;
begin
  update pgwf_sdk.run r set status = 'paused', note = 'paused by ' || coalesce(p_by, 'unknown')
  where r.n = v_n and r.finished_at is null and r.status is null;
  perform pgwf._lock_jobs(array[v_n], '{}');
  select r.status into v_status from pgwf_sdk.run r where r.n = v_n;
  if v_status = 'paused' then
    perform pgwf_sdk._park_for_ever(v_n, pgwf_sdk._now());
    perform pgwf._tell_holders(array[v_n]);
  end if;
  return v_status;
end
$$;

-- Effect: parks the job of a run for ever; one that a worker holds, when its lease ends in whatever way.  Of a run that has
-- not begun and waits for its start_at, that is kept for when it is resumed.
-- The caller holds the run row and the job row.
create or replace function pgwf_sdk._park_for_ever(p_n bigint, p_now timestamptz) returns void
language plpgsql volatile
as $$
declare
  v_start_at timestamptz := (
    select j.available_at
    from pgwf.job j
    where j.n = p_n and j.available_at > p_now and j.available_at < 'infinity' and pgwf_sdk._is_unbegun(p_n));
begin
  if exists (select from pgwf.job j where j.n = p_n and j.cancel_at is null) then
    if pgwf._catch(p_n, p_now) = 'timer' and v_start_at is not null then
      update pgwf_sdk.run r set held_until = v_start_at where r.n = p_n;
    end if;
    update pgwf.job j set available_at = 'infinity' where j.n = p_n;
  end if;
end
$$;

-- Effect: a paused or blocked run becomes leasable at once: its code is replayed and goes on from where it stood. One that
-- was paused before its start_at becomes so then.
-- Returns resumed, or the status of a run that is neither.  Locks: the run row, then its job.  Errors: WS002.
create or replace function pgwf_sdk.resume_run(p_run_id text, p_by text) returns text
language plpgsql volatile
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set enable_bitmapscan = off
set jit = off
set plan_cache_mode = force_generic_plan
as $$
declare
  v_n bigint := pgwf_sdk._lock_live(pgwf_sdk._number(p_run_id));
  v_held_until timestamptz := (select r.held_until from pgwf_sdk.run r where r.n = v_n);
  v_now timestamptz;
begin
  update pgwf_sdk.run r set status = null, note = null, held_until = null
  where r.n = v_n and r.status in ('paused', 'blocked');
  if not found then
    return (select r.status from pgwf_sdk.runs r where r.n = v_n);
  end if;
  delete from pgwf_sdk.blocked b where b.n = v_n;
  if cardinality(pgwf._lock_jobs(array[v_n], '{}')) > 0 then
    v_now := pgwf_sdk._now();
    if v_held_until > v_now then
      -- Somebody may have made its job available in the leasing core: then it stands somewhere, and is left there.
      update pgwf.job j set available_at = v_held_until where j.n = v_n and j.available_at = 'infinity' and j.cancel_at is null;
      if found then
        perform pgwf._place(array[v_n], v_now);
      end if;
      return 'resumed';
    end if;
    perform pgwf._wake_jobs(array[v_n], v_now);
    -- Still held since before the pause: it must not be parked for ever when that lease ends.
    update pgwf.job j set available_at = v_now where j.n = v_n and j.available_at = 'infinity';
  end if;
  return 'resumed';
end
$$;

-- Effect: a run that failed, was cancelled or terminated goes on as the next run of its chain: that takes over the journal
-- up to the entry that failed or cancelled it, without calls that were not finished by then, and tries again from there.
-- The old run is left as it is and points to its successor. A chain whose live end is another run than p_run_id and goes
-- on, or completed, was retried before: that end is returned.
-- Locks: the run row, then the new id.  Errors: WS002, WS005.  Wake-ups: workers that sleep on the run's home need.
create or replace function pgwf_sdk.retry_run(p_run_id text, p_by text) returns table (n bigint, run_id text)
language plpgsql volatile
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set enable_bitmapscan = off
set jit = off
set plan_cache_mode = force_generic_plan
as $$
declare
  v_old pgwf_sdk.run;
  v_n bigint := pgwf_sdk._lock_live(pgwf_sdk._number(p_run_id));
  v_now timestamptz := pgwf_sdk._now();
  v_new bigint;
begin
  select * into v_old from pgwf_sdk.run r where r.n = v_n;
  if v_old.status is null or v_old.status not in ('failed', 'cancelled', 'terminated') then
    if v_old.run_id <> p_run_id then
      return query select v_old.n, v_old.run_id;
      return;
    end if;
    raise exception using
      errcode = 'WS005',
      message = format('run %s cannot be retried: it is %s, expected failed, cancelled or terminated', p_run_id,
        (select r.status from pgwf_sdk.runs r where r.n = v_n));
  end if;

  v_new := pgwf_sdk._submit_next(v_n, v_old.need, p_by, v_now);
  perform pgwf_sdk._create_runs(array[v_new], array[j.job_id], array[v_old.workflow], array[v_old.need], array[e.payload], array[e.encoding],
    array[v_old.deadline], array[v_old.build], array[v_old.trace], array[null::bigint], array[null::text], p_by, v_now)
  from pgwf.job j
  cross join pgwf_journal.entry e
  where j.n = v_new and e.n = v_n and e.seq = 1;
  update pgwf_sdk.run r set seed = v_old.seed, chain = coalesce(v_old.chain, v_n) where r.n = v_new;
  update pgwf_sdk.run r set successor = v_new where r.n = v_n;
  perform pgwf_sdk._copy_journal(v_n, v_new, pgwf_sdk._retry_from(v_n));
  perform pgwf_sdk._copy_attributes(v_n, v_new);
  return query select r.n, r.run_id from pgwf_sdk.run r where r.n = v_new;
end
$$;

-- Effect: the number of the first entry that a retry of a run that is over does not take over: the one that failed or
-- cancelled it. The failed call is the last one whose error the run's own error tells of, or else the last thing that
-- happened; a failure that the code caught and left behind is part of the past. A cancellation is never repeated.
create or replace function pgwf_sdk._retry_from(p_n bigint) returns bigint
language sql stable
as $$
  with entries as (
    select e.seq, e.kind, e.phase, case when e.encoding in (1, 2) and e.phase in (3, 4) then convert_from(e.payload, 'UTF8') end as error
    from pgwf_journal.entry e
    where e.n = p_n and e.kind <> 12
  ), failures as (
    -- The end of what its error looks like in the run's own, as JSON, there perhaps behind the name of its class.
    select e.seq, coalesce(
        case when e.phase = 4 then 'WaitTimeoutError' end,
        nullif(substring(e.error from '"message":"((?:[^"\\]|\\.)*)"'), ''),
        substring(e.error from '"type":"([^"]*)"')) || '"' as trait
    from entries e
    where e.phase in (3, 4) and e.kind <> 1
  )
  select least(
    (select min(e.seq) from entries e where e.kind = 11),
    (
      -- From the first step on that was undone: what came later built on it.
      select min(d.seq)
      from pgwf_journal.entry u
      join pgwf_journal.entry d on d.n = u.n and d.kind = 2
        and pgwf_journal.entry_key(d.scope, d.kind, d.name, d.occurrence) = pgwf_sdk._said(u.payload) ->> 'undoes'
      where u.n = p_n and u.kind = 12 and u.phase = 1
    ),
    coalesce(
      (
        select max(f.seq)
        from failures f
        join entries e on e.kind = 1 and e.phase = 3
        where exists (select from unnest(array['"', ':', ': ']) p(prefix) where position(p.prefix || f.trait in e.error) > 0)
      ),
      (
        select f.seq from failures f
        where f.seq = (select max(e.seq) from entries e where e.kind <> 1)
      ),
      (select max(e.seq) from entries e)))
$$;

-- Effect: the entries of one journal before p_before into another that has its first entry only, without the calls that
-- were not finished by then and what was done after the code had left, numbered anew.
create or replace function pgwf_sdk._copy_journal(p_from bigint, p_to bigint, p_before bigint) returns void
language sql volatile
as $$
  insert into pgwf_journal.entry (n, seq, call, kind, phase, scope, name, occurrence, payload, encoding, recorded_at, lease_no, code)
  select p_to, 1 + row_number() over (order by e.seq), e.call, e.kind, e.phase, e.scope, e.name, e.occurrence, e.payload, e.encoding,
    e.recorded_at, null, e.code
  from (
    select x.*, bool_or(x.phase between 2 and 5) over (partition by x.scope, x.call) as is_finished
    from pgwf_journal.entry x
    where x.n = p_from and x.seq > 1 and x.seq < p_before and x.kind not in (1, 11, 12)
  ) e
  where e.is_finished
$$;
