-- Chains: a run that is continued or retried goes on as another run, and any id of a chain addresses its live end.

-- Effect: the newest run of the chain that a run belongs to; the run itself where there is no other.
create or replace function pgwf_sdk._live(p_n bigint) returns bigint
language plpgsql stable
as $$
begin
  return coalesce(
    (
      select r.n
      from pgwf_sdk.run r
      where r.chain = (select coalesce(x.chain, x.n) from pgwf_sdk.run x where x.n = p_n)
      order by r.chain desc, r.n desc
      limit 1
    ),
    p_n);
end
$$;

-- Effect: the live end of a run's chain, its row locked; NULL when retention has removed it meanwhile.  A run that goes on
-- as another one does so under its row's lock.
create or replace function pgwf_sdk._try_lock_live(p_n bigint) returns bigint
language plpgsql volatile
as $$
declare
  v_n bigint := pgwf_sdk._live(p_n);
begin
  loop
    perform pgwf_sdk._lock_runs(array[v_n]);
    exit when not exists (select from pgwf_sdk.run r where r.n = v_n and r.successor is not null);
    v_n := pgwf_sdk._live(v_n);
  end loop;
  return (select r.n from pgwf_sdk.run r where r.n = v_n);
end
$$;

-- Effect: the same, of a run that is there.  Errors: WS002.
create or replace function pgwf_sdk._lock_live(p_n bigint) returns bigint
language plpgsql volatile
as $$
declare
  v_n bigint := pgwf_sdk._try_lock_live(p_n);
begin
  if v_n is null then
    raise exception using errcode = 'WS002', message = format('run number %s is over, and retention has just removed it', p_n);
  end if;
  return v_n;
end
$$;

-- Effect: the job and the journal of the run after p_n in its chain, under the first of the ids <id>~2, ~3 ... that is free,
-- with the priority and the singleton key of p_n.  Locks: the id.  Wake-ups: workers that sleep on the need.
create or replace function pgwf_sdk._submit_next(p_n bigint, p_need text, p_by text, p_now timestamptz) returns bigint
language plpgsql volatile
as $$
declare
  v_id text;
  v_base text;
  v_turn int;
  v_priority smallint;
  v_key text;
  v_next bigint;
  v_status text;
begin
  select r.run_id, coalesce(j.priority, a.priority, 3::smallint), coalesce(j.singleton_key, a.singleton_key)
  into v_id, v_priority, v_key
  from pgwf_sdk.run r
  left join pgwf.job j on j.n = r.n
  left join pgwf.archive a on a.n = r.n
  where r.n = p_n;
  v_base := regexp_replace(v_id, '~[0-9]{1,6}$', '');
  v_turn := coalesce(substring(v_id from '~([0-9]{1,6})$')::int, 1);
  if octet_length(v_base) > 500 then
    v_base := left(v_base, 100) || '/' || md5(v_base);
  end if;
  loop
    v_turn := v_turn + 1;
    continue when exists (select from pgwf.name m where m.job_id = v_base || '~' || v_turn)
      or exists (select from pgwf_journal.journal j where j.journal_id = v_base || '~' || v_turn);
    select s.n, s.status into v_next, v_status
    from pgwf._submit(array[v_base || '~' || v_turn], array[p_need], array[v_priority], array[v_key], array[null::timestamptz],
      array[null::timestamptz], coalesce(p_by, 'unknown'), p_now) s;
    if v_status = 'invalid' then
      raise exception using
        errcode = 'WS004',
        message = format('run %s cannot go on as another run: need %s', v_id, coalesce(quote_literal(left(p_need, 80)), 'NULL')),
        hint = 'Needs are 1 to 512 bytes without control characters.';
    end if;
    continue when v_status <> 'ok';
    exit when cardinality(pgwf_sdk._open_journals(array[v_next], array[v_base || '~' || v_turn])) > 0;
    perform pgwf_sdk._withdraw(array[v_next], p_now);
  end loop;
  return v_next;
end
$$;

-- Effect: the item and the number of the run that each item of advance with disposition continue goes on as.
create or replace function pgwf_sdk._submit_successors(p_worker_id text, p_now timestamptz, p_n bigint[], p_dispositions text[], p_needs text[])
returns table (item int, n bigint)
language plpgsql volatile
as $$
begin
  return query
  select a.ord::int, pgwf_sdk._submit_next(a.n, coalesce(a.need, r.need), p_worker_id, p_now)
  from unnest(p_n, p_dispositions, p_needs) with ordinality a(n, disposition, need, ord)
  join pgwf_sdk.run r on r.n = a.n
  where a.disposition = 'continue'
  order by a.ord;
end
$$;

-- Effect: runs that end as continued and go on as p_next: what nobody has read of their inboxes, their deadlines, parents,
-- children that still run and who is attached to them are the successors' from now on. A child that is taken over ends when its policy says so, and
-- its result reaches nobody: the call that waited for it is in the journal of the run that is over.
-- p_next, p_needs (NULL: the old need) and p_notes (JSON: workflow and build) belong to the elements of p_n.  The terminal entries, which
-- hold the successors' inputs, are in the journals.  The caller holds rows of runs, parents and children, leases and jobs.
create or replace function pgwf_sdk._continue(
  p_n bigint[], p_next bigint[], p_needs text[], p_notes text[], p_seats bigint[], p_worker_id text, p_now timestamptz
) returns void
language plpgsql volatile
as $$
declare
  v_inputs bytea[];
  v_encodings smallint[];
begin
  select array_agg(e.payload order by a.ord), array_agg(e.encoding order by a.ord)
  into v_inputs, v_encodings
  from unnest(p_n) with ordinality a(n, ord)
  cross join lateral (
    select x.payload, x.encoding from pgwf_journal.entry x where x.n = a.n order by x.seq desc limit 1
  ) e;

  perform pgwf_sdk._create_runs(
    array_agg(a.next order by a.ord), array_agg(j.job_id order by a.ord), array_agg(coalesce(a.note ->> 'workflow', r.workflow) order by a.ord),
    array_agg(coalesce(a.need, r.need) order by a.ord), v_inputs, v_encodings, array_agg(r.deadline order by a.ord), array_agg(a.note ->> 'build' order by a.ord),
    array_agg(r.trace order by a.ord), array_agg(r.parent order by a.ord), array_agg(r.parent_key order by a.ord), p_worker_id, p_now)
  from unnest(p_n, p_next, p_needs, p_notes::jsonb[]) with ordinality a(n, next, need, note, ord)
  join pgwf_sdk.run r on r.n = a.n
  join pgwf.job j on j.n = a.next;

  update pgwf_sdk.run r
  set chain = coalesce(o.chain, o.n), started_by = o.started_by, close = o.close
  from unnest(p_n, p_next) a(n, next)
  join pgwf_sdk.run o on o.n = a.n
  where r.n = a.next;
  perform pgwf_sdk._copy_attributes(a.n, a.next) from unnest(p_n, p_next) a(n, next);
  update pgwf_sdk.run r set successor = a.next from unnest(p_n, p_next) a(n, next) where r.n = a.n;
  update pgwf_sdk.inbox i set n = a.next from unnest(p_n, p_next) a(n, next) where i.n = a.n and i.kind in (4, 11);
  update pgwf_sdk.attachment t set target = a.next from unnest(p_n, p_next) a(n, next) where t.target = a.n;
  update pgwf_sdk.run r
  set parent = a.next, parent_key = null
  from unnest(p_n, p_next) a(n, next)
  where r.parent = a.n and r.finished_at is null;

  perform pgwf_sdk._finish(p_n, array_fill('continued'::text, array[cardinality(p_n)]), v_inputs, v_encodings, '{}',
    array(select s.seat from pgwf_sdk.seat s where s.seat = any (p_seats) and s.n = any (p_n)), p_worker_id, p_now);
end
$$;
