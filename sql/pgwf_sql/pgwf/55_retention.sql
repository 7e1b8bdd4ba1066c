-- Partitions of archive and trace: made ahead, dropped when their time has passed.

-- Adds a partition that does not exist yet; returns 1 if it did. It is made as a table and then attached, while it is
-- empty: a CHECK with its bounds would spare no scan, and every insert would read and compile it. Writers are kept out
-- first: one that had chosen the default partition already, and waited for it, would find its row refused there. 0 also
-- when somebody is in the way for longer than the lock_timeout of the caller: the next call tries again.
create or replace function pgwf._add_partition(p_parent text, p_name text, p_from text, p_to text)
returns int
language plpgsql
volatile
as $$
begin
  if to_regclass('pgwf.' || p_name) is not null then
    return 0;
  end if;
  execute format('lock table pgwf.%I in share row exclusive mode', p_parent);
  execute format('create table pgwf.%I (like pgwf.%I including defaults including constraints)', p_name, p_parent);
  execute format(
    'alter table pgwf.%I attach partition pgwf.%I for values from (%L) to (%L)', p_parent, p_name, p_from, p_to);
  return 1;
exception when lock_not_available or check_violation or duplicate_table then  -- somebody else made it meanwhile
  return 0;
end
$$;

-- Adds the partitions that will be needed next: archive for the next 10 million jobs, trace for today and the next
-- two days. A range whose rows are in the default partition already is left out. Returns how many it added.
create or replace function pgwf._add_partitions(p_now timestamptz)
returns int
language plpgsql
volatile
as $$
declare
  v_jobs bigint := pgwf._partition_jobs();
  v_added int := 0;
  v_first bigint;
  v_from bigint;
  v_day date;
begin
  select s.last_value / v_jobs * v_jobs into v_first from pgwf.pos as s;
  begin
    foreach v_from in array array[v_first, v_first + v_jobs] loop
      if not exists (select from pgwf.archive_default as a where a.n >= v_from and a.n < v_from + v_jobs) then
        v_added := v_added
          + pgwf._add_partition('archive', 'archive_' || v_from, v_from::text, (v_from + v_jobs)::text);
      end if;
    end loop;
    for v_day in select (p_now at time zone 'UTC')::date + d from generate_series(0, 2) as d loop
      if not exists (
        select from pgwf.trace_default as t
        where t.event_at >= v_day::timestamp at time zone 'UTC'
          and t.event_at < (v_day + 1)::timestamp at time zone 'UTC')
      then
        v_added := v_added + pgwf._add_partition(
          'trace', 'trace_' || to_char(v_day, 'YYYYMMDD'), v_day || ' 00:00+00', v_day + 1 || ' 00:00+00');
      end if;
    end loop;
  exception when lock_not_available then
    return 0;  -- somebody has locked a default partition, and all that was made here is undone
  end;
  return v_added;
end
$$;

-- Jobs a partition is for, here and in the journals of runs.
create or replace function pgwf._partition_jobs()
returns bigint
language sql
immutable
as $$ select 5000000::bigint $$;

-- Makes the partitions that will be needed next, of finished jobs and of the trace, and returns how many it made: the
-- workers of pgwf_sdk, and retain, call it; where neither runs, call it now and then, in a transaction of its own.
-- Without it, rows go to default partitions, which are never dropped. Locks: partitioned tables, for at most 50 ms of
-- waiting; what is in use is left for the next call. Errors: WF020, 42501 for who does not own the schema.
create or replace function pgwf.add_partitions()
returns int
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
set lock_timeout = '50ms'
as $$
begin
  perform pgwf._require_read_committed();
  if not pg_try_advisory_xact_lock(hashtextextended('pgwf.partitions', 0)) then
    return 0;
  end if;
  return pgwf._add_partitions(pgwf._now());
end
$$;

-- Forgets at most p_limit jobs that finished before p_before: their ids and their rows of the archive. Returns their
-- numbers.
create or replace function pgwf._forget(p_before timestamptz, p_limit int)
returns bigint[]
language plpgsql
volatile
as $$
declare
  v_n bigint[];
begin
  v_n := array(select a.n from pgwf.archive as a where a.archived_at < p_before limit p_limit);
  perform pgwf._forget_jobs(v_n);
  return v_n;
end
$$;

-- Forgets these finished jobs.
create or replace function pgwf._forget_jobs(p_n bigint[])
returns void
language plpgsql
volatile
as $$
begin
  delete from pgwf.name as nm
  using pgwf.archive as a
  where a.n = any (p_n)
    and nm.job_id = a.job_id
    and nm.n = a.n;
  delete from pgwf.archive as a where a.n = any (p_n);
end
$$;

-- Partitions of a table with their upper bounds, the default partition left out.
create or replace function pgwf._partitions(p_parent text)
returns table (name text, upper_bound text)
language sql
stable
as $$
  -- Materialized: callers cast the bounds, and those of somebody else's partitions may be anything.
  with own as materialized (
    select c.relname::text as name, pg_get_expr(c.relpartbound, c.oid) as bounds
    from pg_inherits as i
    join pg_class as c on c.oid = i.inhrelid
    where i.inhparent = ('pgwf.' || quote_ident(p_parent))::regclass
  )
  select o.name, substring(o.bounds from 'TO [(]''?([^'')]*)''?[)]')
  from own as o
  where o.bounds <> 'DEFAULT'
$$;

-- Drops archive partitions that are empty and belong to numbers of the past, and trace partitions older than
-- p_before.
create or replace function pgwf._drop_partitions(p_before timestamptz)
returns void
language plpgsql
volatile
as $$
declare
  v_partition record;
  v_used boolean;
begin
  for v_partition in select p.name, p.upper_bound::bigint as bound from pgwf._partitions('archive') as p loop
    if v_partition.bound > (select s.last_value from pgwf.pos as s)
      or exists (select from pgwf.job as j where j.n < v_partition.bound)
    then
      continue;
    end if;
    execute format('select exists (select from pgwf.%I)', v_partition.name) into v_used;
    continue when v_used;
    -- Under the lock: a job of this range that somebody submitted long ago may have committed, and ended, just now.
    lock table only pgwf.archive in access exclusive mode;
    execute format('select exists (select from pgwf.%I)', v_partition.name) into v_used;
    if not v_used and not exists (select from pgwf.job as j where j.n < v_partition.bound) then
      execute format('drop table pgwf.%I', v_partition.name);
    end if;
  end loop;
  for v_partition in select p.name from pgwf._partitions('trace') as p where p.upper_bound::timestamptz <= p_before loop
    execute format('drop table pgwf.%I', v_partition.name);
  end loop;
end
$$;

-- Forgets at most p_limit trace rows that no partition was made for; returns how many.
create or replace function pgwf._trim_trace(p_before timestamptz, p_limit int)
returns int
language plpgsql
volatile
as $$
declare
  v_trimmed int;
begin
  -- Rows are never updated, so a ctid stays theirs.
  delete from pgwf.trace_default as t
  where t.ctid = any (array(select q.ctid from pgwf.trace_default as q where q.event_at < p_before limit p_limit));
  get diagnostics v_trimmed = row_count;
  return v_trimmed;
end
$$;

-- Whether nobody else forgets just now: two would wait for each other's rows.
create or replace function pgwf._is_only_retention()
returns boolean
language sql
volatile
as $$ select pg_try_advisory_xact_lock(hashtextextended('pgwf.retention', 0)) $$;

-- Forget jobs that finished, and trace rows that were written, longer than p_keep ago: at most p_limit of each, so
-- call again while it returns p_limit or more. An id that is forgotten may be used again. Also makes partitions ahead
-- and drops what is empty; when somebody reads such a table, it is left for the next call. Returns how many rows
-- went, 0 while another call is at it. Call it in a transaction of its own. Where there are runs of pgwf_sdk, call
-- pgwf_sdk.retain instead. Locks: the rows it forgets; partitioned tables for at most 50 ms of waiting. Errors: 23502,
-- WF001, WF020.
create or replace function pgwf.retain(p_keep interval, p_limit int default 10000)
returns int
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
set lock_timeout = '50ms'
as $$
declare
  v_before timestamptz;
  v_forgotten int;
begin
  perform pgwf._require_read_committed();
  if p_keep is null then
    perform pgwf._refuse('23502', 'keep cannot be null');
  elsif p_keep < interval '0' or p_keep > interval '1000 years' then
    perform pgwf._refuse('WF001', format('keep must be 0 to 1000 years, not %s', p_keep));
  elsif p_limit is null or p_limit <= 0 then
    perform pgwf._refuse_nonpositive('limit', p_limit);
  elsif not pgwf._is_only_retention() then
    return 0;
  end if;
  v_before := pgwf._now() - p_keep;
  begin
    v_forgotten := cardinality(pgwf._forget(v_before, p_limit)) + pgwf._trim_trace(v_before, p_limit);
  exception when lock_not_available then
    v_forgotten := 0;  -- somebody holds what was to go, the next call goes on
  end;
  perform pgwf._add_partitions(pgwf._now());
  begin
    perform pgwf._drop_partitions(v_before);
  exception when lock_not_available then
    raise debug 'partitions are in use, the next call looks after them';
  end;
  return v_forgotten;
end
$$;

do $$
begin
  perform pgwf._add_partitions(clock_timestamp());
end
$$;
