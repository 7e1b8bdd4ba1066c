-- The sweep: everything that only the clock does. It waits for nothing; what is locked is left for the next one.

create or replace function pgwf._sweep_lock()
returns bigint
language sql
immutable
as $$ select hashtextextended('pgwf.sweep', 0) $$;

create or replace function pgwf._threshold_lock()
returns bigint
language sql
immutable
as $$ select hashtextextended('pgwf.threshold', 0) $$;

create or replace function pgwf._ms(p_at timestamptz)
returns bigint
language sql
stable
as $$ select (extract(epoch from p_at) * 1000)::bigint $$;

-- Whether the last sweep is more than a second old (or ahead: the clock was set back).
create or replace function pgwf._sweep_is_due(p_now timestamptz)
returns boolean
language plpgsql
stable
as $$
begin
  return (select pgwf._ms(p_now) not between s.last_value and s.last_value + 1000 from pgwf.sweep_at as s);
end
$$;

-- Ends those of these leases that are past their time: the job counts a lapse, unless a person held it, and is
-- placed, or shelved once its streak exceeds the threshold. Skips what others have locked. Returns the jobs whose
-- lease ended.
create or replace function pgwf._lapse(p_n bigint[], p_worker_id text, p_now timestamptz)
returns bigint[]
language plpgsql
volatile
as $$
declare
  v_ended bigint[];
  v_held pgwf.held[];
  v_needs text[];
begin
  -- Shelving is decided once, with the threshold as it stands; whoever changes it re-decides after us.
  if not pg_try_advisory_xact_lock_shared(pgwf._threshold_lock()) then
    return '{}';
  end if;
  select array_agg(q.n)
  into v_ended
  from (
    select l.n from pgwf.lease as l where l.n = any (p_n) and l.until <= p_now order by l.n for update skip locked
  ) as q;
  select array_agg(q.n)
  into v_ended
  from (select j.n from pgwf.job as j where j.n = any (v_ended) order by j.n for no key update skip locked) as q;
  if v_ended is null then
    return '{}';
  end if;
  v_ended := pgwf._try_keys(v_ended);

  with ended as materialized (
    delete from pgwf.lease as l
    where l.n = any (v_ended)
      and l.until <= p_now
    returning l.n, l.lease_no, l.worker_id, l.until, l.need, l.singleton_key, l.capped, l.counted
  ), counted as (
    update pgwf.job as j
    set
      streak = j.streak + 1,
      lapses = j.lapses + 1,
      shelved = j.streak + 1 > s.crash_concern_threshold
    from pgwf.setting as s
    where j.n = any (array(select e.n from ended as e where e.counted))
    returning j.n, j.streak, j.lapses, j.shelved
  ), traced as (
    insert into pgwf.trace (event_at, event_type, n, lease_no, worker_id, input_data, output_data)
    select
      p_now,
      'lease_lapsed',
      e.n,
      e.lease_no,
      p_worker_id,
      jsonb_build_object('leased_by', e.worker_id, 'lease_expires_at', e.until),
      jsonb_build_object(
        'lease_expiration_count', coalesce(c.lapses, j.lapses),
        'consecutive_expirations', coalesce(c.streak, j.streak),
        'crash_concern', coalesce(c.shelved, j.shelved))
    from ended as e
    cross join lateral (select q.lapses, q.streak, q.shelved from pgwf.job as q where q.n = e.n offset 0) as j
    full join counted as c on c.n = e.n
    where (select pgwf._tracing())
  )
  select
    array_agg(e.n),
    array_agg((e.singleton_key, e.n)::pgwf.held) filter (where e.singleton_key is not null),
    array_agg(distinct e.need) filter (where e.capped)
  into v_ended, v_held, v_needs
  from ended as e;

  perform pgwf._free_keys(v_held, p_now);
  perform pgwf._place(v_ended, p_now);
  perform pgwf._wake_needs(v_needs);
  return coalesce(v_ended, '{}');
end
$$;

-- Up to p_limit jobs whose leases are past their time. Reads the lease table whole: it is small, unless somebody holds a
-- snapshot and dead rows stay.
create or replace function pgwf._past_leases(p_limit int, p_now timestamptz)
returns bigint[]
language plpgsql
volatile
set enable_seqscan = on
as $$
begin
  return array(select l.n from pgwf.lease as l where l.until <= p_now limit p_limit);
end
$$;

-- Ends leases that are past their time. A large lease table is looked through about one tenth of the time at most.
create or replace function pgwf._sweep_leases(p_worker_id text, p_limit int, p_now timestamptz)
returns int
language plpgsql
volatile
as $$
declare
  PAGES_SMALL constant int := 500;
  v_pages bigint := pg_relation_size('pgwf.lease') / current_setting('block_size')::int;
  v_n bigint[];
begin
  if v_pages > PAGES_SMALL then
    if pgwf._ms(p_now) < (select s.last_value from pgwf.sweep_leases_after as s) then
      return 0;
    end if;
    -- A page takes about 10 us to scan.
    perform setval('pgwf.sweep_leases_after', pgwf._ms(p_now) + greatest(250, v_pages / 10));
  end if;
  v_n := pgwf._past_leases(p_limit, p_now);
  if cardinality(v_n) = 0 then
    return 0;
  end if;
  return cardinality(pgwf._lapse(v_n, p_worker_id, p_now));
end
$$;

-- Promotes due timers. The job rows are not locked: whoever changes a sleeping job takes its timer row first.
create or replace function pgwf._sweep_timers(p_limit int, p_now timestamptz)
returns int
language plpgsql
volatile
as $$
declare
  v_n bigint[];
begin
  with due as (
    delete from pgwf.timer as t
    where t.ctid = any (array(
      select d.ctid from pgwf.timer as d where d.due <= p_now order by d.due limit p_limit for update skip locked))
    returning t.n
  )
  select array_agg(d.n) into v_n from due as d;
  if v_n is null then
    return 0;
  end if;
  perform pgwf._place(v_n, p_now);
  return cardinality(v_n);
end
$$;

-- Brings up parked jobs of keys whose next token has come.
create or replace function pgwf._sweep_keys(p_limit int, p_now timestamptz)
returns int
language plpgsql
volatile
as $$
declare
  v_keys text[];
begin
  v_keys := pgwf._try_lock_keys(array(
    select s.singleton_key
    from pgwf.key_setting as s
    where s.next_token_at <= p_now
    order by s.next_token_at
    limit p_limit));
  if v_keys is null then
    return 0;
  end if;
  update pgwf.key_setting set next_token_at = null where singleton_key = any (v_keys) and next_token_at <= p_now;
  return pgwf._fill_up(v_keys, p_now);
end
$$;

-- Archives expired jobs: those somebody waits for at once, the others after expired_grace, during which an operator
-- may still complete or reschedule them. When many of these lie around, they are looked through a tenth of the time
-- at most.
create or replace function pgwf._archive_expired(p_worker_id text, p_limit int, p_now timestamptz)
returns int
language plpgsql
volatile
as $$
declare
  MANY constant int := 1000;
  v_seen bigint;
  v_n bigint[];
begin
  if pgwf._ms(p_now) < (select s.last_value from pgwf.sweep_expired_after as s) then
    return 0;
  end if;
  with expired as materialized (
    select j.n, j.expires_at
    from pgwf.job as j
    where j.expires_at <= p_now
      and j.cancel_at is null
      and j.available_at <= p_now
      and j.pending = 0
      and not j.shelved
  )
  select
    (select count(*) from expired),
    array(
      select e.n
      from expired as e
      cross join pgwf.setting as s
      where s.only_row
        and not exists (select from pgwf.lease as l where l.n = e.n offset 0)
        and (
          e.expires_at <= p_now - s.expired_grace
          or exists (select from pgwf.edge as waiting where waiting.child = e.n offset 0))
      order by e.expires_at
      limit p_limit)
  into v_seen, v_n;
  if v_seen > MANY then
    -- A row takes about 5 us to look at.
    perform setval('pgwf.sweep_expired_after', pgwf._ms(p_now) + greatest(250, v_seen / 20));
  end if;
  v_n := array(select j.n from pgwf.job as j where j.n = any (v_n) order by j.n for update skip locked);
  v_n := pgwf._try_catch(pgwf._with_free_waiters(v_n), p_now);
  if cardinality(v_n) = 0 then
    return 0;
  end if;
  perform pgwf._end(v_n, null, 'expired', p_worker_id, p_now, true);
  return cardinality(v_n);
end
$$;

-- As _catch, for many expired jobs and without waiting. Returns those that are still expired and stand nowhere now.
-- The caller holds their rows FOR UPDATE.
create or replace function pgwf._try_catch(p_n bigint[], p_now timestamptz)
returns bigint[]
language plpgsql
volatile
as $$
declare
  v_n bigint[];
  v_keys text[];
begin
  v_keys := pgwf._try_lock_keys(array(
    select distinct j.singleton_key from pgwf.job as j where j.n = any (p_n) and j.singleton_key is not null));
  select array_agg(j.n)
  into v_n
  from pgwf.job as j
  where j.n = any (p_n)
    and (j.singleton_key is null or j.singleton_key in (select k.key from unnest(v_keys) as k(key)));
  with dropped as (
    delete from pgwf.ready as r
    where r.ctid = any (array(
      select c.ctid
      from pgwf.job as j
      cross join lateral (
        select d.ctid from pgwf.ready as d
        where d.need = j.need and d.priority = j.priority and d.pos = j.n and d.n = j.n
        for update skip locked
      ) as c
      where j.n = any (v_n)
    ) || array(
      select d.ctid from pgwf.ready as d where d.n = any (v_n) and d.pos <> d.n for update skip locked
    ))
    returning r.singleton_key
  )
  select array_agg(d.singleton_key) into v_keys from dropped as d where d.singleton_key is not null;
  delete from pgwf.parked as p where p.n = any (v_n);
  perform pgwf._bring_up(v_keys, p_now);
  -- A claim in flight has the ready row locked, a finished one left a lease, a due timer is not promoted yet; and the
  -- row may have changed before it was locked.
  return array(
    select j.n
    from pgwf.job as j
    where j.n = any (v_n)
      and j.expires_at <= p_now
      and j.cancel_at is null
      and j.available_at <= p_now
      and j.pending = 0
      and not j.shelved
      and not exists (
        select from pgwf.ready as r
        where r.need = j.need and r.priority = j.priority and r.pos = j.n and r.n = j.n
        offset 0)
      and not exists (select from pgwf.ready as r where r.n = j.n and r.pos <> r.n offset 0)
      and not exists (select from pgwf.timer as t where t.due = j.available_at and t.n = j.n offset 0)
      and not exists (select from pgwf.lease as l where l.n = j.n offset 0));
end
$$;

-- Forgets what nobody reads any more: all but the newest position of claims and the newest token bucket of each need and
-- key, workers long silent, and the requests of workers and clients that died in their sleep. Waits for nobody.
create or replace function pgwf._trim(p_now timestamptz)
returns void
language plpgsql
volatile
as $$
declare
  SLEEPERS_MAX constant int := 1000;
begin
  delete from pgwf.bucket as b
  using (
    select q.kind, q.name, q.gen from pgwf.bucket as q
    where q.gen < (
      select max(newest.gen) from pgwf.bucket as newest where newest.kind = q.kind and newest.name = q.name)
    for update skip locked
  ) as old
  where b.kind = old.kind and b.name = old.name and b.gen = old.gen;
  delete from pgwf.position as q
  where q.gen < (select max(newest.gen) from pgwf.position as newest where newest.caps = q.caps)
    or q.made_at < clock_timestamp() - interval '5 minutes';
  delete from pgwf.worker as w
  using (
    select q.worker_id from pgwf.worker as q
    where q.heartbeat_at < p_now - (select s.worker_grace from pgwf.setting as s where s.only_row)
      and not exists (select from pgwf.lease as l where l.worker_id = q.worker_id)
    for update skip locked
  ) as silent
  where w.worker_id = silent.worker_id;
  delete from pgwf.sleeper as d
  using (
    select s.channel, s.listener from pgwf.sleeper as s
    where case
      when s.since is null then s.asked_at < p_now - interval '1 hour'
      else s.since < p_now - interval '5 minutes'
        and not exists (
          select from pgwf.worker as w
          where w.worker_id = s.listener and w.heartbeat_at > p_now - interval '5 minutes')
    end
    limit SLEEPERS_MAX
    for update skip locked
  ) as dead
  where d.channel = dead.channel and d.listener = dead.listener;
end
$$;

-- When a limited need may be claimed: now, or when its next token comes; NULL if it is paused, has no work or no room.
create or replace function pgwf._claimable_at(p_setting pgwf.need_setting, p_now timestamptz)
returns timestamptz
language plpgsql
stable
as $$
declare
  v_tokens double precision;
begin
  if p_setting.paused
    or (p_setting.max_active is null and p_setting.rate is null)
    or not exists (
      select from pgwf.ready as r where r.need = p_setting.need and r.priority between 1 and 4)
    or p_setting.max_active <= (
      select count(*) from pgwf.lease as l where l.need = p_setting.need and l.capped)
  then
    return null;
  end if;
  v_tokens := pgwf._tokens('need', p_setting.need, p_setting.rate, p_setting.burst, p_now);
  return case when v_tokens < 1 then pgwf._token_at(v_tokens, p_setting.rate, p_now) else p_now end;
end
$$;

-- Do what time has made due: end lapsed leases, promote timers, bring up jobs whose key has a token again, archive
-- cancelled and expired jobs, release who waits for them; at most p_limit jobs of each kind. Returns how many jobs it
-- moved, 0 when another sweep is running.
-- Locks: only by try, never waits. Errors: 23502, WF001, WF020. Wakes workers for what became runnable, and for limited
-- needs that have work, room and a token.
create or replace function pgwf.sweep(p_worker_id text, p_limit int default 500)
returns int
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
as $$
declare
  GENERATIONS_MAX constant int := 20;
  v_now timestamptz := pgwf._now();
  v_moved int;
  v_expired int;
begin
  perform pgwf._require_read_committed();
  perform pgwf._require_worker(p_worker_id);
  if p_limit is null or p_limit <= 0 then
    perform pgwf._refuse_nonpositive('limit', p_limit);
  elsif not pg_try_advisory_xact_lock(pgwf._sweep_lock()) then
    return 0;
  end if;
  v_moved := pgwf._sweep_leases(p_worker_id, p_limit, v_now)
    + pgwf._sweep_timers(p_limit, v_now)
    + pgwf._sweep_keys(p_limit, v_now)
    + pgwf._archive_cancelled(p_worker_id, p_limit, v_now);
  -- What an expired job releases may be expired itself, and others may wait for it.
  for generation in 1..GENERATIONS_MAX loop
    v_expired := pgwf._archive_expired(p_worker_id, p_limit, v_now);
    v_moved := v_moved + v_expired;
    exit when v_expired = 0;
  end loop;
  if pgwf._sweep_is_due(v_now) then
    perform pgwf._trim(v_now);
  end if;
  -- A token comes with time alone, and who left out a need that another was counting is told by nobody else.
  perform pgwf._wake_needs((
    select array_agg(s.need) from pgwf.need_setting as s where pgwf._claimable_at(s, v_now) <= v_now));
  perform setval('pgwf.sweep_at', pgwf._ms(v_now));
  return v_moved;
end
$$;

-- When a worker with these capabilities should look again although nobody wakes it: the first due timer, the first
-- end of a lease, the next token of a limited key, the next token of a limited need (now, if such a need has work and
-- room). NULL: nothing is in sight. Locks nothing.
create or replace function pgwf.next_wakeup(p_worker_caps text[])
returns timestamptz
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
as $$
declare
  v_now timestamptz := pgwf._now();
begin
  return least(
    (select min(t.due) from pgwf.timer as t),
    (select min(l.until) from pgwf.lease as l),
    (select min(k.next_token_at) from pgwf.key_setting as k),
    (select min(pgwf._claimable_at(s, v_now)) from pgwf.need_setting as s where s.need = any (p_worker_caps)));
end
$$;
