-- Physical layout. `job` says what is true of a job; the small tables say where it stands: lease, timer, ready,
-- parked. A live job stands where its row says, first match: it has a lease -> lease; it is cancelled, waits for
-- jobs, is shelved or past expires_at -> nowhere; available_at is ahead -> timer (nowhere when it is 'infinity'); its
-- key was found taken by a claim -> parked; else ready. Only claims (ready -> lease, ready -> parked), the release of
-- a key (parked -> ready) and the promotion of a timer (timer -> ready) move a job without holding its job row.

-- Job numbers and queue positions. CACHE 1 and "transaction id before position" (pg_current_xact_id before nextval):
-- a position drawn late must belong to a late transaction.
create sequence if not exists pgwf.pos cache 1;
create sequence if not exists pgwf.lease_no cache 1;

-- Times of the last sweep, in ms since 1970. Sequences, because rows would bloat while somebody holds a snapshot.
create sequence if not exists pgwf.sweep_at minvalue 0 start 0;
create sequence if not exists pgwf.sweep_leases_after minvalue 0 start 0;
create sequence if not exists pgwf.sweep_expired_after minvalue 0 start 0;

-- One row per id that was ever used, live or finished: the one constraint that keeps ids unique.
create table if not exists pgwf.name (
  job_id text collate "C" primary key,
  n bigint not null
);

create table if not exists pgwf.job (
  n bigint primary key,
  job_id text collate "C" not null,
  need text collate "C" not null,
  priority smallint not null,
  singleton_key text collate "C",
  wait_for bigint[],                      -- as last given; what still counts are the edges
  pending int not null default 0,         -- number of edges with this job as waiter
  available_at timestamptz not null,
  expires_at timestamptz,                 -- NULL: never
  shelved boolean not null default false, -- CRASH_CONCERN
  streak int not null default 0,          -- lapsed leases since the last orderly end of a lease
  lapses int not null default 0,
  cancel_at timestamptz,
  cancel_by text,
  cancel_reason text,
  last_error text,
  created_at timestamptz not null,
  constraint priority_is_1_to_4 check (priority between 1 and 4)
) with (fillfactor = 85);

-- For the sweep: cancelled jobs to archive, expired jobs to archive.
do $$
begin
  perform pgwf._once('pgwf.job_cancelled', 'create index job_cancelled on pgwf.job (n) where cancel_at is not null');
  -- For lists of what may be killing its workers.
  perform pgwf._once('pgwf.job_shelved', 'create index job_shelved on pgwf.job (n) where shelved');
  perform pgwf._once('pgwf.job_expiring', 'create index job_expiring on pgwf.job (expires_at) where expires_at is not null');
end
$$;

create table if not exists pgwf.ready (
  pos bigint not null,
  n bigint not null,
  priority smallint not null,
  need text collate "C" not null,
  ready_at timestamptz not null,
  expires_at timestamptz,
  singleton_key text collate "C"
) with (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000, autovacuum_vacuum_cost_delay = 0);

-- The claim's order, one lane per need and priority; also finds a first placement, whose pos is n.
do $$
begin
  perform pgwf._once('pgwf.ready_lane', 'create unique index ready_lane on pgwf.ready (need, priority, pos)');
end
$$;
-- Whoever looks for the first of a lane checks all entries of its page, which costs more than to find the page. Half of
-- them are enough for a claim of a hundred.
do $$
begin
  if not exists (
    select from pg_catalog.pg_class as c
    where c.oid = 'pgwf.ready_lane'::pg_catalog.regclass and 'fillfactor=40' = any (c.reloptions))
  then
    alter index pgwf.ready_lane set (fillfactor = 40);
  end if;
end
$$;
-- Finds a job that came back with a new position.
do $$
begin
  perform pgwf._once('pgwf.ready_moved', 'create index ready_moved on pgwf.ready (n) where pos <> n');
end
$$;

-- No index on until: extending a lease then stays a HOT update, and the one sweeper reads this small table whole.
create table if not exists pgwf.lease (
  n bigint primary key,
  lease_id uuid not null,
  lease_no bigint not null,
  until timestamptz not null,
  worker_id text not null,
  leased_at timestamptz not null,
  need text collate "C" not null,
  singleton_key text collate "C",
  capped boolean not null default false,  -- counts against its need's max_active, while there is one
  counted boolean not null default true   -- its lapse is a crash (not so for leases a person takes)
) with (
  fillfactor = 50,
  autovacuum_vacuum_scale_factor = 0,
  autovacuum_vacuum_threshold = 5000,
  autovacuum_vacuum_cost_delay = 0
);

do $$
begin
  perform pgwf._once('pgwf.lease_capped', 'create index lease_capped on pgwf.lease (need) where capped');
end
$$;

create table if not exists pgwf.timer (
  due timestamptz not null,
  n bigint not null,
  primary key (due, n)
) with (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000, autovacuum_vacuum_cost_delay = 0);

-- waiter waits for child. Exists only while it counts in waiter's pending.
create table if not exists pgwf.edge (
  child bigint not null,
  waiter bigint not null,
  primary key (child, waiter)
);

do $$
begin
  perform pgwf._once('pgwf.edge_waiter', 'create index edge_waiter on pgwf.edge (waiter)');
end
$$;

-- Keys of leased jobs, and jobs that a claim met while their key had no room.
create table if not exists pgwf.held (
  singleton_key text collate "C" not null,
  n bigint not null,
  primary key (singleton_key, n)
);

create table if not exists pgwf.parked (
  singleton_key text collate "C" not null,
  need text collate "C" not null,
  priority smallint not null,
  pos bigint not null,
  n bigint not null unique,
  ready_at timestamptz not null,
  expires_at timestamptz,
  primary key (singleton_key, need, priority, pos)
) with (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000, autovacuum_vacuum_cost_delay = 0);

-- Rows only for needs somebody paused or limited.
create table if not exists pgwf.need_setting (
  need text collate "C" primary key,
  paused boolean not null default false,
  max_active int,
  rate double precision,    -- starts per second
  burst double precision,
  constraint max_active_is_not_negative check (max_active >= 0),
  constraint rate_has_a_burst check ((rate > 0 and burst >= 1) or (rate is null and burst is null))
);

-- Rows only for keys somebody limited; of any other key one job at a time is leased. Written under the key's lock.
create table if not exists pgwf.key_setting (
  singleton_key text collate "C" primary key,
  max_active int,            -- NULL: one
  rate double precision,     -- starts per second
  burst double precision,
  next_token_at timestamptz, -- a token lets parked jobs of the key up then; NULL: none of them waits for one
  constraint max_active_is_positive check (max_active > 0),
  constraint rate_has_a_burst check ((rate > 0 and burst >= 1) or (rate is null and burst is null))
);

do $$
begin
  perform pgwf._once(
    'pgwf.key_setting_next_token_at',
    'create index key_setting_next_token_at on pgwf.key_setting (next_token_at) where next_token_at is not null');
end
$$;

-- Token buckets of needs and keys that have a rate, append only: the newest row counts, the sweep trims the rest.
create table if not exists pgwf.bucket (
  kind text collate "C" not null,  -- 'need' or 'key'
  name text collate "C" not null,
  gen bigint generated always as identity,
  tokens double precision not null,
  filled_at timestamptz not null,
  primary key (kind, name, gen)
);

-- Where claims of SQL callers begin to look while looks from the beginning are slow (_claim): append only, the newest row
-- counts, the sweep trims the rest. Gone after a crash and on a standby that takes over, where it could be ahead.
create unlogged table if not exists pgwf.position (
  caps text collate "C" not null,  -- md5 of the capabilities as an array
  gen bigint generated always as identity,
  starts bigint[] not null,
  made_at timestamptz not null,
  primary key (caps, gen)
);

-- Who wants to be woken on which channel: always (since is null), or in turn with others, from then on. Each listener
-- owns its rows; only the sweep touches those of workers and clients that are gone.
create unlogged table if not exists pgwf.sleeper (
  channel text collate "C" not null,
  listener text collate "C" not null,
  since timestamptz,
  primary key (channel, listener)
) with (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000, autovacuum_vacuum_cost_delay = 0);

-- When a request without a turn was last made: one that is not repeated is forgotten.
do $$
begin
  if not exists (
    select from pg_catalog.pg_attribute as a where a.attrelid = 'pgwf.sleeper'::regclass and a.attname = 'asked_at')
  then
    alter table pgwf.sleeper add column asked_at timestamptz not null default pg_catalog.now();
  end if;
end
$$;

create table if not exists pgwf.worker (
  worker_id text collate "C" primary key,
  capabilities text[] not null,
  build text,
  slots int,
  slots_used int,
  details jsonb,
  started_at timestamptz not null,
  heartbeat_at timestamptz not null,
  draining boolean not null default false
) with (fillfactor = 50);

create table if not exists pgwf.setting (
  only_row boolean primary key default true,
  trace_enabled boolean not null default true,
  notify_enabled boolean not null default false,
  crash_concern_threshold int not null default 5,
  aging_seconds double precision not null default 60,  -- a priority level is worth this much waiting
  expired_grace interval not null default '1 day',     -- an expired job nobody waits for is archived after this
  worker_grace interval not null default '1 day',      -- a worker without heartbeat is forgotten after this
  constraint there_is_one_row check (only_row),
  constraint threshold_is_positive check (crash_concern_threshold > 0),
  constraint aging_is_not_negative check (aging_seconds >= 0)
);

insert into pgwf.setting (only_row) values (true) on conflict do nothing;

-- Finished jobs, partitioned by number so that retention drops whole tables. The default partition takes what no
-- partition was made for; jobs end whether or not somebody looked after partitions.
create table if not exists pgwf.archive (
  n bigint primary key,
  job_id text collate "C" not null,
  outcome text not null,
  need text collate "C" not null,
  priority smallint not null,
  singleton_key text collate "C",
  wait_for bigint[],
  unmet bigint[],             -- what it still waited for when it was cancelled
  available_at timestamptz not null,
  expires_at timestamptz,
  lapses int not null,
  cancel_at timestamptz,
  cancel_by text,
  cancel_reason text,
  last_error text,
  lease_id uuid,
  lease_no bigint,
  worker_id text,
  created_at timestamptz not null,
  archived_at timestamptz not null,
  constraint outcome_is_known check (outcome in ('completed', 'cancelled', 'expired'))
) partition by range (n);

create table if not exists pgwf.archive_default partition of pgwf.archive default;
do $make$
begin
  perform pgwf._once('pgwf.archive_cancelled', $$create index archive_cancelled on pgwf.archive (n) where outcome = 'cancelled'$$);  -- lists of runs
  perform pgwf._once('pgwf.archive_archived_at', 'create index archive_archived_at on pgwf.archive using brin (archived_at)');
end
$make$;

-- What was called, by whom, with which result; the view jobs_trace makes it readable. What a job is submitted with
-- stands in columns, and what its end says is in its archive row: building JSON would cost more than all other writes of
-- a job. Partitioned by time.
create sequence if not exists pgwf.trace_id;

create table if not exists pgwf.trace (
  trace_id bigint not null default pg_catalog.nextval('pgwf.trace_id'),
  event_at timestamptz not null,
  n bigint,                   -- NULL: the call was about no single job
  lease_no bigint,
  available_at timestamptz,
  expires_at timestamptz,
  pending int,                -- this and the rest: what submit_job was told; NULL is the default
  priority smallint,
  event_type text not null,
  worker_id text not null,
  need text collate "C",
  singleton_key text collate "C",
  wait_for bigint[],
  input_data jsonb,
  output_data jsonb
) partition by range (event_at);

create table if not exists pgwf.trace_default partition of pgwf.trace default;
do $$
begin
  perform pgwf._once('pgwf.trace_job', 'create index trace_job on pgwf.trace (n)');
  perform pgwf._once('pgwf.trace_event_at', 'create index trace_event_at on pgwf.trace using brin (event_at)');
end
$$;
