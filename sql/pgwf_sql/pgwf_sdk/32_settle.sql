-- What advance does for its items. Every step of it is one statement over all of them.

-- Effect: how many bytes of journal, or of inbox, one of p_count runs may have in the answer of a call: 4 MiB, but all of
-- them 16 MiB. Nobody hears of anything until the whole answer is there, and leases that it brings are not kept alive.
create or replace function pgwf_sdk._share(p_count int) returns bigint
language plpgsql immutable
as $$
begin
  return least(4194304, 16777216 / greatest(p_count, 1));
end
$$;

-- Effect: rows of a run's inbox after p_after, oldest first, at most 1,000 or p_bytes_max, but one at least; bytes as base64.
create or replace function pgwf_sdk._inbox(p_n bigint, p_after bigint, p_bytes_max bigint) returns jsonb
language plpgsql stable
as $$
begin
  return (
    select jsonb_agg(jsonb_build_object(
      'id', i.id, 'kind', i.kind, 'name', i.name, 'phase', i.phase, 'payload', encode(i.payload, 'base64'),
      'encoding', i.encoding, 'received_at', i.received_at) order by i.id)
    from (
      select s.*, sum(coalesce(octet_length(s.payload), 0)) over earlier as bytes, row_number() over earlier as place
      from pgwf_sdk.inbox s
      where s.n = p_n and s.id > coalesce(p_after, 0)
      window earlier as (order by s.id rows unbounded preceding)
      order by s.id
      limit 1000
    ) i
    where i.place = 1 or i.bytes <= p_bytes_max
  );
end
$$;

-- Effect: writes down failed attempts that are to be tried again; an element without next_seconds takes the record back,
-- because the step is over.  The last word on a step counts.  p_n: NULL where an item writes nothing.
create or replace function pgwf_sdk._note_attempts(p_n bigint[], p_attempts jsonb, p_now timestamptz) returns void
language plpgsql volatile
as $$
declare
  v_note record;
begin
  for v_note in
    select distinct on (p_n[a.item], a.key) p_n[a.item] as n, a.key, a.no, a.next_seconds, a.error, a.heartbeat
    from rows from (jsonb_to_recordset(p_attempts) as (
      item int, key text, no int, next_seconds double precision, error text, heartbeat text))
      with ordinality a(item, key, no, next_seconds, error, heartbeat, ord)
    where p_n[a.item] is not null
    order by p_n[a.item], a.key, a.ord desc
  loop
    if v_note.next_seconds is null then
      delete from pgwf_sdk.attempt t where t.n = v_note.n and t.key = v_note.key;
    else
      insert into pgwf_sdk.attempt (n, key, no, first_at, next_at, error, heartbeat)
      values (v_note.n, v_note.key, v_note.no, p_now, p_now + make_interval(secs => v_note.next_seconds),
        convert_to(v_note.error, 'UTF8'), v_note.heartbeat)
      on conflict (n, key) do update set no = excluded.no, next_at = excluded.next_at,
        error = coalesce(excluded.error, attempt.error), heartbeat = coalesce(excluded.heartbeat, attempt.heartbeat);
    end if;
  end loop;
end
$$;

-- Effect: the journal of these runs has grown, so what their workers died of is over.  The caller holds the jobs.
create or replace function pgwf_sdk._end_streaks(p_n bigint[], p_lapsed boolean[], p_entry_items int[]) returns void
language plpgsql volatile
as $$
begin
  update pgwf.job j set streak = 0
  where j.streak > 0 and j.n = any (array(
    select case when a.lapsed and a.ord in (select e.item from unnest(p_entry_items) e(item)) then a.n end
    from unnest(p_n, p_lapsed) with ordinality a(n, lapsed, ord)));
end
$$;

-- Effect: a payload as JSON; NULL where it is none.
create or replace function pgwf_sdk._said(p_payload bytea) returns jsonb
language plpgsql immutable
as $$
begin
  return convert_from(p_payload, 'UTF8')::jsonb;
exception when data_exception or program_limit_exceeded then
  return null;
end
$$;

-- Effect: how long a cancel request lets the run clean up: what it says if that is a number of seconds, else 5 minutes.
create or replace function pgwf_sdk._grace_seconds(p_request jsonb) returns double precision
language sql immutable
as $$
  select case when jsonb_typeof(p_request -> 'grace_seconds') = 'number'
    then least(greatest((p_request ->> 'grace_seconds')::numeric, 0), 1e9)::double precision else 300 end
$$;

-- Effect: what entries say about the run as a whole.  p_n: as in _append.  The caller holds the rows of these runs.
--   a hop (15) changes its home need
--   a cancel request (11) gives it the grace period that the request names, 5 minutes by default, to clean up
--   a compensation (12) ends that period: what must be undone takes as long as it takes
create or replace function pgwf_sdk._steer(p_n bigint[], p_now timestamptz, p_items int[], p_kinds smallint[], p_payloads bytea[]) returns void
language plpgsql volatile
as $$
begin
  update pgwf_sdk.run r
  set need = coalesce(pgwf_sdk._said(e.payload) #>> '{}', r.need)
  from unnest(p_items, p_kinds, p_payloads) e(item, kind, payload)
  where e.kind = 15 and r.n = p_n[e.item];

  update pgwf_sdk.run r
  set grace_until = p_now + make_interval(secs => pgwf_sdk._grace_seconds(pgwf_sdk._said(e.payload)))
  from unnest(p_items, p_kinds, p_payloads) e(item, kind, payload)
  where e.kind = 11 and r.n = p_n[e.item]
    and not exists (select from pgwf_journal.entry x where x.n = r.n and x.kind = 12);

  update pgwf_sdk.run r
  set grace_until = null
  from unnest(p_items, p_kinds) e(item, kind)
  where e.kind = 12 and r.n = p_n[e.item] and r.grace_until is not null;
end
$$;

-- Effect: opens tasks whose seats were submitted as jobs p_seats (one an element of p_tasks that opens, in order).
create or replace function pgwf_sdk._open_tasks(p_n bigint[], p_tasks jsonb, p_seats bigint[], p_now timestamptz) returns void
language plpgsql volatile
as $$
begin
  with opened as (
    select p_n[a.item] as n, a.*, p_seats[row_number() over (order by a.ord)] as seat
    from rows from (jsonb_to_recordset(p_tasks) as (
      item int, key text, task_id text, name text, title text, need text, subject text, encoding smallint, decision_schema jsonb,
      prefill text, assigned text, excluded text[], due_seconds double precision, expires_seconds double precision, close text,
      escalate text
    )) with ordinality a(item, key, task_id, name, title, need, subject, encoding, decision_schema, prefill, assigned, excluded,
      due_seconds, expires_seconds, close, escalate, ord)
    where a.close is null
  ), tasks as (
    insert into pgwf_sdk.task
      (n, key, task_id, name, title, need, subject, encoding, decision_schema, prefill, assigned, excluded, due_at, expires_at, created_at,
      escalate_need, escalates_at)
    select o.n, o.key, o.task_id, o.name, o.title, o.need, convert_to(o.subject, 'UTF8'), o.encoding, o.decision_schema,
      o.prefill, o.assigned, coalesce(o.excluded, '{}'),
      p_now + make_interval(secs => o.due_seconds), p_now + make_interval(secs => o.expires_seconds), p_now,
      o.escalate, case when o.escalate is not null then p_now + make_interval(secs => o.due_seconds) end
    from opened o
    where o.n is not null
  )
  insert into pgwf_sdk.seat (seat, n, key)
  select o.seat, o.n, o.key
  from opened o
  where o.n is not null;
end
$$;

-- Effect: the seats of the open tasks that p_tasks closes.
create or replace function pgwf_sdk._closing_seats(p_n bigint[], p_tasks jsonb) returns bigint[]
language plpgsql stable
as $$
begin
  return array(
    select s.seat
    from jsonb_to_recordset(p_tasks) a(item int, key text, close text)
    join pgwf_sdk.task t on t.n = p_n[a.item] and t.key = a.key and t.state = 'open'
    join pgwf_sdk.seat s on s.n = t.n and s.key = t.key
    where a.close is not null);
end
$$;

-- Effect: closes the tasks that p_tasks closes, if their seats are among p_seats.  p_n: NULL where an item writes nothing.
create or replace function pgwf_sdk._close_for(p_n bigint[], p_tasks jsonb, p_seats bigint[], p_worker_id text, p_now timestamptz)
returns void
language plpgsql volatile
as $$
begin
  perform pgwf_sdk._close_tasks(array_agg(s.seat), a.close, p_worker_id, p_now)
  from jsonb_to_recordset(p_tasks) a(item int, key text, close text)
  join pgwf_sdk.seat s on s.n = p_n[a.item] and s.key = a.key and s.seat = any (p_seats)
  where a.close is not null
  group by a.close;
end
$$;

-- Effect: the rows of the runs that items of advance are about to change: those that move or ask for something, and of
-- those that end the parents and who is attached to them, the children that still run and the seats of open tasks;
-- children that are given up; runs that are to be attached to.
-- Locks: run rows, in n order but for children that went on as other runs, or are given up.
create or replace function pgwf_sdk._lock_families(
  p_n bigint[], p_dispositions text[], p_decides boolean[], p_asking int[], p_cancels jsonb, p_attaches jsonb,
  out moving bigint[], out parents bigint[], out children bigint[], out cancels bigint[], out seats bigint[]
)
language plpgsql volatile
as $$
declare
  v_ending bigint[];
  v_late bigint[];
begin
  parents := '{}';
  children := '{}';
  cancels := '{}';
  seats := '{}';
  select coalesce(array_agg(a.n), '{}'), coalesce(array_agg(a.n) filter (where a.disposition in ('complete', 'fail', 'cancel', 'continue')), '{}')
  into moving, v_ending
  from unnest(p_n, p_dispositions, p_decides) with ordinality a(n, disposition, decides, ord)
  where a.disposition <> 'keep' or a.decides or a.ord in (select k.item from unnest(p_asking) k(item));
  if cardinality(v_ending) > 0 then
    select coalesce(array_agg(distinct r.parent) filter (where r.parent is not null), '{}')
      || pgwf_sdk._attached_to(v_ending)
    into parents
    from pgwf_sdk.run r where r.n = any (v_ending);
    children := array(select r.n from pgwf_sdk.run r where r.parent = any (v_ending) and r.finished_at is null);
    seats := pgwf_sdk._open_seats(v_ending);
  end if;
  perform pgwf_sdk._lock_runs(moving || parents || children || array(select t.n from pgwf_sdk._attach_targets(p_n, p_attaches) t));
  if cardinality(v_ending) > 0 then
    -- Some may have attached before the rows were ours; from now on nobody can, as that takes the row of the run that ends.
    v_late := array(select a.n from unnest(pgwf_sdk._attached_to(v_ending)) a(n) where a.n not in (select p.n from unnest(parents) p(n)));
    if cardinality(v_late) > 0 then
      perform pgwf_sdk._lock_runs(v_late);
      parents := parents || v_late;
    end if;
  end if;
  if cardinality(children) > 0 then
    -- A child may have gone on as another run before its row was ours; from now on none can: it takes its parent's row.
    children := children || array(
      select r.n from pgwf_sdk.run r
      where r.parent = any (v_ending) and r.finished_at is null and r.n not in (select c.n from unnest(children) c(n)));
    perform pgwf_sdk._lock_runs(children);
  end if;
  if p_cancels <> '[]' then
    cancels := array(
      select r.n
      from jsonb_to_recordset(p_cancels) a(item int, key text)
      join pgwf_sdk.run r on r.parent = p_n[a.item] and r.parent_key = a.key and r.finished_at is null);
    perform pgwf_sdk._lock_runs(cancels);
  end if;
end
$$;

-- Effect: the items that a JSON argument of advance names.
create or replace function pgwf_sdk._items(p_asked jsonb) returns int[]
language plpgsql immutable
as $$
begin
  return case when p_asked = '[]' then '{}' else array(select a.item from jsonb_to_recordset(p_asked) a(item int)) end;
end
$$;

-- Effect: if leases that may end have singleton keys, locks these keys and who waits for the runs that end.
create or replace function pgwf_sdk._lock_leaving_keys(p_n bigint[], p_lease_ids uuid[], p_dispositions text[], p_seats bigint[])
returns void
language plpgsql volatile
as $$
declare
  v_keys text[] := array(
    select distinct l.singleton_key
    from unnest(p_n, p_lease_ids, p_dispositions) a(n, lease_id, disposition)
    cross join lateral (
      select q.singleton_key from pgwf.lease q
      where q.n = a.n and q.lease_id = a.lease_id and q.singleton_key is not null
      offset 0
    ) l
    where a.disposition <> 'keep');
begin
  if cardinality(v_keys) > 0 then
    -- Who waits for a run that ends may have its key, and be in the hands of somebody who waits for that.
    perform pgwf._lock_waiters(p_seats || array(
      select a.n from unnest(p_n, p_dispositions) a(n, disposition) where a.disposition in ('complete', 'fail', 'cancel', 'continue')));
    perform pgwf._lock_keys(v_keys);  -- All at once, in their order: what follows frees them kind by kind.
  end if;
end
$$;

-- Effect: advance's items; a status each, the ids of children that are taken, and the calls that cannot attach.  Locks in order: names (children and seats are submitted first; those
-- of an item that then is refused are withdrawn), run rows, leases, jobs.
create or replace function pgwf_sdk._settle(
  p_worker_id text, p_now timestamptz, p_n bigint[], p_lease_ids uuid[], p_expected_seqs bigint[], p_dispositions text[],
  p_until timestamptz[], p_delay_seconds double precision[], p_needs text[], p_inbox_seen bigint[], p_wake_after int[],
  p_decides boolean[], p_notes text[], p_lapsed boolean[],
  p_entry_items int[], p_entry_calls int[], p_entry_kinds smallint[], p_entry_phases smallint[], p_entry_scopes text[],
  p_entry_names text[], p_entry_occurrences int[], p_entry_payloads bytea[], p_entry_encodings smallint[], p_entry_codes int[],
  p_child_items int[], p_child_keys text[], p_child_run_ids text[], p_child_workflows text[], p_child_needs text[], p_child_builds text[],
  p_child_inputs bytea[], p_child_encodings smallint[], p_consumed_items int[], p_consumed_ids bigint[], p_tasks jsonb, p_attempts jsonb,
  p_child_closes text[], p_cancels jsonb, p_told int[], p_attaches jsonb,
  out statuses text[], out taken text[], out refused jsonb
)
language plpgsql volatile
as $$
declare
  -- Most calls have entries and nothing else, of runs that go on.
  v_is_plain constant boolean := 'keep' = all (p_dispositions) and cardinality(p_decides || p_lapsed) = 0 and cardinality(p_told) = 0
    and cardinality(p_child_items || p_consumed_items) = 0 and (p_tasks, p_attempts, p_cancels, p_attaches) = ('[]', '[]', '[]', '[]')
    and not p_entry_kinds && '{5,10,11,12,15}';
  v_new_items int[] := '{}';      -- item of each submitted job: children first, then seats, then successors
  v_new_n bigint[] := '{}';
  v_new_ok boolean[] := '{}';
  v_children_count int := cardinality(p_child_items);
  v_closers int[] := '{}';        -- items that close tasks: a decision that came first wins
  v_asking int[];                 -- items that start or cancel children, open or close tasks, attach, steer
  v_steering int[] := '{}';       -- items with entries that change the run's row
  v_moving bigint[] := '{}';
  v_parents bigint[] := '{}';
  v_children bigint[] := '{}';
  v_cancels bigint[] := '{}';     -- children whose parents give them up
  v_seats bigint[] := '{}';       -- of runs that end
  v_closing bigint[] := '{}';     -- of tasks that a run closes
  v_continuing int[];             -- items that go on as another run, and these runs
  v_successors bigint[];
  v_attach record;                -- what becomes of attaches, and of the items that ask for them
  v_attach_states text[];
  v_leased record;                -- the leases that are locked, in n order
  v_jobs bigint[];
  v_fenced record;
  v_written bigint[];             -- the item's number, or NULL where nothing is written
begin
  if not v_is_plain then
    if v_children_count > 0 or p_tasks <> '[]' or 'continue' = any (p_dispositions) then
      select s.items, s.n, s.ok, s.taken, s.continuing, s.successors into v_new_items, v_new_n, v_new_ok, taken, v_continuing, v_successors
      from pgwf_sdk._submit_new(p_worker_id, p_n, p_dispositions, p_needs, p_child_items, p_child_run_ids, p_child_needs, p_tasks, p_now) s;
      v_closing := pgwf_sdk._closing_seats(p_n, p_tasks);
      v_closers := array(select a.item from jsonb_to_recordset(p_tasks) a(item int, close text) where a.close is not null);
    end if;
    if p_entry_kinds && '{11,12,15}' then
      v_steering := array(select e.item from unnest(p_entry_items, p_entry_kinds) e(item, kind) where e.kind in (11, 12, 15));
    end if;
    -- Who asks for something takes its run row too: a termination in between would not know of it.
    v_asking := p_child_items || v_steering;
    if p_tasks <> '[]' or p_cancels <> '[]' or p_attaches <> '[]' then
      v_asking := v_asking || pgwf_sdk._items(p_tasks) || pgwf_sdk._items(p_cancels) || pgwf_sdk._items(p_attaches);
    end if;

    if not ('keep' = all (p_dispositions)) or true = any (p_decides) or cardinality(v_asking) > 0 then
      select f.moving, f.parents, f.children, f.cancels, f.seats into v_moving, v_parents, v_children, v_cancels, v_seats
      from pgwf_sdk._lock_families(p_n, p_dispositions, p_decides, v_asking, p_cancels, p_attaches) f;
    end if;
    if p_attaches <> '[]' then
      v_attach := pgwf_sdk._attach_states(p_n, p_attaches);
      v_attach_states := v_attach.item_states;
      refused := v_attach.refused;
    end if;
  end if;

  select array_agg(l.n) as n, array_agg(l.lease_id) as ids, array_agg(l.lease_no) as nos, bool_or(l.singleton_key is not null) as has_keys
  into v_leased
  from (select q.* from pgwf.lease q where q.n = any (p_n || v_seats || v_closing) order by q.n for no key update) l;

  if not v_is_plain then
    v_jobs := v_moving || v_parents || v_children || v_cancels || v_seats || v_closing
      || case when true = any (p_lapsed) then array(select a.n from unnest(p_n, p_lapsed) a(n, lapsed) where a.lapsed) end;
    if cardinality(v_jobs) > 0 then
      perform pgwf._lock_jobs(v_jobs, '{}');
    end if;
    if v_leased.has_keys then
      perform pgwf_sdk._lock_leaving_keys(p_n, p_lease_ids, p_dispositions, v_seats);
    end if;
  end if;

  -- In a statement of its own: its snapshot is younger than the locks, so heads and inboxes are final for this call.
  v_fenced := pgwf_sdk._fenced(
    p_n, p_lease_ids, p_expected_seqs, p_dispositions, p_entry_items, v_leased.n, v_leased.ids, v_leased.nos);
  statuses := v_fenced.statuses;
  if cardinality(v_new_n || v_closers) > 0 or v_attach_states is not null or true = any (p_decides) or 'park' = any (p_dispositions) then
    statuses := pgwf_sdk._admitted(
      statuses, p_n, p_dispositions, p_inbox_seen, p_wake_after, p_decides, v_closers, v_new_items, v_new_ok, v_attach_states);
  end if;

  v_written := p_n;
  if not ('ok' = all (statuses)) then
    v_written := array(
      select case when a.status in ('ok', 'unread') then a.n end from unnest(p_n, statuses) with ordinality a(n, status, ord) order by a.ord);
    if cardinality(v_new_n) > 0 then
      perform pgwf_sdk._withdraw(array(
        select s.n from unnest(v_new_items, v_new_n) s(item, n) where s.n is not null and v_written[s.item] is null), p_now);
    end if;
  end if;

  if cardinality(p_entry_items) > 0 then
    perform pgwf_sdk._write(v_written, p_n, p_expected_seqs, p_told, v_fenced.lease_nos, p_now, p_entry_items, p_entry_calls, p_entry_kinds,
      p_entry_phases, p_entry_scopes, p_entry_names, p_entry_occurrences, p_entry_payloads, p_entry_encodings, p_entry_codes);
    if v_is_plain then
      return;
    end if;
    if true = any (p_lapsed) then
      perform pgwf_sdk._end_streaks(v_written, p_lapsed, p_entry_items);
    end if;
  end if;
  if cardinality(v_steering) > 0 then
    perform pgwf_sdk._steer(v_written, p_now, p_entry_items, p_entry_kinds, p_entry_payloads);
  end if;
  if cardinality(v_cancels) > 0 then
    perform pgwf_sdk._rouse(pgwf_sdk._ask_to_cancel(v_cancels, v_written, 'its parent waits for it no longer', p_now), p_now);
  end if;
  if cardinality(p_consumed_ids) > 0 then
    delete from pgwf_sdk.inbox i using unnest(p_consumed_items, p_consumed_ids) c(item, id)
    where i.n = v_written[c.item] and i.id = c.id;
  end if;
  if p_attempts <> '[]' then
    perform pgwf_sdk._note_attempts(v_written, p_attempts, p_now);
  end if;
  if v_children_count > 0 then
    perform pgwf_sdk._create_children(v_written, v_new_n[:v_children_count], p_child_items, p_child_keys, p_child_run_ids,
      p_child_workflows, p_child_needs, p_child_builds, p_child_inputs, p_child_encodings, p_child_closes, p_worker_id, p_now);
  end if;
  if p_tasks <> '[]' then
    perform pgwf_sdk._open_tasks(v_written, p_tasks, v_new_n[v_children_count + 1:], p_now);
  end if;
  if p_attaches <> '[]' then
    perform pgwf_sdk._attach(v_written, p_attaches, v_attach.items, v_attach.keys, v_attach.targets, v_attach.states, p_now);
  end if;
  if cardinality(v_closing) > 0 then
    perform pgwf_sdk._close_for(v_written, p_tasks, v_closing, p_worker_id, p_now);
  end if;

  if cardinality(v_moving) > 0 then
    perform pgwf_sdk._dispose(p_worker_id, p_now, p_n, statuses, p_dispositions, p_until, p_delay_seconds, p_needs, p_inbox_seen,
      p_wake_after, p_notes, p_entry_items, p_entry_kinds, p_entry_phases, p_entry_payloads, p_entry_encodings,
      v_children || v_new_n, v_seats || v_new_n);
  end if;
  if 'continue' = any (p_dispositions) then
    perform pgwf_sdk._continue(array_agg(p_n[s.item]), array_agg(s.n), array_agg(p_needs[s.item]), array_agg(p_notes[s.item]),
      v_seats, p_worker_id, p_now)
    from unnest(v_continuing, v_successors) s(item, n) where statuses[s.item] = 'ok' having count(*) > 0;
  end if;
end
$$;
