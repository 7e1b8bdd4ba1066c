-- The claim: from ready to lease. It never waits for anything; what is locked is left for the next claim.

-- Of ready rows this transaction has locked, those that may be leased now. The others leave ready: expired jobs for
-- good, jobs whose key is held to parked. Rows whose key somebody is moving just now stay where they are.
create or replace function pgwf._admit(p_rows tid[], p_now timestamptz)
returns tid[]
language plpgsql
volatile
as $$
declare
  KEYS_MAX constant int := 100;  -- Each key is an entry of the shared lock table.
  v_keys text[];
  v_admitted tid[];
  v_expired tid[];
  v_parked tid[];
begin
  select array_agg(k.singleton_key)
  into v_keys
  from (
    select d.singleton_key, pg_try_advisory_xact_lock(pgwf._key_lock(d.singleton_key)) as locked
    from (
      select distinct r.singleton_key
      from pgwf.ready as r
      where r.ctid = any (p_rows)
        and r.singleton_key is not null
      limit KEYS_MAX
    ) as d
    offset 0
  ) as k
  where k.locked;

  -- A new statement, with the keys' locks held: it sees what earlier holders of these locks committed.
  with candidate as (
    select
      r.ctid as spot,
      r.singleton_key is not null as keyed,
      coalesce(r.expires_at <= p_now, false) as expired,
      exists (
        select from pgwf.held as h where h.singleton_key = r.singleton_key and h.singleton_key = any (v_keys)) as taken,
      row_number() over (
        partition by r.singleton_key, coalesce(r.expires_at <= p_now, false) order by r.priority, r.pos) as place
    from pgwf.ready as r
    where r.ctid = any (p_rows)
      and (r.singleton_key is null or r.singleton_key = any (v_keys))
  )
  select
    array_agg(c.spot) filter (where not c.expired and (not c.keyed or (not c.taken and c.place = 1))),
    array_agg(c.spot) filter (where c.expired),
    array_agg(c.spot) filter (where not c.expired and c.keyed and (c.taken or c.place > 1))
  into v_admitted, v_expired, v_parked
  from candidate as c;

  if v_parked is not null then
    with moved as (
      delete from pgwf.ready as r where r.ctid = any (v_parked)
      returning r.singleton_key, r.need, r.priority, r.pos, r.n, r.ready_at, r.expires_at
    )
    insert into pgwf.parked (singleton_key, need, priority, pos, n, ready_at, expires_at)
    select m.singleton_key, m.need, m.priority, m.pos, m.n, m.ready_at, m.expires_at from moved as m;
  end if;
  if v_expired is not null then
    with dropped as (
      delete from pgwf.ready as r where r.ctid = any (v_expired) returning r.singleton_key
    )
    select array_agg(d.singleton_key) into v_keys from dropped as d where d.singleton_key is not null;
    perform pgwf._bring_up(v_keys);
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
      floor(pgwf._tokens(s, p_now))::int),
    s.max_active is not null
  from unnest(p_needs) as d(need)
  left join pgwf.need_setting as s on s.need = d.need
  where s.need is null
    or (not s.paused and (s.need = any (v_mine) or (s.max_active is null and s.rate is null)));
end
$$;

-- Tokens in the bucket of a need, NULL when it has no rate. The newest row counts, read backwards in one descent.
create or replace function pgwf._tokens(p_setting pgwf.need_setting, p_now timestamptz)
returns double precision
language sql
stable
as $$
  select case
    when p_setting.rate is not null then least(
      p_setting.burst,
      coalesce((
        select b.tokens + p_setting.rate * greatest(extract(epoch from p_now - b.filled_at), 0)
        from pgwf.bucket as b
        where b.need = p_setting.need
        order by b.gen desc
        limit 1
      ), p_setting.burst))
  end
$$;

-- Claims at most p_limit runnable jobs of the needs in p_worker_caps for p_lease_seconds, most urgent first: by the
-- time a job became ready plus aging_seconds per priority level, then by position. Never waits. Traces when trace is
-- on.
create or replace function pgwf._claim(
  p_worker_id text,
  p_worker_caps text[],
  p_limit int,
  p_lease_seconds double precision,
  p_now timestamptz
)
returns table (n bigint, job_id text, need text, lease_id uuid, lease_no bigint, until timestamptz)
language plpgsql
volatile
as $$
#variable_conflict use_column
declare
  TURNS_MAX constant int := 4;  -- A turn that met only busy keys found nothing; the next one looks behind them.
  v_needs text[] := array(select distinct c.need from unnest(p_worker_caps) as c(need) where c.need is not null);
  v_rooms int[] := array_fill(p_limit, array[cardinality(v_needs)]);
  v_capped text[];
  v_limited boolean := exists (select from pgwf.need_setting as s where s.need = any (v_needs));
  v_left int := p_limit;
  v_count int;
  v_rows tid[];
  v_n bigint[];
  v_special boolean;
  v_setting record;
begin
  select s.trace_enabled, make_interval(secs => s.aging_seconds) as aging
  into v_setting
  from pgwf.setting as s
  where s.only_row;
  for turn in 1..TURNS_MAX loop
    if v_limited then
      select
        array_agg(r.need),
        array_agg(least(r.room, v_left)),
        array_agg(r.need) filter (where r.capped)
      into v_needs, v_rooms, v_capped
      from pgwf._room(v_needs, v_left, p_now) as r
      where r.room > 0;
    end if;
    -- Look without locks, decide how many of each lane, then lock exactly that many.
    with seen as (
      select s.need, s.priority
      from unnest(v_needs, v_rooms) as d(need, room)
      cross join generate_series(1, 4) as p(priority)
      cross join lateral (
        select r.need, r.priority, r.ready_at, r.pos
        from pgwf.ready as r
        where r.need = d.need
          and r.priority = p.priority::smallint
        order by r.pos
        limit least(d.room, v_left)
      ) as s
      order by s.ready_at + (s.priority - 1) * v_setting.aging, s.pos
      limit v_left
    ), lane as (
      select s.need, s.priority, count(*) as quota from seen as s group by s.need, s.priority
    )
    select array_agg(q.ctid), array_agg(q.n), bool_or(q.singleton_key is not null or q.expires_at <= p_now)
    into v_rows, v_n, v_special
    from lane as l
    cross join lateral (
      select r.ctid, r.n, r.singleton_key, r.expires_at
      from pgwf.ready as r
      where r.need = l.need
        and r.priority = l.priority
      order by r.pos
      limit l.quota
      for update skip locked
    ) as q;
    exit when v_rows is null;
    if v_special then
      v_rows := pgwf._admit(v_rows, p_now);
      continue when v_rows is null;
    end if;

    return query
    with taken as materialized (
      delete from pgwf.ready as r where r.ctid = any (v_rows)
      returning r.n, r.need, r.singleton_key, r.priority, r.ready_at, r.pos
    ), keys as (
      insert into pgwf.held (singleton_key, n)
      select t.singleton_key, t.n from taken as t where t.singleton_key is not null
    ), leased as (
      insert into pgwf.lease (n, lease_id, lease_no, until, worker_id, leased_at, need, singleton_key, capped)
      select
        t.n,
        gen_random_uuid(),
        nextval('pgwf.lease_no'),
        p_now + make_interval(secs => p_lease_seconds),
        p_worker_id,
        p_now,
        t.need,
        t.singleton_key,
        t.need = any (coalesce(v_capped, '{}'))
      from taken as t
      returning n, lease_id, lease_no, until
    ), spent as (
      insert into pgwf.bucket (need, tokens, filled_at)
      select
        s.need,
        pgwf._tokens(s, p_now) - count(*),
        greatest(p_now, (select b.filled_at from pgwf.bucket as b where b.need = s.need order by b.gen desc limit 1))
      from taken as t
      join pgwf.need_setting as s on s.need = t.need
      where v_limited
        and s.rate is not null
      group by s.need
    ), traced as (
      insert into pgwf.trace (event_at, event_type, job_id, lease_no, worker_id, input_data, output_data)
      select
        p_now,
        'get_work',
        j.job_id,
        l.lease_no,
        p_worker_id,
        jsonb_build_object(
          'worker_caps', p_worker_caps, 'lease_seconds', p_lease_seconds, 'limit_jobs', p_limit),
        jsonb_build_object('lease_expires_at', l.until)
      from leased as l
      join pgwf.job as j on j.n = l.n and j.n = any (v_n)
      where v_setting.trace_enabled
    )
    select t.n, j.job_id, t.need, l.lease_id, l.lease_no, l.until
    from taken as t
    join leased as l on l.n = t.n
    join pgwf.job as j on j.n = t.n and j.n = any (v_n)
    order by t.ready_at + (t.priority - 1) * v_setting.aging, t.pos;
    get diagnostics v_count = row_count;
    v_left := v_left - v_count;
    exit when v_left <= 0;
  end loop;
end
$$;
