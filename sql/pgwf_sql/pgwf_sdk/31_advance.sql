-- The one hot call: everything a worker has to say about many runs, and the work it asks for, in one round trip and one
-- commit. The lease row lock is the fence: it is taken before the journal's head is looked at and kept until the commit,
-- so nobody else can append in between, and a lease cannot end under a call that was admitted.

-- Effect: gives leases back.  p_available_at is when each run becomes leasable again ('infinity': when it is woken);
-- p_needs NULL keeps the need.  A paused run stays parked whatever was asked; one whose job was cancelled in the leasing
-- core is over, like one that is terminated; its relatives' rows are then locked out of order, which may cost a repetition.
-- The caller holds run rows, leases and jobs.
create or replace function pgwf_sdk._give_back(
  p_n bigint[], p_needs text[], p_available_at timestamptz[], p_wake_after int[], p_notes text[], p_worker_id text, p_now timestamptz
) returns void
language plpgsql volatile
as $$
declare
  v_cancelled bigint;
  v_group record;
begin
  update pgwf_sdk.run r
  set wake_after = coalesce(a.wake_after, 0), note = a.note
  from unnest(p_n, p_wake_after, p_notes) a(n, wake_after, note)
  where r.n = a.n and (r.wake_after, r.note) is distinct from (coalesce(a.wake_after, 0), a.note);

  for v_group in
    select a.need, array_agg(a.n order by a.n) as n,
      array_agg(case when r.status in ('paused', 'blocked') then 'infinity' else a.available_at end order by a.n) as available_at
    from unnest(p_n, p_needs, p_available_at) a(n, need, available_at)
    join pgwf_sdk.run r on r.n = a.n
    join pgwf.job j on j.n = a.n
    where j.cancel_at is null
    group by a.need
  loop
    perform pgwf._requeue(v_group.n, v_group.need, v_group.available_at, p_worker_id, p_now);
  end loop;

  for v_cancelled in select j.n from pgwf.job j where j.n = any (p_n) and j.cancel_at is not null order by j.n loop
    perform pgwf_sdk._terminate(v_cancelled, j.cancel_by, coalesce(j.cancel_reason, 'its job was cancelled'), p_now)
    from pgwf.job j
    where j.n = v_cancelled;
  end loop;
end
$$;

-- Effect: ends runs: status, the job to the archive, the result into the inboxes of the parent and of who is attached; children that still run are
-- asked to cancel, terminated or left alone, as the parent said when it started them (run.close); open tasks closed, everybody who waits for the result woken.  The terminal entry is in the journal.
-- The caller holds the rows of the runs, of their parents, children and who is attached, and leases and jobs of all of them and p_seats.
create or replace function pgwf_sdk._finish(
  p_n bigint[], p_statuses text[], p_payloads bytea[], p_encodings smallint[], p_children bigint[], p_seats bigint[],
  p_worker_id text, p_now timestamptz
) returns void
language plpgsql volatile
as $$
declare
  v_wake bigint[] := '{}';
begin
  update pgwf_sdk.run r
  set status = a.status, finished_at = p_now, wake_after = 0, note = null, grace_until = null
  from unnest(p_n, p_statuses) a(n, status)
  where r.n = a.n;
  delete from pgwf_sdk.inbox i where i.n = any (p_n);
  delete from pgwf_sdk.attempt t where t.n = any (p_n);
  delete from pgwf_sdk.blocked b where b.n = any (p_n);

  if exists (select from pgwf_sdk.run r where r.n = any (p_n) and r.parent is not null) then
    select pgwf_sdk._deliver(
      array_agg(r.parent order by a.ord), array_agg(6::smallint), array_agg(r.parent_key order by a.ord),
      array_agg(pgwf_sdk._end_phase(a.status) order by a.ord),
      array_agg(a.payload order by a.ord), array_agg(a.encoding order by a.ord), p_now)
    into v_wake
    from unnest(p_n, p_statuses, p_payloads, p_encodings) with ordinality a(n, status, payload, encoding, ord)
    join pgwf_sdk.run r on r.n = a.n
    join pgwf_sdk.run p on p.n = r.parent and p.finished_at is null
    where r.parent_key is not null and a.status <> 'continued';
  end if;

  if exists (select from pgwf_sdk.attachment a where a.target = any (p_n)) or exists (select from pgwf_sdk.attachment a where a.n = any (p_n)) then
    v_wake := v_wake || pgwf_sdk._end_attachments(p_n, p_statuses, p_payloads, p_encodings, p_now);
  end if;
  if cardinality(p_children) > 0 then
    v_wake := coalesce(v_wake, '{}') || pgwf_sdk._ask_to_cancel(
      array(select r.n from pgwf_sdk.run r where r.n = any (p_children) and r.close is null), p_n, 'the parent run is over', p_now);
    perform pgwf_sdk._terminate(r.n, 'parent', 'the parent run is over', p_now)
    from pgwf_sdk.run r
    where r.n = any (p_children) and r.close = 'terminate' and r.finished_at is null;
  end if;

  -- Only a termination comes here with that status, and it comes alone.
  perform pgwf_sdk._end_jobs(p_n, case when 'terminated' = any (p_statuses) then 'cancelled' else 'completed' end, p_worker_id, p_now);
  if cardinality(p_seats) > 0 then
    perform pgwf_sdk._close_tasks(p_seats, 'cancelled', p_worker_id, p_now);
  end if;
  if cardinality(v_wake) > 0 then
    perform pgwf_sdk._rouse(v_wake, p_now);
  end if;
  perform pgwf._wake(array(select 'run.' || x from unnest(p_n) x));
end
$$;

-- Effect: leases up to p_slots runs and answers each with what a worker needs to go on: its journal (up to 1,000 entries
-- or its share of an answer, maybe none; head tells whether there are more), its inbox and the failed attempts of its open steps. A last row without
-- n says where the next claim may begin, if that is not the beginning (pgwf._claim).
-- All of it is read in a statement after the claim: what was committed while that was under way is in the answer.
-- A job that is no run (somebody submitted it by hand for a need of workflows) is given back for a minute.
-- Wakes the next two sleepers when it found all it asked for and there is more.
create or replace function pgwf_sdk._claimed(
  p_worker_id text, p_worker_caps text[], p_slots int, p_lease_seconds double precision, p_position bigint[], p_now timestamptz)
returns table (
  n bigint, run_id text, workflow text, need text, current_need text, build text, seed bigint, trace text, deadline timestamptz,
  lease_id uuid, lease_no bigint, streak int, head bigint, calls int[], kinds smallint[], phases smallint[], scopes text[], names text[],
  occurrences int[], payloads bytea[], encodings smallint[], times timestamptz[], inbox jsonb, attempts jsonb, next_position bigint[], is_whole boolean)
language plpgsql volatile
as $$
declare
  v_foreign bigint[];
  v_claim record;
  v_bytes_max bigint;
begin
  v_claim := pgwf._claim(p_worker_id, p_worker_caps, p_slots, p_lease_seconds, p_now, p_position);
  if cardinality(v_claim.n) >= p_slots then
    perform pgwf._hand_on(p_worker_caps);
  end if;
  select array_agg(c.x)
  into v_foreign
  from unnest(v_claim.n) c(x)
  where not exists (select from pgwf_sdk.run r where r.n = c.x);
  if v_foreign is not null then
    perform pgwf._requeue(v_foreign, null, array_fill(p_now + interval '1 minute', array[cardinality(v_foreign)]), p_worker_id, p_now);
  end if;

  v_bytes_max := pgwf_sdk._share(cardinality(v_claim.n));
  return query
  select r.n, r.run_id, r.workflow, r.need, j.need, r.build, r.seed, r.trace, r.deadline, c.lease_id, c.lease_no, j.streak,
    -- As pgwf_journal._head and _inbox, which cost more to call for each run than most runs have to say.
    coalesce((select h.seq from pgwf_journal.entry h where h.n = r.n order by h.seq desc limit 1), 0),
    e.calls, e.kinds, e.phases, e.scopes, e.names, e.occurrences, e.payloads, e.encodings, e.times,
    case when exists (select from pgwf_sdk.inbox i where i.n = c.n) then pgwf_sdk._inbox(c.n, 0, v_bytes_max) end,
    (select jsonb_agg(jsonb_build_object(
      'key', t.key, 'no', t.no, 'next_at', t.next_at, 'first_at', t.first_at, 'heartbeat', t.heartbeat) order by t.key) from pgwf_sdk.attempt t where t.n = c.n),
    null::bigint[], null::boolean
  from unnest(v_claim.n, v_claim.lease_ids, v_claim.lease_nos) with ordinality c(n, lease_id, lease_no, ord)
  join pgwf_sdk.run r on r.n = c.n
  join pgwf.job j on j.n = c.n
  cross join lateral (
    select coalesce(array_agg(x.call), '{}') as calls, coalesce(array_agg(x.kind), '{}') as kinds, coalesce(array_agg(x.phase), '{}') as phases,
      coalesce(array_agg(x.scope), '{}') as scopes, coalesce(array_agg(x.name), '{}') as names, coalesce(array_agg(x.occurrence), '{}') as occurrences,
      coalesce(array_agg(x.payload), '{}') as payloads, coalesce(array_agg(x.encoding), '{}') as encodings,
      coalesce(array_agg(x.recorded_at), '{}') as times
    from (
      select s.*, sum(coalesce(octet_length(s.payload), 0)) over (order by s.seq rows unbounded preceding) as bytes
      from pgwf_journal.entry s
      where s.n = c.n
      order by s.seq  -- and so are the arrays
      limit 1000
    ) x
    where x.bytes <= v_bytes_max
  ) e
  order by c.ord;

  if v_claim.next_position is not null then
    return query
    select null::bigint, null::text, null::text, null::text, null::text, null::text, null::bigint, null::text, null::timestamptz, null::uuid,
      null::bigint, null::int, null::bigint, null::int[], null::smallint[], null::smallint[], null::text[], null::text[], null::int[],
      null::bytea[], null::smallint[], null::timestamptz[], null::jsonb, null::jsonb, v_claim.next_position, v_claim.is_whole;
  end if;
end
$$;

-- Effect: what is wrong with the arguments of advance beside their lengths, or NULL.  One bad argument refuses the call:
-- only a worker that is no worker of ours sends one.
create or replace function pgwf_sdk._advance_flaw(
  p_worker_id text, p_lease_seconds double precision, p_dispositions text[], p_delay_seconds double precision[], p_needs text[], p_notes text[],
  p_calls int[], p_kinds smallint[], p_phases smallint[], p_scopes text[], p_names text[], p_occurrences int[], p_encodings smallint[],
  p_child_keys text[], p_child_workflows text[], p_child_encodings smallint[], p_tasks jsonb, p_attempts jsonb, p_child_closes text[], p_cancels jsonb,
  p_wake_after int[], p_attaches jsonb, p_count int, p_entry_items int[]
) returns text
language plpgsql immutable
as $$
declare
  -- What takes a query is asked only where there is something to ask about: most calls have nothing of it.
  v_flaw text := case
    when p_worker_id is null then 'worker_id cannot be null'
    when p_lease_seconds is null or not (p_lease_seconds > 0 and p_lease_seconds <= 1e9) then
      format('lease_seconds is %s, expected more than 0 and at most 1e9', coalesce(p_lease_seconds::text, 'NULL'))
    when not p_dispositions <@ array['keep', 'park', 'hop', 'release', 'complete', 'fail', 'cancel', 'continue', 'block'] then
      format('dispositions are %s; expected keep, park, hop, release, complete, fail, cancel, continue or block', left(p_dispositions::text, 200))
    when not (1e9 >= all (p_delay_seconds) and -1e9 <= all (p_delay_seconds)) then 'delay_seconds are beyond 1e9'
    when not (-1000000000 <= all (p_wake_after) and 1000000000 >= all (p_wake_after)) then 'wake_after is beyond 1e9'
    when array_position(p_calls, null) is not null or array_position(p_scopes, null) is not null
      or array_position(p_names, null) is not null or array_position(p_occurrences, null) is not null
      or not pgwf_journal._are_known(p_kinds, p_phases, p_encodings)
    then 'entries have NULL, or a kind, phase or encoding that there is not'
    when (1 <= all (p_entry_items) and p_count >= all (p_entry_items)) is not true then 'entries are of items that there are not'
    when array_position(p_child_keys, null) is not null or not coalesce(p_child_encodings <@ '{1,2,3}'::smallint[], true)
    then 'children have no key, a workflow that has not 1 to 512 bytes, or an encoding that there is not'
    when p_tasks <> '[]' and not pgwf_sdk._are_tasks(p_tasks) then 'tasks are not an array of objects as the worker writes them'
    when p_attempts <> '[]' and not pgwf_sdk._are_attempts(p_attempts) then 'attempts are not an array of objects as the worker writes them'
    when p_tasks is null or p_attempts is null or p_cancels is null or p_attaches is null then 'tasks, attempts, cancels and attaches cannot be null'
    when p_attaches <> '[]' and not pgwf_sdk._are_attaches(p_attaches) then 'attaches are not an array of objects with item, key and run_id'
    when p_cancels <> '[]' and not pgwf_sdk._are_cancels(p_cancels) then 'cancels are not an array of objects with item and key'
  end;
begin
  if v_flaw is null and cardinality(p_needs) > 0 and exists (select from unnest(p_needs) d(need) where octet_length(d.need) > 512) then
    v_flaw := 'a need must have at most 512 bytes';
  end if;
  if v_flaw is null and cardinality(p_child_workflows) > 0 and exists (
    select from unnest(p_child_workflows) w(name) where w.name is null or octet_length(w.name) not between 1 and 512)
  then
    v_flaw := 'children have no key, a workflow that has not 1 to 512 bytes, or an encoding that there is not';
  end if;
  if v_flaw is null and (array_ndims(p_child_closes) > 1 or not array_remove(p_child_closes, null) <@ array['terminate', 'abandon']) then
    v_flaw := 'child_closes are others than terminate, abandon and NULL';
  end if;
  if v_flaw is null and p_dispositions && array['block', 'continue'] then
    select case b.disposition
      when 'block' then 'the report of a blocked run (notes) is not JSON'
      else 'the note of a run that continues is not JSON' end
    into v_flaw
    from unnest(p_dispositions, p_notes) b(disposition, note)
    where b.disposition = 'block' and not pgwf_sdk._is_jsonb(b.note)
      or b.disposition = 'continue' and not pgwf_sdk._is_jsonb(coalesce(b.note, '{}'))
    limit 1;
  end if;
  return v_flaw;
end
$$;

-- Effect: whether a text can be stored as jsonb.
create or replace function pgwf_sdk._is_jsonb(p_text text) returns boolean
language plpgsql immutable
as $$
begin
  return p_text::jsonb is not null;
exception when data_exception or program_limit_exceeded then
  return false;
end
$$;

-- Effect: whether advance can read these tasks: those to open and those to close.
create or replace function pgwf_sdk._are_tasks(p_tasks jsonb) returns boolean
language plpgsql immutable
as $$
begin
  return coalesce((
    select bool_and(t.item is not null and t.key is not null and (t.close in ('cancelled', 'expired')
      or t.close is null and t.task_id is not null and t.name is not null and t.need is not null and t.encoding between 0 and 3
        and t.decision_schema is not null
        and (t.escalate is null or t.due_seconds is not null and octet_length(t.escalate) <= 512)
        and coalesce(t.due_seconds between -1e9 and 1e9, true) and coalesce(t.expires_seconds between -1e9 and 1e9, true)))
    from jsonb_to_recordset(p_tasks) t(
      item int, key text, task_id text, name text, need text, encoding smallint, decision_schema jsonb, excluded text[],
      due_seconds double precision, expires_seconds double precision, close text, escalate text)), false);
exception when data_exception then
  return false;
end
$$;

-- Effect: whether advance can read these calls whose children are to be cancelled.
create or replace function pgwf_sdk._are_cancels(p_cancels jsonb) returns boolean
language plpgsql immutable
as $$
begin
  return coalesce((
    select bool_and(c.item is not null and c.key is not null) from jsonb_to_recordset(p_cancels) c(item int, key text)), false);
exception when data_exception then
  return false;
end
$$;

-- Effect: whether advance can read these calls that attach to a run, or (without run_id) give that up.
create or replace function pgwf_sdk._are_attaches(p_attaches jsonb) returns boolean
language plpgsql immutable
as $$
begin
  return coalesce((
    select bool_and(a.item is not null and octet_length(a.key) <= 2000 and coalesce(octet_length(a.run_id) <= 512, true))
    from jsonb_to_recordset(p_attaches) a(item int, key text, run_id text)), false);
exception when data_exception then
  return false;
end
$$;

-- Effect: whether advance can read these notes about failed attempts.
create or replace function pgwf_sdk._are_attempts(p_attempts jsonb) returns boolean
language plpgsql immutable
as $$
begin
  return coalesce((
    select bool_and(t.item is not null and octet_length(t.key) <= 2000 and (t.next_seconds is null
      or t.no is not null and t.next_seconds between -1e9 and 1e9))
    from jsonb_to_recordset(p_attempts) t(item int, key text, no int, next_seconds double precision)), false);
exception when data_exception then
  return false;
end
$$;

-- Effect: for each item, in this order and all or nothing an item: appends its entries after p_expected_seqs (the first
-- p_told of them, which its code knew before, with the time of the entry they follow), starts its
-- children, opens and closes its tasks, takes consumed rows out of its inbox, and does what its disposition says:
--   keep      the lease goes on
--   park      the lease is given back until p_until or p_delay_seconds from now, whichever comes first; NULL in both:
--             until it is woken. p_needs is what the run needs then (NULL: as now).  p_wake_after children have to end before one of them wakes it
--   hop       given back at once with need p_needs
--   release   given back for p_delay_seconds (NULL: at once) with a note why; needs no p_expected_seqs without entries
--   complete, fail, cancel    the run ends; its last entry is the terminal one
--   continue  the run ends and goes on as the next of its chain (34_chain.sql), with need p_needs and, in p_notes as JSON,
--             workflow and build; its last entry holds the input
--   block     parked for ever with the report p_notes (JSON), until somebody resumes it
-- The arrays from p_until to p_lapsed and p_told may be shorter than p_n: NULL, 0 or false goes for the items that come after.
-- Then leases up to p_slots further runs: as many as the caller has room for once all items that say so have left. One that
-- stays all the same (unread, undecided, conflict, busy ...) keeps its place, so one less is leased. p_position: next_position of this connection's last call that asked for work,
-- '{}' if it had none (pgwf._claim).
-- Answer: a row an item, then a row a claimed run, and where the next claim may begin (status whole, or part: there may be
-- rows this one did not look at), which is left out when that is the beginning.  status of an item:
--   ok          done
--   unread      entries written, but not parked: rows after p_inbox_seen are in the inbox; the lease goes on
--   undecided   p_decides was set and there are such rows: nothing is written; look at them and decide again
--   fenced      the lease is not this worker's any more: nothing is written, drop the run
--   conflict    the journal is not at p_expected_seqs: nothing is written, replay (or this call was sent before); also an
--               item whose run an earlier item of the call named
--   busy        with p_busy_ok only: a row it needs is held by another transaction; nothing is written, send it again later
--   child_exists  ids of children are taken, or such as no job can have (column taken): nothing is written
--   no_run, cycle  calls (their keys in taken) cannot attach: there is no such run, or it waits for this one: nothing is written
-- With unread and undecided, and with each claimed run, come the inbox rows; with a claimed run its failed attempts.
-- Locks: run rows, leases, jobs (20_tables.sql).  Errors: WS004; 55P03 when a row was held for longer than 100 ms:
-- send the call again with p_busy_ok.
create or replace function pgwf_sdk.advance(
  p_worker_id text,
  p_n bigint[] default '{}', p_lease_ids uuid[] default '{}', p_expected_seqs bigint[] default '{}', p_dispositions text[] default '{}',
  p_until timestamptz[] default '{}', p_delay_seconds double precision[] default '{}', p_needs text[] default '{}',
  p_inbox_seen bigint[] default '{}', p_wake_after int[] default '{}', p_decides boolean[] default '{}', p_notes text[] default '{}',
  p_lapsed boolean[] default '{}',
  p_entry_items int[] default '{}', p_entry_calls int[] default '{}', p_entry_kinds smallint[] default '{}',
  p_entry_phases smallint[] default '{}', p_entry_scopes text[] default '{}', p_entry_names text[] default '{}',
  p_entry_occurrences int[] default '{}', p_entry_payloads bytea[] default '{}', p_entry_encodings smallint[] default '{}',
  p_entry_codes int[] default '{}',
  p_child_items int[] default '{}', p_child_keys text[] default '{}', p_child_run_ids text[] default '{}',
  p_child_workflows text[] default '{}', p_child_needs text[] default '{}', p_child_builds text[] default '{}',
  p_child_inputs bytea[] default '{}', p_child_encodings smallint[] default '{}',
  p_consumed_items int[] default '{}', p_consumed_ids bigint[] default '{}',
  p_tasks jsonb default '[]', p_attempts jsonb default '[]',
  p_child_closes text[] default '{}', p_cancels jsonb default '[]',
  p_worker_caps text[] default '{}', p_slots int default 0, p_lease_seconds double precision default 15, p_position bigint[] default null,
  p_busy_ok boolean default false, p_told int[] default '{}', p_attaches jsonb default '[]'
) returns table (
  item int, n bigint, status text, now_at timestamptz, run_id text, workflow text, need text, current_need text, build text, seed bigint, trace text,
  deadline timestamptz, lease_id uuid, lease_no bigint, streak int, head bigint, calls int[], kinds smallint[], phases smallint[], scopes text[],
  names text[], occurrences int[], payloads bytea[], encodings smallint[], times timestamptz[], inbox jsonb, attempts jsonb, taken text[], next_position bigint[])
language plpgsql volatile
set search_path = pg_catalog, pg_temp
set lock_timeout = '100ms'
set enable_seqscan = off
set enable_bitmapscan = off
set jit = off
set plan_cache_mode = force_generic_plan
as $$
declare
  v_now timestamptz := pgwf_sdk._now();
  v_n bigint[] := p_n;
  v_busy int[] := '{}';
  v_settled record;
  v_slots int := p_slots;
  v_flaw text;
begin
  if current_setting('transaction_isolation') <> 'read committed' then
    raise exception using errcode = 'WS004', message = format('advance runs at read committed, found %s', current_setting('transaction_isolation'));
  end if;
  if not array[cardinality(p_lease_ids), cardinality(p_expected_seqs), cardinality(p_dispositions)] <@ array[cardinality(p_n)]
    or (cardinality(p_n) >= all (array[cardinality(p_until), cardinality(p_delay_seconds), cardinality(p_needs), cardinality(p_inbox_seen),
      cardinality(p_wake_after), cardinality(p_decides), cardinality(p_notes), cardinality(p_lapsed), cardinality(p_told)])) is not true
    or not array[cardinality(p_entry_calls), cardinality(p_entry_kinds), cardinality(p_entry_phases), cardinality(p_entry_scopes),
      cardinality(p_entry_names), cardinality(p_entry_occurrences), cardinality(p_entry_payloads), cardinality(p_entry_encodings),
      cardinality(p_entry_codes)] <@ array[cardinality(p_entry_items)]
    or not array[cardinality(p_child_keys), cardinality(p_child_run_ids), cardinality(p_child_workflows), cardinality(p_child_needs),
      cardinality(p_child_builds), cardinality(p_child_inputs), cardinality(p_child_encodings)] <@ array[cardinality(p_child_items)]
    or cardinality(p_consumed_ids) <> cardinality(p_consumed_items)
  then
    raise exception using
      errcode = 'WS004',
      message = 'advance: the arrays of items (details may be shorter), of entries, of children and of consumed rows must each be of one length';
  end if;
  v_flaw := pgwf_sdk._advance_flaw(
    p_worker_id, p_lease_seconds, p_dispositions, p_delay_seconds, p_needs, p_notes, p_entry_calls, p_entry_kinds, p_entry_phases,
    p_entry_scopes, p_entry_names, p_entry_occurrences, p_entry_encodings, p_child_keys, p_child_workflows, p_child_encodings, p_tasks, p_attempts,
    p_child_closes, p_cancels, p_wake_after, p_attaches, cardinality(p_n), p_entry_items);
  if v_flaw is not null then
    raise exception using errcode = 'WS004', message = 'advance: ' || v_flaw;
  end if;

  if p_busy_ok and cardinality(p_n) > 0 then
    v_busy := pgwf_sdk._busy(p_n, p_dispositions, p_decides, p_lapsed, p_child_items, p_tasks, p_attaches);
    -- Without a number an item is nobody's: it locks nothing, and is fenced.
    v_n := array(select case when a.ord not in (select b.ord from unnest(v_busy) b(ord)) then a.n end from unnest(p_n) with ordinality a(n, ord) order by a.ord);
  end if;
  if cardinality(p_n) > 0 then
    v_settled := pgwf_sdk._settle(
      p_worker_id, v_now, v_n, p_lease_ids, p_expected_seqs, p_dispositions, p_until, p_delay_seconds, p_needs, p_inbox_seen, p_wake_after,
      p_decides, p_notes, p_lapsed, p_entry_items, p_entry_calls, p_entry_kinds, p_entry_phases, p_entry_scopes, p_entry_names,
      p_entry_occurrences, p_entry_payloads, p_entry_encodings, p_entry_codes, p_child_items, p_child_keys, p_child_run_ids,
      p_child_workflows, p_child_needs, p_child_builds, p_child_inputs, p_child_encodings, p_consumed_items, p_consumed_ids, p_tasks, p_attempts,
      p_child_closes, p_cancels, p_told, p_attaches);
    now_at := v_now;
    for i in 1..cardinality(p_n) loop
      item := i;
      n := p_n[i];
      status := case when i = any (v_busy) then 'busy' else v_settled.statuses[i] end;
      if p_dispositions[i] <> 'keep' and status not in ('ok', 'fenced') then
        v_slots := v_slots - 1;
      end if;
      if status = 'child_exists' then
        taken := v_settled.taken;
      elsif status in ('no_run', 'cycle') then
        taken := array(select k from jsonb_array_elements_text(v_settled.refused -> i::text) k);
      else
        taken := null;
      end if;
      inbox := case when status in ('unread', 'undecided') then pgwf_sdk._inbox(n, p_inbox_seen[i], pgwf_sdk._share(cardinality(p_n))) end;
      return next;
    end loop;
  end if;

  if v_slots > 0 then
    return query
    select null::int, c.n, case when c.n is not null then 'claimed' when c.is_whole then 'whole' else 'part' end, v_now, c.run_id, c.workflow, c.need, c.current_need, c.build, c.seed, c.trace, c.deadline, c.lease_id, c.lease_no, c.streak,
      c.head, c.calls, c.kinds, c.phases, c.scopes, c.names, c.occurrences, c.payloads, c.encodings, c.times, c.inbox, c.attempts, null::text[],
      c.next_position
    from pgwf_sdk._claimed(p_worker_id, p_worker_caps, v_slots, p_lease_seconds, p_position, v_now) c;
  end if;
end
$$;
