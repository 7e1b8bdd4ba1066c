-- Which items of advance may have what they ask for, and what they write.

-- Effect: the items, by place, for which a row would have to be waited for; the rows of the others are locked: runs, leases
-- with their keys, and jobs, of the runs themselves and of the relatives and tasks that go with them.  Waits for nothing.
create or replace function pgwf_sdk._busy(
  p_n bigint[], p_dispositions text[], p_decides boolean[], p_lapsed boolean[], p_child_items int[], p_tasks jsonb, p_attaches jsonb
) returns int[]
language plpgsql volatile
as $$
declare
  v_items int[];
  v_kinds text[];
  v_rows bigint[];
  v_runs bigint[];
  v_leases bigint[];
  v_jobs bigint[];
begin
  with task as (
    select t.item, t.key, t.close from jsonb_to_recordset(p_tasks) t(item int, key text, close text)
  ), item as (
    select a.ord::int as ord, a.n, a.lapsed, a.disposition in ('complete', 'fail', 'cancel', 'continue') as ends,
      a.disposition <> 'keep' or a.decides or a.ord in (select c.item from unnest(p_child_items || pgwf_sdk._items(p_attaches)) c(item))
        or a.ord in (select t.item from task t) as moves
    from unnest(p_n, p_dispositions, p_decides, p_lapsed) with ordinality a(n, disposition, decides, lapsed, ord)
  ), relative as (
    select i.ord, x.n
    from item i
    cross join lateral (
      select r.parent as n from pgwf_sdk.run r where r.n = i.n and r.parent is not null
      union all
      select r.n from pgwf_sdk.run r where r.parent = i.n and r.finished_at is null
      union all
      select a.n from pgwf_sdk.attachment a where a.target = i.n
      offset 0
    ) x
    where i.ends
  ), seat as (
    select i.ord, x.seat as n
    from item i
    cross join lateral (
      select s.seat, t.key
      from pgwf_sdk.task t
      join pgwf_sdk.seat s on s.n = t.n and s.key = t.key
      where t.n = i.n and s.n = i.n and t.state is not distinct from 'open'  -- as in _close_tasks
      offset 0
    ) x
    where i.ends or (i.ord, x.key) in (select c.item, c.key from task c where c.close is not null)
  ), needed as (
    select i.ord, 'lease' as kind, i.n from item i
    union all select i.ord, k.kind, i.n from item i cross join (values ('run'), ('job')) k(kind) where i.moves
    union all select i.ord, 'job', i.n from item i where i.lapsed
    union all select t.item, 'run', t.n from pgwf_sdk._attach_targets(p_n, p_attaches) t
    union all select r.ord, k.kind, r.n from relative r cross join (values ('run'), ('job')) k(kind)
    union all select s.ord, k.kind, s.n from seat s cross join (values ('lease'), ('job')) k(kind)
  )
  select array_agg(x.ord), array_agg(x.kind), array_agg(x.n)
  into v_items, v_kinds, v_rows
  from needed x;

  v_runs := array(select r.n from pgwf_sdk.run r where r.n = any (v_rows) order by r.n for no key update skip locked);
  v_leases := array(select l.n from pgwf.lease l where l.n = any (v_rows) order by l.n for no key update skip locked);
  v_leases := pgwf._try_keys(v_leases);
  v_jobs := array(select j.n from pgwf.job j where j.n = any (v_rows) order by j.n for update skip locked);
  -- What is gone by now is no reason to wait: the call finds out.
  return array(
    select distinct x.item
    from unnest(v_items, v_kinds, v_rows) x(item, kind, n)
    where case x.kind
      when 'run' then x.n not in (select k.n from unnest(v_runs) k(n)) and exists (select from pgwf_sdk.run r where r.n = x.n offset 0)
      when 'lease' then x.n not in (select k.n from unnest(v_leases) k(n)) and exists (select from pgwf.lease l where l.n = x.n offset 0)
      else x.n not in (select k.n from unnest(v_jobs) k(n)) and exists (select from pgwf.job j where j.n = x.n offset 0) end);
end
$$;

-- Effect: which items of advance are their caller's: 'fenced' without the lease, 'conflict' when the journal is not where the
-- item says, or an earlier item names the run, else 'ok'; by item the number of the lease on its run.  p_leased and the arrays
-- beside it are the leases that the caller holds locked, in n order.
create or replace function pgwf_sdk._fenced(
  p_n bigint[], p_lease_ids uuid[], p_expected_seqs bigint[], p_dispositions text[], p_entry_items int[],
  p_leased bigint[], p_leased_ids uuid[], p_leased_nos bigint[], out statuses text[], out lease_nos bigint[]
)
language plpgsql stable
as $$
declare
  v_ids uuid[] := p_leased_ids;
  v_places bigint[];
begin
  lease_nos := p_leased_nos;
  -- Workers send their runs in n order, each once, and most hold all of their leases.
  if p_leased is distinct from p_n then
    select array_agg(l.lease_id order by a.ord), array_agg(l.lease_no order by a.ord), array_agg(a.place order by a.ord)
    into v_ids, lease_nos, v_places
    from (select i.n, i.ord, row_number() over (partition by i.n order by i.ord) as place from unnest(p_n) with ordinality i(n, ord)) a
    -- Full, because it cannot be a nested loop over two lists then.
    full join unnest(p_leased, p_leased_ids, p_leased_nos) l(n, lease_id, lease_no) on l.n = a.n
    where a.ord is not null;
  end if;
  statuses := array(
    select case
      when v_ids[i] is distinct from p_lease_ids[i] or v_ids[i] is null then 'fenced'
      when v_places[i] > 1 or coalesce(
        -- The head, if it is not before the entry the item follows: from further back a scan would read a page full of entries.
        coalesce((select e.seq from pgwf_journal.entry e where e.n = p_n[i] and e.seq >= p_expected_seqs[i] order by e.seq desc limit 1), 0)
          <> p_expected_seqs[i], p_dispositions[i] <> 'release' or array_position(p_entry_items, i) is not null) then 'conflict'
      else 'ok'
    end
    from generate_subscripts(p_n, 1) i
    order by i);
end
$$;

-- Effect: what is to become of the items that p_statuses calls 'ok' and that decide something, wait, or ask for new jobs, by
-- the statuses of advance's answer.  p_closers are items that close tasks; p_new_items and p_new_ok tell whose new jobs were
-- taken in; p_attach_states what becomes of the attaches of an item.
create or replace function pgwf_sdk._admitted(
  p_statuses text[], p_n bigint[], p_dispositions text[], p_inbox_seen bigint[], p_wake_after int[],
  p_decides boolean[], p_closers int[], p_new_items int[], p_new_ok boolean[], p_attach_states text[]
) returns text[]
language plpgsql stable
as $$
begin
  return (
    select array_agg(
      case
        when a.status <> 'ok' then a.status
        when (a.decides or a.ord = any (p_closers)) and exists (select from pgwf_sdk.inbox i where i.n = a.n and i.id > coalesce(a.seen, 0)) then 'undecided'
        when false = any (p_new_ok) and exists (
          select from unnest(p_new_items, p_new_ok) s(item, ok) where s.item = a.ord and not s.ok) then 'child_exists'
        when p_attach_states[a.ord] in ('no_run', 'cycle') then p_attach_states[a.ord]
        when a.disposition = 'park' and (p_attach_states[a.ord] = 'over' or pgwf_sdk._unread(a.n, a.seen, a.wake_after)) then 'unread'
        else 'ok'
      end order by a.ord)
    from unnest(p_statuses, p_n, p_dispositions, p_inbox_seen, p_wake_after, p_decides) with ordinality
      a(status, n, disposition, seen, wake_after, decides, ord)
  );
end
$$;

-- Effect: writes the entries of items after p_expected_seqs, and what awakeables and attributes (kinds 5 and 10) keep beside
-- them.  p_n: NULL where an item writes nothing; p_told: how many of an
-- item's entries, from the first, have the time of the entry they follow.  The caller holds the leases.
create or replace function pgwf_sdk._write(
  p_n bigint[], p_journals bigint[], p_expected_seqs bigint[], p_told int[], p_lease_nos bigint[], p_now timestamptz,
  p_items int[], p_calls int[], p_kinds smallint[], p_phases smallint[], p_scopes text[], p_names text[], p_occurrences int[],
  p_payloads bytea[], p_encodings smallint[], p_codes int[]
) returns void
language plpgsql volatile
as $$
declare
  v_heads bigint[] := p_expected_seqs;
  v_seqs bigint[];
  v_told_at timestamptz[];
begin
  for i in 1..cardinality(p_items) loop
    continue when p_n[p_items[i]] is null;
    v_heads[p_items[i]] := v_heads[p_items[i]] + 1;
    v_seqs[i] := v_heads[p_items[i]];
  end loop;
  if cardinality(p_told) > 0 then
    v_told_at := array(
      select (select e.recorded_at from pgwf_journal.entry e where p_told[i] > 0 and e.n = p_journals[i] and e.seq = p_expected_seqs[i])
      from generate_subscripts(p_told, 1) i
      order by i);
  end if;
  -- By subscript: plpgsql holds arrays so that each element is found at once, and eleven lists side by side cost more than the insert.
  insert into pgwf_journal.entry
    (n, seq, call, kind, phase, scope, name, occurrence, payload, encoding, recorded_at, lease_no, code)
  select p_n[p_items[i]], v_seqs[i], p_calls[i], p_kinds[i], p_phases[i], p_scopes[i], p_names[i], p_occurrences[i],
    p_payloads[i], p_encodings[i],
    coalesce(case when v_seqs[i] <= p_expected_seqs[p_items[i]] + p_told[p_items[i]] then v_told_at[p_items[i]] end, p_now),
    p_lease_nos[p_items[i]], p_codes[i]
  from generate_subscripts(p_items, 1) i
  where p_n[p_items[i]] is not null;
  if p_kinds && array[5, 10]::smallint[] then
    perform pgwf_sdk._project(
      p_n, p_now, p_items, p_kinds, p_phases, p_scopes, p_names, p_occurrences, p_payloads, p_encodings);
  end if;
end
$$;
