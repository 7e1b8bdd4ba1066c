-- Dependencies: edge (child, waiter) means waiter waits for child, and counts in waiter's pending.

-- L5. The children are over (gone, or cancelled without a lease): their waiters wait for one job less, and are placed
-- at none. The caller holds the children's job rows. With p_skip a waiter whose row is busy keeps its edge for the
-- next sweep: callers that may hold the row of a waiting job must not wait for another. Wakes the needs that got
-- work.
create or replace function pgwf._release_waiters(p_n bigint[], p_now timestamptz, p_skip boolean)
returns void
language plpgsql
volatile
as $$
declare
  v_waiters bigint[];
  v_busy bigint[] := '{}';
  v_released int[];
  v_runnable bigint[];
begin
  -- Not distinct: it would read the whole index that has the waiters in order.
  v_waiters := array(select e.waiter from pgwf.edge as e where e.child = any (p_n));
  if cardinality(v_waiters) = 0 then
    return;
  end if;
  if p_skip then
    v_busy := array(
      select w.n from unnest(v_waiters) as w(n)
      except
      select j.n
      from (select q.n from pgwf.job as q where q.n = any (v_waiters) order by q.n for no key update skip locked) as j);
  else
    perform from pgwf.job as j where j.n = any (v_waiters) order by j.n for no key update;
  end if;
  with removed as (
    delete from pgwf.edge as e
    where e.child = any (p_n)
      and e.waiter not in (select b.n from unnest(v_busy) as b(n))
    returning e.waiter
  ), counted as (
    select r.waiter, count(*)::int as released from removed as r group by r.waiter
  )
  select array_agg(c.waiter), array_agg(c.released) into v_waiters, v_released from counted as c;
  v_runnable := pgwf._count_down(v_waiters, v_released);
  if v_runnable is not null then
    perform pgwf._place(v_runnable, p_now);
  end if;
end
$$;

-- Takes from each waiter's pending how many of its edges went. Returns those that wait for nobody any more.
create or replace function pgwf._count_down(p_n bigint[], p_released int[])
returns bigint[]
language plpgsql
volatile
as $$
declare
  v_runnable bigint[];
begin
  with updated as (
    update pgwf.job as j
    set pending = j.pending - c.released
    from unnest(p_n, p_released) as c(n, released)
    where j.n = c.n
      and j.n = any (p_n)
    returning j.n, j.pending
  )
  select array_agg(u.n) into v_runnable from updated as u where u.pending = 0;
  return v_runnable;
end
$$;

-- L5 alone, for a caller that needs L6 before it ends the jobs.
create or replace function pgwf._lock_waiters(p_n bigint[])
returns void
language plpgsql
volatile
as $$
begin
  perform
  from pgwf.job as j
  where j.n = any (array(select e.waiter from pgwf.edge as e where e.child = any (p_n)))
  order by j.n
  for no key update;
end
$$;

-- L5 by try: of jobs whose rows the caller holds, those whose waiters are all locked by this transaction now.
create or replace function pgwf._with_free_waiters(p_n bigint[])
returns bigint[]
language plpgsql
volatile
as $$
declare
  v_waiters bigint[];
begin
  if not exists (select from pgwf.edge as e where e.child = any (p_n)) then
    return p_n;
  end if;
  v_waiters := array(
    select j.n
    from pgwf.job as j
    where j.n = any (array(select e.waiter from pgwf.edge as e where e.child = any (p_n)))
    order by j.n
    for no key update skip locked);
  return array(
    select i.n
    from unnest(p_n) as i(n)
    where not exists (
      select from pgwf.edge as e
      where e.child = i.n and e.waiter not in (select w.n from unnest(v_waiters) as w(n))
      offset 0));
end
$$;

-- Makes p_waiter wait for those of p_children that are not over, and returns how many these are. The caller holds the
-- children's rows (at least FOR KEY SHARE), so none of them can end unseen; a cancelled job without a lease is over.
create or replace function pgwf._add_edges(p_waiter bigint, p_children bigint[])
returns int
language plpgsql
volatile
as $$
declare
  v_added int;
begin
  insert into pgwf.edge (child, waiter)
  select j.n, p_waiter
  from pgwf.job as j
  where j.n = any (p_children)
    and (j.cancel_at is null or exists (select from pgwf.lease as l where l.n = j.n offset 0))
  on conflict do nothing;
  get diagnostics v_added = row_count;
  return v_added;
end
$$;

-- L4 if it must. Whether the edges of p_waiter, which this call added, close a cycle. A cycle needs somebody who
-- waits for p_waiter and a child that waits itself; both need a row lock that excludes ours, so when these two probes
-- find nothing, nobody can close one concurrently either. Only edges count: a child that is over waits for nobody any
-- more.
create or replace function pgwf._closes_cycle(p_waiter bigint)
returns boolean
language plpgsql
volatile
as $$
declare
  v_children bigint[] := array(select e.child from pgwf.edge as e where e.waiter = p_waiter);
begin
  if not exists (select from pgwf.edge as e where e.child = p_waiter)
    or not exists (select from pgwf.edge as e where e.waiter = any (v_children))
  then
    return false;
  end if;
  perform pg_advisory_xact_lock(hashtextextended('pgwf.graph', 0));
  return exists (
    with recursive below(n) as (
      select c.n from unnest(v_children) as c(n)
      union
      select d.child
      from below as b
      cross join lateral (select e.child from pgwf.edge as e where e.waiter = b.n offset 0) as d
    )
    select from below as b where b.n = p_waiter);
end
$$;

-- Numbers of named jobs, aligned with p_job_ids; NULL where nobody ever used that id.
create or replace function pgwf._numbers(p_job_ids text[])
returns bigint[]
language plpgsql
stable
as $$
begin
  return array(
    select nm.n
    from unnest(p_job_ids) with ordinality as i(job_id, ord)
    left join lateral (select q.n from pgwf.name as q where q.job_id = i.job_id offset 0) as nm on true
    order by i.ord);
end
$$;
