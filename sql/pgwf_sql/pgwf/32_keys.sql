-- Singleton keys. A key is held by the lease of one job. Claims never wait for a key: they try its advisory lock
-- (L6), and park what they cannot lease. Whoever gives a key up, or takes its candidate out of ready, brings up the
-- next.

create or replace function pgwf._key_lock(p_singleton_key text)
returns bigint
language sql
immutable
as $$ select hashtextextended(p_singleton_key, 94) $$;

-- Moves the first parked job per key and need to ready, for keys that nobody holds. The caller holds the keys' locks.
-- Wakes the needs that got a job.
create or replace function pgwf._bring_up(p_keys text[])
returns void
language plpgsql
volatile
as $$
declare
  v_key text;
  v_need text;
  v_needs text[] := '{}';
  v_first record;
begin
  perform pg_current_xact_id();
  for v_key in
    select distinct k.singleton_key
    from unnest(p_keys) as k(singleton_key)
    where not exists (select from pgwf.held as h where h.singleton_key = k.singleton_key)
  loop
    v_need := null;
    loop
      -- One index descent per need that has somebody parked on the key.
      select p.need, p.priority, p.pos
      into v_first
      from pgwf.parked as p
      where p.singleton_key = v_key
        and (v_need is null or p.need > v_need)
      order by p.need, p.priority, p.pos
      limit 1;
      exit when not found;
      v_need := v_first.need;
      v_needs := v_needs || v_need;
      with taken as (
        delete from pgwf.parked as p
        where p.singleton_key = v_key
          and p.need = v_need
          and p.priority = v_first.priority
          and p.pos = v_first.pos
        returning p.n, p.priority, p.need, p.ready_at, p.expires_at, p.singleton_key
      )
      insert into pgwf.ready (pos, n, priority, need, ready_at, expires_at, singleton_key)
      select nextval('pgwf.pos'), t.n, t.priority, t.need, t.ready_at, t.expires_at, t.singleton_key
      from taken as t;
    end loop;
  end loop;
  if cardinality(v_needs) > 0 then
    perform pgwf._wake_needs(v_needs);
  end if;
end
$$;

-- L6. The leases that held these keys are ended by the caller: the keys are free, and the next job of each comes up.
create or replace function pgwf._free_keys(p_keys text[])
returns void
language plpgsql
volatile
as $$
begin
  if p_keys is null or cardinality(p_keys) = 0 then
    return;
  end if;
  perform pg_advisory_xact_lock(q.lock)
  from (
    select distinct pgwf._key_lock(k.singleton_key) as lock
    from unnest(p_keys) as k(singleton_key)
    order by 1
  ) as q;
  delete from pgwf.held where singleton_key = any (p_keys);
  perform pgwf._bring_up(p_keys);
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
  select array_agg(k.singleton_key)
  into v_keys
  from (
    select l.singleton_key, pg_try_advisory_xact_lock(pgwf._key_lock(l.singleton_key)) as locked
    from pgwf.lease as l
    where l.n = any (p_n)
      and l.singleton_key is not null
    offset 0
  ) as k
  where k.locked;
  return array(
    select l.n
    from pgwf.lease as l
    where l.n = any (p_n)
      and (l.singleton_key is null or l.singleton_key = any (v_keys))
    order by l.n);
end
$$;
