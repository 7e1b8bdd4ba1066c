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

-- L3 and L4: locks the items with status 'ok' FOR UPDATE and what they wait for FOR KEY SHARE in one pass, and adds
-- their edges. Item p_wait_ords[i] waits for job p_wait_for[i], NULL when there is none of that id. Returns the statuses,
-- of which some may have become 'cancelled', 'unknown', 'cycle', or with p_busy_ok 'busy'.
create or replace function pgwf._depend(
  p_items bigint[],
  p_status text[],
  p_wait_ords int[],
  p_wait_for bigint[],
  p_busy_ok boolean
)
returns text[]
language plpgsql
volatile
as $$
declare
  v_status text[] := p_status;
  v_there bigint[];
  v_item record;
  v_waiters bigint[] := '{}';
  v_entangled bigint[];
begin
  if array_position(p_wait_for, null) is not null then
    v_status := array(
      select case
        when i.status = 'ok'
          and i.ord in (select w.ord from unnest(p_wait_ords, p_wait_for) as w(ord, n) where w.n is null)
        then 'unknown'
        else i.status
      end
      from unnest(p_status) with ordinality as i(status, ord)
      order by i.ord);
  end if;
  v_there := pgwf._lock_jobs_of(
    array(select i.n from unnest(p_items, v_status) as i(n, status) where i.status = 'ok'),
    array(select distinct w.n from unnest(p_wait_ords, p_wait_for) as w(ord, n) where v_status[w.ord] = 'ok'),
    p_busy_ok);

  v_status := array(
    select case
      when i.status <> 'ok' then i.status
      when i.n not in (select t.n from unnest(v_there) as t(n)) then 'busy'
      when exists (select from pgwf.job as j where j.n = i.n and j.cancel_at is not null offset 0) then 'cancelled'
      when p_busy_ok and i.ord in (
        select w.ord
        from unnest(p_wait_ords, p_wait_for) as w(ord, n)
        where w.n not in (select t.n from unnest(v_there) as t(n))
          and exists (select from pgwf.job as j where j.n = w.n offset 0))
      then 'busy'
      else 'ok'
    end
    from unnest(p_items, v_status) with ordinality as i(n, status, ord)
    order by i.ord);

  for v_item in
    select p_items[w.ord] as n, array_agg(distinct w.n) as children
    from unnest(p_wait_ords, p_wait_for) as w(ord, n)
    where v_status[w.ord] = 'ok'
    group by w.ord
  loop
    perform pgwf._add_edges(v_item.n, v_item.children);
    v_waiters := v_waiters || v_item.n;
  end loop;
  v_entangled := pgwf._entangled(v_waiters);
  if cardinality(v_entangled) = 0 then
    return v_status;
  end if;
  -- Of those that close a cycle together the last is refused: their edges are added anew, one item after the other.
  delete from pgwf.edge as e where e.waiter = any (v_entangled);
  for v_item in
    select w.ord, p_items[w.ord] as n, array_agg(distinct w.n) as children
    from unnest(p_wait_ords, p_wait_for) as w(ord, n)
    where v_status[w.ord] = 'ok' and (p_items[w.ord] in (select x.n from unnest(v_entangled) as x(n))) is true
    group by w.ord
    order by w.ord
  loop
    perform pgwf._add_edges(v_item.n, v_item.children);
    if pgwf._closes_cycle(v_item.n) then
      delete from pgwf.edge as e where e.waiter = v_item.n;
      v_status[v_item.ord] := 'cycle';
    end if;
  end loop;
  return v_status;
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

-- L4 if it must. Of p_waiters, whose edges this call added, those below which there is a cycle. The two probes of
-- _closes_cycle, for all of them; then the jobs below are taken away from the lowest on, each once all that it waits for
-- are gone: what stays has a cycle below it. So it takes as long as there are edges below, however many ask.
create or replace function pgwf._entangled(p_waiters bigint[])
returns bigint[]
language plpgsql
volatile
as $$
declare
  v_suspects bigint[] := array(
    select w.n
    from unnest(p_waiters) as w(n)
    cross join lateral (select e.child from pgwf.edge as e where e.child = w.n limit 1) as above
    cross join lateral (
      select d.waiter
      from pgwf.edge as e
      cross join lateral (select q.waiter from pgwf.edge as q where q.waiter = e.child limit 1) as d
      where e.waiter = w.n
      limit 1) as below);
  v_nodes bigint[];      -- sorted; below, a job is its place in here
  v_children int[];      -- of the edges, sorted
  v_waiters int[];
  v_first int[];         -- by job: its first edge as a child
  v_left int[];          -- by job: how many it still waits for
  v_free int[];          -- jobs that wait for nobody any more
  v_free_count int := 0;
  v_done_count int := 0;
  v_edge int;
begin
  if cardinality(v_suspects) = 0 then
    return '{}';
  end if;
  perform pg_advisory_xact_lock(hashtextextended('pgwf.graph', 0));
  with recursive below(n) as (
    select s.n from unnest(v_suspects) as s(n)
    union
    select d.child
    from below as b
    cross join lateral (select e.child from pgwf.edge as e where e.waiter = b.n offset 0) as d
  ), nodes as (
    select array_agg(b.n order by b.n) as all_n from below as b
  ), edges as (
    select width_bucket(d.child, (select k.all_n from nodes as k)) as child, width_bucket(b.n, (select k.all_n from nodes as k)) as waiter
    from below as b
    cross join lateral (select e.child from pgwf.edge as e where e.waiter = b.n offset 0) as d
  )
  select (select k.all_n from nodes as k), array_agg(e.child order by e.child), array_agg(e.waiter order by e.child)
  into v_nodes, v_children, v_waiters
  from edges as e;

  v_first := array_fill(null::int, array[cardinality(v_nodes)]);
  v_left := array_fill(0, array[cardinality(v_nodes)]);
  v_free := v_left;
  for v_edge in 1 .. cardinality(v_children) loop
    v_first[v_children[v_edge]] := coalesce(v_first[v_children[v_edge]], v_edge);
    v_left[v_waiters[v_edge]] := v_left[v_waiters[v_edge]] + 1;
  end loop;
  for v_node in 1 .. cardinality(v_nodes) loop
    if v_left[v_node] = 0 then
      v_free_count := v_free_count + 1;
      v_free[v_free_count] := v_node;
    end if;
  end loop;
  while v_done_count < v_free_count loop
    v_done_count := v_done_count + 1;
    v_edge := v_first[v_free[v_done_count]];
    while v_children[v_edge] = v_free[v_done_count] loop
      v_left[v_waiters[v_edge]] := v_left[v_waiters[v_edge]] - 1;
      if v_left[v_waiters[v_edge]] = 0 then
        v_free_count := v_free_count + 1;
        v_free[v_free_count] := v_waiters[v_edge];
      end if;
      v_edge := v_edge + 1;
    end loop;
  end loop;
  return array(
    select w.n
    from unnest(p_waiters) as w(n)
    where (w.n in (select x.n from unnest(v_nodes, v_left) as x(n, waits) where x.waits > 0)) is true);
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
    from unnest(p_job_ids) as i(job_id)
    left join lateral (select q.n from pgwf.name as q where q.job_id = i.job_id offset 0) as nm on true);
end
$$;
