-- Roles of all three schemas, on request: psql -f sql/roles.sql, or pgwf migrate --roles. Needs CREATEROLE. Run it
-- again after each upgrade: it hands over new functions and takes back what an upgrade reset.
--
--   pgwf_owner    owns the schemas; nobody logs in as it
--   pgwf_worker   runs workers: claims, keeps and ends leases, advances runs
--   pgwf_client   starts, signals and cancels; waits for the results of what it knows the id of
--   pgwf_reader   reads everything: lists, details, timelines. What lists runs or tasks is a member of it as well
--   pgwf_console  reads everything and operates: pauses, limits, drains, decides, retries, retains
-- Entry points run as pgwf_owner with a pinned search_path, so workers and clients have no right on any table.

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
  SCHEMAS constant regnamespace[] := '{pgwf,pgwf_journal,pgwf_sdk}';
  v_schema regnamespace;
  v_object record;
begin
  -- Whoever made a role may grant it, but need not be able to act as it.
  if not (select r.rolsuper from pg_roles as r where r.rolname = current_user) then
    execute format('grant pgwf_owner to %I', current_user);
  end if;
  -- The schemas first: a new owner of what is in them must be able to create there.
  foreach v_schema in array SCHEMAS loop
    execute format('alter schema %s owner to pgwf_owner', v_schema);
  end loop;
  for v_object in
    select p.oid::regprocedure as signature, p.proname not like '\_%' as is_public
    from pg_proc as p
    where p.pronamespace = any (SCHEMAS)
  loop
    execute format('alter function %s owner to pgwf_owner', v_object.signature);
    execute format(
      'revoke execute on function %s from public, pgwf_worker, pgwf_client, pgwf_reader, pgwf_console',
      v_object.signature);
    if v_object.is_public then
      execute format('alter function %s security definer', v_object.signature);
    end if;
  end loop;
  for v_object in
    select
      c.oid::regclass as name,
      case c.relkind when 'v' then 'view' when 'S' then 'sequence' else 'table' end as kind
    from pg_class as c
    where c.relnamespace = any (SCHEMAS)
      and c.relkind in ('r', 'p', 'v', 'S')
      -- The sequence of an identity column goes with its table.
      and not (c.relkind = 'S' and exists (
        select from pg_depend as d where d.classid = 'pg_class'::regclass and d.objid = c.oid and d.deptype = 'i'))
      -- Giving a table to whom it belongs would lock it all the same, while others work.
      and c.relowner <> 'pgwf_owner'::regrole
  loop
    execute format('alter %s %s owner to pgwf_owner', v_object.kind, v_object.name);
  end loop;
end
$$;

grant usage on schema pgwf, pgwf_journal, pgwf_sdk to pgwf_worker, pgwf_client, pgwf_reader, pgwf_console;

-- What shows runs reads tables beside the views; nobody but the owner writes to any.
grant select on all tables in schema pgwf, pgwf_journal, pgwf_sdk to pgwf_reader, pgwf_console;
alter default privileges for role pgwf_owner in schema pgwf, pgwf_journal, pgwf_sdk
  grant select on tables to pgwf_reader, pgwf_console;
-- Who knows it can complete every promise.
revoke select on pgwf_sdk.token_key from pgwf_reader, pgwf_console;

-- A view reads its tables as its owner, but calls functions as its reader; a clock tells nothing.
grant execute on function pgwf._now(), pgwf_journal._now(), pgwf_sdk._now()
to pgwf_worker, pgwf_client, pgwf_reader, pgwf_console;

do $$
declare
  -- Who may call what; a new function is added here, or this script fails.
  GRANTS constant jsonb := jsonb_build_object(
    'pgwf_worker, pgwf_client, pgwf_reader, pgwf_console', array[
      'pgwf.schema_version', 'pgwf.channel', 'pgwf.is_trace_enabled', 'pgwf.is_notify_enabled',
      'pgwf.crash_concern_threshold', 'pgwf.priority_aging', 'pgwf.expired_grace', 'pgwf.worker_grace',
      'pgwf.job_dependencies', 'pgwf_journal.entry_key', 'pgwf_journal.read',
      'pgwf_journal.head', 'pgwf_sdk.run_result', 'pgwf_sdk.result'],
    'pgwf_worker, pgwf_client, pgwf_console', array[
      'pgwf.sleep_on', 'pgwf.wake_up', 'pgwf.submit_job', 'pgwf.submit_jobs', 'pgwf.cancel_job', 'pgwf.wake_jobs',
      'pgwf_sdk.start', 'pgwf_sdk.start_run', 'pgwf_sdk.signal', 'pgwf_sdk.signal_run', 'pgwf_sdk.cancel_run',
      'pgwf_sdk.signal_with_start', 'pgwf_sdk.signal_with_start_run',
      'pgwf_sdk.settle_awakeable', 'pgwf_sdk.complete_awakeable', 'pgwf_sdk.fail_awakeable',
      'pgwf_journal.open', 'pgwf_journal.append'],
    'pgwf_worker, pgwf_console', array[
      'pgwf.lease_job', 'pgwf.extend_lease', 'pgwf.reschedule_job', 'pgwf.release_job', 'pgwf.complete_job',
      'pgwf.forget_worker', 'pgwf.sweep', 'pgwf.add_partitions', 'pgwf_sdk.add_partitions'],
    'pgwf_worker', array[
      'pgwf_sdk.token_key',
      'pgwf_sdk.limited_needs',
      'pgwf_sdk.stray_leases',
      'pgwf.get_work', 'pgwf.extend_leases', 'pgwf.reschedule_jobs', 'pgwf.complete_jobs', 'pgwf.worker_heartbeat',
      'pgwf.next_wakeup', 'pgwf.sleep_in_turn', 'pgwf.wake_next', 'pgwf_sdk.advance', 'pgwf_sdk.append', 'pgwf_sdk.keepalive', 'pgwf_sdk.end_overdue', 'pgwf_sdk.escalate_tasks', 'pgwf_sdk.next_overdue', 'pgwf_journal.code_numbers'],
    'pgwf_client, pgwf_console', array[
      'pgwf_sdk.claim_task', 'pgwf_sdk.release_task', 'pgwf_sdk.decision_schema', 'pgwf_sdk.decide_task', 'pgwf_sdk.retry_run'],
    'pgwf_reader, pgwf_console', array['pgwf_sdk.fork_price'],
    'pgwf_console', array[
      'pgwf.reschedule_unheld_job', 'pgwf.complete_unheld_job', 'pgwf.set_priority', 'pgwf.archive_cancelled_jobs',
      'pgwf.clear_crash_concern', 'pgwf.set_crash_concern_threshold', 'pgwf.set_trace', 'pgwf.set_notify',
      'pgwf.set_priority_aging', 'pgwf.set_expired_grace', 'pgwf.set_worker_grace',
      'pgwf.pause_need', 'pgwf.resume_need', 'pgwf.limit_need', 'pgwf.limit_key', 'pgwf.drain_worker', 'pgwf.retain',
      'pgwf.check', 'pgwf.overdue', 'pgwf_sdk.pause_run', 'pgwf_sdk.resume_run', 'pgwf_sdk.resume_runs', 'pgwf_sdk.retry_runs',
      'pgwf_sdk.terminate_run', 'pgwf_sdk.fork_run', 'pgwf_sdk.retain']);
  v_function record;
begin
  for v_function in
    select p.oid::regprocedure as signature, (
      select string_agg(g.key, ', ') from jsonb_each(GRANTS) as g
      where g.value ? format('%s.%s', p.pronamespace::regnamespace, p.proname)) as roles
    from pg_proc as p
    where p.pronamespace = any ('{pgwf,pgwf_journal,pgwf_sdk}'::regnamespace[])
      and p.proname not like '\_%'
  loop
    if v_function.roles is null then
      raise exception 'function % is granted to nobody: add it to 60_roles.sql', v_function.signature;
    end if;
    execute format('grant execute on function %s to %s', v_function.signature, v_function.roles);
  end loop;
end
$$;
