-- Partitions of archive and trace: made ahead, dropped when their time has passed.

-- Adds a partition that does not exist yet. It is made as a table and then attached, which keeps readers and writers
-- of the other partitions going; the default partition must hold nothing of its range.
create or replace function pgwf._add_partition(p_parent text, p_name text, p_from text, p_to text)
returns void
language plpgsql
volatile
as $$
begin
  if to_regclass('pgwf.' || p_name) is not null then
    return;
  end if;
  execute format('create table pgwf.%I (like pgwf.%I including defaults including constraints)', p_name, p_parent);
  execute format(
    'alter table pgwf.%I attach partition pgwf.%I for values from (%L) to (%L)', p_parent, p_name, p_from, p_to);
end
$$;

-- Adds the partitions that will be needed next: archive for the next 10 million jobs, trace for today and the next
-- two days. A range whose rows are in the default partition already is left out.
create or replace function pgwf._add_partitions(p_now timestamptz)
returns void
language plpgsql
volatile
as $$
declare
  PARTITION_JOBS constant bigint := 5000000;
  v_first bigint;
  v_from bigint;
  v_day date;
begin
  select s.last_value / PARTITION_JOBS * PARTITION_JOBS into v_first from pgwf.pos as s;
  foreach v_from in array array[v_first, v_first + PARTITION_JOBS] loop
    if not exists (select from pgwf.archive_default as a where a.n >= v_from and a.n < v_from + PARTITION_JOBS) then
      perform pgwf._add_partition('archive', 'archive_' || v_from, v_from::text, (v_from + PARTITION_JOBS)::text);
    end if;
  end loop;
  for v_day in select (p_now at time zone 'UTC')::date + d from generate_series(0, 2) as d loop
    if not exists (
      select from pgwf.trace_default as t
      where t.event_at >= v_day::timestamp at time zone 'UTC'
        and t.event_at < (v_day + 1)::timestamp at time zone 'UTC')
    then
      perform pgwf._add_partition(
        'trace', 'trace_' || to_char(v_day, 'YYYYMMDD'), v_day || ' 00:00+00', v_day + 1 || ' 00:00+00');
    end if;
  end loop;
end
$$;

-- Partitions of a table with their upper bounds, the default partition left out.
create or replace function pgwf._partitions(p_parent text)
returns table (name text, upper_bound text)
language sql
stable
as $$
  select
    c.relname::text,
    substring(pg_get_expr(c.relpartbound, c.oid) from 'TO \(''?([^'')]*)''?\)')
  from pg_inherits as i
  join pg_class as c on c.oid = i.inhrelid
  where i.inhparent = ('pgwf.' || quote_ident(p_parent))::regclass
    and pg_get_expr(c.relpartbound, c.oid) <> 'DEFAULT'
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
    if not v_used then
      execute format('drop table pgwf.%I', v_partition.name);
    end if;
  end loop;
  for v_partition in select p.name from pgwf._partitions('trace') as p where p.upper_bound::timestamptz <= p_before loop
    execute format('drop table pgwf.%I', v_partition.name);
  end loop;
end
$$;

-- Forget jobs that finished, and trace rows that were written, longer than p_keep ago: at most p_limit of each, so
-- call again while it returns p_limit or more. An id that is forgotten may be used again. Also makes partitions ahead
-- and drops what is empty; when somebody reads such a table, it is left for the next call. Returns how many rows
-- went. Call it in a transaction of its own. Locks: the rows it forgets; partitioned tables for at most 50 ms of
-- waiting. Errors: 23502, WF001, WF020.
create or replace function pgwf.retain(p_keep interval, p_limit int default 10000)
returns int
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
set lock_timeout = '50ms'
as $$
declare
  v_now timestamptz := pgwf._now();
  v_forgotten int;
  v_trimmed int;
begin
  perform pgwf._require_read_committed();
  if p_keep is null then
    perform pgwf._refuse('23502', 'keep cannot be null');
  elsif p_keep < interval '0' or p_limit is null or p_limit <= 0 then
    perform pgwf._refuse('WF001', 'keep must not be negative and limit must be positive');
  end if;
  with old as materialized (
    select a.n, a.job_id from pgwf.archive as a where a.archived_at < v_now - p_keep limit p_limit
  ), names as (
    delete from pgwf.name as nm using old as o where nm.job_id = o.job_id and nm.n = o.n
  )
  delete from pgwf.archive as a using old as o where a.n = o.n;
  get diagnostics v_forgotten = row_count;
  delete from pgwf.trace as t
  using (
    select q.event_at, q.trace_id from pgwf.trace_default as q where q.event_at < v_now - p_keep limit p_limit
  ) as old
  where t.event_at = old.event_at
    and t.trace_id = old.trace_id;
  get diagnostics v_trimmed = row_count;
  begin
    perform pgwf._add_partitions(v_now);
    perform pgwf._drop_partitions(v_now - p_keep);
  exception when lock_not_available then
    raise debug 'partitions are in use, the next call looks after them';
  end;
  return v_forgotten + v_trimmed;
end
$$;

do $$
begin
  perform pgwf._add_partitions(clock_timestamp());
end
$$;
