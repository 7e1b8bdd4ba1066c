-- Pausing and limiting a need, and limiting a key.

-- Stop handing out jobs of a need, until resume_need. Claims already under way may still lease one; leases go on.
-- Locks: the need's settings row. Errors: 23502, WF001, WF020.
create or replace function pgwf.pause_need(p_need text, p_worker_id text)
returns void
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
as $$
begin
  perform pgwf._change_need(p_need, p_worker_id);
  insert into pgwf.need_setting (need, paused) values (p_need, true) on conflict (need) do update set paused = true;
  perform pgwf._tell_workers(p_need);
  perform pgwf._trace_setting('pause_need', p_worker_id, jsonb_build_object('need', p_need));
end
$$;

-- Hand out jobs of a paused need again. Locks: the need's settings row. Errors: 23502, WF001, WF020.
-- Wakes workers that offer it.
create or replace function pgwf.resume_need(p_need text, p_worker_id text)
returns void
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
as $$
begin
  perform pgwf._change_need(p_need, p_worker_id);
  update pgwf.need_setting set paused = false where need = p_need;
  delete from pgwf.need_setting where need = p_need and max_active is null and rate is null;
  perform pgwf._wake_needs(array[p_need]);
  perform pgwf._tell_workers(p_need);
  perform pgwf._trace_setting('resume_need', p_worker_id, jsonb_build_object('need', p_need));
end
$$;

-- Limit how much of a need runs at once (p_max_active leases) and how often one starts (p_rate per second, up to
-- p_burst at once, at least 1); NULL: no such limit. Exact: leases that exist count from now on and are left alone, and
-- of a need's first limit a claim either knows, or it has committed before. Leases by lease_job are not limited and do not
-- count.
-- Locks: the need's settings row; for a first limit all leases, so that claims and calls of who holds a lease wait until
-- commit. Errors: 23502, WF001, WF020, 55P03 when others kept leases locked for 5 seconds. Wakes workers that offer it.
create or replace function pgwf.limit_need(
  p_need text,
  p_worker_id text,
  p_max_active int default null,
  p_rate double precision default null,
  p_burst double precision default null
)
returns void
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
as $$
declare
  v_burst double precision := coalesce(p_burst, greatest(1, p_rate));
  v_is_first boolean;
  v_counts_first boolean;
begin
  perform pgwf._change_need(p_need, p_worker_id);
  perform pgwf._require_limits(p_max_active, 0, p_rate, p_burst);
  -- Takes the row as it is: what it says is final then, also when somebody else was changing it.
  insert into pgwf.need_setting as s (need) values (p_need)
  on conflict (need) do update set paused = s.paused
  returning
    (s.max_active is null and p_max_active is not null) or (s.rate is null and p_rate is not null),
    s.max_active is null and p_max_active is not null
  into v_is_first, v_counts_first;
  if v_is_first then
    perform pgwf._lock_all_leases(p_need);
  end if;
  update pgwf.need_setting
  set max_active = p_max_active, rate = p_rate, burst = case when p_rate is not null then v_burst end
  where need = p_need;
  delete from pgwf.need_setting where need = p_need and not paused and max_active is null and rate is null;
  if v_counts_first then
    update pgwf.lease set capped = true where need = p_need and counted and not capped;
  end if;
  perform pgwf._wake_needs(array[p_need]);
  perform pgwf._tell_workers(p_need);
  perform pgwf._trace_setting(
    'limit_need', p_worker_id,
    jsonb_build_object('need', p_need, 'max_active', p_max_active, 'rate', p_rate, 'burst', v_burst));
end
$$;

-- Waits for claims under way, and for everybody who has locked a lease, and keeps others out until commit: a claim locks
-- the table before it asks which needs are limited. While this waits everybody else waits behind it, so it is in the way
-- for a fifth of the time only. Nobody who waits for it has locked a lease, so whoever has the table waits for none.
-- Errors: 55P03.
create or replace function pgwf._lock_all_leases(p_need text)
returns void
language plpgsql
volatile
set lock_timeout = '50ms'  -- Half of what calls of workers wait for a row.
as $$
declare
  ATTEMPTS constant int := 20;
  PAUSE_SECONDS constant double precision := 0.2;
begin
  for attempt in 1..ATTEMPTS loop
    begin
      lock table pgwf.lease in exclusive mode;
      return;
    exception when lock_not_available then
      perform pg_sleep(PAUSE_SECONDS);
    end;
  end loop;
  perform pgwf._refuse(
    '55P03',
    format(
      'need %s is not limited: for 5 seconds a transaction kept leases locked, which its first limit has to count; call'
      ' again when that has ended', p_need),
    'nothing was changed; pg_locks shows who has locked pgwf.lease');
end
$$;

-- Let up to p_max_active jobs of a singleton key be leased at once (NULL: one, as without a limit), and p_rate a second
-- start, up to p_burst at once (NULL: as often as there is room). Leases that exist count from now on and are left
-- alone. Leases by lease_job take their place among p_max_active, but no token.
-- Locks: the key. Errors: 23502, WF001, WF020. Wakes workers that offer what the jobs that came up need.
create or replace function pgwf.limit_key(
  p_key text,
  p_worker_id text,
  p_max_active int default null,
  p_rate double precision default null,
  p_burst double precision default null
)
returns void
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
as $$
declare
  v_burst double precision := coalesce(p_burst, greatest(1, p_rate));
begin
  perform pgwf._require_read_committed();
  perform pgwf._require_worker(p_worker_id);
  if p_key is null then
    perform pgwf._refuse('23502', 'key cannot be null');
  elsif octet_length(p_key) not between 1 and 512 then
    perform pgwf._refuse('WF001', format('key must have 1 to 512 bytes, not %s', octet_length(p_key)));
  end if;
  perform pgwf._require_limits(p_max_active, 1, p_rate, p_burst);
  perform pg_advisory_xact_lock(pgwf._key_lock(p_key));
  if p_max_active is null and p_rate is null then
    delete from pgwf.key_setting where singleton_key = p_key;
    delete from pgwf.bucket where kind = 'key' and name = p_key;
  else
    insert into pgwf.key_setting (singleton_key, max_active, rate, burst)
    values (p_key, p_max_active, p_rate, case when p_rate is not null then v_burst end)
    on conflict (singleton_key) do update set
      max_active = excluded.max_active, rate = excluded.rate, burst = excluded.burst, next_token_at = null;
  end if;
  perform pgwf._fill_up(array[p_key], pgwf._now());
  perform pgwf._trace_setting(
    'limit_key', p_worker_id,
    jsonb_build_object('key', p_key, 'max_active', p_max_active, 'rate', p_rate, 'burst', v_burst));
end
$$;

-- What limit_need and limit_key refuse of limits. NaN is more than any number.
create or replace function pgwf._require_limits(
  p_max_active int, p_least int, p_rate double precision, p_burst double precision
)
returns void
language plpgsql
immutable
as $$
begin
  if p_max_active < p_least then
    perform pgwf._refuse('WF001', format('max_active must be %s or more, not %s', p_least, p_max_active));
  elsif not (p_rate > 0 and p_rate < 'infinity') then
    perform pgwf._refuse(
      'WF001', format('rate must be a positive number, not %s', p_rate), 'a need is stopped by pause_need');
  elsif not (p_burst >= 1 and p_burst < 'infinity') then
    perform pgwf._refuse('WF001', format('burst must be a number of 1 or more, not %s', p_burst));
  elsif p_burst is not null and p_rate is null then
    perform pgwf._refuse('WF001', format('burst %s is given without a rate', p_burst), 'give the rate as well');
  end if;
end
$$;

-- What every change of a need checks first.
create or replace function pgwf._change_need(p_need text, p_worker_id text)
returns void
language plpgsql
stable
as $$
declare
  v_flaw text := pgwf._place_flaw(p_need, 3, null);
begin
  perform pgwf._require_read_committed();
  perform pgwf._require_worker(p_worker_id);
  if v_flaw is not null then
    perform pgwf._refuse(case when p_need is null then '23502' else 'WF001' end, replace(v_flaw, 'next_need', 'need'));
  end if;
end
$$;

-- The workers that offer a need ask anew what holds for it: steps that need it begin only where its settings say so.
create or replace function pgwf._tell_workers(p_need text)
returns void
language plpgsql
volatile
as $$
begin
  perform pgwf._notify(array(
    select pgwf.channel('worker.' || w.worker_id) from pgwf.worker as w where p_need = any (w.capabilities)));
end
$$;

create or replace function pgwf._trace_setting(p_event_type text, p_worker_id text, p_input jsonb)
returns void
language plpgsql
volatile
as $$
begin
  if pgwf._tracing() then
    perform pgwf._trace(p_event_type, null, p_worker_id, null, p_input, null, pgwf._now());
  end if;
end
$$;
