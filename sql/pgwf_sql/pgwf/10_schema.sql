-- The leasing core: who may work on which job, until when. It never sees a payload.
--
-- Every function takes what it may wait for in one order, L0 to L7, which is why calls cannot deadlock each other:
--   L0  the sweep lock (advisory); tried, waited for only by archive_cancelled_jobs and set_crash_concern_threshold
--   L1  name rows, by insert, in job_id order
--   L2  lease rows, in n order; the table lease as a whole, by limit_need for the first limit of a need
--   L3  job rows, one pass in n order: FOR UPDATE what the call ends or makes wait, FOR KEY SHARE what it waits for
--   L4  the graph lock (advisory): only calls that could close a cycle of dependencies
--   L5  job rows of waiters, FOR NO KEY UPDATE, in n order
--   L6  singleton keys (advisory), in hash order
--   L7  rows of timer, ready, parked, held; the lock of a need that has a limit, the settings of a key
-- A claim and a sweep wait for nothing but that table: they skip what is locked. A transaction of several calls can
-- break the order; PostgreSQL then ends one of the two with 40P01, and the caller runs that transaction again.
--
-- Errors (SQLSTATE: meaning). 23502 and 23505 keep their standard meaning: a missing argument, an id that is live.
--   WF001  an argument is out of range or malformed
--   WF002  the lease is lost: swept, released, replaced, or never this caller's
--   WF003  the job is cancelled: it can be completed or archived, nothing else
--   WF004  no job has that id
--   WF005  the job is not in a state the call accepts
--   WF006  the job's singleton key is held by others
--   WF010  the job is finished; its id is never used again
--   WF011  wait_for names a job that does not exist
--   WF012  wait_for would close a cycle
--   WF020  the transaction is REPEATABLE READ or SERIALIZABLE; leasing needs READ COMMITTED
--   WF021  parallel arrays differ in length
--   WF090  the installed schema is newer than this script

do $$
begin
  -- A snapshot from before the wait below would show what the first of two installers found, not what it made.
  if pg_catalog.current_setting('transaction_isolation') in ('repeatable read', 'serializable') then
    raise exception using
      errcode = 'WF020',
      message = pg_catalog.format(
        'pgwf is installed at READ COMMITTED, this transaction is %s',
        pg_catalog.upper(pg_catalog.current_setting('transaction_isolation'))),
      hint = 'see default_transaction_isolation of the role and the database: calls of pgwf need READ COMMITTED too';
  end if;
  -- Two installers at once: the second waits here, then finds everything in place.
  perform pg_catalog.pg_advisory_xact_lock(pg_catalog.hashtextextended('pgwf.install', 0));
end
$$;

create schema if not exists pgwf;

create table if not exists pgwf.schema_version (
  version int primary key,
  installed_at timestamptz not null default pg_catalog.clock_timestamp()
);

do $$
declare
  v_installed int := (select max(version) from pgwf.schema_version);
  v_helper regprocedure;
begin
  if v_installed > 2 then
    raise exception using
      errcode = 'WF090',
      message = pg_catalog.format('schema pgwf is at version %s, this script installs version 2', v_installed),
      hint = 'install with the newest pgwf that serves this database';
  elsif v_installed = 1 then
    -- Version 1 kept its trace in another form, which is not carried over.
    drop table pgwf.trace cascade;
    -- Of some helpers the type has changed, which create or replace refuses.
    for v_helper in
      select p.oid::regprocedure
      from pg_catalog.pg_proc as p
      join pg_catalog.pg_language as l on l.oid = p.prolang
      where p.pronamespace = 'pgwf'::regnamespace and p.proname like '\_%' and l.lanname = 'plpgsql'
    loop
      execute pg_catalog.format('drop function %s', v_helper);
    end loop;
    -- It knew one lease of a key at a time, and buckets of needs alone; a new bucket is full.
    alter table pgwf.held drop constraint held_pkey, add constraint held_pkey primary key (singleton_key, n);
    drop table pgwf.bucket;
  end if;
end
$$;

-- Makes what is not there yet. `create ... if not exists` locks the table first, and an installation that locks one table
-- after the other deadlocks with calls of workers, which lock them in other orders.
create or replace function pgwf._once(p_relation text, p_statement text)
returns void
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
as $$
begin
  if to_regclass(p_relation) is null then
    execute p_statement;
  end if;
end
$$;

insert into pgwf.schema_version (version) values (2) on conflict do nothing;

-- The version of the installed schema. Locks nothing.
create or replace function pgwf.schema_version()
returns int
language sql
stable
set search_path = pg_catalog, pg_temp
as $$ select max(version) from pgwf.schema_version $$;
