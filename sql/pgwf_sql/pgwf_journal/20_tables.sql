-- Schema pgwf_journal: what happened, in order, for ever. It knows nothing of leases, needs or workers.
--
-- Errors of this schema (SQLSTATE):
--   WJ001  the journal's head is not the expected one: somebody appended first
--   WJ002  no journal with that id
--   WJ003  the journal belongs to a caller that numbers it itself and appends through its own fenced call
--   WJ004  entries are immutable
--   WJ005  malformed arguments (unequal arrays, a number that is taken, an id that is too long)
create schema if not exists pgwf_journal;

-- One clock a schema, read once a call. The test kit replaces it in its own database; production has no switch.
create or replace function pgwf_journal._now() returns timestamptz
language sql volatile
as $$ select pg_catalog.clock_timestamp() $$;

-- Numbers of journals opened without one. They count downwards, so they never meet a number a caller brought.
create sequence if not exists pgwf_journal.own_number increment by -1 start with -1 minvalue -9223372036854775807 maxvalue -1;

create table if not exists pgwf_journal.journal (
  journal_id text collate "C" primary key
    constraint "journal_id is 1 to 512 bytes" check (octet_length(journal_id) between 1 and 512),
  n bigint not null unique
);

-- The kinds and phases an entry can have, by number and by the word people read.
create table if not exists pgwf_journal.kind (
  kind smallint primary key,
  label text not null unique
);

insert into pgwf_journal.kind (kind, label) values
  (1, 'run'), (2, 'step'), (3, 'timer'), (4, 'signal'), (5, 'awakeable'), (6, 'child'), (7, 'human'), (8, 'value'),
  (9, 'patch'), (10, 'attribute'), (11, 'cancel'), (12, 'compensation'), (13, 'branch'), (14, 'select'), (15, 'hop'), (16, 'attach')
on conflict do nothing;

create table if not exists pgwf_journal.phase (
  phase smallint primary key,
  label text not null unique
);

insert into pgwf_journal.phase (phase, label) values
  (1, 'opened'), (2, 'completed'), (3, 'failed'), (4, 'timed_out'), (5, 'cancelled'), (6, 'terminated'), (7, 'continued')
on conflict do nothing;

-- Where in the user's code an entry was made. Interned, because every entry of a step points to the same few lines.
create table if not exists pgwf_journal.code (
  code int generated always as identity primary key,
  build text not null,
  file text not null,
  line int not null,
  unique (build, file, line)
);

create table if not exists pgwf_journal.entry (
  n bigint not null,
  seq bigint not null,
  call int not null,
  kind smallint not null,
  phase smallint not null,
  scope text not null,
  name text not null,
  occurrence int not null,
  payload bytea,
  encoding smallint not null,
  recorded_at timestamptz not null,
  lease_no bigint,
  code int,
  primary key (n, seq)
) partition by range (n);

-- Effect: refuses every change. An entry may be removed once its journal has been, which only retention does.
create or replace function pgwf_journal._refuse_change() returns trigger
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
  if tg_op = 'DELETE' and not exists (select from pgwf_journal.journal j where j.n = old.n) then
    return old;
  end if;
  raise exception using
    errcode = 'WJ004',
    message = format('%s on %I.%I: journal entries are immutable', tg_op, tg_table_schema, tg_table_name),
    hint = 'Append a new entry instead; only retention removes whole journals.';
end
$$;

-- Made once: replacing them would lock out everybody who appends, and who wants what the installation has locked since.
do $$
begin
  if not exists (
    select from pg_catalog.pg_trigger as t where t.tgrelid = 'pgwf_journal.entry'::regclass and t.tgname = 'immutable')
  then
    create trigger immutable
      before update or delete on pgwf_journal.entry
      for each row execute function pgwf_journal._refuse_change();
    create trigger never_truncated
      before truncate on pgwf_journal.entry
      for each statement execute function pgwf_journal._refuse_change();
  end if;
end
$$;

-- Effect: makes the partition for p_from <= n < p_to when it is missing (NULL: the default one).  It is a table first, and
-- attached while it is empty: a CHECK with its bounds would spare no scan, and every append would read and compile it.  Locks: SHARE ROW EXCLUSIVE on entry, because an append that had chosen the default
-- partition already, and waited for it, would find its entry refused there; the default partition, which is scanned, and
-- empty as long as partitions are made ahead.
create or replace function pgwf_journal._make_partition(p_name text, p_from text, p_to text) returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
  if to_regclass(format('pgwf_journal.%I', p_name)) is not null then
    return;
  end if;
  lock table pgwf_journal.entry in share row exclusive mode;
  execute format('create table pgwf_journal.%I (like pgwf_journal.entry including defaults including constraints)', p_name);
  -- Most payloads are small JSON texts; lz4 decompresses several times faster, where this build of PostgreSQL has it.
  if exists (
    select from pg_settings where name = 'default_toast_compression' and 'lz4' = any (enumvals)
  ) then
    execute format('alter table pgwf_journal.%I alter column payload set compression lz4', p_name);
  end if;
  execute format(
    'create trigger never_truncated before truncate on pgwf_journal.%I for each statement execute function pgwf_journal._refuse_change()',
    p_name);
  execute format('alter table pgwf_journal.entry attach partition pgwf_journal.%I %s', p_name,
    case when p_from is null then 'default' else format('for values from (%s) to (%s)', p_from, p_to) end);
end
$$;

do $$
begin
  perform pgwf_journal._make_partition('entry_rest', null, null);
  perform pgwf_journal._make_partition('entry_own', 'minvalue', '0');
  perform pgwf_journal._make_partition('entry_0', '0', '5000000');
  perform pgwf_journal._make_partition('entry_5000000', '5000000', '10000000');
end
$$;
