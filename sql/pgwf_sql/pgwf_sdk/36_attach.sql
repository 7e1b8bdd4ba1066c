-- Attaching: a run waits for the end of another one that it neither started nor owns. That end is told in the transaction
-- in which it comes, like that of a child; until then a row of pgwf_sdk.attachment stands for the wait.

-- Effect: the runs that are attached to any of p_n.
create or replace function pgwf_sdk._attached_to(p_n bigint[]) returns bigint[]
language plpgsql stable
as $$
begin
  return array(select a.n from pgwf_sdk.attachment a where a.target = any (p_n));
end
$$;

-- Effect: the live ends of the runs that items ask to attach to, as far as there are such runs.  p_n: NULL for an item that
-- asks for nothing.
create or replace function pgwf_sdk._attach_targets(p_n bigint[], p_attaches jsonb) returns table (item int, n bigint)
language plpgsql stable
as $$
begin
  if p_attaches <> '[]' then
    return query
    select a.item, pgwf_sdk._live(r.n)
    from jsonb_to_recordset(p_attaches) a(item int, run_id text)
    join pgwf.name m on m.job_id = a.run_id
    join pgwf_sdk.run r on r.n = m.n
    where p_n[a.item] is not null;
  end if;
end
$$;

-- Effect: p_n and all runs that wait for it, directly or through others: those that are attached to it, and its parent,
-- which waits for it, or closes it unless it lets it run on.  p_waiting, p_targets: what is being attached besides.
create or replace function pgwf_sdk._waiting_for(p_n bigint, p_waiting bigint[], p_targets bigint[]) returns bigint[]
language plpgsql stable
as $$
begin
  return array(
    with recursive waiting(n) as (
      select p_n
      union
      select e.n
      from waiting w
      cross join lateral (
        select a.n from pgwf_sdk.attachment a where a.target = w.n
        union all
        select r.parent from pgwf_sdk.run r where r.n = w.n and r.parent is not null and r.close is distinct from 'abandon'
        union all
        select x.n from unnest(p_waiting, p_targets) x(n, target) where x.target = w.n
      ) e
    )
    select w.n from waiting w);
end
$$;

-- Effect: whether p_target waits for p_n already, so that neither would end if p_n waited for it.  The caller holds the
-- rows of both.  A circle needs somebody who waits for p_n, and a target that waits itself; to become either takes a row
-- lock that excludes the caller's, so where one is missing nobody can close the circle at the same time.
-- Locks: the graph of waits, if both are there.
create or replace function pgwf_sdk._closes_circle(p_n bigint, p_target bigint, p_waiting bigint[], p_targets bigint[]) returns boolean
language plpgsql volatile
as $$
begin
  if p_n = p_target then
    return true;
  end if;
  if not (
      p_target = any (p_waiting)
      or exists (select from pgwf_sdk.attachment a where a.n = p_target)
      or exists (
        select from pgwf_sdk.run r where r.parent = p_target and r.finished_at is null and r.close is distinct from 'abandon'))
    or cardinality(pgwf_sdk._waiting_for(p_n, p_waiting, p_targets)) = 1
  then
    return false;
  end if;
  perform pg_advisory_xact_lock(hashtextextended('pgwf_sdk.graph', 0));
  -- In a statement of its own: its snapshot is younger than the lock.
  return p_target = any (pgwf_sdk._waiting_for(p_n, p_waiting, p_targets));
end
$$;

-- Effect: what becomes of the attaches that items of advance ask for (those with a run_id; the others are given up): open,
-- over (that run has ended), no_run, or cycle.  item_states has the one that counts for each item, refused the keys of
-- those it is refused for.  The caller holds the rows of the runs that ask.  Locks: rows of runs that went on meanwhile.
create or replace function pgwf_sdk._attach_states(
  p_n bigint[], p_attaches jsonb,
  out items int[], out keys text[], out targets bigint[], out states text[], out item_states text[], out refused jsonb
)
language plpgsql volatile
as $$
declare
  v_one record;
  v_waiting bigint[] := '{}';  -- what is attached by this call so far, and not refused
  v_targets bigint[] := '{}';
  v_refused int[];             -- items of which an attach is refused
begin
  if p_attaches = '[]' then
    return;
  end if;
  for v_one in
    select a.item, a.key, r.n
    from rows from (jsonb_to_recordset(p_attaches) as (item int, key text, run_id text)) with ordinality a(item, key, run_id, ord)
    left join pgwf.name m on m.job_id = a.run_id
    left join pgwf_sdk.run r on r.n = m.n
    where a.run_id is not null and p_n[a.item] is not null
    order by a.ord
  loop
    items := array_append(items, v_one.item);
    keys := array_append(keys, v_one.key);
    targets := array_append(targets, case when v_one.n is not null then pgwf_sdk._try_lock_live(v_one.n) end);
  end loop;
  states := array(
    select case when x.target is null then 'no_run' when r.finished_at is not null then 'over' else 'open' end
    from unnest(targets) with ordinality x(target, ord)
    left join pgwf_sdk.run r on r.n = x.target
    order by x.ord);

  v_refused := array(select x.item from unnest(items, states) x(item, state) where x.state = 'no_run');
  for v_one in select x.ord, x.item, x.target from unnest(items, targets, states) with ordinality x(item, target, state, ord) where x.state = 'open' loop
    if pgwf_sdk._closes_circle(p_n[v_one.item], v_one.target, v_waiting, v_targets) then
      states[v_one.ord] := 'cycle';
      v_refused := v_refused || v_one.item;
      select coalesce(array_agg(x.n), '{}'), coalesce(array_agg(x.target), '{}')
      into v_waiting, v_targets
      from unnest(v_waiting, v_targets) x(n, target)
      where x.n <> p_n[v_one.item];
    elsif not v_one.item = any (v_refused) then
      v_waiting := v_waiting || p_n[v_one.item];
      v_targets := v_targets || v_one.target;
    end if;
  end loop;

  item_states := array(
    select s.state
    from (
      select distinct on (x.item) x.item, x.state
      from unnest(items, states) x(item, state)
      order by x.item, array_position(array['no_run', 'cycle', 'over', 'open'], x.state)
    ) s
    full join generate_series(1, cardinality(p_n)) i(ord) on i.ord = s.item
    order by i.ord);
  select jsonb_object_agg(s.item, s.keys)
  into refused
  from (
    select x.item, jsonb_agg(x.key) as keys
    from unnest(items, keys, states) x(item, key, state)
    where x.state = item_states[x.item]
    group by x.item
  ) s;
end
$$;

-- Effect: attaches the calls of items that are written to runs that go on; what others ended with goes into the inbox of
-- who asks; calls that were given up wait no longer.  p_n: NULL where an item writes nothing.
create or replace function pgwf_sdk._attach(
  p_n bigint[], p_attaches jsonb, p_items int[], p_keys text[], p_targets bigint[], p_states text[], p_now timestamptz
) returns void
language plpgsql volatile
as $$
begin
  insert into pgwf_sdk.attachment (n, key, target)
  select p_n[a.item], a.key, a.target
  from unnest(p_items, p_keys, p_targets, p_states) a(item, key, target, state)
  where a.state = 'open' and p_n[a.item] is not null
  on conflict do nothing;

  insert into pgwf_sdk.inbox (n, kind, name, phase, payload, encoding, received_at)
  select p_n[a.item], 16, a.key, pgwf_sdk._end_phase(r.status), e.payload, e.encoding, p_now
  from unnest(p_items, p_keys, p_targets, p_states) a(item, key, target, state)
  join pgwf_sdk.run r on r.n = a.target
  cross join lateral (
    select x.payload, x.encoding from pgwf_journal.entry x where x.n = a.target order by x.seq desc limit 1
  ) e
  where a.state = 'over' and p_n[a.item] is not null;

  delete from pgwf_sdk.attachment t
  using jsonb_to_recordset(p_attaches) a(item int, key text, run_id text)
  where a.run_id is null and t.n = p_n[a.item] and t.key = a.key;
end
$$;

-- Effect: the end of runs into the inboxes of those that are attached to them, which then are so no longer, nor are runs
-- that end attached to others; returns those that are to be woken.  The caller holds the rows of all.
create or replace function pgwf_sdk._end_attachments(
  p_n bigint[], p_statuses text[], p_payloads bytea[], p_encodings smallint[], p_now timestamptz
) returns bigint[]
language plpgsql volatile
as $$
declare
  v_wake bigint[];
begin
  select pgwf_sdk._deliver(
    array_agg(t.n order by a.ord, t.n, t.key), array_agg(16::smallint), array_agg(t.key order by a.ord, t.n, t.key),
    array_agg(pgwf_sdk._end_phase(a.status) order by a.ord, t.n, t.key), array_agg(a.payload order by a.ord, t.n, t.key),
    array_agg(a.encoding order by a.ord, t.n, t.key), p_now)
  into v_wake
  from unnest(p_n, p_statuses, p_payloads, p_encodings) with ordinality a(n, status, payload, encoding, ord)
  join pgwf_sdk.attachment t on t.target = a.n
  join pgwf_sdk.run r on r.n = t.n and r.finished_at is null
  having count(*) > 0;
  delete from pgwf_sdk.attachment a where a.target = any (p_n);
  delete from pgwf_sdk.attachment a where a.n = any (p_n);
  return coalesce(v_wake, '{}');
end
$$;

-- Effect: the phase (pgwf_journal.phase) in which the end of a run with that status is told to who waits for it.
create or replace function pgwf_sdk._end_phase(p_status text) returns smallint
language sql immutable
as $$ select (case p_status when 'completed' then 2 when 'cancelled' then 5 when 'terminated' then 6 else 3 end)::smallint $$;
