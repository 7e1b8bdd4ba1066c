-- Helpers of the entry points. None is for callers; all take locks in the order written at the head of 20_tables.
-- Entry points pin their plans, and helpers inherit that: a plan made while a table is small must not stay a scan of the
-- whole table. Helpers are plpgsql, because it keeps plans from call to call, which functions in plain SQL do not.

-- Effect: locks run rows in n order, after which a sender and a run that parks or ends are serialised.
create or replace function pgwf_sdk._lock_runs(p_n bigint[]) returns void
language plpgsql volatile
as $$
begin
  perform from pgwf_sdk.run r where r.n = any (p_n) order by r.n for no key update;
end
$$;

-- Effect: the number of a run.  Errors: WS002.
create or replace function pgwf_sdk._number(p_run_id text) returns bigint
language plpgsql stable
as $$
declare
  v_n bigint;
begin
  select r.n into v_n
  from pgwf.name m
  join pgwf_sdk.run r on r.n = m.n
  where m.job_id = p_run_id;
  if v_n is null then
    raise exception using
      errcode = 'WS002',
      message = format('no run %s', coalesce(quote_literal(p_run_id), 'NULL')),
      hint = 'select run_id from pgwf_sdk.runs order by n desc limit 20;';
  end if;
  return v_n;
end
$$;

-- Effect: journals of runs whose jobs were submitted in this transaction; returns the numbers of those that are new.
-- The others' ids are taken by journals that are no runs.  Locks: the ids, after those of the jobs.
create or replace function pgwf_sdk._open_journals(p_n bigint[], p_run_ids text[]) returns bigint[]
language plpgsql volatile
as $$
declare
  v_opened bigint[];
begin
  with opened as (
    insert into pgwf_journal.journal (journal_id, n)
    select a.run_id, a.n
    from unnest(p_n, p_run_ids) a(n, run_id)
    order by a.run_id
    on conflict do nothing
    returning n
  )
  select coalesce(array_agg(o.n), '{}') into v_opened from opened o;
  return v_opened;
end
$$;

-- Effect: none, or an error when a payload has more than 128 MiB; p_what tells what they are.  A claim answers with all
-- that is new to a run, each payload as base64 in one JSON text, and such a text has a limit in PostgreSQL: one run beyond it
-- would take down each claim that finds it.  Errors: WS004.
create or replace function pgwf_sdk._check_sizes(p_what text, p_payloads bytea[]) returns void
language plpgsql immutable
as $$
declare
  v_bytes_max constant bigint := 134217728;
  v_bytes bigint;
begin
  -- All together first, which costs nothing.
  if pg_column_size(p_payloads) > v_bytes_max then
    select max(octet_length(x.payload)) into v_bytes from unnest(p_payloads) x(payload);
    if v_bytes > v_bytes_max then
      raise exception using
        errcode = 'WS004',
        message = format('%s has %s bytes, expected at most %s (128 MiB)', p_what, v_bytes, v_bytes_max),
        hint = 'Keep large things in a store for files, and hand on their address.';
    end if;
  end if;
end
$$;

-- Effect: runs and their first entries, for jobs that were submitted and journals that were opened in this transaction.
-- Errors: WS004.  Wake-ups: none here; submitting the jobs did it.
create or replace function pgwf_sdk._create_runs(
  p_n bigint[], p_run_ids text[], p_workflows text[], p_needs text[], p_inputs bytea[], p_encodings smallint[],
  p_deadlines timestamptz[], p_builds text[], p_traces text[], p_parents bigint[], p_parent_keys text[],
  p_started_by text, p_now timestamptz
) returns void
language plpgsql volatile
as $$
begin
  perform pgwf_sdk._check_sizes('the input of a run', p_inputs);
  insert into pgwf_sdk.run
    (n, run_id, workflow, need, build, seed, trace, parent, parent_key, root, deadline, started_by, created_at)
  select a.n, a.run_id, a.workflow, a.need, a.build, hashtextextended(a.run_id, 0), a.trace, a.parent, a.parent_key,
    coalesce((select p.root from pgwf_sdk.run p where p.n = a.parent), a.n), a.deadline, p_started_by, p_now
  from unnest(p_n, p_run_ids, p_workflows, p_needs, p_deadlines, p_builds, p_traces, p_parents, p_parent_keys)
    a(n, run_id, workflow, need, deadline, build, trace, parent, parent_key);

  insert into pgwf_journal.entry
    (n, seq, call, kind, phase, scope, name, occurrence, payload, encoding, recorded_at, lease_no, code)
  select a.n, 1, 0, 1, 1, '', a.workflow, 1, a.input, a.encoding, p_now, null, null
  from unnest(p_n, p_workflows, p_inputs, p_encodings) a(n, workflow, input, encoding);
end
$$;

-- Effect: rows into the inboxes of runs whose rows the caller holds; returns the runs that are to be woken.
-- A run that waits for several children is woken when as many have completed as it asked for (run.wake_after), or by
-- the first that did not complete; with a negative number, when so many have ended in whatever way. Paused, blocked and final runs are left alone: the first two read their inbox when they go on.
-- Errors: WS004.
create or replace function pgwf_sdk._deliver(
  p_n bigint[], p_kinds smallint[], p_names text[], p_phases smallint[], p_payloads bytea[], p_encodings smallint[], p_now timestamptz
) returns bigint[]
language plpgsql volatile
as $$
declare
  v_wake bigint[];
begin
  perform pgwf_sdk._check_sizes('what is sent to a run', p_payloads);
  insert into pgwf_sdk.inbox (n, kind, name, phase, payload, encoding, received_at)
  select a.n, a.kind, a.name, a.phase, a.payload, a.encoding, p_now
  from unnest(p_n, p_kinds, p_names, p_phases, p_payloads, p_encodings) with ordinality
    a(n, kind, name, phase, payload, encoding, ord)
  order by a.ord;

  with arrived as (
    select a.n, count(*) filter (where a.kind = 6) as children, count(*) filter (where a.kind = 6 and a.phase <> 2) as broken,
      count(*) filter (where a.kind <> 6) as others
    from unnest(p_n, p_kinds, p_phases) a(n, kind, phase)
    group by a.n
  ), counted as (
    update pgwf_sdk.run r
    set wake_after = case
      when a.others > 0 or (r.wake_after > 0 and a.broken > 0) then 0
      else sign(r.wake_after) * greatest(abs(r.wake_after) - a.children, 0) end
    from arrived a
    where r.n = a.n and r.wake_after <> 0
    returning r.n, r.wake_after
  )
  select array_agg(r.n)
  into v_wake
  from arrived a
  join pgwf_sdk.run r on r.n = a.n
  left join counted c on c.n = a.n
  where r.status is null and coalesce(c.wake_after, 0) = 0;
  return coalesce(v_wake, '{}');
end
$$;

-- Effect: runs that got something to read go on: those that wait become leasable, and workers that hold others are told.
-- A claim that has read the inbox of one of them and is not committed is not seen: its worker hears at its next keepalive.
-- The caller holds their rows and jobs.
create or replace function pgwf_sdk._rouse(p_n bigint[], p_now timestamptz) returns void
language plpgsql volatile
as $$
begin
  perform pgwf._wake_jobs(p_n, p_now);
  perform pgwf._tell_holders(p_n);
end
$$;

-- Effect: a cancel request to those of p_n that still run, have not been asked before and belong to one of p_parents;
-- returns the runs that are to be woken.  The caller holds their rows and jobs.
create or replace function pgwf_sdk._ask_to_cancel(p_n bigint[], p_parents bigint[], p_reason text, p_now timestamptz) returns bigint[]
language plpgsql volatile
as $$
declare
  v_wake bigint[];
begin
  select pgwf_sdk._deliver(
    array_agg(r.n), array_agg(11::smallint), array_agg('parent'::text), array_agg(2::smallint),
    array_agg(convert_to(jsonb_build_object('by', 'parent', 'reason', p_reason)::text, 'UTF8')), array_agg(1::smallint), p_now)
  into v_wake
  from pgwf_sdk.run r
  where r.n = any (p_n) and (r.parent in (select p.n from unnest(p_parents) p(n))) is true and r.finished_at is null
    and not exists (select from pgwf_sdk.inbox i where i.n = r.n and i.kind = 11)
    and not exists (select from pgwf_journal.entry e where e.n = r.n and e.kind = 11)
  having count(*) > 0;
  return coalesce(v_wake, '{}');
end
$$;

-- Effect: the seats of the open tasks of runs.
create or replace function pgwf_sdk._open_seats(p_n bigint[]) returns bigint[]
language plpgsql stable
as $$
begin
  return (
    select coalesce(array_agg(o.seat), '{}')
    from unnest(p_n) i(n)
    cross join lateral (
      select s.seat
      from pgwf_sdk.task t
      join pgwf_sdk.seat s on s.n = t.n and s.key = t.key
      where t.n = i.n and s.n = i.n and t.state is not distinct from 'open'  -- as in _close_tasks
      offset 0
    ) o
  );
end
$$;

-- Effect: closes tasks that nobody decided.  The caller holds the run rows, and the leases and jobs of the seats.
create or replace function pgwf_sdk._close_tasks(p_seats bigint[], p_state text, p_worker_id text, p_now timestamptz) returns void
language plpgsql volatile
as $$
begin
  update pgwf_sdk.task t
  set state = p_state
  where t.n = any (array(select s.n from pgwf_sdk.seat s where s.seat = any (p_seats)))
    and ((t.n, t.key) in (select s.n, s.key from pgwf_sdk.seat s where s.seat = any (p_seats))) is true
    -- Not `=`: an index of all open tasks would answer that.
    and t.state is not distinct from 'open';
  perform pgwf_sdk._end_jobs(p_seats, 'cancelled', p_worker_id, p_now);
end
$$;

-- Effect: ends jobs whether or not they are leased.  The caller holds leases and jobs.
create or replace function pgwf_sdk._end_jobs(p_n bigint[], p_outcome text, p_worker_id text, p_now timestamptz) returns void
language plpgsql volatile
as $$
begin
  perform pgwf._catch(j.n, p_now)
  from pgwf.job j
  where j.n = any (p_n) and not exists (select from pgwf.lease l where l.n = j.n);
  perform pgwf._end(p_n, null, p_outcome, p_worker_id, p_now, false);
end
$$;

-- Effect: jobs that were submitted and journals that were opened in this transaction, at p_now, for runs that may not be
-- started after all are taken back, as if they had never been.
create or replace function pgwf_sdk._withdraw(p_n bigint[], p_now timestamptz) returns void
language plpgsql volatile
as $$
begin
  delete from pgwf.ready r using pgwf.job j where j.n = any (p_n) and r.need = j.need and r.priority = j.priority and r.pos = j.n;
  delete from pgwf.trace t
  where t.n = any (p_n) and t.event_type = 'submit_job' and t.event_at = p_now;
  delete from pgwf_journal.journal o where o.n = any (p_n);
  delete from pgwf.name m using pgwf.job j where j.n = any (p_n) and m.job_id = j.job_id;
  delete from pgwf.job j where j.n = any (p_n);
end
$$;
