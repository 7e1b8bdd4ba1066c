-- Roles of the leasing core, on request: psql -f sql/roles.sql, or pgwf migrate --roles. Needs CREATEROLE. Run it
-- again after each upgrade: it hands over new functions and takes back what an upgrade reset.
--
--   pgwf_owner    owns the schema; nobody logs in as it
--   pgwf_worker   claims, keeps and ends leases
--   pgwf_client   submits and cancels
--   pgwf_reader   reads the views
--   pgwf_console  operates: pauses, limits, drains, clears, retains
-- Entry points run as pgwf_owner with a pinned search_path, so no other role has rights on a table.

do $$
declare
  ROLES constant text[] := '{pgwf_owner,pgwf_worker,pgwf_client,pgwf_reader,pgwf_console}';
  v_name text;
begin
  foreach v_name in array ROLES loop
    if not exists (select from pg_roles where rolname = v_name) then
      execute format('create role %I nologin', v_name);
    end if;
  end loop;
end
$$;

do $$
declare
  v_object record;
begin
  -- The schema first: a new owner of what is in it must be able to create there.
  if not pg_has_role(current_user, 'pgwf_owner', 'member') then
    execute format('grant pgwf_owner to %I', current_user);
  end if;
  execute 'alter schema pgwf owner to pgwf_owner';
  for v_object in
    select p.oid::regprocedure as signature, p.proname not like '\_%' as is_public
    from pg_proc as p
    where p.pronamespace = 'pgwf'::regnamespace
  loop
    execute format('alter function %s owner to pgwf_owner', v_object.signature);
    execute format('revoke execute on function %s from public', v_object.signature);
    if v_object.is_public then
      execute format('alter function %s security definer', v_object.signature);
    end if;
  end loop;
  for v_object in
    select
      c.oid::regclass as name,
      case c.relkind when 'v' then 'view' when 'S' then 'sequence' else 'table' end as kind
    from pg_class as c
    where c.relnamespace = 'pgwf'::regnamespace
      and c.relkind in ('r', 'p', 'v', 'S')
      -- The sequence of an identity column goes with its table.
      and not (c.relkind = 'S' and exists (
        select from pg_depend as d where d.classid = 'pg_class'::regclass and d.objid = c.oid and d.deptype = 'i'))
  loop
    execute format('alter %s %s owner to pgwf_owner', v_object.kind, v_object.name);
  end loop;
end
$$;

grant usage on schema pgwf to pgwf_worker, pgwf_client, pgwf_reader, pgwf_console;

grant select
on pgwf.jobs, pgwf.jobs_with_status, pgwf.jobs_friendly_status, pgwf.jobs_archive, pgwf.jobs_trace
to pgwf_reader, pgwf_console;

-- A view reads its tables as its owner, but calls functions as its reader.
grant execute on function pgwf._now() to pgwf_reader, pgwf_console;

do $$
declare
  EVERYBODY constant text := 'pgwf_worker, pgwf_client, pgwf_reader, pgwf_console';
  GRANTS constant jsonb := jsonb_build_object(
    'schema_version', EVERYBODY,
    'channel', EVERYBODY,
    'is_trace_enabled', EVERYBODY,
    'is_notify_enabled', EVERYBODY,
    'crash_concern_threshold', EVERYBODY,
    'priority_aging', EVERYBODY,
    'expired_grace', EVERYBODY,
    'worker_grace', EVERYBODY,
    'job_dependencies', EVERYBODY,
    'sleep_on', 'pgwf_worker, pgwf_client',
    'wake_up', 'pgwf_worker, pgwf_client',
    'submit_job', 'pgwf_worker, pgwf_client, pgwf_console',
    'submit_jobs', 'pgwf_worker, pgwf_client, pgwf_console',
    'cancel_job', 'pgwf_worker, pgwf_client, pgwf_console',
    'wake_jobs', 'pgwf_worker, pgwf_client, pgwf_console',
    'get_work', 'pgwf_worker',
    'lease_job', 'pgwf_worker, pgwf_console',
    'extend_lease', 'pgwf_worker, pgwf_console',
    'extend_leases', 'pgwf_worker',
    'reschedule_job', 'pgwf_worker, pgwf_console',
    'reschedule_jobs', 'pgwf_worker',
    'release_job', 'pgwf_worker, pgwf_console',
    'complete_job', 'pgwf_worker, pgwf_console',
    'complete_jobs', 'pgwf_worker',
    'worker_heartbeat', 'pgwf_worker',
    'forget_worker', 'pgwf_worker, pgwf_console',
    'next_wakeup', 'pgwf_worker',
    'sweep', 'pgwf_worker, pgwf_console',
    'reschedule_unheld_job', 'pgwf_console',
    'complete_unheld_job', 'pgwf_console',
    'set_priority', 'pgwf_console',
    'archive_cancelled_jobs', 'pgwf_console',
    'clear_crash_concern', 'pgwf_console',
    'set_crash_concern_threshold', 'pgwf_console',
    'set_priority_aging', 'pgwf_console',
    'set_expired_grace', 'pgwf_console',
    'set_worker_grace', 'pgwf_console',
    'set_trace', 'pgwf_console',
    'set_notify', 'pgwf_console',
    'pause_need', 'pgwf_console',
    'resume_need', 'pgwf_console',
    'limit_need', 'pgwf_console',
    'drain_worker', 'pgwf_console',
    'retain', 'pgwf_console',
    'add_partitions', 'pgwf_worker, pgwf_console',
    'check', 'pgwf_console',
    'overdue', 'pgwf_console');
  v_function record;
begin
  for v_function in
    select p.oid::regprocedure as signature, p.proname as name
    from pg_proc as p
    where p.pronamespace = 'pgwf'::regnamespace
      and p.proname not like '\_%'
  loop
    if GRANTS ->> v_function.name is null then
      raise exception 'function % is granted to nobody: add it to 60_roles.sql', v_function.signature;
    end if;
    execute format('grant execute on function %s to %s', v_function.signature, GRANTS ->> v_function.name);
  end loop;
end
$$;
