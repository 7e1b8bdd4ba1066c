-- Effect: a row into the inbox of the live end of a run's chain, and that run woken; not by a signal before its start_at.
-- The caller says whether a run that is over is an error.  p_now: when it arrives, read by a caller that holds the run row.
-- Locks: the run row, then its job.  Returns false when the run is over.
create or replace function pgwf_sdk._send(
  p_n bigint, p_kind smallint, p_name text, p_phase smallint, p_payload bytea, p_encoding smallint, p_now timestamptz default null
) returns boolean
language plpgsql volatile
as $$
declare
  v_n bigint := pgwf_sdk._lock_live(p_n);
  v_wake bigint[];
begin
  if exists (select from pgwf_sdk.run r where r.n = v_n and r.finished_at is not null) then
    return false;
  end if;
  -- The time is taken under the lock, so a decision between this and a deadline reads it in the order it happened.
  v_wake := pgwf_sdk._deliver(array[v_n], array[p_kind], array[p_name], array[p_phase], array[p_payload], array[p_encoding],
    coalesce(p_now, pgwf_sdk._now()));
  if cardinality(v_wake) = 0 or cardinality(pgwf._lock_jobs(v_wake, '{}')) = 0 then
    return true;
  end if;
  -- A run that has recorded nothing waits for no signal, and its time may not have come.
  if p_kind = 4
    and exists (select from pgwf.job j where j.n = v_n and j.available_at < 'infinity')
    and not exists (select from pgwf_journal.entry e where e.n = v_n and e.seq > 1) then
    perform pgwf._tell_holders(v_wake);
  else
    perform pgwf_sdk._rouse(v_wake, pgwf_sdk._now());
  end if;
  return true;
end
$$;

-- Effect: a signal for one run. It waits in the run's inbox until the run asks for that name; signals of one name are
-- consumed in the order they came.  Returns false when a signal with that p_dedup_id was sent before.
-- Locks: the run row, then its job.  Errors: WS002, WS003, WS004.  Wake-ups: the run's.
create or replace function pgwf_sdk.signal_run(p_run_id text, p_name text, p_payload bytea, p_encoding int, p_dedup_id text default null) returns boolean
language plpgsql volatile
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set enable_bitmapscan = off
set jit = off
set plan_cache_mode = force_generic_plan
as $$
declare
  v_n bigint := pgwf_sdk._number(p_run_id);
begin
  if p_name is null or octet_length(p_name) not between 1 and 512 then
    raise exception using errcode = 'WS004', message = format('signal to run %s: name is %s, expected 1 to 512 bytes', p_run_id, coalesce(quote_literal(left(p_name, 80)), 'NULL'));
  end if;
  if octet_length(p_dedup_id) > 512 then
    raise exception using
      errcode = 'WS004',
      message = format('signal %L to run %s: dedup_id has %s bytes, expected at most 512', p_name, p_run_id, octet_length(p_dedup_id));
  end if;
  if p_encoding is null or p_encoding not in (0, 1, 2, 3) then
    raise exception using
      errcode = 'WS004',
      message = format('signal %L to run %s: encoding is %s, expected 0 (no value), 1 (JSON), 2 (tagged JSON) or 3 (sealed)',
        p_name, p_run_id, coalesce(p_encoding::text, 'NULL'));
  end if;
  if p_dedup_id is not null then
    insert into pgwf_sdk.dedup (n, dedup_id)
    select coalesce(r.chain, r.n), p_dedup_id from pgwf_sdk.run r where r.n = v_n
    on conflict do nothing;
    if not found then
      return false;
    end if;
  end if;
  if not pgwf_sdk._send(v_n, 4::smallint, p_name, 2::smallint, p_payload, p_encoding::smallint) then
    raise exception using
      errcode = 'WS003',
      message = format('signal %L to run %s: the run is over (%s)', p_name, p_run_id, (select r.status from pgwf_sdk.run r where r.n = pgwf_sdk._live(v_n)));
  end if;
  return true;
end
$$;

-- Effect: the same from SQL with a JSON value.  Errors: WS002, WS003, WS004.
create or replace function pgwf_sdk.signal(p_run_id text, p_name text, p_payload jsonb default 'null', p_dedup_id text default null) returns boolean
language sql volatile
set search_path = pg_catalog, pg_temp
as $$
  select pgwf_sdk.signal_run(p_run_id, p_name, convert_to(p_payload::text, 'UTF8'), 1, p_dedup_id)
$$;

-- Effect: start_run and signal_run in one: the run is there and has the signal, or neither.  created and sent tell which of
-- the two this call did: an equal run may be there already, and a signal with p_dedup_id may have been sent.
-- Locks: the id, the run row, its job.  Errors: WS001, WS003 a run of that id is over, WS004.  Wake-ups: as both.
create or replace function pgwf_sdk.signal_with_start_run(
  p_run_id text, p_workflow text, p_need text, p_input bytea, p_encoding int, p_signal text, p_payload bytea, p_payload_encoding int,
  p_dedup_id text default null, p_priority int default 3, p_start_at timestamptz default null, p_deadline timestamptz default null,
  p_build text default null, p_trace text default null, p_started_by text default null, p_attributes jsonb default null,
  p_singleton_key text default null
) returns table (n bigint, run_id text, created boolean, sent boolean)
language plpgsql volatile
set search_path = pg_catalog, pg_temp
as $$
begin
  select s.n, s.run_id, s.created into n, run_id, created
  from pgwf_sdk.start_run(p_run_id, p_workflow, p_need, p_input, p_encoding, p_priority, p_start_at, p_deadline, p_build, p_trace,
    p_started_by, p_attributes, p_singleton_key) s;
  sent := pgwf_sdk.signal_run(p_run_id, p_signal, p_payload, p_payload_encoding, p_dedup_id);
  return next;
end
$$;

-- Effect: the same from SQL, with JSON arguments (as of start) and a JSON value.  Returns whether the run is new.
-- Errors: WS001, WS003, WS004.
create or replace function pgwf_sdk.signal_with_start(
  p_workflow text, p_run_id text, p_signal text, p_payload jsonb default 'null', p_arguments jsonb default '{}',
  p_need text default null, p_dedup_id text default null, p_attributes jsonb default null, p_singleton_key text default null
) returns boolean
language sql volatile
set search_path = pg_catalog, pg_temp
as $$
  select s.created
  from pgwf_sdk.signal_with_start_run(p_run_id, p_workflow, coalesce(p_need, p_workflow), pgwf_sdk._input(p_workflow, p_arguments), 1,
    p_signal, convert_to(p_payload::text, 'UTF8'), 1, p_dedup_id, p_attributes => p_attributes,
    p_singleton_key => p_singleton_key) s
$$;
