-- The claim: from ready to lease. It never waits for anything but a limit that is being set (limit_need); what is locked
-- is left for the next claim.

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

-- Chooses up to p_limit rows of ready, at most p_rooms of each of p_needs, the most urgent first, and locks exactly these:
-- it looks without locks, counts how many of each lane it wants, and takes the first of each that nobody else has locked.
-- Passes by jobs of p_busy_keys, and lanes of p_spent_lanes. seen_count: how many it could choose from, if fewer than
-- p_limit. spent_lanes: NULL, or others have locked some of what was chosen; then those lanes that were looked at from their
-- head and have nothing else. Asked again with p_spent_lanes, though they be none, it takes from the heads of the others,
-- where less urgent jobs may stand. special: some rows have a key or are past their time (_admit). The other arrays say, in
-- any order, where the rows stood.
create or replace function pgwf._pick(
  p_worker_caps text[],
  p_position bigint[],
  p_needs text[],
  p_rooms int[],
  p_limit int,
  p_busy_keys text[],
  p_spent_lanes text[],
  p_aging interval,
  p_now timestamptz,
  out spots tid[],
  out special boolean,
  out seen_count int,
  out spent_lanes text[],
  out needs text[],
  out priorities smallint[],
  out pos bigint[]
)
language plpgsql
volatile
as $$
#variable_conflict use_column
declare
  v_needs text[];
  v_priorities smallint[];
  v_heads bigint[];
  v_firsts bigint[];
  v_quotas int[];
begin
  select array_agg(d.need), array_agg(p.priority), array_agg(f.pos), array_agg(least(d.room, p_limit))
  into v_needs, v_priorities, v_heads, v_quotas
  from unnest(p_needs, p_rooms) as d(need, room)
  cross join unnest('{1,2,3,4}'::smallint[]) as p(priority)
  cross join lateral (
    select r.pos
    from pgwf.ready as r
    where r.need = d.need
      and r.priority = p.priority
      and r.pos > coalesce(p_position[4 * array_position(p_worker_caps, d.need) + p.priority - 3], 0)
      and (p_busy_keys is null or r.singleton_key is null or r.singleton_key <> all (p_busy_keys))
    order by r.pos
    limit 1
  ) as f
  where p_spent_lanes is null
    or p.priority || d.need <> all (p_spent_lanes);
  v_firsts := v_heads;
  -- Of a lone lane all are wanted, and whoever comes first is the most urgent.
  if cardinality(v_needs) > 1 then
    select
      array_agg(q.need), array_agg(q.priority), array_agg(q.head),
      array_agg(case when p_spent_lanes is null then q.first else q.head end), array_agg(q.quota), sum(q.quota)
    into v_needs, v_priorities, v_heads, v_firsts, v_quotas, seen_count
    from (
      select s.need, s.priority, s.head, min(s.pos) as first, count(*)::int as quota
      from (
        select w.need, w.priority, w.head, w.pos
        from (
          select
            l.need, l.priority, l.head, l.room, r.pos, r.urgency,
            row_number() over (partition by l.need order by r.urgency, r.pos) as place
          from unnest(v_needs, v_priorities, v_heads, v_quotas) as l(need, priority, head, room)
          cross join lateral (
            select q.pos, q.ready_at + (q.priority - 1) * p_aging as urgency
            from pgwf.ready as q
            where q.need = l.need
              and q.priority = l.priority
              and q.pos >= l.head
              and (p_busy_keys is null or q.singleton_key is null or q.singleton_key <> all (p_busy_keys))
            order by q.pos
            limit l.room
          ) as r
        ) as w
        where w.place <= w.room
        order by w.urgency, w.pos
        limit p_limit
      ) as s
      group by s.need, s.priority, s.head
    ) as q;
  end if;

  select
    array_agg(q.ctid),
    bool_or(q.singleton_key is not null or coalesce(q.expires_at <= p_now, false)),
    coalesce(seen_count, count(*)),
    array_agg(q.need),
    array_agg(q.priority),
    array_agg(q.pos)
  into spots, special, seen_count, needs, priorities, pos
  from unnest(v_needs, v_priorities, v_firsts, v_quotas) as l(need, priority, first, quota)
  cross join lateral (
    select r.ctid, r.need, r.priority, r.pos, r.singleton_key, r.expires_at
    from pgwf.ready as r
    where r.need = l.need
      and r.priority = l.priority
      and r.pos >= l.first
      and (p_busy_keys is null or r.singleton_key is null or r.singleton_key <> all (p_busy_keys))
    order by r.pos
    limit l.quota
    for update skip locked
  ) as q;
  if coalesce(cardinality(spots), 0) < seen_count then
    select coalesce(array_agg(l.priority || l.need) filter (where l.first = l.head), '{}')
    into spent_lanes
    from unnest(v_needs, v_priorities, v_heads, v_firsts, v_quotas) as l(need, priority, head, first, quota)
    where l.quota > (
      select count(*) from unnest(needs, priorities) as k(need, priority)
      where k.need = l.need and k.priority = l.priority);
  end if;
end
$$;

-- Leases the jobs of ready rows that this transaction has locked. Answers them in the order of their urgency. Traces
-- them, unless p_input is NULL.
create or replace function pgwf._grant(
  p_spots tid[],
  p_worker_id text,
  p_until timestamptz,
  p_capped text[],
  p_aging interval,
  p_now timestamptz,
  p_input jsonb,
  p_output jsonb,
  out n bigint[],
  out lease_ids uuid[],
  out lease_nos bigint[]
)
language plpgsql
volatile
as $$
#variable_conflict use_column
declare
  -- Drawn once: a server built without OpenSSL opens /dev/urandom for each. The last 12 digits are the lease's number
  -- after a first digit that keeps it as long as that.
  DIGITS constant bigint := 17592186044416;
  v_lease_id text := left(gen_random_uuid()::text, 24);
begin
  with taken as (
    delete from pgwf.ready as r
    where r.ctid = any (p_spots)
    returning r.n, r.need, r.singleton_key, r.priority, r.ready_at, r.pos
  ), leased as (
    insert into pgwf.lease (n, lease_id, lease_no, until, worker_id, leased_at, need, singleton_key, capped)
    select
      m.n, (v_lease_id || to_hex(DIGITS + m.lease_no % DIGITS))::uuid, m.lease_no, p_until, p_worker_id, p_now, m.need,
      m.singleton_key, p_capped is not null and m.need = any (p_capped)
    from (
      select t.n, t.need, t.singleton_key, nextval('pgwf.lease_no') as lease_no
      from taken as t
      order by t.ready_at + (t.priority - 1) * p_aging, t.pos
    ) as m
    returning n, lease_id, lease_no
  ), traced as (
    insert into pgwf.trace (event_at, event_type, n, lease_no, worker_id, input_data, output_data)
    select p_now, 'get_work', l.n, l.lease_no, p_worker_id, p_input, p_output
    from leased as l
    where p_input is not null
  )
  select array_agg(l.n), array_agg(l.lease_id), array_agg(l.lease_no)
  into n, lease_ids, lease_nos
  from leased as l;
end
$$;

-- Claims at most p_limit runnable jobs of the needs in p_worker_caps for p_lease_seconds, most urgent first: by the
-- time a job became ready plus aging_seconds per priority level, then by position. Traces when trace is on.
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
  v_began_ms bigint := date_part('epoch', v_began) * 1000;  -- as double precision, which costs less than numeric
  v_position bigint[] := case when p_position[1] between v_began_ms and v_began_ms + HOLDS_MS_MAX then p_position end;
  v_look_us bigint := 0;
  v_needs text[];
  v_rooms int[];
  v_capped text[];
  v_limited boolean;
  v_careful boolean;
  v_traced boolean;
  v_input jsonb;
  v_output jsonb;
  v_aging interval;
  v_left int;
  v_picked record;
  v_rows tid[];
  v_turns int := 0;
  v_busy_keys text[];  -- Somebody is moving them just now.
  v_spent_lanes text[];  -- Others have locked all they have.
  v_granted record;
  v_picked_needs text[] := '{}';
  v_picked_priorities smallint[] := '{}';
  v_picked_pos bigint[] := '{}';
begin
  n := '{}';
  lease_ids := '{}';
  lease_nos := '{}';
  until := p_now + make_interval(secs => p_lease_seconds);
  is_whole := v_position is null;
  -- The look at leases locks no row, but the table: PostgreSQL locks what a statement names before it takes the snapshot,
  -- and until commit. limit_need waits for that with a first limit, so what is unlimited now stays so for this claim.
  select
    make_interval(secs => s.aging_seconds),
    s.trace_enabled,
    exists (select from pgwf.need_setting as l where l.need = any (p_worker_caps))
      or exists (select from pgwf.lease as l where false for key share)
  into v_aging, v_traced, v_limited
  from pgwf.setting as s
  where s.only_row;
  if v_traced then
    v_input := jsonb_build_object(
      'worker_caps', p_worker_caps, 'lease_seconds', p_lease_seconds, 'limit_jobs', p_limit);
    v_output := jsonb_build_object('lease_expires_at', until);
  end if;
  if cardinality(p_worker_caps) = 1 then
    v_needs := p_worker_caps;
  else
    v_needs := array(select distinct c.need from unnest(p_worker_caps) as c(need) where c.need is not null);
  end if;
  v_rooms := array_fill(p_limit, array[cardinality(v_needs)]);
  v_careful := v_limited;
  while v_turns < TURNS_MAX loop
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
    v_picked := pgwf._pick(
      p_worker_caps, v_position, v_needs, v_rooms, v_left, v_busy_keys, v_spent_lanes, v_aging, p_now);
    v_look_us := v_look_us + date_part('epoch', clock_timestamp() - v_began) * 1000000;
    if v_picked.spent_lanes is null then
      v_turns := v_turns + 1;
    end if;
    v_spent_lanes := v_spent_lanes || v_picked.spent_lanes;
    exit when v_picked.spots is null and v_picked.spent_lanes is null;
    continue when v_picked.spots is null;
    v_rows := v_picked.spots;
    if v_picked.special then
      v_careful := true;
      v_rows := pgwf._admit(v_picked.spots, p_now);
      -- What neither was admitted nor left ready.
      v_busy_keys := v_busy_keys || array(
        select distinct r.singleton_key
        from pgwf.ready as r
        where r.ctid = any (v_picked.spots)
          and r.ctid not in (select a.spot from unnest(v_rows) as a(spot)));
      if cardinality(v_busy_keys) > BUSY_KEYS_MAX then
        v_busy_keys := array[null];  -- Equal to no key, and different from none: every job that has one is passed by.
      end if;
      continue when v_rows is null;
    end if;

    v_granted := pgwf._grant(v_rows, p_worker_id, until, v_capped, v_aging, p_now, v_input, v_output);
    n := n || v_granted.n;
    lease_ids := lease_ids || v_granted.lease_ids;
    lease_nos := lease_nos || v_granted.lease_nos;
    v_picked_needs := v_picked_needs || v_picked.needs;
    v_picked_priorities := v_picked_priorities || v_picked.priorities;
    v_picked_pos := v_picked_pos || v_picked.pos;
    if v_limited then
      perform pgwf._spend('need', array(select l.need from pgwf.lease as l where l.n = any (v_granted.n)), p_now);
    end if;
    -- Once all that can be seen was looked at, another turn would walk the same entries in vain.
    exit when cardinality(n) = p_limit or (v_picked.seen_count < v_left and not v_careful);
  end loop;
  if p_position is null then
    return;
  elsif not is_whole or v_look_us > CHEAP_US + CHEAP_US_PER_JOB * cardinality(n) then
    next_position := pgwf._next_position(
      p_worker_caps,
      v_position,
      is_whole,
      case when is_whole then v_began_ms + least(greatest(11 * v_look_us / 1000, HOLDS_MS_MIN), HOLDS_MS_MAX) else v_position[1] end,
      v_picked_needs,
      v_picked_priorities,
      v_picked_pos,
      v_careful,
      cardinality(n) < p_limit);
  end if;
end
$$;
