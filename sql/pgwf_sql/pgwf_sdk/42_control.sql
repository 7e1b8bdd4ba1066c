-- Effect: ends a run at once, without running any more of its code: no cleanup, no compensation. A worker that holds it
-- is fenced out. Its children are asked to cancel. Returns terminated, or the final status of a run that is over.
-- Locks: run rows (own, parent, children), leases, jobs.  Errors: WS002.
create or replace function pgwf_sdk.terminate_run(p_run_id text, p_by text, p_reason text default null) returns text
language plpgsql volatile
set search_path = pg_catalog, pg_temp
as $$
declare
  v_n bigint := pgwf_sdk._number(p_run_id);
  v_now timestamptz := pgwf_sdk._now();
  v_parents bigint[] := array(select r.parent from pgwf_sdk.run r where r.n = v_n and r.parent is not null);
  v_children bigint[] := array(select r.n from pgwf_sdk.run r where r.parent = v_n and r.finished_at is null);
  v_seats bigint[] := pgwf_sdk._open_seats(array[v_n]);
  v_payload bytea := convert_to(jsonb_build_object(
    'type', 'pgwf_sdk:RunTerminatedError', 'message', format('terminated by %s: %s', coalesce(p_by, 'unknown'), coalesce(p_reason, 'no reason given')),
    'args', '[]'::jsonb)::text, 'UTF8');
  v_status text;
begin
  perform pgwf_sdk._lock_runs(v_n || v_parents || v_children);
  select r.status into v_status from pgwf_sdk.run r where r.n = v_n and r.finished_at is not null;
  if v_status is not null then
    return v_status;
  end if;
  perform from pgwf.lease l where l.n = any (v_n || v_seats) order by l.n for no key update;
  perform pgwf._lock_jobs(v_n || v_parents || v_children || v_seats, '{}');

  insert into pgwf_journal.entry (n, seq, call, kind, phase, scope, name, occurrence, payload, encoding, recorded_at, lease_no, code)
  select v_n, pgwf_journal._head(v_n) + 1, 0, 1, 6, '', r.workflow, 1, v_payload, 1, v_now, null, null
  from pgwf_sdk.run r
  where r.n = v_n;
  perform pgwf_sdk._finish(array[v_n], array['terminated'], array[v_payload], array[1::smallint], v_children, v_seats, coalesce(p_by, 'unknown'), v_now);
  return 'terminated';
end
$$;

-- Effect: a run that is paused is not leased again until it is resumed; a worker that holds it stops after the step it
-- is at. Signals and results keep arriving. Returns paused, or the final status.  Locks: the run row, then its job.  Errors: WS002.
create or replace function pgwf_sdk.pause_run(p_run_id text, p_by text) returns text
language plpgsql volatile
set search_path = pg_catalog, pg_temp
as $$
declare
  v_n bigint := pgwf_sdk._number(p_run_id);
  v_status text;
begin
  perform pgwf_sdk._lock_runs(array[v_n]);
  update pgwf_sdk.run r set status = 'paused', note = 'paused by ' || coalesce(p_by, 'unknown')
  where r.n = v_n and r.finished_at is null and r.status is null;
  perform pgwf._lock_jobs(array[v_n], '{}');
  perform pgwf_sdk._park_unheld(v_n);
  select r.status into v_status from pgwf_sdk.run r where r.n = v_n;
  return v_status;
end
$$;

-- Effect: parks the job of a run for ever unless a worker holds it.  The caller holds the run row and the job row.
create or replace function pgwf_sdk._park_unheld(p_n bigint) returns void
language plpgsql volatile
as $$
begin
  if not exists (select from pgwf.job j where j.n = p_n and j.cancel_at is null) or pgwf._catch(p_n) = 'lease' then
    return;
  end if;
  update pgwf.job j set available_at = 'infinity' where j.n = p_n;
  perform pgwf._place(array[p_n], pgwf_sdk._now());
end
$$;

-- Effect: a paused or blocked run becomes leasable at once: its code is replayed and goes on from where it stood.
-- Returns resumed, or the status of a run that is neither.  Locks: the run row, then its job.  Errors: WS002.
create or replace function pgwf_sdk.resume_run(p_run_id text, p_by text) returns text
language plpgsql volatile
set search_path = pg_catalog, pg_temp
as $$
declare
  v_n bigint := pgwf_sdk._number(p_run_id);
begin
  perform pgwf_sdk._lock_runs(array[v_n]);
  update pgwf_sdk.run r set status = null, note = null where r.n = v_n and r.status in ('paused', 'blocked');
  if not found then
    return (select r.status from pgwf_sdk.runs r where r.n = v_n);
  end if;
  delete from pgwf_sdk.blocked b where b.n = v_n;
  if cardinality(pgwf._lock_jobs(array[v_n], '{}')) > 0 then
    perform pgwf._wake_jobs(array[v_n], pgwf_sdk._now());
  end if;
  return 'resumed';
end
$$;

-- Effect: a run that failed, was cancelled or terminated goes on as a new run <root>~2, ~3 …: it takes over the journal
-- up to the entry that failed (calls that were opened but not finished start afresh) and tries again from there.
-- The old run is left as it is and points to its successor.  Locks: the run row.  Errors: WS002, WS005.
create or replace function pgwf_sdk.retry_run(p_run_id text, p_by text) returns table (n bigint, run_id text)
language plpgsql volatile
set search_path = pg_catalog, pg_temp
as $$
declare
  v_old pgwf_sdk.run;
  v_n bigint := pgwf_sdk._number(p_run_id);
  v_new bigint;
  v_base text := regexp_replace(p_run_id, '~[0-9]+$', '');
  v_turn int := coalesce(substring(p_run_id from '~([0-9]+)$')::int, 1) + 1;
begin
  perform pgwf_sdk._lock_runs(array[v_n]);
  select * into v_old from pgwf_sdk.run r where r.n = v_n;
  if v_old.successor is not null then
    return query select r.n, r.run_id from pgwf_sdk.run r where r.n = v_old.successor;
    return;
  end if;
  if v_old.status is null or v_old.status not in ('failed', 'cancelled', 'terminated') then
    raise exception using
      errcode = 'WS005',
      message = format('run %s cannot be retried: it is %s, expected failed, cancelled or terminated', p_run_id,
        (select r.status from pgwf_sdk.runs r where r.n = v_n));
  end if;

  select s.n into v_new
  from pgwf_sdk.start_run(v_base || '~' || v_turn, v_old.workflow, v_old.need,
    (select e.payload from pgwf_journal.entry e where e.n = v_n and e.seq = 1),
    (select e.encoding from pgwf_journal.entry e where e.n = v_n and e.seq = 1),
    3, null, v_old.deadline, v_old.build, v_old.trace, p_by) s;
  update pgwf_sdk.run r set seed = v_old.seed where r.n = v_new;
  update pgwf_sdk.run r set successor = v_new where r.n = v_n;

  -- A failed entry that the code caught is part of the past; the last one before the end is the one to try again.
  with entries as (
    select e.*, e.phase = 3 and e.seq = (
        select max(x.seq) from pgwf_journal.entry x where x.n = v_n and x.phase = 3 and x.kind <> 1) and v_old.status = 'failed' as failing,
      bool_or(e.phase between 2 and 5) over (partition by e.scope, e.call) as resolved
    from pgwf_journal.entry e
    where e.n = v_n and e.seq > 1 and e.kind not in (1, 11)
  ), kept as (
    select e.*, row_number() over (order by e.seq) as ord
    from entries e
    where e.resolved and not exists (select from entries f where f.failing and f.scope = e.scope and f.call = e.call)
  )
  insert into pgwf_journal.entry (n, seq, call, kind, phase, scope, name, occurrence, payload, encoding, recorded_at, lease_no, code)
  select v_new, 1 + k.ord, k.call, k.kind, k.phase, k.scope, k.name, k.occurrence, k.payload, k.encoding, k.recorded_at, null, k.code
  from kept k;

  return query select v_new, v_base || '~' || v_turn;
end
$$;
