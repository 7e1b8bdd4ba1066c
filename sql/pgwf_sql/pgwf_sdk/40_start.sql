-- Effect: what is wrong with attributes; NULL when nothing is.
create or replace function pgwf_sdk._attributes_flaw(p_attributes jsonb) returns text
language plpgsql immutable
as $$
begin
  if p_attributes is null then
    return null;
  end if;
  if jsonb_typeof(p_attributes) <> 'object' then
    return format('attributes are a JSON %s, expected an object', jsonb_typeof(p_attributes));
  end if;
  return (
    select format('attribute %L is %s, expected a name of 1 to 200 bytes and a text, number or boolean of up to 1024 bytes',
      left(a.key, 80), left(a.value::text, 80))
    from jsonb_each(p_attributes) a
    where octet_length(a.key) not between 1 and 200 or jsonb_typeof(a.value) in ('object', 'array')
      or octet_length(a.value #>> '{}') > 1024
    limit 1);
end
$$;

-- Effect: starts a run: job, journal with its first entry, run row, in the caller's transaction.  Starting a known id with
-- the same workflow and input changes nothing and answers created = false, whether that run still goes on or is over.
-- p_input is what the SDK writes: {"args": [...], "kwargs": {...}} as bytes; p_trace is a W3C traceparent; p_attributes is an
-- object of what lists can find the run by, and p_singleton_key lets one run of that key be worked on at a time, or as
-- many as pgwf.limit_key says; both count only when the run is created.  A deadline of 'infinity' is none.
-- Locks: the id.  Errors: WS001, WS004.  Wake-ups: workers that sleep on the need.
create or replace function pgwf_sdk.start_run(
  p_run_id text, p_workflow text, p_need text, p_input bytea, p_encoding int, p_priority int default 3,
  p_start_at timestamptz default null, p_deadline timestamptz default null, p_build text default null,
  p_trace text default null, p_started_by text default null, p_attributes jsonb default null, p_singleton_key text default null
) returns table (n bigint, run_id text, created boolean)
language plpgsql volatile
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set enable_bitmapscan = off
set jit = off
set plan_cache_mode = force_generic_plan
as $$
declare
  v_now timestamptz := pgwf_sdk._now();
  v_flaw text;
  v_n bigint;
  v_status text;
  v_known record;
begin
  v_flaw := case
    when p_workflow is null or octet_length(p_workflow) not between 1 and 512 then
      format('workflow is %s, expected a name of 1 to 512 bytes', coalesce(quote_literal(left(p_workflow, 80)), 'NULL'))
    when p_priority is null or p_priority not between 1 and 4 then
      format('priority is %s, expected 1 (most urgent) to 4', coalesce(p_priority::text, 'NULL'))
    when p_input is null then 'input is NULL, expected {"args": [...], "kwargs": {...}} as bytes'
    when p_encoding is null or p_encoding not in (1, 2, 3) then
      format('encoding is %s, expected 1 (JSON), 2 (tagged JSON) or 3 (sealed)', coalesce(p_encoding::text, 'NULL'))
    -- What no client could read would take down each claim that brings the run; a day is left for time zones.
    when p_deadline < 'infinity' and p_deadline not between '0001-01-02 00:00:00+00' and '9999-12-31 00:00:00+00' then
      format('deadline is %s, expected one from 0001-01-02 to 9999-12-31, or NULL for none', p_deadline)
    when isfinite(p_start_at) and p_start_at not between '0001-01-02 00:00:00+00' and '9999-12-31 00:00:00+00' then
      format('start_at is %s, expected one from 0001-01-02 to 9999-12-31, or NULL for now', p_start_at)
    when octet_length(p_singleton_key) not between 1 and 512 or p_singleton_key ~ '[\x01-\x1f\x7f]' then
      format('singleton key is %L, expected 1 to 512 bytes without control characters', left(p_singleton_key, 80))
    when p_attributes is not null then pgwf_sdk._attributes_flaw(p_attributes)
  end;
  if v_flaw is not null then
    raise exception using errcode = 'WS004', message = format('run %s: %s', coalesce(quote_literal(left(p_run_id, 80)), 'NULL'), v_flaw);
  end if;

  select s.n, s.status into v_n, v_status
  from pgwf._submit(array[p_run_id], array[p_need], array[p_priority::smallint], array[p_singleton_key],
    array[p_start_at], array[null::timestamptz], coalesce(p_started_by, 'client'), v_now) s;

  if v_status = 'ok' then
    if cardinality(pgwf_sdk._open_journals(array[v_n], array[p_run_id])) = 0 then
      raise exception using
        errcode = 'WS001',
        message = format('run %s: the id is taken by a journal that is no run', p_run_id),
        hint = 'Ids are never used again; choose one that names this piece of work.';
    end if;
    perform pgwf_sdk._create_runs(array[v_n], array[p_run_id], array[p_workflow], array[p_need], array[p_input], array[p_encoding::smallint],
      array[nullif(p_deadline, 'infinity')], array[p_build], array[p_trace], array[null::bigint], array[null::text], p_started_by, v_now);
    insert into pgwf_sdk.attribute (n, name, value)
    select v_n, a.key, a.value
    from jsonb_each(p_attributes) a
    where a.value <> 'null';
    return query select v_n, p_run_id, true;
    return;
  end if;
  if v_status not in ('live', 'finished') then
    raise exception using
      errcode = 'WS004',
      message = format('run %s cannot be started: need %s', coalesce(quote_literal(left(p_run_id, 80)), 'NULL'), coalesce(quote_literal(left(p_need, 80)), 'NULL')),
      hint = 'Run ids and needs are 1 to 512 bytes without control characters.';
  end if;

  select r.n, r.workflow, e.payload into v_known
  from pgwf_sdk.run r
  join pgwf_journal.entry e on e.n = r.n and e.seq = 1
  where r.n = v_n;
  if v_known.n is null or v_known.workflow <> p_workflow or v_known.payload is distinct from p_input then
    raise exception using
      errcode = 'WS001',
      message = format('run %s: the id is taken by %s', p_run_id, case
        when v_known.n is null then 'a job that is no run'
        when v_known.workflow <> p_workflow then format('a run of workflow %L, not %L', v_known.workflow, p_workflow)
        else format('a run of workflow %L with another input', p_workflow) end),
      hint = 'Ids are never used again; choose one that names this piece of work.';
  end if;
  return query select v_n, p_run_id, false;
end
$$;

-- Effect: the input of a run whose arguments are a JSON array (positional) or object (by name).  Errors: WS004.
create or replace function pgwf_sdk._input(p_workflow text, p_arguments jsonb) returns bytea
language plpgsql immutable
as $$
begin
  if p_arguments is null or jsonb_typeof(p_arguments) not in ('array', 'object') then
    raise exception using
      errcode = 'WS004',
      message = format('start %s: arguments are %s, expected a JSON array or object', p_workflow, coalesce(jsonb_typeof(p_arguments), 'NULL'));
  end if;
  return convert_to(case jsonb_typeof(p_arguments)
    when 'array' then jsonb_build_object('args', p_arguments, 'kwargs', '{}'::jsonb)
    else jsonb_build_object('args', '[]'::jsonb, 'kwargs', p_arguments) end::text, 'UTF8');
end
$$;

-- Effect: starts a run from SQL, in a trigger or from another language.  Arguments: a JSON array (positional) or object
-- (by name).  p_need NULL: the workflow's own name, as the SDK does for a workflow without need.
-- p_run_id NULL: a random id.  Returns the run id.  Errors: WS001, WS004.
create or replace function pgwf_sdk.start(
  p_workflow text, p_arguments jsonb default '{}', p_run_id text default null, p_need text default null, p_priority int default 3,
  p_start_at timestamptz default null, p_deadline timestamptz default null, p_attributes jsonb default null,
  p_singleton_key text default null
) returns text
language sql volatile
set search_path = pg_catalog, pg_temp
as $$
  select s.run_id
  from pgwf_sdk.start_run(coalesce(p_run_id, gen_random_uuid()::text), p_workflow, coalesce(p_need, p_workflow),
    pgwf_sdk._input(p_workflow, p_arguments), 1, p_priority, p_start_at, p_deadline, p_attributes => p_attributes,
    p_singleton_key => p_singleton_key) s
$$;

-- Effect: where a run stands, and its result when it is over: the value of a completed run, the error envelope of a
-- failed or cancelled one (bytes and encoding of its last entry).  A run that went on as another one: that one;
-- addressed_n is the run with exactly that id.
-- Errors: WS002.
create or replace function pgwf_sdk.run_result(p_run_id text)
returns table (n bigint, run_id text, status text, payload bytea, encoding int, finished_at timestamptz, addressed_n bigint)
language plpgsql stable
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set enable_bitmapscan = off
set jit = off
set plan_cache_mode = force_generic_plan
as $$
declare
  v_addressed_n bigint := pgwf_sdk._number(p_run_id);
  v_n bigint := pgwf_sdk._live(v_addressed_n);
begin
  return query
  select r.n, r.run_id, r.status, e.payload, coalesce(e.encoding, 0)::int, r.finished_at, v_addressed_n
  from pgwf_sdk.runs r
  left join lateral (
    select x.payload, x.encoding from pgwf_journal.entry x where x.n = v_n and r.finished_at is not null order by x.seq desc limit 1
  ) e on true
  where r.n = v_n;
end
$$;

-- Effect: the result of a run as JSON: {"status": ..., "value": ...} or {"status": ..., "error": ...}; status alone while it goes on.
-- Errors: WS002.
create or replace function pgwf_sdk.result(p_run_id text) returns jsonb
language sql stable
set search_path = pg_catalog, pg_temp
as $$
  select jsonb_build_object('status', r.status) || case
    when r.finished_at is null or r.payload is null then '{}'
    when r.status = 'completed' then jsonb_build_object('value', convert_from(r.payload, 'UTF8')::jsonb)
    else jsonb_build_object('error', convert_from(r.payload, 'UTF8')::jsonb) end
  from pgwf_sdk.run_result(p_run_id) r
$$;
