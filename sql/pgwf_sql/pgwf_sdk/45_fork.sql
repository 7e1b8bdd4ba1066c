-- Forks: a new run that begins with a copy of what another one has recorded up to some entry. A journal only grows, so
-- what stands before an entry stays as it is: a source that goes on meanwhile, or ends, changes nothing in the copy.

-- Effect: the number of the first entry that a fork does not take over.  p_before: that number, or the key of a call,
-- whose last entry is meant: it is the one that resolved it.  Errors: WS006.
create or replace function pgwf_sdk._fork_seq(p_n bigint, p_run_id text, p_before text) returns bigint
language plpgsql stable
as $$
declare
  v_head bigint := pgwf_journal._head(p_n);
  v_seq bigint;
begin
  if p_before ~ '^[0-9]{1,18}$' then
    v_seq := p_before::bigint;
  else
    select max(e.seq) into v_seq
    from pgwf_journal.entry e
    join pgwf_journal.kind k on k.kind = e.kind
    where e.n = p_n and concat(e.scope, '/', k.label, ':', e.name, '#', e.occurrence) = p_before and e.kind <> 1;
  end if;
  if v_seq is null or v_seq not between 2 and v_head + 1 then
    raise exception using
      errcode = 'WS006',
      message = format('run %s cannot be forked before %s: its journal has entries 1 to %s', p_run_id,
        coalesce(quote_literal(left(p_before, 200)), 'NULL'), v_head),
      hint = format('Expected the key of a call, or a number from 2 to %s; see the keys with pgwf show %s --journal.', v_head + 1, p_run_id);
  end if;
  return v_seq;
end
$$;

-- Effect: what a fork of a run before an entry would take over and what it would do again, if its code goes the same way:
-- entries and bytes of the copy; keys of steps whose results are not taken over (they run again), of other calls that are
-- made anew (timers, waits, awakeables, tasks, children: these get new ids and tokens), and of children, awakeables,
-- tasks and runs it was attached to whose results are taken over.  At most 1,000 keys of each; their counts are complete.  Errors: WS002, WS006.
create or replace function pgwf_sdk.fork_price(p_run_id text, p_before text)
returns table (
  run_id text, before_seq bigint, entry_count bigint, payload_bytes bigint, steps_again text[], steps_again_count bigint,
  calls_again text[], calls_again_count bigint, results_kept text[], results_kept_count bigint)
language plpgsql stable
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set enable_bitmapscan = off
set jit = off
as $$
declare
  v_n bigint := pgwf_sdk._number(p_run_id);
  v_before bigint := pgwf_sdk._fork_seq(v_n, p_run_id, p_before);
begin
  return query
  with calls as (
    select min(e.seq) as seq, e.scope, e.kind, e.name, e.occurrence,
      coalesce(bool_or(e.phase between 2 and 5) filter (where e.seq < v_before), false) as is_kept,
      count(*) filter (where e.seq < v_before) as entries,
      sum(octet_length(e.payload)) filter (where e.seq < v_before) as bytes
    from pgwf_journal.entry e
    where e.n = v_n and e.seq > 1 and e.kind not in (1, 11)
    group by e.scope, e.call, e.kind, e.name, e.occurrence
  ), named as (
    select c.seq, c.kind, c.is_kept, c.entries, c.bytes, concat(c.scope, '/', k.label, ':', c.name, '#', c.occurrence) as key
    from calls c
    join pgwf_journal.kind k on k.kind = c.kind
  )
  select p_run_id, v_before,
    1 + coalesce(sum(a.entries) filter (where a.is_kept), 0)::bigint,
    (coalesce(sum(a.bytes) filter (where a.is_kept), 0) + (
      select coalesce(octet_length(e.payload), 0) from pgwf_journal.entry e where e.n = v_n and e.seq = 1))::bigint,
    coalesce((array_agg(a.key order by a.seq) filter (where a.kind in (2, 12) and not a.is_kept))[:1000], '{}'),
    count(*) filter (where a.kind in (2, 12) and not a.is_kept),
    coalesce((array_agg(a.key order by a.seq) filter (where a.kind not in (2, 9, 12) and not a.is_kept))[:1000], '{}'),
    count(*) filter (where a.kind not in (2, 9, 12) and not a.is_kept),
    coalesce((array_agg(a.key order by a.seq) filter (where a.kind in (5, 6, 7, 16) and a.is_kept))[:1000], '{}'),
    count(*) filter (where a.kind in (5, 6, 7, 16) and a.is_kept)
  from named a;
end
$$;

-- Effect: a new run of the workflow and input of another one, whatever that is doing, which takes over its journal before
-- an entry, without calls that were not finished by then, and goes on from there.  The source is left as it is, and the new
-- run has no parent, but the source's priority and singleton key.  p_new_run_id NULL: <id>~fork1, ~fork2 ...  Forking with an id that the same fork made before gives that
-- run, created = false.  A child of the source stays the source's; its result, if it is taken over, is the new run's too.
-- Locks: the source's run row in share mode, so that it is not removed meanwhile; the new id.
-- Errors: WS001, WS002, WS004, WS006.  Wake-ups: workers that sleep on the run's home need.
create or replace function pgwf_sdk.fork_run(p_run_id text, p_before text, p_new_run_id text default null, p_by text default null)
returns table (n bigint, run_id text, created boolean)
language plpgsql volatile
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set enable_bitmapscan = off
set jit = off
set plan_cache_mode = force_generic_plan
as $$
declare
  v_n bigint := pgwf_sdk._number(p_run_id);
  v_before bigint := pgwf_sdk._fork_seq(v_n, p_run_id, p_before);
  v_turn int := 0;
  v_new record;
begin
  perform from pgwf_sdk.run r where r.n = v_n for key share;
  loop
    v_turn := v_turn + 1;
    continue when p_new_run_id is null and exists (select from pgwf.name m where m.job_id = p_run_id || '~fork' || v_turn);
    select s.* into v_new
    from pgwf_sdk.run r
    cross join lateral (
      select e.payload, e.encoding from pgwf_journal.entry e where e.n = r.n and e.seq = 1
    ) i
    left join pgwf.job j on j.n = r.n
    left join pgwf.archive a on a.n = r.n and j.n is null
    cross join lateral pgwf_sdk.start_run(coalesce(p_new_run_id, p_run_id || '~fork' || v_turn), r.workflow, r.need, i.payload, i.encoding,
      coalesce(j.priority, a.priority, 3), null, r.deadline, r.build, r.trace, p_by,
      p_singleton_key => coalesce(j.singleton_key, a.singleton_key)) s
    where r.n = v_n;
    exit when v_new.created or p_new_run_id is not null;
  end loop;

  if v_new.created then
    update pgwf_sdk.run f set seed = r.seed, fork_of = v_n, fork_before = v_before from pgwf_sdk.run r where f.n = v_new.n and r.n = v_n;
    perform pgwf_sdk._copy_journal(v_n, v_new.n, v_before);
    perform pgwf_sdk._copy_attributes(v_n, v_new.n);
  elsif not exists (select from pgwf_sdk.run f where f.n = v_new.n and f.fork_of = v_n and f.fork_before = v_before) then
    raise exception using
      errcode = 'WS001',
      message = format('run %s: the id is taken by a run that is not this fork of %s', v_new.run_id, p_run_id),
      hint = 'Ids are never used again; choose one that names this piece of work.';
  end if;
  return query select v_new.n, v_new.run_id, v_new.created;
end
$$;
