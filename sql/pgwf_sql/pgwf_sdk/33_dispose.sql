-- Effect: the jobs a call of advance submits, in order: children first, then the seats of the tasks it opens.
create or replace function pgwf_sdk._new_jobs(p_child_items int[], p_child_run_ids text[], p_child_needs text[], p_tasks jsonb)
returns table (ord bigint, item int, job_id text, need text)
language plpgsql stable
as $$
begin
  return query
  select row_number() over (order by a.class, a.ord), a.item, a.job_id, a.need
  from (
    select 1 as class, c.ord, c.item, c.job_id, c.need
    from unnest(p_child_items, p_child_run_ids, p_child_needs) with ordinality c(item, job_id, need, ord)
    union all
    select 2, t.ord, (t.task ->> 'item')::int, t.task ->> 'task_id', t.task ->> 'need'
    from jsonb_array_elements(p_tasks) with ordinality t(task, ord)
    where t.task ->> 'close' is null
  ) a;
end
$$;

-- Effect: submits those jobs, each with the priority of the run that asked for it, and opens the journals of children.
-- n is NULL for a job that was not taken in; ok is false for it, and for a child whose journal there is already.
create or replace function pgwf_sdk._submit_for(
  p_worker_id text, p_n bigint[], p_child_items int[], p_child_run_ids text[], p_child_needs text[], p_tasks jsonb, p_now timestamptz
) returns table (ord bigint, item int, job_id text, n bigint, ok boolean)
language plpgsql volatile
as $$
declare
  v_ords bigint[];
  v_items int[];
  v_job_ids text[];
  v_needs text[];
  v_priorities smallint[];
  v_n bigint[];
  v_opened bigint[];
  v_children_count int := cardinality(p_child_items);
begin
  select array_agg(a.ord order by a.ord), array_agg(a.item order by a.ord), array_agg(a.job_id order by a.ord),
    array_agg(a.need order by a.ord),
    array_agg(coalesce((select j.priority from pgwf.job j where j.n = p_n[a.item]), 3::smallint) order by a.ord)
  into v_ords, v_items, v_job_ids, v_needs, v_priorities
  from pgwf_sdk._new_jobs(p_child_items, p_child_run_ids, p_child_needs, p_tasks) a;
  if v_ords is null then
    return;
  end if;

  v_n := array(
    select case when s.status = 'ok' then s.n end
    from pgwf._submit(v_job_ids, v_needs, v_priorities, array_fill(null::text, array[cardinality(v_ords)]),
      array_fill(null::timestamptz, array[cardinality(v_ords)]), array_fill(null::timestamptz, array[cardinality(v_ords)]),
      p_worker_id, p_now) s
    order by s.ord);
  select pgwf_sdk._open_journals(array_agg(c.n), array_agg(c.job_id))
  into v_opened
  from unnest(v_n[:v_children_count], v_job_ids[:v_children_count]) c(n, job_id)
  where c.n is not null;

  return query
  select a.ord, a.item, a.job_id, a.n, a.n is not null and (a.ord > v_children_count or a.n in (select o.n from unnest(v_opened) o(n)))
  from unnest(v_ords, v_items, v_job_ids, v_n) a(ord, item, job_id, n);
end
$$;

-- Effect: submits all jobs that a call of advance asks for: children and seats, then the successors of runs that continue.
-- items has the item of each, ok whether it was taken in, taken the ids of those that were not.
create or replace function pgwf_sdk._submit_new(
  p_worker_id text, p_n bigint[], p_dispositions text[], p_needs text[], p_child_items int[], p_child_run_ids text[], p_child_needs text[],
  p_tasks jsonb, p_now timestamptz,
  out items int[], out n bigint[], out ok boolean[], out taken text[], out continuing int[], out successors bigint[]
)
language plpgsql volatile
as $$
begin
  select coalesce(array_agg(s.item order by s.ord), '{}'), coalesce(array_agg(s.n order by s.ord), '{}'),
    coalesce(array_agg(s.ok order by s.ord), '{}'), array_agg(s.job_id order by s.ord) filter (where not s.ok)
  into items, n, ok, taken
  from pgwf_sdk._submit_for(p_worker_id, p_n, p_child_items, p_child_run_ids, p_child_needs, p_tasks, p_now) s;
  if 'continue' = any (p_dispositions) then
    select coalesce(array_agg(s.item), '{}'), coalesce(array_agg(s.n), '{}') into continuing, successors
    from pgwf_sdk._submit_successors(p_worker_id, p_now, p_n, p_dispositions, p_needs) s;
    items := items || continuing;
    n := n || successors;
    ok := ok || array_fill(true, array[cardinality(successors)]);
  end if;
end
$$;

-- Effect: runs for the children of items that are written; p_children are their jobs, in the order of p_items.
create or replace function pgwf_sdk._create_children(
  p_n bigint[], p_children bigint[], p_items int[], p_keys text[], p_run_ids text[], p_workflows text[], p_needs text[], p_builds text[],
  p_inputs bytea[], p_encodings smallint[], p_closes text[], p_worker_id text, p_now timestamptz
) returns void
language sql volatile
as $$
  select pgwf_sdk._create_runs(
    array_agg(c.child order by c.ord), array_agg(c.run_id order by c.ord), array_agg(c.workflow order by c.ord),
    array_agg(c.need order by c.ord), array_agg(c.input order by c.ord), array_agg(c.encoding order by c.ord),
    array_agg(null::timestamptz), array_agg(c.build order by c.ord), array_agg(p.trace order by c.ord),
    array_agg(p.n order by c.ord), array_agg(c.key order by c.ord), p_worker_id, p_now)
  from unnest(p_children, p_items, p_keys, p_run_ids, p_workflows, p_needs, p_builds, p_inputs, p_encodings) with ordinality
    c(child, item, key, run_id, workflow, need, build, input, encoding, ord)
  join pgwf_sdk.run p on p.n = p_n[c.item]
  having count(*) > 0;

  update pgwf_sdk.run r
  set close = c.close
  from unnest(p_children, p_items, p_closes) c(child, item, close)
  where c.close is not null and r.n = c.child and p_n[c.item] is not null
$$;

-- Effect: whether a run that wants to park has reason not to: something other than a child's result arrived after p_seen,
-- or as many children ended as it waits for, or one did not complete (which a negative p_wake_after counts as any end).
create or replace function pgwf_sdk._unread(p_n bigint, p_seen bigint, p_wake_after int) returns boolean
language plpgsql stable
as $$
begin
  return (
    select count(*) filter (where i.kind <> 6 or (i.phase <> 2 and p_wake_after >= 0)) > 0
      or count(*) >= greatest(abs(p_wake_after), 1)
    from pgwf_sdk.inbox i
    where i.n = p_n and i.id > coalesce(p_seen, 0)
  );
end
$$;

-- Effect: what becomes of the runs of a call of advance whose items are written and do not just keep their lease.
-- The caller holds the rows of runs, leases and jobs.
create or replace function pgwf_sdk._dispose(
  p_worker_id text, p_now timestamptz, p_n bigint[], p_statuses text[], p_dispositions text[], p_until timestamptz[],
  p_delay_seconds double precision[], p_needs text[], p_inbox_seen bigint[], p_wake_after int[], p_notes text[],
  p_entry_items int[], p_entry_kinds smallint[], p_entry_phases smallint[], p_entry_payloads bytea[], p_entry_encodings smallint[],
  p_children bigint[], p_seats bigint[]
) returns void
language plpgsql volatile
as $$
declare
  v_n bigint[];
  v_needs text[];
  v_available_at timestamptz[];
  v_wake_after int[];
  v_notes text[];
  v_outcomes text[];
  v_payloads bytea[];
  v_encodings smallint[];
begin
  if 'block' = any (p_dispositions) then
    with blocked as (
      insert into pgwf_sdk.blocked (n, report, blocked_at)
      select a.n, a.note::jsonb, p_now
      from unnest(p_n, p_statuses, p_dispositions, p_notes) a(n, status, disposition, note)
      where a.status = 'ok' and a.disposition = 'block'
      on conflict (n) do update set report = excluded.report, blocked_at = excluded.blocked_at
      returning n
    )
    update pgwf_sdk.run r set status = 'blocked' from blocked b where r.n = b.n;
  end if;

  if p_dispositions && array['park', 'hop', 'release', 'block'] then
    select array_agg(a.n order by a.ord),
      array_agg(case when a.disposition in ('hop', 'park') then a.need end order by a.ord),
      array_agg(case a.disposition
        when 'hop' then p_now
        when 'block' then 'infinity'
        when 'release' then p_now + make_interval(secs => coalesce(a.delay_seconds, 0))
        else coalesce(least(a.until, p_now + make_interval(secs => a.delay_seconds)), 'infinity') end order by a.ord),
      array_agg(case when a.disposition = 'park' and abs(a.wake_after) > 1 then a.wake_after - sign(a.wake_after)::int * (
        select count(*)::int from pgwf_sdk.inbox i where i.n = a.n and i.id > coalesce(a.seen, 0) and i.kind = 6) end order by a.ord),
      array_agg(case when a.disposition = 'release' then a.note end order by a.ord)
    into v_n, v_needs, v_available_at, v_wake_after, v_notes
    from unnest(p_n, p_statuses, p_dispositions, p_until, p_delay_seconds, p_needs, p_inbox_seen, p_wake_after, p_notes) with ordinality
      a(n, status, disposition, until, delay_seconds, need, seen, wake_after, note, ord)
    where a.status = 'ok' and a.disposition in ('park', 'hop', 'release', 'block');
    if v_n is not null then
      perform pgwf_sdk._give_back(v_n, v_needs, v_available_at, v_wake_after, v_notes, p_worker_id, p_now);
    end if;
  end if;

  select array_agg(a.n order by a.ord),
    array_agg(case a.disposition when 'complete' then 'completed' when 'fail' then 'failed' else 'cancelled' end order by a.ord),
    array_agg(a.payload order by a.ord), array_agg(coalesce(a.encoding, 0::smallint) order by a.ord)
  into v_n, v_outcomes, v_payloads, v_encodings
  from (
    select a.*, x.payload, x.encoding
    from unnest(p_n, p_statuses, p_dispositions) with ordinality a(n, status, disposition, ord)
    full join (
      select e.* from unnest(p_entry_items, p_entry_kinds, p_entry_phases, p_entry_payloads, p_entry_encodings)
        e(item, kind, phase, payload, encoding)
      where e.kind = 1 and e.phase <> 1
    ) x on x.item = a.ord
    offset 0
  ) a
  where a.status = 'ok' and a.disposition in ('complete', 'fail', 'cancel');
  if v_n is not null then
    perform pgwf_sdk._finish(v_n, v_outcomes, v_payloads, v_encodings,
      array(select r.n from pgwf_sdk.run r where r.n = any (p_children) and (r.parent in (select x.n from unnest(v_n) x(n))) is true),
      array(select s.seat from pgwf_sdk.seat s where s.seat = any (p_seats) and (s.n in (select x.n from unnest(v_n) x(n))) is true),
      p_worker_id, p_now);
  end if;
end
$$;
