-- Schema pgwf_testing: the test kit's hold on a database that is its own. Production never has it, and pays nothing for
-- it: the clock is not switched there, these functions do not exist. It refuses a database that ever held a job.
do $$
begin
  if to_regnamespace('pgwf_testing') is null and exists (select from pgwf.name) then
    raise exception using
      errcode = '55000',
      message = format('database %s holds jobs; the test kit stops the clock and clears all tables', current_database()),
      hint = 'let the kit make a database of its own: give it an address whose account may create databases';
  end if;
end
$$;

create schema if not exists pgwf_testing;

create table if not exists pgwf_testing.reading (
  only_row boolean primary key default true constraint "one row" check (only_row),
  now_at timestamptz not null
);

insert into pgwf_testing.reading (now_at) values (clock_timestamp()) on conflict do nothing;

-- The time of all three schemas: it stands still until it is moved.
create or replace function pgwf_testing.now_at() returns timestamptz
language sql volatile
set search_path = pg_catalog, pg_temp
as $$ select r.now_at from pgwf_testing.reading as r $$;

create or replace function pgwf._now() returns timestamptz
language sql volatile
as $$ select r.now_at from pgwf_testing.reading as r $$;

create or replace function pgwf_journal._now() returns timestamptz
language sql volatile
as $$ select r.now_at from pgwf_testing.reading as r $$;

create or replace function pgwf_sdk._now() returns timestamptz
language sql volatile
as $$ select r.now_at from pgwf_testing.reading as r $$;

-- As in production, except that the kit clears whole journals between tests.
create or replace function pgwf_journal._refuse_change() returns trigger
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
  if tg_op = 'DELETE' and current_setting('pgwf_testing.is_clearing', true) = 'on' then
    return old;
  end if;
  raise exception using
    errcode = 'WJ004',
    message = format('%s on %I.%I: journal entries are immutable', tg_op, tg_table_schema, tg_table_name),
    hint = 'Append a new entry instead; only retention removes whole journals.';
end
$$;

-- Effect: sets the clock.  Errors: none; it may go backwards, which only a cleared database bears.
create or replace function pgwf_testing.set_clock(p_now timestamptz) returns void
language sql volatile
set search_path = pg_catalog, pg_temp
as $$ update pgwf_testing.reading set now_at = p_now $$;

-- Effect: empties every table but those that hold no run's data, and sets the clock (null: to the real time).  Rows are deleted, not truncated:
-- there are few, and the sessions keep their plans.
create or replace function pgwf_testing.clear(p_now timestamptz) returns void
language plpgsql volatile
set search_path = pg_catalog, pg_temp
as $$
declare
  v_table regclass;
begin
  perform set_config('pgwf_testing.is_clearing', 'on', true);
  for v_table in
    select c.oid
    from pg_class as c
    where c.relnamespace in ('pgwf'::regnamespace, 'pgwf_journal'::regnamespace, 'pgwf_sdk'::regnamespace)
      and c.relkind in ('r', 'p')
      and not c.relispartition
      and c.oid <> all (array[
        'pgwf.schema_version', 'pgwf.setting', 'pgwf_journal.kind', 'pgwf_journal.phase',
        'pgwf_journal.code']::regclass[])
    -- What refers to another table goes before it.
    order by exists (select from pg_constraint as f where f.conrelid = c.oid and f.contype = 'f') desc
  loop
    execute format('delete from %s', v_table);
  end loop;
  perform setval('pgwf.sweep_at', 0), setval('pgwf.sweep_leases_after', 0), setval('pgwf.sweep_expired_after', 0);
  perform pgwf_testing.set_clock(coalesce(p_now, date_trunc('second', clock_timestamp())));
end
$$;

-- Effect: does what is due, as workers do; how much.  Locks: those of the sweeps.
create or replace function pgwf_testing.sweep(p_worker_id text) returns int
language sql volatile
set search_path = pg_catalog, pg_temp
as $$ select pgwf.sweep(p_worker_id) + pgwf_sdk.end_overdue(p_worker_id) + pgwf_sdk.escalate_tasks(p_worker_id) $$;

-- Effect: does what is due; when nothing is, nor is a job ready that needs one of p_needs, or about to be (its lease has
-- lapsed, but somebody locks it; not asked for when there are no p_needs), moves the clock to the next
-- instant at which something is due, but not past p_until (null: not at all), and does that. Returns whether there may
-- be work.  Locks: those of the sweep.
create or replace function pgwf_testing.move(p_worker_id text, p_needs text[], p_until timestamptz) returns boolean
language plpgsql volatile
set search_path = pg_catalog, pg_temp
as $$
declare
  v_now timestamptz := pgwf_testing.now_at();
  v_next timestamptz;
begin
  if pgwf_testing.sweep(p_worker_id) > 0 or exists (select from pgwf.ready as r where r.need = any (p_needs))
    or (p_needs <> '{}' and exists (select from pgwf.lease as l where l.until <= v_now))
  then
    return true;
  end if;
  v_next := least(
    (select min(t.due) from pgwf.timer as t where t.due > v_now),
    (select min(l.until) from pgwf.lease as l where l.until > v_now),
    (select greatest(o.due, v_now) from pgwf_sdk.next_overdue() as o(due) where o.due is not null),
    (select min(k.next_token_at) from pgwf.key_setting as k where k.next_token_at > v_now));
  if p_until is null or p_until <= v_now then
    return false;
  end if;
  if v_next is null or v_next > p_until then
    if p_until < 'infinity' then
      perform pgwf_testing.set_clock(p_until);
    end if;
    return false;
  end if;
  perform pgwf_testing.set_clock(v_next);
  perform pgwf_testing.sweep(p_worker_id);
  return true;
end
$$;

-- Effect: ends the leases of a worker that is no more, as their time would; the clock does not move.
create or replace function pgwf_testing.end_leases(p_worker_id text) returns void
language sql volatile
set search_path = pg_catalog, pg_temp
as $$ update pgwf.lease set until = pgwf_testing.now_at() where worker_id = p_worker_id $$;
