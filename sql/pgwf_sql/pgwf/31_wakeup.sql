-- Wake-up. A sleeper row is a request to be woken; NOTIFY is only the hint that carries it. Polling alone is correct.
--
-- The sleeper's side, for a worker that found nothing to do:
--   1. LISTEN on its channels and commit; sleep_on(listener, channels) and commit; keep the transaction id x it gave.
--   2. Read pg_snapshot_xmin, then claim. Found something: wake_up(listener).
--   3. Nothing, and xmin >= x: everybody who did not see the row has ended; sleep until notified or next_wakeup.
--      xmin < x: somebody who did not see the row may still commit a job; wait 5, 10 ... 250 ms, go to 2.
-- A worker that takes several jobs at a time does not withdraw while it has room for more: it claims whenever it is
-- notified, and 3 goes on holding for what it got less of than it asked for. It withdraws, with what came for it handed
-- on by wake_next, when it has no room.
--
-- Two hundred workers that sleep on one need are not woken for one job. With sleep_in_turn instead of sleep_on two of
-- them are: the one that registered last, which is the likeliest to be alive, and any other. A claim that got all it
-- asked for and leaves work behind wakes the next two, so many jobs at once wake many workers within a few rounds. Who
-- is woken and cannot take anything hands it on by wake_next. Whoever is dead or deaf is outlived by the poll of others.
--
-- Who is killed leaves its rows behind. A request is forgotten by the sweep when the worker that made it in turn is silent
-- for 5 minutes, or when it was made without a turn and not repeated for an hour. So whoever sleeps on makes it anew
-- well before, and whenever it may have been forgotten, and then begins at 2: what happened in between, that look finds.

-- The LISTEN channel of a name such as 'need.python'. Hashed when PostgreSQL could not take it whole.
create or replace function pgwf.channel(p_name text)
returns text
language sql
immutable
set search_path = pg_catalog, pg_temp
as $$
  select case
    when octet_length('pgwf.' || p_name) <= 63 then 'pgwf.' || p_name
    else 'pgwf.#' || md5(p_name)
  end
$$;

-- Notifies LISTEN channels. Never fails and never slows the write it announces: a full queue would fail commits, and
-- a session that prepares transactions turns it off with `set pgwf.notify = off`.
create or replace function pgwf._notify(p_channels text[])
returns void
language plpgsql
volatile
as $$
begin
  if p_channels is null
    or current_setting('pgwf.notify', true) = 'off'
    or pg_notification_queue_usage() > 0.5
  then
    return;
  end if;
  perform pg_notify(c.channel, '') from unnest(p_channels) as c(channel);
end
$$;

-- There is news of these jobs for those who hold them: tells each on the channel 'worker.<worker_id>'. Who does not hear
-- it learns it when he next extends his lease.
create or replace function pgwf._tell_holders(p_n bigint[])
returns void
language plpgsql
volatile
as $$
begin
  perform pgwf._notify((
    select array_agg(distinct pgwf.channel('worker.' || l.worker_id)) from pgwf.lease as l where l.n = any (p_n)));
end
$$;

-- Wakes whoever sleeps on these names ('need.python', 'run.42').
create or replace function pgwf._wake(p_channels text[])
returns void
language plpgsql
volatile
as $$
begin
  perform pgwf._notify((
    select array_agg(distinct pgwf.channel(c.channel))
    from unnest(p_channels) as c(channel)
    where current_setting('transaction_isolation') in ('repeatable read', 'serializable')
      or exists (select from pgwf.sleeper as s where s.channel = c.channel)
  ));
end
$$;

-- Who is next of those who sleep on a name in turn: the one that registered last, and one of the others by chance.
create or replace function pgwf._in_turn(p_channel text)
returns setof text
language plpgsql
volatile
as $$
begin
  return query
  with last as materialized (
    select s.listener from pgwf.sleeper as s
    where s.channel = p_channel and s.since is not null
    order by s.since desc
    limit 1
  )
  select l.listener from last as l
  union all
  (
    -- Bounded, because the submitter pays for it.
    select few.listener
    from (
      select s.listener from pgwf.sleeper as s where s.channel = p_channel and s.since is not null limit 1000
    ) as few
    where few.listener <> (select l.listener from last as l)
    order by random()
    limit 1
  );
end
$$;

-- Wakes the next in turn for these needs, if something of them is ready. Locks nothing.
create or replace function pgwf._hand_on(p_needs text[])
returns void
language plpgsql
volatile
as $$
declare
  v_channels text[];
begin
  if not exists (
    select from pgwf.sleeper as s
    where s.channel = any (array(select 'need.' || d.need from unnest(p_needs) as d(need)))
      and s.since is not null)
  then
    return;
  end if;
  select array_agg(distinct pgwf.channel('turn.' || t.listener))
  into v_channels
  from unnest(p_needs) as d(need)
  cross join lateral pgwf._in_turn('need.' || d.need) as t(listener)
  where exists (select from pgwf.ready as r where r.need = d.need and r.priority between 1 and 4)
    and not exists (select from pgwf.need_setting as s where s.need = d.need and s.paused);
  perform pgwf._notify(v_channels);
end
$$;

-- Somebody was woken for work he cannot take: wakes the next in turn, if there is still something to do for these
-- needs. Locks nothing. Errors: none of its own.
create or replace function pgwf.wake_next(p_needs text[])
returns void
language sql
volatile
set search_path = pg_catalog, pg_temp
as $$ select pgwf._hand_on(p_needs) $$;

-- There is new runnable work for these needs: wakes who sleeps on them, and tells the public channel when that is on.
-- At REPEATABLE READ a sleeper may be invisible, so everybody is told.
create or replace function pgwf._wake_needs(p_needs text[])
returns void
language plpgsql
volatile
as $$
declare
  v_blind boolean := current_setting('transaction_isolation') in ('repeatable read', 'serializable');
  v_tell_all boolean;
  v_channels text[];
begin
  if p_needs is null then
    return;
  end if;
  if not v_blind and not (
    select
      s.notify_enabled
      or exists (
        select from pgwf.sleeper as q where q.channel = any (array(select 'need.' || d.need from unnest(p_needs) as d(need))))
    from pgwf.setting as s
    where s.only_row)
  then
    return;
  end if;
  v_tell_all := v_blind or (select s.notify_enabled from pgwf.setting as s where s.only_row);
  select array_agg(distinct pgwf.channel(c.name))
  into v_channels
  from unnest(p_needs) as d(need)
  cross join lateral (
    select 'need.' || d.need
    where v_tell_all
      or exists (select from pgwf.sleeper as s where s.channel = 'need.' || d.need and s.since is null)
    union all
    select 'turns.' || d.need where v_blind
    union all
    select 'turn.' || t.listener from pgwf._in_turn('need.' || d.need) as t(listener)
  ) as c(name)
  where not exists (select from pgwf.need_setting as s where s.need = d.need and s.paused);
  perform pgwf._notify(v_channels);
end
$$;

-- Refuses requests to be woken that could not be stored.
create or replace function pgwf._require_listener(p_listener text, p_names text[])
returns void
language plpgsql
immutable
as $$
declare
  v_longest int;
begin
  if p_listener is null then
    perform pgwf._refuse('23502', 'listener cannot be null');
  elsif octet_length(p_listener) > 512 then
    perform pgwf._refuse('WF001', format('listener must have at most 512 bytes, not %s', octet_length(p_listener)));
  end if;
  select max(octet_length(d.name)) into v_longest from unnest(p_names) as d(name);
  if v_longest > 1024 then
    perform pgwf._refuse('WF001', format('a channel or need must have at most 1024 bytes, not %s', v_longest));
  end if;
end
$$;

-- Asks for a wake-up on these names until wake_up, or for an hour; repeating it lets that begin anew. Returns this transaction's id: once no older transaction runs,
-- nobody can add work without having seen the request. Locks the listener's own rows. Errors: 23502,
-- WF001, WF020.
create or replace function pgwf.sleep_on(p_listener text, p_channels text[])
returns xid8
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
as $$
declare
  v_now timestamptz := pgwf._now();
begin
  perform pgwf._require_read_committed();
  perform pgwf._require_listener(p_listener, p_channels);
  insert into pgwf.sleeper (channel, listener, asked_at)
  select distinct c.channel, p_listener, v_now
  from unnest(p_channels) as c(channel)
  where c.channel is not null
  order by c.channel
  on conflict (channel, listener) do update set asked_at = excluded.asked_at;
  return pg_current_xact_id();
end
$$;

-- Asks to be woken for work of these needs in turn with others who asked so, until wake_up: on the channels
-- 'turn.<listener>', and 'turns.<need>' from transactions that cannot see who asked. Replaces the listener's requests.
-- Returns the same as sleep_on. Locks the listener's own rows. Errors: 23502, WF001, WF020.
create or replace function pgwf.sleep_in_turn(p_listener text, p_needs text[])
returns xid8
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
as $$
declare
  v_now timestamptz := pgwf._now();
begin
  perform pgwf._require_read_committed();
  perform pgwf._require_listener(p_listener, p_needs);
  delete from pgwf.sleeper where listener = p_listener;
  insert into pgwf.sleeper (channel, listener, since)
  select distinct 'need.' || d.need, p_listener, v_now
  from unnest(p_needs) as d(need)
  where d.need is not null
  order by 1;
  return pg_current_xact_id();
end
$$;

-- Withdraws the listener's requests. Locks the listener's own rows.
create or replace function pgwf.wake_up(p_listener text)
returns void
language sql
volatile
set search_path = pg_catalog, pg_temp
as $$ delete from pgwf.sleeper where listener = p_listener $$;
