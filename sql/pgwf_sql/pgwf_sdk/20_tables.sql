-- Schema pgwf_sdk: runs. It ties the two cores together: what must be atomic over a job's lease and its journal is one
-- function here. A run is a job of pgwf with the journal of the same number n.
--
-- Errors of this schema (SQLSTATE):
--   WS001  the run id is taken by another workflow or by another input
--   WS002  no run with that id
--   WS003  the run is over
--   WS004  malformed arguments
--   WS005  the run cannot be retried: it is not over, or it completed
--   WS006  a run cannot be forked before that entry: its journal does not have it
--   WS010  no human task with that id
--   WS011  the task is not open, or somebody else holds it
--   WS012  the task is not held by the one who decides or releases
--   WS013  this person may not take the task: excluded, or it is assigned to somebody else
--   WS020  no awakeable with that token
--   WS021  the awakeable is not open any more: its time is over, or its run waits for it no longer
--
-- Lock order: ids of new jobs (L1 of schema pgwf), ids of new journals, then run rows in n order, then the classes L2 to
-- L7. A child has a higher number than its parent, so parent, own and children's rows may be taken one after the other.
-- (retry_run takes the new id behind the row of a run that is over, which nobody waits for with that id in hand.) Who sends something to a run takes its
-- row, stamps the time, inserts into its inbox and wakes its job; who parks or ends a run takes the row first and then
-- looks at the inbox. So no wake-up is lost between the look and the parking.
create schema if not exists pgwf_sdk;

create or replace function pgwf_sdk._now() returns timestamptz
language sql volatile
as $$ select pg_catalog.clock_timestamp() $$;

-- One row a run, written when it starts and when its stored status changes, never per step.
-- status is stored only when a person or the end of the run set it; otherwise job and lease tell (view runs).
create table if not exists pgwf_sdk.run (
  n bigint primary key,
  run_id text collate "C" not null,
  workflow text not null,
  need text not null,
  build text,
  seed bigint not null,
  trace text,
  status text constraint "stored status" check (
    status in ('paused', 'blocked', 'completed', 'failed', 'cancelled', 'terminated', 'continued')),
  parent bigint,
  parent_key text,
  root bigint not null,
  chain bigint,            -- the first run of its chain; NULL: it is the first itself
  successor bigint,
  fork_of bigint,          -- the run whose journal before entry fork_before it began with
  fork_before bigint,
  close text constraint "close policy" check (close in ('terminate', 'abandon')),  -- when its parent ends; NULL: a cancel request
  grace_until timestamptz, -- a run that cancels is terminated then
  wake_after int not null default 0,
  note text,
  deadline timestamptz,
  started_by text,
  created_at timestamptz not null,
  finished_at timestamptz
) with (fillfactor = 80);

do $make$
begin
  perform pgwf._once('pgwf_sdk.run_children', 'create index run_children on pgwf_sdk.run (parent) where parent is not null');  -- children of a run
  perform pgwf._once('pgwf_sdk.run_workflow', 'create index run_workflow on pgwf_sdk.run (workflow, n)');                      -- list, newest first, one workflow
  -- List, newest first, of one of the statuses that few runs have. Completing a run costs one row version in each index for
  -- it (3 % more log), which a column of an index condition always does.
  perform pgwf._once('pgwf_sdk.run_status', $$create index run_status on pgwf_sdk.run (status, n) where status <> 'completed'$$);
end
$make$;

do $$
begin
  perform pgwf._once('pgwf_sdk.run_grace', 'create index run_grace on pgwf_sdk.run (grace_until) where grace_until is not null');    -- end_overdue
  perform pgwf._once('pgwf_sdk.run_chain', 'create index run_chain on pgwf_sdk.run (chain, n) where chain is not null');     -- the live end of a chain
end
$$;

-- When a run that was paused before its start_at begins once it is resumed; NULL for all others.
do $$
begin
  if not exists (
    select from pg_catalog.pg_attribute as a where a.attrelid = 'pgwf_sdk.run'::regclass and a.attname = 'held_until')
  then
    alter table pgwf_sdk.run add column held_until timestamptz;
  end if;
end
$$;

-- What came from outside and the run has not consumed: signals, results of children and of people, cancel requests.
-- kind is a number of pgwf_journal.kind; name is the signal's name, or the key of the waiting call.
create table if not exists pgwf_sdk.inbox (
  n bigint not null,
  id bigint generated always as identity,
  kind smallint not null,
  name text not null,
  phase smallint not null default 2,
  payload bytea,
  encoding smallint not null default 0,
  received_at timestamptz not null,
  primary key (n, id)
);

-- Signals that were sent with an id of their own, so that a repeated send is seen after the first was consumed.
create table if not exists pgwf_sdk.dedup (
  n bigint not null,
  dedup_id text collate "C" not null,
  primary key (n, dedup_id)
);

-- Promises that somebody outside completes by a token, of which only the hash is kept. A row stays after its promise has
-- ended: a second completion is told from a wrong token.
create table if not exists pgwf_sdk.awakeable (
  token_hash bytea primary key,
  n bigint not null,
  key text not null,
  deadline timestamptz,
  state text not null default 'open' constraint "awakeable state" check (
    state in ('open', 'completed', 'failed', 'expired', 'cancelled'))
);

do $$
begin
  perform pgwf._once('pgwf_sdk.awakeable_of_call', 'create index awakeable_of_call on pgwf_sdk.awakeable (n, key)');  -- those that a run gives up
end
$$;

-- The key from which workers derive the tokens of awakeables, so that a replay gives a run the tokens it gave away.
create table if not exists pgwf_sdk.token_key (
  only_row boolean primary key default true,
  key bytea not null default pg_catalog.sha256(
    pg_catalog.uuid_send(pg_catalog.gen_random_uuid()) || pg_catalog.uuid_send(pg_catalog.gen_random_uuid())),
  constraint there_is_one_key check (only_row)
);

insert into pgwf_sdk.token_key (only_row) values (true) on conflict do nothing;

-- Calls that wait for the end of a run that is not their child. target is the live end of its chain; the row goes when that
-- ends, or when nobody waits any more.
create table if not exists pgwf_sdk.attachment (
  n bigint not null,
  key text not null,
  target bigint not null,
  primary key (n, key)
);

do $$
begin
  perform pgwf._once('pgwf_sdk.attachment_target', 'create index attachment_target on pgwf_sdk.attachment (target)');  -- who waits for a run
end
$$;

-- What people and programs search runs by. The index serves the filter of lists, newest first; values are compared as text.
create table if not exists pgwf_sdk.attribute (
  n bigint not null,
  name text collate "C" not null,
  value jsonb not null constraint attribute_is_short check (octet_length(value #>> '{}') <= 1024),
  primary key (n, name)
);

do $make$
begin
  perform pgwf._once('pgwf_sdk.attribute_value', $$create index attribute_value on pgwf_sdk.attribute (name, (value #>> '{}'), n)$$);
end
$make$;

-- Failed attempts of steps that are to be tried again, and what running ones reported last (no is how many failed).
create table if not exists pgwf_sdk.attempt (
  n bigint not null,
  key text not null,
  no int not null,
  first_at timestamptz not null,
  next_at timestamptz not null,
  error bytea,
  heartbeat text,
  primary key (n, key)
);

-- Why a run is blocked: the report a person or a deploy needs.
create table if not exists pgwf_sdk.blocked (
  n bigint primary key,
  report jsonb not null,
  blocked_at timestamptz not null
);

-- A question to people. Each of its seats is a job of pgwf that no worker of workflows takes.
create table if not exists pgwf_sdk.task (
  n bigint not null,
  key text not null,
  task_id text collate "C" not null,
  name text not null,
  title text,
  need text not null,
  subject bytea,
  encoding smallint not null,
  decision_schema jsonb not null,
  prefill text,
  assigned text,
  excluded text[] not null default '{}',
  state text not null default 'open' constraint "task state" check (state in ('open', 'decided', 'expired', 'cancelled')),
  decision bytea,
  decision_encoding smallint,
  decided_by text,
  decided_at timestamptz,
  due_at timestamptz,
  expires_at timestamptz,
  created_at timestamptz not null,
  primary key (n, key)
);

-- Where a task goes that nobody has decided when it is due. escalates_at is when the sweep looks: then, or when the claim
-- that somebody has ends; NULL when it has nowhere to go, or has gone. first_need is what it was opened for, if another.
do $$
begin
  if not exists (
    select from pg_catalog.pg_attribute as a where a.attrelid = 'pgwf_sdk.task'::regclass and a.attname = 'escalate_need')
  then
    alter table pgwf_sdk.task
      add column escalate_need text,
      add column escalates_at timestamptz,
      add column first_need text,
      add column escalated_at timestamptz;
  end if;
end
$$;

do $make$
begin
  perform pgwf._once('pgwf_sdk.task_escalates', $$create index task_escalates on pgwf_sdk.task (escalates_at) where state = 'open' and escalates_at is not null$$);  -- escalate_tasks
end
$make$;

-- List of what nobody has decided, in the order in which it is due: of one need, and of all.
do $make$
begin
  perform pgwf._once('pgwf_sdk.task_open_of_need', $$create index task_open_of_need on pgwf_sdk.task (need, due_at, created_at, task_id) where state = 'open'$$);
  perform pgwf._once('pgwf_sdk.task_open', $$create index task_open on pgwf_sdk.task (due_at, created_at, task_id) where state = 'open'$$);
end
$make$;

create table if not exists pgwf_sdk.seat (
  seat bigint primary key,
  n bigint not null,
  key text not null,
  holder text,
  foreign key (n, key) references pgwf_sdk.task
);

do $$
begin
  perform pgwf._once('pgwf_sdk.seat_task', 'create index seat_task on pgwf_sdk.seat (n, key)');
end
$$;
