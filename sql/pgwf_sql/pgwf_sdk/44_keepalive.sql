-- Effect: prolongs the leases a worker holds, in one call, and says of each what its holder should know: lost (stop the
-- work, somebody else may have it), cancel and unread (there is such a row in the inbox after p_inbox_seen), paused.
-- Never shortens a lease.  Locks: the leases.  Errors: WS004.
create or replace function pgwf_sdk.keepalive(
  p_worker_id text, p_n bigint[], p_lease_ids uuid[], p_inbox_seen bigint[], p_lease_seconds double precision default 15
) returns table (n bigint, lost boolean, unread boolean, cancel boolean, paused boolean)
language plpgsql volatile
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set enable_bitmapscan = off
set jit = off
set plan_cache_mode = force_generic_plan
as $$
declare
  v_held bigint[];
begin
  if p_lease_seconds is null or not (p_lease_seconds > 0 and p_lease_seconds <= 1e9) then
    raise exception using
      errcode = 'WS004',
      message = format('keepalive: lease_seconds is %s, expected more than 0 and at most 1e9', coalesce(p_lease_seconds::text, 'NULL'));
  end if;
  with held as (
    select l.n
    from pgwf.lease l
    join unnest(p_n, p_lease_ids) a(n, lease_id) on a.n = l.n and a.lease_id = l.lease_id
    order by l.n
    for no key update of l
  ), extended as (
    update pgwf.lease l
    -- The time is read under the lock: whoever held the row may have been slow.
    set until = greatest(l.until, pgwf_sdk._now() + make_interval(secs => p_lease_seconds))
    from held h
    where l.n = h.n
    returning l.n
  )
  select coalesce(array_agg(e.n), '{}') into v_held from extended e;

  return query
  select a.n, a.n not in (select h.n from unnest(v_held) h(n)),
    exists (select from pgwf_sdk.inbox i where i.n = a.n and i.id > coalesce(a.seen, 0)),
    exists (select from pgwf_sdk.inbox i where i.n = a.n and i.id > coalesce(a.seen, 0) and i.kind = 11),
    coalesce((select r.status = 'paused' from pgwf_sdk.run r where r.n = a.n), false)
  from unnest(p_n, p_inbox_seen) a(n, seen);
end
$$;

-- Effect: those of p_needs that are paused or limited.  A step with such a need begins only in a run that was leased by it.
-- Errors: none.
create or replace function pgwf_sdk.limited_needs(p_needs text[]) returns text[]
language sql stable
set search_path = pg_catalog, pg_temp
as $$
  select array(
    select s.need from pgwf.need_setting s
    where s.need = any (p_needs) and (s.paused or s.max_active is not null or s.rate is not null)
    order by s.need)
$$;

-- Effect: none. The runs a worker has leased beside p_known: the call that leased them may have lost its connection before
-- the answer came. Lapsed leases are left to the sweep.  Locks: none.  Errors: none of its own.
create or replace function pgwf_sdk.stray_leases(p_worker_id text, p_known bigint[])
returns table (
  n bigint, run_id text, workflow text, need text, current_need text, build text, seed bigint, trace text, deadline timestamptz,
  lease_id uuid, lease_no bigint, streak int, head bigint, now_at timestamptz)
language sql volatile
set search_path = pg_catalog, pg_temp
as $$
  select r.n, r.run_id, r.workflow, r.need, j.need, r.build, r.seed, r.trace, r.deadline, l.lease_id, l.lease_no, j.streak,
    pgwf_journal._head(r.n), t.now_at
  from (select pgwf_sdk._now() as now_at) t
  join pgwf.lease l on l.worker_id = p_worker_id and l.until > t.now_at and l.n not in (select k.n from unnest(p_known) k(n) where k.n is not null)
  join pgwf_sdk.run r on r.n = l.n
  join pgwf.job j on j.n = l.n
  order by l.n
$$;
