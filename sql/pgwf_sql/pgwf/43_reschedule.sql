-- Giving a lease back, and changing jobs that nobody holds.

-- Gives leases back: each job keeps its dependencies (it has none while leased), takes p_need (NULL keeps its own)
-- and its available_at (NULL: now), its streak of lapses ends, its key is freed, and it is placed. The caller holds
-- the leases and FOR UPDATE the job rows, and none is cancelled. L6. Wakes needs that got work or a free slot.
create or replace function pgwf._requeue(
  p_n bigint[],
  p_need text,
  p_available_at timestamptz[],
  p_worker_id text,
  p_now timestamptz,
  p_event_type text default 'reschedule_job'
)
returns void
language plpgsql
volatile
as $$
declare
  v_held pgwf.held[];
begin
  if pgwf._tracing() then
    insert into pgwf.trace (event_at, event_type, n, lease_no, worker_id, input_data, output_data)
    select
      p_now,
      p_event_type,
      i.n,
      l.lease_no,
      p_worker_id,
      jsonb_build_object('next_need', p_need, 'available_at', i.available_at),
      jsonb_build_object(
        'previous', pgwf._job_facts(j.row),
        'next_need', coalesce(p_need, (j.row).need),
        'available_at', coalesce(i.available_at, p_now),
        'last_error', (j.row).last_error)
    from unnest(p_n, p_available_at) as i(n, available_at)
    cross join lateral (select q as row from pgwf.job as q where q.n = i.n offset 0) as j
    left join lateral (select q.lease_no from pgwf.lease as q where q.n = i.n offset 0) as l on true;
  end if;
  v_held := pgwf._end_leases(p_n);
  perform pgwf._put_off(p_n, p_need, p_available_at, p_now);
  perform pgwf._free_keys(v_held, p_now);
  perform pgwf._place(p_n, p_now);
end
$$;

-- Writes need (NULL keeps its own) and available_at (NULL: now) into the jobs' rows, and ends their streaks.
create or replace function pgwf._put_off(p_n bigint[], p_need text, p_available_at timestamptz[], p_now timestamptz)
returns void
language plpgsql
volatile
as $$
begin
  update pgwf.job as j
  set
    need = coalesce(p_need, j.need),
    available_at = coalesce(i.available_at, p_now),
    streak = 0,
    shelved = false
  from unnest(p_n, p_available_at) as i(n, available_at)
  where j.n = i.n
    and j.n = any (p_n);
end
$$;

-- Gives leases back with new needs, dependencies, keys (NULL keeps, '' clears) and times. L2 to L6.
-- Status by item: 'ok', 'lease_lost', 'cancelled', 'unknown' (dependency), 'cycle', 'invalid', 'duplicate', 'busy'.
-- Items that are not 'ok' are left as they were.
create or replace function pgwf._reschedule(
  p_job_ids text[],
  p_lease_ids text[],
  p_needs text[],
  p_singleton_keys text[],
  p_available_at timestamptz[],
  p_worker_id text,
  p_now timestamptz,
  p_wait_ords int[] default null,
  p_wait_ids text[] default null,
  p_busy_ok boolean default false
)
returns table (ord int, n bigint, status text)
language plpgsql
volatile
as $$
#variable_conflict use_column
declare
  v_items bigint[];
  v_status text[];
  v_wait_for bigint[] := pgwf._numbers(p_wait_ids);
  v_ok bigint[];
  v_held pgwf.held[];
begin
  select k.items, k.statuses into v_items, v_status from pgwf._lock_leases(p_job_ids, p_lease_ids, p_busy_ok) as k;
  select array_agg(
    case
      when s.status = 'ok' and pgwf._place_flaw(s.need, 3, s.singleton_key) is not null then 'invalid'
      else s.status
    end order by s.ord)
  into v_status
  from unnest(v_status, p_needs, p_singleton_keys) with ordinality as s(status, need, singleton_key, ord);
  v_status := pgwf._depend(v_items, v_status, p_wait_ords, v_wait_for, p_busy_ok);
  if p_busy_ok then
    v_status := pgwf._leave_busy_keys(v_items, v_status);
  end if;

  select array_agg(i.n) into v_ok from unnest(v_items, v_status) as i(n, status) where i.status = 'ok';
  if v_ok is not null then
    perform pgwf._trace_reschedule(
      v_items, v_status, p_needs, p_singleton_keys, p_available_at, p_wait_ords, p_wait_ids, p_worker_id, p_now);
    v_held := pgwf._end_leases(v_ok);
    perform pgwf._rewrite(v_items, v_status, p_needs, p_singleton_keys, p_available_at, p_wait_ords, v_wait_for, p_now);
    perform pgwf._free_keys(v_held, p_now);
    perform pgwf._place(v_ok, p_now);
  end if;
  return query
  select i.ord::int, i.n, i.status
  from unnest(v_items, v_status) with ordinality as i(n, status, ord)
  order by i.ord;
end
$$;

-- L6 by try: items whose key somebody else is moving become 'busy', and their new edges go.
create or replace function pgwf._leave_busy_keys(p_items bigint[], p_status text[])
returns text[]
language plpgsql
volatile
as $$
declare
  v_ok bigint[] := array(select i.n from unnest(p_items, p_status) as i(n, status) where i.status = 'ok');
  v_mine bigint[] := pgwf._try_keys(v_ok);
begin
  delete from pgwf.edge as e
  where e.waiter = any (array(select o.n from unnest(v_ok) as o(n) except select m.n from unnest(v_mine) as m(n)));
  return array(
    select case
      when i.status = 'ok' and i.n not in (select m.n from unnest(v_mine) as m(n)) then 'busy'
      else i.status
    end
    from unnest(p_items, p_status) with ordinality as i(n, status, ord)
    order by i.ord);
end
$$;

-- L3 like _lock_jobs; with p_busy_ok rows that somebody else has locked are left out instead of waited for.
create or replace function pgwf._lock_jobs_of(p_update bigint[], p_share bigint[], p_busy_ok boolean)
returns bigint[]
language plpgsql
volatile
as $$
begin
  if not p_busy_ok then
    return pgwf._lock_jobs(p_update, p_share);
  end if;
  return array(select j.n from pgwf.job as j where j.n = any (p_update) order by j.n for update skip locked)
    || array(
      select j.n
      from pgwf.job as j
      where j.n = any (array(select s.n from unnest(p_share) as s(n) except select u.n from unnest(p_update) as u(n)))
      order by j.n
      for key share skip locked);
end
$$;

-- Writes what a reschedule says into the rows of the items with status 'ok'. Their edges are in place; waits as in
-- _depend.
create or replace function pgwf._rewrite(
  p_items bigint[],
  p_status text[],
  p_needs text[],
  p_singleton_keys text[],
  p_available_at timestamptz[],
  p_wait_ords int[],
  p_wait_for bigint[],
  p_now timestamptz
)
returns void
language plpgsql
volatile
as $$
begin
    with waits as (
      select q.ord, array_agg(q.n order by q.place) as wait_for
      from (
        select w.ord, w.n, min(w.place) as place
        from unnest(p_wait_ords, p_wait_for) with ordinality as w(ord, n, place)
        group by w.ord, w.n
      ) as q
      group by q.ord
    )
    update pgwf.job as j
    set
      need = i.need,
      wait_for = w.wait_for,
      pending = case when w.wait_for is null then 0 else (select count(*) from pgwf.edge as e where e.waiter = j.n) end,
      singleton_key = case when i.singleton_key is null then j.singleton_key else nullif(i.singleton_key, '') end,
      available_at = coalesce(i.available_at, p_now),
      streak = 0,
      shelved = false
    from unnest(p_items, p_status, p_needs, p_singleton_keys, p_available_at)
      with ordinality as i(n, status, need, singleton_key, available_at, ord)
    left join waits as w on w.ord = i.ord
    where j.n = i.n
      and j.n = any (p_items)
      and i.status = 'ok';
end
$$;

create or replace function pgwf._trace_reschedule(
  p_items bigint[],
  p_status text[],
  p_needs text[],
  p_singleton_keys text[],
  p_available_at timestamptz[],
  p_wait_ords int[],
  p_wait_ids text[],
  p_worker_id text,
  p_now timestamptz
)
returns void
language plpgsql
volatile
as $$
begin
  if not pgwf._tracing() then
    return;
  end if;
  insert into pgwf.trace (event_at, event_type, n, lease_no, worker_id, input_data, output_data)
  select
    p_now,
    'reschedule_job',
    i.n,
    l.lease_no,
    p_worker_id,
    jsonb_build_object(
      'next_need', i.need,
      'wait_for', coalesce(w.job_ids, '[]'),
      'singleton_key', i.singleton_key,
      'available_at', i.available_at),
    jsonb_build_object(
      'previous', pgwf._job_facts(j.row),
      'next_need', i.need,
      'singleton_key', case when i.singleton_key is null then (j.row).singleton_key else nullif(i.singleton_key, '') end,
      'available_at', coalesce(i.available_at, p_now))
  from unnest(p_items, p_status, p_needs, p_singleton_keys, p_available_at)
    with ordinality as i(n, status, need, singleton_key, available_at, ord)
  full join (
    select w.ord, jsonb_agg(w.job_id) as job_ids
    from unnest(p_wait_ords, p_wait_ids) as w(ord, job_id)
    group by w.ord
  ) as w on w.ord = i.ord
  cross join lateral (select q as row from pgwf.job as q where q.n = i.n and i.status = 'ok' offset 0) as j
  left join lateral (select q.lease_no from pgwf.lease as q where q.n = i.n offset 0) as l on true;
end
$$;

-- The error for a reschedule that was not 'ok', in the words of the calling function.
create or replace function pgwf._refuse_reschedule(
  p_status text,
  p_job_id text,
  p_lease_id text,
  p_need text,
  p_singleton_key text,
  p_wait_for text[]
)
returns void
language plpgsql
stable
as $$
begin
  case p_status
    when 'ok' then
      return;
    when 'cancelled' then
      perform pgwf._refuse(
        'WF003', format('job %s is cancelled and cannot be rescheduled', p_job_id),
        'complete it or stop working on it; it is archived when the lease ends');
    when 'unknown' then
      perform pgwf._refuse(
        'WF011', format('job %s: wait_for references unknown jobs: %s', p_job_id, pgwf._unknown(p_wait_for, null)),
        'submit a job before the jobs that wait for it');
    when 'cycle' then
      perform pgwf._refuse(
        'WF012', format('job %s: wait_for %s would make it wait for itself', p_job_id, p_wait_for),
        'one of these jobs waits for this job, directly or through others');
    else
      if pgwf._place_flaw(p_need, 3, p_singleton_key) is not null then
        perform pgwf._refuse(
          case when p_need is null then '23502' else 'WF001' end, pgwf._place_flaw(p_need, 3, p_singleton_key));
      end if;
      perform pgwf._refuse(
        'WF002', format('job %s is not currently leased with lease %s', p_job_id, p_lease_id),
        'another worker may have the job; stop working on it');
  end case;
end
$$;

-- Give a leased job back: it needs p_next_need next, waits for p_wait_for, and is runnable from p_available_at (NULL:
-- now) on. singleton_key: NULL keeps it, '' clears it. The streak of lapses ends; the job gets a new position. Its
-- key is free while it is not leased.
-- Locks: the lease; the job FOR UPDATE, its dependencies FOR KEY SHARE; its key. Errors: 23502, WF001, WF002 lease
-- lost, WF003 cancelled, WF011 unknown dependency, WF012 cycle, WF020. Wakes workers that offer next_need, if it is
-- runnable now.
create or replace function pgwf.reschedule_job(
  p_job_id text,
  p_lease_id text,
  p_worker_id text,
  p_next_need text,
  p_wait_for text[] default '{}',
  p_singleton_key text default null,
  p_available_at timestamptz default null
)
returns table (job_id text, next_need text, wait_for text[], singleton_key text, available_at timestamptz)
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
  v_wait_for text[] := pgwf._listed(p_wait_for);
  v_result record;
begin
  perform pgwf._require_read_committed();
  perform pgwf._require_worker(p_worker_id);
  perform pgwf._require_lease_id(p_job_id, p_lease_id);
  select r.n, r.status
  into v_result
  from pgwf._reschedule(
    array[p_job_id], array[p_lease_id], array[p_next_need], array[p_singleton_key],
    array[p_available_at], p_worker_id, pgwf._now(), array_fill(1, array[cardinality(v_wait_for)]), v_wait_for) as r;
  perform pgwf._refuse_reschedule(v_result.status, p_job_id, p_lease_id, p_next_need, p_singleton_key, v_wait_for);
  return query
  select j.job_id, j.need, pgwf._remaining(j.n, j.wait_for), j.singleton_key, j.available_at
  from pgwf.job as j
  where j.n = v_result.n;
end
$$;

-- Give many leased jobs back in one call; an item that cannot be rescheduled fails alone and stays leased. Arrays run
-- parallel to p_job_ids; p_wait_for holds, per job, an array of ids or null. Answers one row per job in order: status
-- 'ok', 'lease_lost', 'cancelled', 'unknown' (dependency), 'cycle', 'invalid', 'duplicate', 'busy'.
-- Waits at most 100 ms for a row (55P03: repeat with p_busy_ok, which skips what others have locked: 'busy').
-- Locks and wake-ups as reschedule_job. Errors: 23502, WF001, WF020, WF021.
create or replace function pgwf.reschedule_jobs(
  p_worker_id text,
  p_job_ids text[],
  p_lease_ids text[],
  p_next_needs text[],
  p_wait_for jsonb default null,
  p_singleton_keys text[] default null,
  p_available_at timestamptz[] default null,
  p_busy_ok boolean default false
)
returns table (ord int, job_id text, status text)
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
set lock_timeout = '100ms'
as $$
declare
  v_waits record;
begin
  perform pgwf._require_read_committed();
  perform pgwf._require_worker(p_worker_id);
  perform pgwf._require_parallel(
    pgwf._bounds(p_job_ids), pgwf._bounds(p_lease_ids), pgwf._bounds(p_next_needs), pgwf._bounds(p_singleton_keys),
    pgwf._bounds(p_available_at), pgwf._waits_bounds(p_wait_for));
  select w.ords, w.ids into v_waits from pgwf._waits(p_wait_for) as w;
  return query
  select r.ord, p_job_ids[r.ord], r.status
  from pgwf._reschedule(
    p_job_ids, p_lease_ids, p_next_needs, p_singleton_keys, p_available_at, p_worker_id, pgwf._now(),
    v_waits.ords, v_waits.ids, p_busy_ok) as r;
end
$$;

-- Give a leased job back as it is, for instance after a failure: it is runnable again after p_delay_seconds, and
-- p_error is kept on the job. A cancelled job is archived at once instead. Returns when it is runnable, NULL if it
-- was cancelled.
-- Locks: the lease; the job FOR UPDATE; its key; waiters of a cancelled job. Errors: 23502, WF001, WF002, WF020.
-- Wakes workers that offer its need, if it is runnable now.
create or replace function pgwf.release_job(
  p_job_id text,
  p_lease_id text,
  p_worker_id text,
  p_error text default null,
  p_delay_seconds double precision default 0
)
returns timestamptz
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
as $$
declare
  v_now timestamptz := pgwf._now();
  v_n bigint;
  v_cancelled boolean;
  v_available_at timestamptz;
begin
  perform pgwf._require_read_committed();
  perform pgwf._require_worker(p_worker_id);
  perform pgwf._require_lease_id(p_job_id, p_lease_id);
  if p_delay_seconds is null or not p_delay_seconds between 0 and 1e9 then
    perform pgwf._refuse('WF001', format('delay_seconds must be between 0 and 1e9, not %s', p_delay_seconds));
  end if;
  select k.items[1]
  into v_n
  from pgwf._lock_leases(array[p_job_id], array[p_lease_id], false) as k
  where k.statuses[1] = 'ok';
  if v_n is null then
    perform pgwf._refuse(
      'WF002', format('job %s is not currently leased with lease %s', p_job_id, p_lease_id),
      'another worker may have the job; stop working on it');
  end if;
  perform pgwf._lock_jobs(array[v_n], '{}');
  update pgwf.job as j set last_error = p_error where j.n = v_n returning j.cancel_at is not null into v_cancelled;
  if v_cancelled then
    perform pgwf._end(array[v_n], null, 'cancelled', p_worker_id, v_now, false);
    return null;
  end if;
  v_available_at := v_now + make_interval(secs => p_delay_seconds);
  perform pgwf._requeue(array[v_n], null, array[v_available_at], p_worker_id, v_now, 'release_job');
  return v_available_at;
end
$$;
