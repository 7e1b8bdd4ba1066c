-- People. A task asks a question; its seat is a job; who claims the seat holds its lease; a decision ends the seat and
-- goes to the run's inbox, all in one transaction. Leases taken this way count no lapse.

-- Effect: refuses a task that there is not.  Errors: WS010.
create or replace function pgwf_sdk._refuse_task(p_task_id text) returns void
language plpgsql immutable
as $$
begin
  raise exception using
    errcode = 'WS010',
    message = format('no human task %s', coalesce(quote_literal(p_task_id), 'NULL')),
    hint = 'pgwf human list shows the open ones.';
end
$$;

-- Effect: the task, with the rows of its run, its seat's lease and both jobs locked.  Errors: WS010, WS011 when not open.
create or replace function pgwf_sdk._take_task(p_task_id text, p_verb text) returns pgwf_sdk.seat
language plpgsql volatile
as $$
declare
  v_seat pgwf_sdk.seat;
  v_state text;
begin
  select s.* into v_seat from pgwf.name m join pgwf_sdk.seat s on s.seat = m.n where m.job_id = p_task_id;
  if v_seat.seat is null then
    perform pgwf_sdk._refuse_task(p_task_id);
  end if;
  perform pgwf_sdk._lock_runs(array[v_seat.n]);
  perform from pgwf.lease l where l.n = v_seat.seat for no key update;
  perform pgwf._lock_jobs(array[v_seat.seat, v_seat.n], '{}');
  select t.state, s.holder into v_state, v_seat.holder
  from pgwf_sdk.seat s
  join pgwf_sdk.task t on t.n = s.n and t.key = s.key
  where s.seat = v_seat.seat;
  if v_state <> 'open' then
    raise exception using errcode = 'WS011', message = format('%s task %s: it is %s already', p_verb, p_task_id, v_state);
  end if;
  return v_seat;
end
$$;

-- Effect: who holds the seat now; NULL when nobody does or the claim has run out.
create or replace function pgwf_sdk._holder(p_seat pgwf_sdk.seat) returns text
language sql stable
as $$
  select p_seat.holder where exists (select from pgwf.lease l where l.n = p_seat.seat and l.until > pgwf_sdk._now())
$$;

-- Effect: refuses a person who may not take a task.  Errors: WS013.
create or replace function pgwf_sdk._admit(p_seat pgwf_sdk.seat, p_by text) returns void
language plpgsql stable
as $$
declare
  v_task pgwf_sdk.task;
begin
  select * into v_task from pgwf_sdk.task t where t.n = p_seat.n and t.key = p_seat.key;
  if p_by = any (v_task.excluded) then
    raise exception using errcode = 'WS013', message = format('task %s: %s is excluded from it', v_task.task_id, p_by),
      hint = 'Somebody else has to decide.';
  end if;
  if v_task.assigned <> p_by then
    raise exception using errcode = 'WS013', message = format('task %s: it is assigned to %s, not to %s', v_task.task_id, v_task.assigned, p_by);
  end if;
end
$$;

-- Effect: p_by holds the task for p_seconds and answers when that ends; claiming one's own task again prolongs it.
-- Locks: run row, lease, jobs.  Errors: WS004, WS010, WS011, WS013.
create or replace function pgwf_sdk.claim_task(p_task_id text, p_by text, p_seconds double precision default 14400) returns timestamptz
language plpgsql volatile
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set enable_bitmapscan = off
set jit = off
set plan_cache_mode = force_generic_plan
as $$
declare
  v_seat pgwf_sdk.seat;
  v_holder text;
  v_until timestamptz;
begin
  if nullif(p_by, '') is null or p_seconds is null or not (p_seconds > 0 and p_seconds <= 1e9) then
    raise exception using errcode = 'WS004', message = format('claim task %s: found by %s for %s seconds, expected a name and a time of up to 1e9',
      p_task_id, coalesce(quote_literal(p_by), 'NULL'), coalesce(p_seconds::text, 'NULL'));
  end if;
  v_seat := pgwf_sdk._take_task(p_task_id, 'claim');
  perform pgwf_sdk._admit(v_seat, p_by);
  v_holder := pgwf_sdk._holder(v_seat);
  if v_holder = p_by then
    update pgwf.lease l set until = greatest(l.until, pgwf_sdk._now() + make_interval(secs => p_seconds))
    where l.n = v_seat.seat
    returning l.until into v_until;
  elsif v_holder is not null then
    raise exception using errcode = 'WS011', message = format('claim task %s: %s holds it', p_task_id, v_holder),
      hint = 'Ask them to release it, or wait until the claim runs out.';
  else
    perform pgwf_sdk._free_seat(v_seat.seat, p_by);
    select l.lease_expires_at into v_until
    from pgwf.lease_job(p_job_id => p_task_id, p_worker_id => 'human:' || p_by,
      p_worker_caps => array[(select j.need from pgwf.job j where j.n = v_seat.seat)], p_lease_seconds => ceil(p_seconds)::int) l;
    update pgwf_sdk.seat s set holder = p_by where s.seat = v_seat.seat;
  end if;
  -- Who holds a task keeps it, due or not.
  update pgwf_sdk.task t set escalates_at = greatest(t.due_at, v_until)
  where t.n = v_seat.n and t.key = v_seat.key and t.escalates_at is not null;
  return v_until;
end
$$;

-- Effect: a seat's lease is given back whoever had it.  The caller holds lease and job.
create or replace function pgwf_sdk._free_seat(p_seat bigint, p_by text) returns void
language plpgsql volatile
as $$
begin
  if exists (select from pgwf.lease l where l.n = p_seat) then
    perform pgwf._requeue(array[p_seat], null, array[pgwf_sdk._now()], 'human:' || p_by, pgwf_sdk._now());
  end if;
  update pgwf_sdk.seat s set holder = null where s.seat = p_seat;
end
$$;

-- Effect: tasks that were due go to the need that has them then, open to whoever offers it; no person is named any more.
-- Nobody holds them from now on.  The caller holds the rows of their runs, and the leases and jobs of the seats, which stand
-- nowhere else.  Wake-ups: who sleeps on that need.
create or replace function pgwf_sdk._hand_on(p_seats bigint[], p_by text, p_now timestamptz) returns void
language plpgsql volatile
as $$
declare
  v_need text;
  v_seats bigint[];
begin
  update pgwf_sdk.seat s set holder = null where s.seat = any (p_seats) and s.holder is not null;
  for v_need, v_seats in
    with handed_on as (
      update pgwf_sdk.task t
      set first_need = t.need, need = t.escalate_need, assigned = null, escalated_at = p_now, escalates_at = null
      from pgwf_sdk.seat s
      where s.seat = any (p_seats) and t.n = s.n and t.key = s.key
      returning t.need, s.seat
    )
    select h.need, array_agg(h.seat order by h.seat) from handed_on h group by h.need
  loop
    perform pgwf._requeue(v_seats, v_need, array_fill(p_now, array[cardinality(v_seats)]), p_by, p_now);
  end loop;
end
$$;

-- Effect: hands on up to p_limit open tasks that are due and that nobody holds; how many.  Never waits: what somebody has
-- locked, or leased beside claim_task, is looked at again later.  Locks by try: run rows, leases, jobs.
-- Errors: none of its own.  Wake-ups: who sleeps on the needs they go to.
create or replace function pgwf_sdk.escalate_tasks(p_worker_id text, p_limit int default 500) returns int
language plpgsql volatile
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set enable_bitmapscan = off
set jit = off
set plan_cache_mode = force_generic_plan
as $$
declare
  v_now timestamptz := pgwf_sdk._now();
  v_due bigint[];
  v_leases bigint[];
  v_jobs bigint[];
  v_moved bigint[];
begin
  select array_agg(d.seat)
  into v_due
  from (
    select s.seat
    from pgwf_sdk.task t
    join pgwf_sdk.seat s on s.n = t.n and s.key = t.key
    join pgwf_sdk.run r on r.n = t.n
    where t.state = 'open' and t.escalates_at <= v_now
    order by t.escalates_at
    limit greatest(coalesce(p_limit, 0), 0)
    for no key update of r skip locked
  ) d;
  if v_due is null then
    return 0;
  end if;
  -- In statements of their own, which see what came before the run rows were ours.
  v_due := array(
    select s.seat
    from pgwf_sdk.seat s
    join pgwf_sdk.task t on t.n = s.n and t.key = s.key
    where s.seat = any (v_due) and t.state = 'open' and t.escalates_at <= v_now);
  v_leases := array(select l.n from pgwf.lease l where l.n = any (v_due) and l.until <= v_now order by l.n for no key update skip locked);
  v_jobs := array(select j.n from pgwf.job j where j.n = any (v_due) and j.cancel_at is null order by j.n for update skip locked);
  with taken as (
    delete from pgwf.ready r
    where r.ctid = any (array(
      select c.ctid
      from pgwf.job j
      cross join lateral (
        select d.ctid from pgwf.ready d
        where d.need = j.need and d.priority = j.priority and d.pos = j.n and d.n = j.n
        for update skip locked
      ) c
      where j.n = any (v_jobs)
    ) || array(select d.ctid from pgwf.ready d where d.n = any (v_jobs) and d.pos <> d.n for update skip locked))
    returning r.n
  )
  select coalesce(array_agg(m.n), '{}')
  into v_moved
  from (
    select t.n from taken t
    union all
    select l.n from unnest(v_leases) l(n) where l.n = any (v_jobs)
  ) m;

  if cardinality(v_moved) > 0 then
    perform pgwf_sdk._hand_on(v_moved, coalesce(p_worker_id, 'unknown'), v_now);
  end if;
  if cardinality(v_moved) < cardinality(v_due) then
    update pgwf_sdk.task t
    set escalates_at = case when j.n is not null then greatest(l.until, v_now + interval '1 second') end
    from pgwf_sdk.seat s
    left join pgwf.job j on j.n = s.seat and j.cancel_at is null
    left join pgwf.lease l on l.n = s.seat
    where s.seat = any (v_due) and s.seat <> all (v_moved) and t.n = s.n and t.key = s.key;
  end if;
  return cardinality(v_moved);
end
$$;

-- Effect: gives a task back so that others can claim it; one that is due is handed on.  Locks: run row, lease, jobs.
-- Errors: WS010, WS011, WS012.
create or replace function pgwf_sdk.release_task(p_task_id text, p_by text) returns void
language plpgsql volatile
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set enable_bitmapscan = off
set jit = off
set plan_cache_mode = force_generic_plan
as $$
declare
  v_seat pgwf_sdk.seat := pgwf_sdk._take_task(p_task_id, 'release');
  v_now timestamptz := pgwf_sdk._now();
  v_is_due boolean;
begin
  if pgwf_sdk._holder(v_seat) is distinct from p_by then
    raise exception using errcode = 'WS012', message = format('release task %s: %s holds it, not %s', p_task_id,
      coalesce(pgwf_sdk._holder(v_seat), 'nobody'), coalesce(p_by, 'NULL'));
  end if;
  update pgwf_sdk.task t set escalates_at = t.due_at
  where t.n = v_seat.n and t.key = v_seat.key and t.escalates_at is not null
  returning t.due_at <= v_now into v_is_due;
  if v_is_due then
    perform pgwf_sdk._hand_on(array[v_seat.seat], 'human:' || p_by, v_now);
  else
    perform pgwf_sdk._free_seat(v_seat.seat, p_by);
  end if;
end
$$;

-- Effect: none. The JSON Schema of what decides a task, whatever state that is in.  Locks: none.  Errors: WS010.
create or replace function pgwf_sdk.decision_schema(p_task_id text) returns jsonb
language plpgsql stable
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set enable_bitmapscan = off
set jit = off
set plan_cache_mode = force_generic_plan
as $$
declare
  v_schema jsonb;
begin
  select t.decision_schema into v_schema
  from pgwf.name m
  join pgwf_sdk.seat s on s.seat = m.n
  join pgwf_sdk.task t on t.n = s.n and t.key = s.key
  where m.job_id = p_task_id;
  if v_schema is null then
    perform pgwf_sdk._refuse_task(p_task_id);
  end if;
  return v_schema;
end
$$;

-- Effect: whether bytes are JSON text, as the run that is handed them expects.
create or replace function pgwf_sdk._is_json(p_payload bytea) returns boolean
language plpgsql immutable
as $$
begin
  return convert_from(p_payload, 'UTF8')::json is not null;
exception
  when invalid_text_representation or character_not_in_repertoire or untranslatable_character then
    return false;
end
$$;

-- Effect: decides a task: the seat ends, the decision goes to the run and wakes it.  A task nobody holds is claimed and
-- decided in one.  p_payload is the decided value; the run gets {"value": ..., "by": ..., "at": ...}.
-- Locks: run row, lease, jobs.  Errors: WS004, WS010, WS011 when somebody else holds it, WS013.  Wake-ups: the run's.
create or replace function pgwf_sdk.decide_task(p_task_id text, p_by text, p_payload bytea, p_encoding int) returns void
language plpgsql volatile
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set enable_bitmapscan = off
set jit = off
set plan_cache_mode = force_generic_plan
as $$
declare
  v_seat pgwf_sdk.seat;
  v_now timestamptz;
  v_wake bigint[];
begin
  if nullif(p_by, '') is null or p_payload is null then
    raise exception using errcode = 'WS004', message = format('decide task %s: by %s with %s value, expected a name and a value',
      p_task_id, coalesce(quote_literal(p_by), 'NULL'), case when p_payload is null then 'no' else 'a' end);
  end if;
  if p_encoding is null or p_encoding not in (1, 2, 3) or not pgwf_sdk._is_json(p_payload) then
    raise exception using
      errcode = 'WS004',
      message = format('decide task %s: the value is not JSON in encoding 1 (JSON), 2 (tagged JSON) or 3 (sealed), found %s in encoding %s',
        p_task_id, quote_literal(left(encode(p_payload, 'escape'), 80)), coalesce(p_encoding::text, 'NULL'));
  end if;
  v_seat := pgwf_sdk._take_task(p_task_id, 'decide');
  perform pgwf_sdk._admit(v_seat, p_by);
  if pgwf_sdk._holder(v_seat) <> p_by then
    raise exception using errcode = 'WS011', message = format('decide task %s: %s holds it', p_task_id, pgwf_sdk._holder(v_seat)),
      hint = 'Only the holder decides; a task nobody holds can be decided by anybody who may claim it.';
  end if;
  v_now := pgwf_sdk._now();
  update pgwf_sdk.task t
  set state = 'decided', decision = p_payload, decision_encoding = p_encoding, decided_by = p_by, decided_at = v_now
  where t.n = v_seat.n and t.key = v_seat.key;
  update pgwf_sdk.seat s set holder = p_by where s.seat = v_seat.seat;

  v_wake := pgwf_sdk._deliver(array[v_seat.n], array[7::smallint], array[v_seat.key], array[2::smallint],
    array[convert_to(format('{"value":%s,"by":%s,"at":%s}', convert_from(p_payload, 'UTF8'), to_json(p_by), to_json(v_now)), 'UTF8')],
    array[p_encoding::smallint], v_now);
  perform pgwf_sdk._end_jobs(array[v_seat.seat], 'completed', 'human:' || p_by, v_now);
  if cardinality(v_wake) > 0 then
    perform pgwf_sdk._rouse(v_wake, v_now);
  end if;
end
$$;
