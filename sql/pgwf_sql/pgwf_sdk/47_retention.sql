-- What is finished is kept for a while; then whole partitions are dropped, with everything that belongs to their numbers.

-- Effect: makes the partitions that will be needed next: of finished jobs, of the trace, and of journals.  Returns how
-- many it made.  Workers call it; where none has the right to, call it now and then as the owner of the schemas, in a
-- transaction of its own.  Without it, journals go to a default partition, which is never dropped.
-- Locks: partitioned tables, for at most 50 ms of waiting; what is in use is left for the next call.
-- Errors: WF020, 42501 for who does not own the schemas.
create or replace function pgwf_sdk.add_partitions() returns int
language plpgsql volatile
set search_path = pg_catalog, pg_temp
set lock_timeout = '50ms'
as $$
declare
  v_added int := pgwf.add_partitions();
  v_jobs bigint := pgwf._partition_jobs();
  v_from bigint;
begin
  for v_from in
    select (s.last_value / v_jobs + ahead) * v_jobs from pgwf.pos s, generate_series(0, 1) ahead order by 1
  loop
    begin
      continue when to_regclass('pgwf_journal.entry_' || v_from) is not null
        or exists (select from pgwf_journal.entry_rest e where e.n >= v_from and e.n < v_from + v_jobs);
      perform pgwf_journal._make_partition('entry_' || v_from, v_from::text, (v_from + v_jobs)::text);
      v_added := v_added + 1;
    exception when lock_not_available or check_violation or duplicate_table then
      raise debug 'journals are in use, the next call makes their partition, if nobody else has';
    end;
  end loop;
  return v_added;
end
$$;

-- Effect: removes everything that belongs to runs of these numbers but their jobs; a number may be another job's.
create or replace function pgwf_sdk._forget_runs(p_n bigint[]) returns void
language plpgsql volatile
as $$
begin
  delete from pgwf_sdk.seat s where s.n = any (p_n);
  delete from pgwf_sdk.task t where t.n = any (p_n);
  delete from pgwf_sdk.inbox i where i.n = any (p_n);
  delete from pgwf_sdk.dedup d where d.n = any (p_n);
  delete from pgwf_sdk.attempt t where t.n = any (p_n);
  delete from pgwf_sdk.awakeable a where a.n = any (p_n);
  delete from pgwf_sdk.attachment a where a.n = any (p_n);
  delete from pgwf_sdk.attribute a where a.n = any (p_n);
  delete from pgwf_sdk.blocked b where b.n = any (p_n);
  delete from pgwf_sdk.run r where r.n = any (p_n);
end
$$;

-- Effect: whether nothing in these numbers is live, or ended after p_before.
create or replace function pgwf_sdk._is_past(p_from bigint, p_to bigint, p_before timestamptz) returns boolean
language plpgsql volatile
as $$
begin
  -- Two statements: what ends between them is in the archive, and recent.
  if exists (select from pgwf.job j where j.n >= p_from and j.n < p_to) then
    return false;
  end if;
  return not exists (select from pgwf.archive a where a.n >= p_from and a.n < p_to and a.archived_at >= p_before);
end
$$;

-- Effect: forgets at most p_limit jobs, runs and journals of a partition whose time has passed, but for the entries;
-- when none is left, drops the partition with these.  Returns how many it forgot.
-- Locks: when it drops, everybody out of entries for an instant; if that is not to be had, the next call drops.
create or replace function pgwf_sdk._forget_partition(p_name text, p_from bigint, p_to bigint, p_before timestamptz, p_limit int) returns int
language plpgsql volatile
as $$
declare
  -- Runs without a job in the archive too: somebody had that forgotten by itself.
  v_n bigint[] := array(
    (select a.n from pgwf.archive a where a.n >= p_from and a.n < p_to limit p_limit)
    union
    (select r.n from pgwf_sdk.run r where r.n >= p_from and r.n < p_to limit p_limit)
    union
    (select j.n from pgwf_journal.journal j where j.n >= p_from and j.n < p_to limit p_limit)
    limit p_limit);
begin
  perform pgwf_sdk._forget_runs(v_n);
  delete from pgwf_journal.journal j where j.n = any (v_n);
  perform pgwf._forget_jobs(v_n);
  if cardinality(v_n) < p_limit then
    begin
      lock table only pgwf_journal.entry in access exclusive mode;
      -- Under the lock: a transaction that took a number of this range long ago may have committed just now.
      if pgwf_sdk._is_past(p_from, p_to, p_before) then
        execute format('drop table pgwf_journal.%I', p_name);
      end if;
    exception when lock_not_available then
      raise debug 'journals are in use, the next call drops partition %', p_name;
    end;
  end if;
  return cardinality(v_n);
end
$$;

-- Effect: forgets runs that ended longer than p_keep ago, with their jobs, journals, human tasks and whatever else
-- belongs to them, and trace rows as old.  A partition in which nothing is live or younger is emptied and dropped;
-- one that something younger keeps is emptied run by run once the runs ended p_partition_grace (default a day) longer ago than
-- that, which costs more.  At most p_limit of each, so call it again while it returns p_limit or more.  Also makes partitions ahead.
-- Call it regularly, in a transaction of its own, as the owner of the schemas (or as pgwf_console).  A forgotten id may
-- be used again.  Returns how many rows of jobs and of the trace went, 0 while another call is at it.
-- Locks: what it forgets and partitioned tables, for at most 50 ms of waiting; what others hold is left for the next call.
-- Errors: WS004, WF020.
create or replace function pgwf_sdk.retain(p_keep interval, p_limit int default 10000, p_partition_grace interval default '1 day') returns int
language plpgsql volatile
set search_path = pg_catalog, pg_temp
set lock_timeout = '50ms'
as $$
declare
  YEARS_MAX constant interval := '1000 years';
  v_before timestamptz;
  v_past bigint := (select s.last_value from pgwf.pos s);
  v_n bigint[];
  v_names text[];
  v_from bigint[];
  v_to bigint[];
  v_partition record;
  v_forgotten int := 0;
begin
  perform pgwf._require_read_committed();
  if p_keep is null or p_partition_grace is null or p_keep < '0' or p_partition_grace < '0' or p_keep > YEARS_MAX or p_partition_grace > YEARS_MAX
    or p_limit is null or p_limit <= 0
  then
    raise exception using
      errcode = 'WS004',
      message = format('retain: keep is %s, limit is %s and grace is %s; expected 0 to 1000 years, 1 or more, and 0 to 1000 years',
        coalesce(p_keep::text, 'NULL'), coalesce(p_limit::text, 'NULL'), coalesce(p_partition_grace::text, 'NULL'));
  end if;
  if not pgwf._is_only_retention() then
    return 0;
  end if;
  v_before := pgwf_sdk._now() - p_keep;

  begin
    v_n := pgwf._forget(v_before - p_partition_grace, p_limit);
    perform pgwf_sdk._forget_runs(v_n);
    perform pgwf_journal._forget(v_n);
    v_forgotten := cardinality(v_n) + pgwf._trim_trace(v_before, p_limit);
  exception when lock_not_available then
    raise debug 'somebody holds such a run, the next call goes on';
  end;

  begin
    select array_agg(p.name), array_agg(p.from_n), array_agg(p.to_n)
    into v_names, v_from, v_to
    from pgwf_journal._partitions() p
    where p.to_n <= v_past;
  exception when lock_not_available then
    raise debug 'somebody has locked journals, the next call looks after their partitions';
  end;
  for v_partition in select p.name, p.from_n, p.to_n from unnest(v_names, v_from, v_to) p(name, from_n, to_n) order by p.to_n loop
    begin
      continue when not pgwf_sdk._is_past(v_partition.from_n, v_partition.to_n, v_before);
      v_forgotten := v_forgotten
        + pgwf_sdk._forget_partition(v_partition.name, v_partition.from_n, v_partition.to_n, v_before, p_limit);
    exception when lock_not_available then
      raise debug 'somebody holds a run of partition %, the next call goes on', v_partition.name;
    end;
    exit when v_forgotten >= p_limit;
  end loop;
  perform pgwf_sdk.add_partitions();
  begin
    perform pgwf._drop_partitions(v_before);
  exception when lock_not_available then
    raise debug 'partitions are in use, the next call looks after them';
  end;
  return v_forgotten;
end
$$;
