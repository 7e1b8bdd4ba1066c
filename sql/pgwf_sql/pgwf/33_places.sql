-- Moves of a job between the places where it can stand (20_tables.sql says which).

-- L3. Locks the job rows a call needs in one ordered pass: p_update FOR UPDATE, p_share FOR KEY SHARE. Returns those
-- still there. A job in both lists is locked FOR UPDATE.
create or replace function pgwf._lock_jobs(p_update bigint[], p_share bigint[])
returns bigint[]
language plpgsql
volatile
as $$
declare
  v_there bigint[] := '{}';
  v_row record;
begin
  if cardinality(p_share) = 0 then
    return array(select j.n from pgwf.job as j where j.n = any (p_update) order by j.n for update);
  end if;
  if cardinality(p_update) = 0 then
    return array(select j.n from pgwf.job as j where j.n = any (p_share) order by j.n for key share);
  end if;
  for v_row in
    select q.n, bool_or(q.for_update) as for_update
    from (
      select u.n, true from unnest(p_update) as u(n)
      union all
      select s.n, false from unnest(p_share) as s(n)
    ) as q(n, for_update)
    group by q.n
    order by q.n
  loop
    if v_row.for_update then
      perform from pgwf.job as j where j.n = v_row.n for update;
    else
      perform from pgwf.job as j where j.n = v_row.n for key share;
    end if;
    if found then
      v_there := v_there || v_row.n;
    end if;
  end loop;
  return v_there;
end
$$;

-- Puts jobs where their rows say. The caller holds the job rows, and the jobs stand nowhere. Wakes the needs that got
-- runnable work.
create or replace function pgwf._place(p_n bigint[], p_now timestamptz)
returns void
language plpgsql
volatile
as $$
declare
  v_needs text[];
begin
  perform pg_current_xact_id();
  with placeable as materialized (
    select j.n, j.need, j.priority, j.available_at, j.expires_at, j.singleton_key
    from pgwf.job as j
    where j.n = any (p_n)
      and j.cancel_at is null
      and j.pending = 0
      and not j.shelved
      and (j.expires_at is null or j.expires_at > p_now)
    order by j.n
  ), timers as (
    insert into pgwf.timer (due, n)
    select p.available_at, p.n
    from placeable as p
    where p.available_at > p_now
      and p.available_at < 'infinity'
  ), readied as (
    insert into pgwf.ready (pos, n, priority, need, ready_at, expires_at, singleton_key)
    select nextval('pgwf.pos'), p.n, p.priority, p.need, p_now, p.expires_at, p.singleton_key
    from placeable as p
    where p.available_at <= p_now
    returning need
  )
  select array_agg(distinct r.need) into v_needs from readied as r;
  perform pgwf._wake_needs(v_needs);
end
$$;

-- Takes an unleased job out of the place where it stands and says which: 'timer', 'ready', 'parked', 'lease' (it is
-- leased after all and stays so) or 'none'. The caller holds the job row FOR UPDATE; here L6 if it has a key. Looks
-- in the direction in which jobs move without their job row, and each delete waits for a mover in flight, so one pass
-- is exact. Taking a candidate away brings up the next job of its key.
create or replace function pgwf._catch(p_n bigint, p_now timestamptz)
returns text
language plpgsql
volatile
as $$
declare
  v_job pgwf.job;
begin
  select j.* into v_job from pgwf.job as j where j.n = p_n;
  if v_job.singleton_key is not null then
    perform pg_advisory_xact_lock(pgwf._key_lock(v_job.singleton_key));
  end if;
  delete from pgwf.timer as t where t.due = v_job.available_at and t.n = p_n;
  if found then
    return 'timer';
  end if;
  delete from pgwf.ready as r
  where r.need = v_job.need and r.priority = v_job.priority and r.pos = p_n and r.n = p_n;
  if not found then
    delete from pgwf.ready as r where r.n = p_n and r.pos <> r.n;
  end if;
  if found then
    if v_job.singleton_key is not null then
      perform pgwf._bring_up(array[v_job.singleton_key], p_now);
    end if;
    return 'ready';
  end if;
  if v_job.singleton_key is not null then
    delete from pgwf.parked as p where p.n = p_n;
    if found then
      return 'parked';
    end if;
  end if;
  if exists (select from pgwf.lease as l where l.n = p_n) then
    return 'lease';
  end if;
  return 'none';
end
$$;

-- Ends leases and wakes who waits for a free slot of a limited need. The caller holds lease and job rows. Returns the
-- places these leases had in their singleton keys, for _free_keys once the call is past L5.
create or replace function pgwf._end_leases(p_n bigint[])
returns pgwf.held[]
language plpgsql
volatile
as $$
declare
  v_held pgwf.held[];
  v_needs text[];
begin
  with dropped as (
    delete from pgwf.lease as l where l.n = any (p_n) returning l.singleton_key, l.n, l.need, l.capped
  )
  select
    array_agg((d.singleton_key, d.n)::pgwf.held) filter (where d.singleton_key is not null),
    array_agg(distinct d.need) filter (where d.capped)
  into v_held, v_needs
  from dropped as d;
  perform pgwf._wake_needs(v_needs);
  return v_held;
end
$$;

-- Unleased, uncancelled jobs whose available_at is ahead become available now; others are left alone. The caller
-- holds the job rows, at least FOR NO KEY UPDATE. Returns the jobs it changed.
create or replace function pgwf._wake_jobs(p_n bigint[], p_now timestamptz)
returns bigint[]
language plpgsql
volatile
as $$
declare
  v_woken bigint[];
begin
  with ahead as materialized (
    select j.n, j.available_at, j.pending, j.shelved, j.expires_at
    from pgwf.job as j
    where j.n = any (p_n)
      and j.cancel_at is null
      and j.available_at > p_now
      and not exists (select from pgwf.lease as l where l.n = j.n offset 0)
  ), caught as (
    delete from pgwf.timer as t
    where t.ctid = any (array(
      select d.ctid
      from ahead as a
      cross join lateral (
        select q.ctid from pgwf.timer as q where q.due = a.available_at and q.n = a.n offset 0) as d))
    returning t.n
  )
  -- A job that should have a timer and has none was promoted by a sweep just now: it is ready already.
  select array_agg(a.n)
  into v_woken
  from ahead as a
  where a.n in (select c.n from caught as c)
    or a.available_at = 'infinity'
    or a.pending > 0
    or a.shelved
    or a.expires_at <= p_now;
  if v_woken is null then
    return '{}';
  end if;
  update pgwf.job set available_at = p_now where n = any (v_woken);
  perform pgwf._place(v_woken, p_now);
  return v_woken;
end
$$;
