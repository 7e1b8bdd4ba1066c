-- Workers that are there. Nothing in leasing depends on these rows: they tell people who serves what, and workers to
-- drain.

-- Say that a worker is alive and what it offers. Returns whether it should drain: finish its leases and take no new
-- ones.
-- Locks: the worker's row. Errors: 23502, WF001, WF020.
create or replace function pgwf.worker_heartbeat(
  p_worker_id text,
  p_capabilities text[],
  p_build text default null,
  p_slots int default null,
  p_slots_used int default null,
  p_details jsonb default null
)
returns boolean
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
as $$
declare
  v_now timestamptz := pgwf._now();
  v_draining boolean;
begin
  perform pgwf._require_read_committed();
  perform pgwf._require_worker(p_worker_id);
  if p_capabilities is null then
    perform pgwf._refuse('23502', 'capabilities cannot be null', 'a worker that offers nothing passes an empty array');
  elsif octet_length(p_worker_id) > 512 then
    perform pgwf._refuse('WF001', format('worker_id must have at most 512 bytes, not %s', octet_length(p_worker_id)));
  end if;
  perform pgwf._require_lists(pgwf._bounds(p_capabilities));
  insert into pgwf.worker as w (
    worker_id, capabilities, build, slots, slots_used, details, started_at, heartbeat_at)
  values (p_worker_id, p_capabilities, p_build, p_slots, p_slots_used, p_details, v_now, v_now)
  on conflict (worker_id) do update
  set
    capabilities = excluded.capabilities,
    build = excluded.build,
    slots = excluded.slots,
    slots_used = excluded.slots_used,
    details = excluded.details,
    heartbeat_at = excluded.heartbeat_at
  returning w.draining into v_draining;
  return v_draining;
end
$$;

-- Ask a worker to drain, or with p_draining false to go on. It learns so from its next heartbeat, for which it is
-- roused on the channel 'worker.<worker_id>'. Returns false when no such worker has been heard of. Locks: the worker's
-- row. Errors: 23502, WF020.
create or replace function pgwf.drain_worker(p_worker_id text, p_draining boolean default true)
returns boolean
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
as $$
begin
  perform pgwf._require_read_committed();
  perform pgwf._require_worker(p_worker_id);
  update pgwf.worker set draining = coalesce(p_draining, true) where worker_id = p_worker_id;
  if not found then
    return false;
  end if;
  perform pgwf._notify(array[pgwf.channel('worker.' || p_worker_id)]);
  return true;
end
$$;

-- A worker says goodbye: its row goes. Its leases, if any, go on. Returns false when it was not there.
-- Locks: the worker's row. Errors: 23502, WF020.
create or replace function pgwf.forget_worker(p_worker_id text)
returns boolean
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
as $$
begin
  perform pgwf._require_read_committed();
  perform pgwf._require_worker(p_worker_id);
  delete from pgwf.worker where worker_id = p_worker_id;
  return found;
end
$$;
