-- Singleton keys. A key is held by the leases of its jobs: one at a time, or as many as limit_key says. Claims never
-- wait for a key: they try its advisory lock (L6), and park what they cannot lease. Whoever gives a key up, or takes a
-- candidate of it out of ready, brings up the next, so that of each need that has jobs parked on a key as many stand in
-- ready as the key has places free; while tokens are what it lacks, the sweep brings them up as tokens come.

create or replace function pgwf._key_lock(p_singleton_key text)
returns bigint
language sql
immutable
as $$ select hashtextextended(p_singleton_key, 94) $$;

-- How many more leases a key may have: places, negative after its limit was lowered; and of these, as many as there
-- are tokens for: room. One row.
create or replace function pgwf._key_room(p_singleton_key text, p_now timestamptz)
returns table (places int, room int, has_rate boolean)
language sql
stable
as $$
  select
    p.places,
    greatest(0, least(p.places, floor(pgwf._tokens('key', p_singleton_key, s.rate, s.burst, p_now))))::int,
    s.rate is not null
  from (values (true)) as one
  left join pgwf.key_setting as s on s.singleton_key = p_singleton_key
  cross join lateral (
    select (coalesce(s.max_active, 1) - count(*))::int as places
    from pgwf.held as h
    where h.singleton_key = p_singleton_key
  ) as p
$$;

-- Moves the first parked jobs of keys to ready: for each need as many as the key is named in p_keys (once for each
-- place that became free or candidate that left ready), at most as many as it has room for. The caller holds the keys'
-- locks. Wakes the needs that got a job. Returns how many it moved.
create or replace function pgwf._bring_up(p_keys text[], p_now timestamptz)
returns int
language plpgsql
volatile
as $$
declare
  v_key record;
  v_need text;
  v_needs text[] := '{}';
  v_rated text[] := '{}';
  v_count int;
  v_moved int := 0;
begin
  perform pg_current_xact_id();
  for v_key in
    select k.singleton_key, least(k.times, r.room) as room, r.has_rate
    from (select u.singleton_key, count(*) as times from unnest(p_keys) as u(singleton_key) group by 1) as k
    cross join lateral pgwf._key_room(k.singleton_key, p_now) as r
  loop
    if v_key.has_rate then
      v_rated := v_rated || v_key.singleton_key;
    end if;
    continue when v_key.room = 0;
    v_need := (select min(p.need) from pgwf.parked as p where p.singleton_key = v_key.singleton_key);
    while v_need is not null loop
      v_needs := v_needs || v_need;
      with taken as (
        delete from pgwf.parked as p
        where p.ctid = any (array(
          select f.ctid
          from pgwf.parked as f
          where f.singleton_key = v_key.singleton_key
            and f.need = v_need
          order by f.priority, f.pos
          limit v_key.room))
        returning p.n, p.priority, p.pos, p.need, p.ready_at, p.expires_at, p.singleton_key
      )
      insert into pgwf.ready (pos, n, priority, need, ready_at, expires_at, singleton_key)
      select nextval('pgwf.pos'), t.n, t.priority, t.need, t.ready_at, t.expires_at, t.singleton_key
      from (select * from taken order by priority, pos) as t;
      get diagnostics v_count = row_count;
      v_moved := v_moved + v_count;
      -- One index descent per need that has somebody parked on the key.
      v_need := (
        select min(p.need) from pgwf.parked as p where p.singleton_key = v_key.singleton_key and p.need > v_need);
    end loop;
  end loop;
  if cardinality(v_needs) > 0 then
    perform pgwf._wake_needs(v_needs);
  end if;
  if cardinality(v_rated) > 0 then
    perform pgwf._await_tokens(v_rated, p_now);
  end if;
  return v_moved;
end
$$;

-- Brings up as many parked jobs of each need as these keys, each given once, have room for. The caller holds their
-- locks. Returns how many it moved.
create or replace function pgwf._fill_up(p_keys text[], p_now timestamptz)
returns int
language plpgsql
volatile
as $$
begin
  return pgwf._bring_up(array(
    select k.singleton_key
    from unnest(p_keys) as k(singleton_key)
    cross join lateral pgwf._key_room(k.singleton_key, p_now) as r
    -- Once more than there is room for, so that a key without room is looked at as well.
    cross join lateral (
      select from pgwf.parked as p where p.singleton_key = k.singleton_key limit r.room::bigint + 1) as p
  ), p_now);
end
$$;

-- Notes of keys with a rate when the next token lets a parked job up, if tokens are what they lack; a time that is
-- noted stays until the sweep has acted on it. The caller holds the keys' locks.
create or replace function pgwf._await_tokens(p_keys text[], p_now timestamptz)
returns void
language plpgsql
volatile
as $$
begin
  update pgwf.key_setting as s
  set next_token_at = pgwf._token_at(pgwf._tokens('key', s.singleton_key, s.rate, s.burst, p_now), s.rate, p_now)
  where s.singleton_key = any (p_keys)
    and s.rate is not null
    and s.next_token_at is null
    and exists (select from pgwf.parked as p where p.singleton_key = s.singleton_key)
    -- A full bucket gets no more.
    and exists (
      select from pgwf._key_room(s.singleton_key, p_now) as r where r.room < r.places and r.room + 1 <= s.burst);
end
$$;

-- L6. Locks these keys, in hash order.
create or replace function pgwf._lock_keys(p_keys text[])
returns void
language plpgsql
volatile
as $$
begin
  perform pg_advisory_xact_lock(q.lock)
  from (
    select distinct pgwf._key_lock(k.singleton_key) as lock
    from unnest(p_keys) as k(singleton_key)
    order by 1
  ) as q;
end
$$;

-- L6 by try: those of these keys, each given once, that this transaction has locked now. NULL: none.
create or replace function pgwf._try_lock_keys(p_keys text[])
returns text[]
language plpgsql
volatile
as $$
begin
  return (
    select array_agg(k.singleton_key)
    from (
      select d.singleton_key, pg_try_advisory_xact_lock(pgwf._key_lock(d.singleton_key)) as locked
      from unnest(p_keys) as d(singleton_key)
      offset 0
    ) as k
    where k.locked);
end
$$;

-- L6. The leases that held these keys are ended by the caller: their places are free, and the next jobs come up.
create or replace function pgwf._free_keys(p_held pgwf.held[], p_now timestamptz)
returns void
language plpgsql
volatile
as $$
declare
  v_keys text[];
begin
  if p_held is null or cardinality(p_held) = 0 then
    return;
  end if;
  v_keys := array(select f.singleton_key from unnest(p_held) as f);
  perform pgwf._lock_keys(v_keys);
  delete from pgwf.held as h
  where h.ctid = any (array(
    select q.ctid
    from unnest(p_held) as f
    cross join lateral (
      select h.ctid from pgwf.held as h where h.singleton_key = f.singleton_key and h.n = f.n offset 0) as q));
  perform pgwf._bring_up(v_keys, p_now);
end
$$;

-- L6 by try: of leased jobs, those that hold no key or whose key this transaction has locked now.
create or replace function pgwf._try_keys(p_n bigint[])
returns bigint[]
language plpgsql
volatile
as $$
declare
  v_keys text[];
begin
  v_keys := pgwf._try_lock_keys(array(
    select distinct l.singleton_key from pgwf.lease as l where l.n = any (p_n) and l.singleton_key is not null));
  return array(
    select l.n
    from pgwf.lease as l
    where l.n = any (p_n)
      and (l.singleton_key is null or l.singleton_key in (select k.key from unnest(v_keys) as k(key)))
    order by l.n);
end
$$;
