-- New jobs.

-- Submits a batch; an item that cannot be taken fails alone. L1, then L3 on what the batch waits for.
-- Answers one row per item in order: status 'ok', 'live', 'finished', 'duplicate' (an earlier item has the same id),
-- 'invalid', 'unknown' (it waits for a job that does not exist). n is the job that has the id, if any has.
-- Waits come as pairs: item p_wait_ords[i] waits for p_wait_ids[i]. An item may wait for earlier items of its batch
-- only, so a batch has no cycle. Wakes the needs that got runnable work. Any isolation level.
create or replace function pgwf._submit(
  p_job_ids text[],
  p_needs text[],
  p_priorities smallint[],
  p_singleton_keys text[],
  p_available_at timestamptz[],
  p_expires_at timestamptz[],
  p_worker_id text,
  p_now timestamptz,
  p_wait_ords int[] default null,
  p_wait_ids text[] default null
)
returns table (ord int, n bigint, status text)
language plpgsql
volatile
as $$
#variable_conflict use_column
declare
  -- A transaction id before any position is drawn.
  v_xid constant xid8 := pg_current_xact_id();
  v_n bigint[];         -- by item: the number drawn for it, NULL when it was not taken
  v_named bigint[];     -- the same of those that were taken, in any order
  v_status text[];      -- by item; NULL: all are 'ok'
  v_wait_for text[];    -- by item: what it waits for, as a literal of bigint[]
  v_pending int[];
  v_needs text[];
begin
  -- The list is gone through in its order, so positions are drawn in it.
  with item as materialized (
    select
      i.job_id,
      case
        when pgwf._job_flaw(i.job_id, i.need, coalesce(i.priority, 3), i.singleton_key) is null then nextval('pgwf.pos')
      end as n
    from unnest(p_job_ids, p_needs, p_priorities, p_singleton_keys) as i(job_id, need, priority, singleton_key)
  ), named as (
    insert into pgwf.name (job_id, n)
    select i.job_id, i.n from item as i where i.n is not null order by i.job_id, i.n
    on conflict do nothing
    returning n
  )
  select array_agg(i.n), (select array_agg(m.n) from named as m)
  into v_n, v_named
  from item as i;
  if array_position(v_n, null) is not null or cardinality(v_named) is distinct from cardinality(v_n) then
    v_n := array(
      select m.n
      from unnest(v_n) with ordinality as i(n, ord)
      left join unnest(v_named) as m(n) on m.n = i.n
      order by i.ord);
  end if;
  if p_wait_ids is not null or array_position(v_n, null) is not null then
    select array_agg(
      case
        when i.n is not null then 'ok'
        when pgwf._job_flaw(i.job_id, i.need, coalesce(i.priority, 3), i.singleton_key) is not null then 'invalid'
        when i.place > 1 then 'duplicate'
        else 'taken'
      end order by i.ord)
    into v_status
    from (
      select q.*, row_number() over (partition by q.job_id order by q.ord) as place
      from unnest(p_job_ids, p_needs, p_priorities, p_singleton_keys, v_n)
        with ordinality as q(job_id, need, priority, singleton_key, n, ord)
    ) as i;
  end if;

  if p_wait_ids is not null and cardinality(p_wait_ids) > 0 then
    select w.items, w.statuses, w.wait_for, w.pending
    into v_n, v_status, v_wait_for, v_pending
    from pgwf._await(p_job_ids, v_n, v_status, p_wait_ords, p_wait_ids) as w;
  end if;

  with fresh as materialized (
    select
      p_job_ids[i] as job_id,
      v_n[i] as n,
      p_needs[i] as need,
      coalesce(p_priorities[i], 3::smallint) as priority,
      nullif(p_singleton_keys[i], '') as singleton_key,
      coalesce(p_available_at[i], p_now) as available_at,
      nullif(p_expires_at[i], 'infinity') as expires_at,
      v_wait_for[i]::bigint[] as wait_for,
      coalesce(v_pending[i], 0) as pending
    from generate_subscripts(p_job_ids, 1) as i
    where v_n[i] is not null
  ), jobs as (
    insert into pgwf.job (
      n, job_id, need, priority, singleton_key, wait_for, pending, available_at, expires_at, created_at)
    select
      f.n, f.job_id, f.need, f.priority, f.singleton_key, f.wait_for, f.pending, f.available_at, f.expires_at, p_now
    from fresh as f
  ), readied as (
    insert into pgwf.ready (pos, n, priority, need, ready_at, expires_at, singleton_key)
    select f.n, f.n, f.priority, f.need, p_now, f.expires_at, f.singleton_key
    from fresh as f
    where f.pending = 0
      and f.available_at <= p_now
      and (f.expires_at is null or f.expires_at > p_now)
    returning need
  ), traced as (
    insert into pgwf.trace (
      event_at, event_type, n, worker_id, need, priority, singleton_key, wait_for, pending, available_at, expires_at)
    select
      p_now, 'submit_job', f.n, p_worker_id, f.need, f.priority, f.singleton_key, f.wait_for, nullif(f.pending, 0),
      nullif(f.available_at, p_now), f.expires_at
    from fresh as f
    where (select s.trace_enabled from pgwf.setting as s where s.only_row)
  )
  select array_agg(distinct r.need) into v_needs from readied as r;
  if p_available_at is not null then
    insert into pgwf.timer (due, n)
    select j.available_at, j.n
    from pgwf.job as j
    where j.n = any (v_n)
      and j.pending = 0
      and j.available_at > p_now
      and j.available_at < 'infinity'
      and (j.expires_at is null or j.expires_at > p_now);
  end if;
  if v_needs is not null then
    perform pgwf._wake_needs(v_needs);
  end if;

  if v_status is null then
    return query select i.ord::int, i.n, 'ok' from unnest(v_n) with ordinality as i(n, ord);
    return;
  end if;
  return query
  select
    i.ord::int,
    coalesce(i.n, nm.n),
    case
      when i.status <> 'taken' then i.status
      when exists (select from pgwf.job as j where j.n = nm.n offset 0) then 'live'
      else 'finished'
    end
  from unnest(v_n, v_status, p_job_ids) with ordinality as i(n, status, job_id, ord)
  left join lateral (
    select q.n from pgwf.name as q where q.job_id = i.job_id and i.status = 'taken' offset 0) as nm on true
  order by i.ord;
end
$$;

-- The waits of a batch whose names are inserted: turns items that wait for an unknown job into status 'unknown' (and
-- gives their names back), locks what the others wait for (L3), adds the edges. Arrays are by item.
create or replace function pgwf._await(
  p_job_ids text[],
  p_n bigint[],
  p_status text[],
  p_wait_ords int[],
  p_wait_ids text[],
  out items bigint[],
  out statuses text[],
  out wait_for text[],
  out pending int[]
)
language plpgsql
volatile
as $$
#variable_conflict use_column
declare
  v_wait_for bigint[] := pgwf._numbers(p_wait_ids);
  v_bad int[];
  v_children bigint[];
begin
  items := p_n;
  statuses := p_status;
  -- Giving a name back makes the later items unknown that wait for it.
  with recursive wait as materialized (
    select w.ord, w.child, b.ord as child_ord
    from unnest(p_wait_ords, v_wait_for) as w(ord, child)
    left join unnest(p_n) with ordinality as b(n, ord) on b.n = w.child
    where p_n[w.ord] is not null
  ), bad(ord) as (
    select w.ord from wait as w where w.child is null or w.child_ord >= w.ord
    union
    select w.ord from bad as b join wait as w on w.child_ord = b.ord
  )
  select array_agg(b.ord) into v_bad from bad as b;
  if v_bad is not null then
    delete from pgwf.name as nm where nm.job_id = any (array(select p_job_ids[b.ord] from unnest(v_bad) as b(ord)));
    select
      array_agg(case when b.ord is null then i.n end order by i.ord),
      array_agg(case when b.ord is null then i.status else 'unknown' end order by i.ord)
    into items, statuses
    from unnest(p_n, p_status) with ordinality as i(n, status, ord)
    left join unnest(v_bad) as b(ord) on b.ord = i.ord;
  end if;

  -- cancel_at below is read from rows this transaction holds; a child that is gone by now is finished.
  v_children := pgwf._lock_jobs('{}', array(
    select w.child from unnest(p_wait_ords, v_wait_for) as w(ord, child) where items[w.ord] is not null
    except
    select i.n from unnest(items) as i(n)));

  with wanted as materialized (
    select w.ord, w.child, min(w.place) as place
    from unnest(p_wait_ords, v_wait_for) with ordinality as w(ord, child, place)
    where items[w.ord] is not null
    group by w.ord, w.child
  ), edges as (
    insert into pgwf.edge (child, waiter)
    select w.child, items[w.ord]
    from wanted as w
    where w.child in (select i.n from unnest(items) as i(n))
      or (
        w.child in (select c.n from unnest(v_children) as c(n))
        and exists (
          select from pgwf.job as j
          where j.n = w.child
            and (j.cancel_at is null or exists (select from pgwf.lease as l where l.n = j.n offset 0))
          offset 0))
    returning waiter
  ), counted as (
    select e.waiter, count(*)::int as pending from edges as e group by e.waiter
  ), listed as (
    select w.ord, array_agg(w.child order by w.place)::text as wait_for from wanted as w group by w.ord
  )
  select
    array_agg(l.wait_for order by i.ord),
    array_agg(c.pending order by i.ord)
  into wait_for, pending
  from unnest(items) with ordinality as i(n, ord)
  left join listed as l on l.ord = i.ord
  left join counted as c on c.waiter = i.n;
end
$$;

-- The bounds (_bounds) of a jsonb array of waits, or NULL when it was left out.
create or replace function pgwf._waits_bounds(p_wait_for jsonb)
returns text
language plpgsql
immutable
as $$
begin
  if p_wait_for is null or p_wait_for = 'null' then
    return null;
  end if;
  if jsonb_typeof(p_wait_for) = 'array'
    and not exists (
      select from jsonb_array_elements(p_wait_for) as i(waits)
      where jsonb_typeof(i.waits) not in ('array', 'null'))
  then
    return case jsonb_array_length(p_wait_for) when 0 then '{}' else format('[1:%s]', jsonb_array_length(p_wait_for)) end;
  end if;
  perform pgwf._refuse(
    'WF001',
    format('wait_for must be an array that holds, for each job, an array of job ids or null, not %s', left(p_wait_for::text, 80)),
    'for example [["child-1", "child-2"], null]');
end
$$;

-- Pairs (item, id) from such an array.
create or replace function pgwf._waits(p_wait_for jsonb, out ords int[], out ids text[])
language sql
immutable
as $$
  select
    array_agg(i.ord::int order by i.ord, w.place),
    array_agg(w.job_id order by i.ord, w.place)
  from jsonb_array_elements(nullif(p_wait_for, 'null')) with ordinality as i(waits, ord)
  cross join lateral jsonb_array_elements_text(nullif(i.waits, 'null'))
    with ordinality as w(job_id, place)
  where w.job_id is not null
$$;

-- Priorities as the tables hold them; what does not fit is mapped to one that is refused.
create or replace function pgwf._priorities(p_priorities int[])
returns smallint[]
language sql
immutable
as $$
  select array_agg((case when p.priority not between 1 and 4 then 0 else p.priority end)::smallint order by p.ord)
  from unnest(p_priorities) with ordinality as p(priority, ord)
$$;

-- Submit one job. It is leased once its dependencies are over and available_at has come (NULL: now), and not after
-- expires_at (NULL: never). priority 1 is most urgent. Ids have 1 to 512 bytes and no control characters.
-- Locks: the id against other submitters of it; dependencies FOR KEY SHARE. Any isolation level.
-- Errors: 23502, 23505 the id is live, WF001, WF010 the id is finished, WF011 unknown dependency.
-- Wakes workers that offer next_need, if the job is runnable now.
create or replace function pgwf.submit_job(
  p_job_id text,
  p_worker_id text,
  p_next_need text,
  p_wait_for text[] default '{}',
  p_singleton_key text default null,
  p_available_at timestamptz default null,
  p_expires_at timestamptz default null,
  p_priority int default 3
)
returns table (job_id text, next_need text, wait_for text[], available_at timestamptz, n bigint)
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
  v_now timestamptz := pgwf._now();
  v_flaw text := pgwf._job_flaw(p_job_id, p_next_need, p_priority, p_singleton_key);
  v_wait_for text[] := pgwf._listed(p_wait_for);
  v_result record;
begin
  perform pgwf._require_worker(p_worker_id);
  if v_flaw is not null then
    perform pgwf._refuse(case when v_flaw like '%null' then '23502' else 'WF001' end, v_flaw);
  end if;
  select s.n, s.status
  into v_result
  from pgwf._submit(
    array[p_job_id], array[p_next_need], array[p_priority::smallint], array[p_singleton_key], array[p_available_at],
    array[p_expires_at], p_worker_id, v_now, array_fill(1, array[cardinality(v_wait_for)]), v_wait_for) as s;
  if v_result.status = 'live' then
    perform pgwf._refuse(
      '23505', format('job %s already exists', p_job_id),
      'an id is used once; a second submission of it changes nothing');
  elsif v_result.status = 'finished' then
    perform pgwf._refuse('WF010', format('job %s has already completed and cannot be resubmitted', p_job_id));
  elsif v_result.status = 'unknown' then
    perform pgwf._refuse(
      'WF011', format('job %s: wait_for references unknown jobs: %s', p_job_id, pgwf._unknown(v_wait_for, p_job_id)),
      'submit a job before the jobs that wait for it');
  end if;
  return query
  select j.job_id, j.need, pgwf._remaining(j.n, j.wait_for), j.available_at, j.n
  from pgwf.job as j
  where j.n = v_result.n;
end
$$;

-- Those of p_job_ids that nobody ever used, and p_self, for an error message.
create or replace function pgwf._unknown(p_job_ids text[], p_self text)
returns text[]
language sql
stable
as $$
  select array_agg(i.job_id order by i.ord)
  from unnest(p_job_ids) with ordinality as i(job_id, ord)
  where i.job_id = p_self
    or not exists (select from pgwf.name as nm where nm.job_id = i.job_id)
$$;

-- Submit many jobs in one call; an item that cannot be taken fails alone. Arrays run parallel to p_job_ids, an array
-- left out means the default for all. p_wait_for holds, per job, an array of ids or null: [["a", "b"], null]; a job
-- may wait for earlier jobs of its batch. Answers one row per job in order; status 'ok', 'live', 'finished',
-- 'duplicate', 'invalid', 'unknown' (it waits for a job that does not exist); n is the job that has the id.
-- Locks and wake-ups as submit_job. Any isolation level. Errors: 23502, WF001, WF021.
create or replace function pgwf.submit_jobs(
  p_worker_id text,
  p_job_ids text[],
  p_next_needs text[],
  p_wait_for jsonb default null,
  p_singleton_keys text[] default null,
  p_available_at timestamptz[] default null,
  p_expires_at timestamptz[] default null,
  p_priorities int[] default null
)
returns table (ord int, job_id text, n bigint, status text)
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
as $$
declare
  v_wait_ords int[];
  v_wait_ids text[];
begin
  perform pgwf._require_worker(p_worker_id);
  perform pgwf._require_parallel(
    pgwf._bounds(p_job_ids), pgwf._bounds(p_next_needs), pgwf._bounds(p_singleton_keys), pgwf._bounds(p_available_at),
    pgwf._bounds(p_expires_at), pgwf._bounds(p_priorities), pgwf._waits_bounds(p_wait_for));
  if p_wait_for is not null then
    select w.ords, w.ids into v_wait_ords, v_wait_ids from pgwf._waits(p_wait_for) as w;
  end if;
  return query
  select s.ord, p_job_ids[s.ord], s.n, s.status
  from pgwf._submit(
    p_job_ids, p_next_needs, case when p_priorities is not null then pgwf._priorities(p_priorities) end,
    p_singleton_keys, p_available_at, p_expires_at, p_worker_id, pgwf._now(), v_wait_ords, v_wait_ids) as s;
end
$$;
