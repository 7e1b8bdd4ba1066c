-- The claim: from ready to lease. It never waits for anything; what is locked is left for the next claim.

-- Of ready rows this transaction has locked, those that may be leased now, and holds their keys: of each key as many as
-- it has room for. The others leave ready: expired jobs for good, jobs whose key has no room to parked. Rows whose key
-- somebody is moving just now stay where they are.
create or replace function pgwf._admit(p_rows tid[], p_now timestamptz)
returns tid[]
language plpgsql
volatile
as $$
declare
  KEYS_MAX constant int := 100;  -- Each key is an entry of the shared lock table.
  v_keys text[];
  v_rated text[];
  v_admitted tid[];
  v_expired tid[];
  v_parked tid[];
begin
  v_keys := pgwf._try_lock_keys(array(
    select distinct r.singleton_key
    from pgwf.ready as r
    where r.ctid = any (p_rows)
      and r.singleton_key is not null
    limit KEYS_MAX));

  -- A new statement, with the keys' locks held: it sees what earlier holders of these locks committed.
  with mine as materialized (
    select k.singleton_key, r.room, r.has_rate
    from unnest(v_keys) as k(singleton_key)
    cross join lateral pgwf._key_room(k.singleton_key, p_now) as r
  ), candidate as (
    select
      r.ctid as spot,
      coalesce(r.expires_at <= p_now, false) as expired,
      r.singleton_key is null or m.room >= row_number() over (
        partition by r.singleton_key, coalesce(r.expires_at <= p_now, false) order by r.priority, r.pos) as fits
    from pgwf.ready as r
    left join mine as m on m.singleton_key = r.singleton_key
    where r.ctid = any (p_rows)
      and (r.singleton_key is null or r.singleton_key = any (v_keys))
  )
  select
    array_agg(c.spot) filter (where not c.expired and c.fits),
    array_agg(c.spot) filter (where c.expired),
    array_agg(c.spot) filter (where not c.expired and not c.fits),
    (select array_agg(m.singleton_key) from mine as m where m.has_rate)
  into v_admitted, v_expired, v_parked, v_rated
  from candidate as c;

  if v_parked is not null then
    with moved as (
      delete from pgwf.ready as r where r.ctid = any (v_parked)
      returning r.singleton_key, r.need, r.priority, r.pos, r.n, r.ready_at, r.expires_at
    )
    insert into pgwf.parked (singleton_key, need, priority, pos, n, ready_at, expires_at)
    select m.singleton_key, m.need, m.priority, m.pos, m.n, m.ready_at, m.expires_at from moved as m;
  end if;
  insert into pgwf.held (singleton_key, n)
  select r.singleton_key, r.n
  from pgwf.ready as r
  where r.ctid = any (v_admitted)
    and r.singleton_key is not null;
  if v_rated is not null then
    perform pgwf._spend('key', array(
      select r.singleton_key from pgwf.ready as r where r.ctid = any (v_admitted) and r.singleton_key = any (v_rated)
    ), p_now);
    perform pgwf._await_tokens(v_rated, p_now);
  end if;
  if v_expired is not null then
    with dropped as (
      delete from pgwf.ready as r where r.ctid = any (v_expired) returning r.singleton_key
    )
    select array_agg(d.singleton_key) into v_keys from dropped as d where d.singleton_key is not null;
    perform pgwf._bring_up(v_keys, p_now);
  end if;
  return v_admitted;
end
$$;

-- What may be claimed of each need when some are paused or limited: how many, and whether leases count against
-- max_active. A limited need is counted under its advisory lock, by try: whoever does not get it leaves that need
-- out.
create or replace function pgwf._room(p_needs text[], p_limit int, p_now timestamptz)
returns table (need text, room int, capped boolean)
language plpgsql
volatile
as $$
#variable_conflict use_column
declare
  v_mine text[];
begin
  -- In its own statement: the counts below see what earlier holders of these locks committed.
  select array_agg(k.need)
  into v_mine
  from (
    select s.need, pg_try_advisory_xact_lock(hashtextextended(s.need, 95)) as locked
    from pgwf.need_setting as s
    where s.need = any (p_needs)
      and not s.paused
      and (s.max_active is not null or s.rate is not null)
    offset 0
  ) as k
  where k.locked;

  return query
  select
    d.need,
    least(
      p_limit,
      s.max_active - (select count(*) from pgwf.lease as l where l.need = d.need and l.capped)::int,
      floor(pgwf._tokens('need', s.need, s.rate, s.burst, p_now)))::int,
    s.max_active is not null
  from unnest(p_needs) as d(need)
  left join pgwf.need_setting as s on s.need = d.need
  where s.need is null
    or (not s.paused and (s.need = any (v_mine) or (s.max_active is null and s.rate is null)));
end
$$;

-- Where a worker's next claim begins to look. Under a held snapshot the dead entries of finished work stay in ready's
-- index, and a claim that begins at 0 walks them all. A position is an array: until when it holds (ms since 1970), then
-- for each need of p_worker_caps and each priority what the claim need not look at again. It is a guess: whoever
-- commits late, or rolls a claim back, leaves rows below it, which the next whole look finds.
--
-- Rows that others lock are passed by: a claim somebody leaves open must not keep the others at its place. p_careful:
-- there may be rows that this claim saw and had to leave (limits, keys), so nothing that can be seen is passed.
create or replace function pgwf._next_position(
  p_worker_caps text[],
  p_position bigint[],
  p_is_whole boolean,
  p_holds_until bigint,
  p_needs text[],
  p_priorities smallint[],
  p_pos bigint[],
  p_careful boolean,
  p_short boolean
)
returns bigint[]
language plpgsql
volatile
as $$
declare
  -- Before the look below: whoever draws a position later, draws a higher one.
  v_top bigint := (select s.last_value - (not s.is_called)::int from pgwf.pos as s);
begin
  return p_holds_until || array(
    select coalesce(
      f.pos - 1,
      t.pos,
      case when p_is_whole then v_top else l.start end)
    from unnest(p_worker_caps) with ordinality as c(need, ord)
    cross join generate_series(1, 4) as p(priority)
    cross join lateral (
      select coalesce(case when not p_is_whole then p_position[4 * c.ord + p.priority - 3] end, 0) as start
    ) as l
    left join lateral (
      select max(u.pos) as pos
      from unnest(p_needs, p_priorities, p_pos) as u(need, priority, pos)
      where u.need = c.need
        and u.priority = p.priority
    ) as t on true
    left join lateral (
      select r.pos
      from pgwf.ready as r
      where r.need = c.need
        and r.priority = p.priority::smallint
        and r.pos > l.start
        and (p_careful or (t.pos is null and not p_short))
      order by r.pos
      limit 1
    ) as f on true
    order by c.ord, p.priority);
end
$$;

-- Chooses up to p_limit rows of ready, at most p_rooms of each of p_needs, the most urgent first, locks exactly these
-- and leases their jobs: it looks without locks, counts how many of each lane it wants, and takes the first of each that
-- nobody else has locked. When some have a key or are past their time it leases nothing and answers which rows it
-- locked (special); called again with p_spots it leases these. Passes by jobs of p_busy_keys. seen_count: how many it
-- could choose from, if fewer than p_limit. Jobs in the order of their urgency. Traces p_input and p_output when they
-- are given.
create or replace function pgwf._take(
  p_worker_caps text[],
  p_position bigint[],
  p_needs text[],
  p_rooms int[],
  p_limit int,
  p_spots tid[],
  p_busy_keys text[],
  p_worker_id text,
  p_until timestamptz,
  p_capped text[],
  p_aging interval,
  p_now timestamptz,
  p_input jsonb,
  p_output jsonb,
  out special tid[],
  out seen_count int,
  out n bigint[],
  out lease_ids uuid[],
  out lease_nos bigint[],
  out needs text[],
  out priorities smallint[],
  out pos bigint[]
)
language plpgsql
volatile
as $$
#variable_conflict use_column
declare
  -- Drawn once: a server built without OpenSSL opens /dev/urandom for each. The last 48 bits are the lease's number.
  v_lease_id text := gen_random_uuid()::text;
begin
  with seen as (
    select s.need, s.priority, s.pos
    from unnest(p_needs, p_rooms) as d(need, room)
    cross join lateral (
      select r.need, r.priority, r.ready_at, r.pos
      from generate_series(1, 4) as p(priority)
      cross join lateral (
        select q.need, q.priority, q.ready_at, q.pos
        from pgwf.ready as q
        where q.need = d.need
          and q.priority = p.priority::smallint
          and q.pos > coalesce(p_position[4 * array_position(p_worker_caps, d.need) + p.priority - 3], 0)
          and (p_busy_keys is null or q.singleton_key is null or q.singleton_key <> all (p_busy_keys))
        order by q.pos
        limit least(d.room, p_limit)
      ) as r
      order by r.ready_at + (r.priority - 1) * p_aging, r.pos
      limit least(d.room, p_limit)
    ) as s
    where p_spots is null
    order by s.ready_at + (s.priority - 1) * p_aging, s.pos
    limit p_limit
  ), lane as (
    select s.need, s.priority, count(*) as quota, min(s.pos) as first from seen as s group by s.need, s.priority
  ), locked as (
    select
      array_agg(q.ctid) as spots,
      coalesce(bool_or(q.singleton_key is not null or q.expires_at <= p_now), false) as special
    from lane as l
    cross join lateral (
      select r.ctid, r.singleton_key, r.expires_at
      from pgwf.ready as r
      where r.need = l.need
        and r.priority = l.priority
        and r.pos >= l.first
        and (p_busy_keys is null or r.singleton_key is null or r.singleton_key <> all (p_busy_keys))
      order by r.pos
      limit l.quota
      for update skip locked
    ) as q
  ), taken as (
    delete from pgwf.ready as r
    where r.ctid = any (coalesce(p_spots, (select l.spots from locked as l where not l.special)))
    returning r.n, r.need, r.singleton_key, r.priority, r.ready_at, r.pos
  ), numbered as (
    select t.n, t.need, t.singleton_key, t.priority, t.pos, nextval('pgwf.lease_no') as lease_no
    from taken as t
    order by t.ready_at + (t.priority - 1) * p_aging, t.pos
  ), granted as materialized (
    -- Made here, not in the insert, whose rows would then have to be joined with what they came from.
    select
      m.n,
      m.need,
      m.singleton_key,
      m.priority,
      m.pos,
      m.lease_no,
      overlay(v_lease_id placing lpad(to_hex(m.lease_no & 281474976710655), 12, '0') from 25)::uuid as lease_id
    from numbered as m
  ), leased as (
    insert into pgwf.lease (n, lease_id, lease_no, until, worker_id, leased_at, need, singleton_key, capped)
    select
      g.n, g.lease_id, g.lease_no, p_until, p_worker_id, p_now, g.need, g.singleton_key,
      p_capped is not null and g.need = any (p_capped)
    from granted as g
  ), traced as (
    insert into pgwf.trace (event_at, event_type, n, lease_no, worker_id, input_data, output_data)
    select p_now, 'get_work', g.n, g.lease_no, p_worker_id, p_input, p_output from granted as g where p_input is not null
  )
  select
    (select l.spots from locked as l where l.special),
    (select count(*) from seen),
    array_agg(g.n),
    array_agg(g.lease_id),
    array_agg(g.lease_no),
    array_agg(g.need),
    array_agg(g.priority),
    array_agg(g.pos)
  into special, seen_count, n, lease_ids, lease_nos, needs, priorities, pos
  from granted as g;
end
$$;

-- Claims at most p_limit runnable jobs of the needs in p_worker_caps for p_lease_seconds, most urgent first: by the
-- time a job became ready plus aging_seconds per priority level, then by position. Never waits. Traces when trace is
-- on.
--
-- p_position: the next_position of this connection's last claim with these p_worker_caps, '{}' if there is none: look
-- from the beginning; NULL: the same, and tell none. While such whole looks are cheap there is none; otherwise it is
-- good for eleven times as long as the last of them took, so that they cost a twelfth of the time. is_whole: this was
-- such a look, so nothing that was visible was passed by.
create or replace function pgwf._claim(
  p_worker_id text,
  p_worker_caps text[],
  p_limit int,
  p_lease_seconds double precision,
  p_now timestamptz,
  p_position bigint[] default null,
  out n bigint[],
  out lease_ids uuid[],
  out lease_nos bigint[],
  out until timestamptz,
  out next_position bigint[],
  out is_whole boolean
)
language plpgsql
volatile
as $$
#variable_conflict use_column
declare
  BUSY_KEYS_MAX constant int := 100;  -- Each row that is looked at is compared with each of them.
  TURNS_MAX constant int := 4;  -- A turn that met only keys without room found nothing; the next one looks behind them.
  CHEAP_US constant int := 1000;
  CHEAP_US_PER_JOB constant int := 40;
  HOLDS_MS_MIN constant int := 250;
  HOLDS_MS_MAX constant int := 60000;
  v_began timestamptz := clock_timestamp();
  v_began_ms bigint := extract(epoch from v_began) * 1000;
  v_position bigint[] := case when p_position[1] between v_began_ms and v_began_ms + HOLDS_MS_MAX then p_position end;
  v_look_us bigint := 0;
  v_needs text[];
  v_rooms int[];
  v_capped text[];
  v_limited boolean;
  v_careful boolean;
  v_aging interval;
  v_left int;
  v_seen_count int;
  v_rows tid[];
  v_busy_keys text[];  -- Somebody is moving them just now.
  v_taken record;
  v_input jsonb;
  v_output jsonb;
  v_taken_needs text[] := '{}';
  v_taken_priorities smallint[] := '{}';
  v_taken_pos bigint[] := '{}';
begin
  n := '{}';
  lease_ids := '{}';
  lease_nos := '{}';
  until := p_now + make_interval(secs => p_lease_seconds);
  is_whole := v_position is null;
  select
    make_interval(secs => s.aging_seconds),
    array(select distinct c.need from unnest(p_worker_caps) as c(need) where c.need is not null),
    exists (select from pgwf.need_setting as l where l.need = any (p_worker_caps)),
    case when s.trace_enabled then jsonb_build_object(
      'worker_caps', p_worker_caps, 'lease_seconds', p_lease_seconds, 'limit_jobs', p_limit) end
  into v_aging, v_needs, v_limited, v_input
  from pgwf.setting as s
  where s.only_row;
  v_rooms := array_fill(p_limit, array[cardinality(v_needs)]);
  v_careful := v_limited;
  if v_input is not null then
    v_output := jsonb_build_object('lease_expires_at', until);
  end if;
  for turn in 1..TURNS_MAX loop
    v_left := p_limit - cardinality(n);
    if v_limited then
      select
        array_agg(r.need),
        array_agg(least(r.room, v_left)),
        array_agg(r.need) filter (where r.capped)
      into v_needs, v_rooms, v_capped
      from pgwf._room(v_needs, v_left, p_now) as r
      where r.room > 0;
    end if;
    v_began := clock_timestamp();
    v_taken := pgwf._take(
      p_worker_caps, v_position, v_needs, v_rooms, v_left, null, v_busy_keys, p_worker_id, until, v_capped,
      v_aging, p_now, v_input, v_output);
    v_look_us := v_look_us + extract(epoch from clock_timestamp() - v_began) * 1000000;
    v_seen_count := v_taken.seen_count;
    if v_taken.special is not null then
      v_careful := true;
      v_rows := pgwf._admit(v_taken.special, p_now);
      -- What neither was admitted nor left ready.
      v_busy_keys := v_busy_keys || array(
        select distinct r.singleton_key
        from pgwf.ready as r
        where r.ctid = any (v_taken.special)
          and r.ctid not in (select a.spot from unnest(v_rows) as a(spot)));
      if cardinality(v_busy_keys) > BUSY_KEYS_MAX then
        v_busy_keys := array[null];  -- Equal to no key, and different from none: every job that has one is passed by.
      end if;
      continue when v_rows is null;
      v_taken := pgwf._take(
        p_worker_caps, v_position, v_needs, v_rooms, v_left, v_rows, null, p_worker_id, until, v_capped, v_aging, p_now,
        v_input, v_output);
    end if;
    exit when v_taken.n is null;

    n := n || v_taken.n;
    lease_ids := lease_ids || v_taken.lease_ids;
    lease_nos := lease_nos || v_taken.lease_nos;
    v_taken_needs := v_taken_needs || v_taken.needs;
    v_taken_priorities := v_taken_priorities || v_taken.priorities;
    v_taken_pos := v_taken_pos || v_taken.pos;
    if v_limited then
      perform pgwf._spend('need', v_taken.needs, p_now);
    end if;
    -- Once all that can be seen was looked at, another turn would walk the same entries in vain.
    exit when cardinality(n) = p_limit or (v_seen_count < v_left and not v_careful);
  end loop;

  if p_position is null then
    return;
  elsif not is_whole or v_look_us > CHEAP_US + CHEAP_US_PER_JOB * cardinality(n) then
    next_position := pgwf._next_position(
      p_worker_caps,
      v_position,
      is_whole,
      case when is_whole then v_began_ms + least(greatest(11 * v_look_us / 1000, HOLDS_MS_MIN), HOLDS_MS_MAX) else v_position[1] end,
      v_taken_needs,
      v_taken_priorities,
      v_taken_pos,
      v_careful,
      cardinality(n) < p_limit);
  end if;
end
$$;
