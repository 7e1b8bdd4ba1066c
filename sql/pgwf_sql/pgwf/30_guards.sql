-- Clock, argument checks and settings.

-- Now, read once per call by every entry point. The test kit replaces this function in its own database.
create or replace function pgwf._now()
returns timestamptz
language sql
volatile
as $$ select clock_timestamp() $$;

-- Leasing decides in several statements, each of which must see what committed before it.
create or replace function pgwf._require_read_committed()
returns void
language plpgsql
stable
as $$
begin
  if current_setting('transaction_isolation') in ('repeatable read', 'serializable') then
    raise exception using
      errcode = 'WF020',
      message = format(
        'pgwf needs READ COMMITTED, this transaction is %s',
        upper(current_setting('transaction_isolation'))),
      hint = 'make this call in a transaction of its own, and see default_transaction_isolation of the role and the'
        ' database; submit_job and the views work at any level';
  end if;
end
$$;

create or replace function pgwf._refuse(p_sqlstate text, p_message text, p_hint text default null)
returns void
language plpgsql
immutable
as $$
begin
  if p_hint is null then
    raise exception using errcode = p_sqlstate, message = p_message;
  end if;
  raise exception using errcode = p_sqlstate, message = p_message, hint = p_hint;
end
$$;

-- Refuses a number that must be positive and is not.
create or replace function pgwf._refuse_nonpositive(p_name text, p_found double precision)
returns void
language plpgsql
immutable
as $$
begin
  perform pgwf._refuse('WF001', format('%s must be positive, not %s', p_name, coalesce(p_found::text, 'NULL')));
end
$$;

-- Refuses calls without a worker_id, whether or not a trace row would need it.
create or replace function pgwf._require_worker(p_worker_id text)
returns void
language plpgsql
immutable
as $$
begin
  if p_worker_id is null then
    perform pgwf._refuse('23502', 'worker_id cannot be null');
  end if;
end
$$;

create or replace function pgwf._require_job_id(p_job_id text)
returns void
language plpgsql
immutable
as $$
begin
  if p_job_id is null then
    perform pgwf._refuse('23502', 'job_id cannot be null');
  end if;
end
$$;

-- The bounds of an array as text, '{}' for an empty one, NULL for none.
create or replace function pgwf._bounds(p_array anyarray)
returns text
language sql
immutable
as $$ select case when cardinality(p_array) = 0 then '{}' else array_dims(p_array) end $$;

-- Refuses bounds of arrays that are no lists: subscripts would name other elements than their places do.
create or replace function pgwf._require_lists(variadic p_bounds text[])
returns void
language plpgsql
immutable
as $$
begin
  if array_to_string(p_bounds, ',') !~ '^(([{][}]|[[]1:[0-9]+])(,|$))*$' then
    perform pgwf._refuse(
      'WF001',
      format('an array must have one dimension and begin at 1, not at these bounds: %s', array_to_string(p_bounds, ', ')));
  end if;
end
$$;

-- Refuses bounds of parallel arrays that differ in length, or are no lists. NULL stands for "not given" and passes.
create or replace function pgwf._require_parallel(p_bounds text, variadic p_others text[])
returns void
language plpgsql
immutable
as $$
begin
  if p_bounds like '[1:%' and p_bounds not like '%][%' and p_bounds = all (array_remove(p_others, null)) then
    return;
  end if;
  if p_bounds is null then
    perform pgwf._refuse('23502', 'the array of job ids cannot be null');
  end if;
  perform pgwf._require_lists(variadic p_bounds || p_others);
  if not p_bounds = all (p_others) then
    perform pgwf._refuse(
      'WF021',
      format('parallel arrays differ in length: bounds are %s, but also %s', p_bounds, array_to_string(p_others, ', ')),
      'give one element per job in every array, or leave the array out');
  end if;
end
$$;

-- The ids of a list without its NULLs; no list is an empty one.
create or replace function pgwf._listed(p_ids text[])
returns text[]
language plpgsql
immutable
as $$
begin
  if array_ndims(p_ids) > 1 or array_lower(p_ids, 1) <> 1 then
    perform pgwf._require_lists(array_dims(p_ids));
  end if;
  return coalesce(array_remove(p_ids, null), '{}');
end
$$;

-- What is wrong with a job's need, priority or key, or NULL. One sentence, for the error of the single form.
create or replace function pgwf._place_flaw(p_need text, p_priority int, p_singleton_key text)
returns text
language sql
immutable
as $$
  select case
    when p_need is null then 'next_need cannot be null'
    when octet_length(p_need) > 512 then 'next_need must have at most 512 bytes, not ' || octet_length(p_need)::text
    when octet_length(p_singleton_key) > 512
      then 'singleton_key must have at most 512 bytes, not ' || octet_length(p_singleton_key)::text
    when p_priority not between 1 and 4 then 'priority must be 1 (most urgent) to 4, not ' || p_priority::text
  end
$$;

-- What is wrong with a job as submitted, or NULL.
create or replace function pgwf._job_flaw(p_job_id text, p_need text, p_priority int, p_singleton_key text)
returns text
language sql
immutable
as $$
  select case
    when p_job_id is null then 'job_id cannot be null'
    when octet_length(p_job_id) not between 1 and 512
      then 'job_id must have 1 to 512 bytes, not ' || octet_length(p_job_id)::text
    when p_job_id ~ '[\x01-\x1f\x7f]'
      then 'job_id must not contain control characters, as after ' || quote_literal(substring(p_job_id from '^[^\x01-\x1f\x7f]*'))
    else pgwf._place_flaw(p_need, p_priority, p_singleton_key)
  end
$$;

-- Refuses calls without a job id or a lease id: a missing token never matches a lease.
create or replace function pgwf._require_lease_id(p_job_id text, p_lease_id text)
returns void
language plpgsql
immutable
as $$
begin
  perform pgwf._require_job_id(p_job_id);
  if p_lease_id is null then
    perform pgwf._refuse('23502', 'lease_id cannot be null', 'pass the lease_id that get_work returned for the job');
  end if;
end
$$;

-- Whether calls write trace rows. Locks nothing.
create or replace function pgwf.is_trace_enabled()
returns boolean
language sql
stable
set search_path = pg_catalog, pg_temp
as $$ select trace_enabled from pgwf.setting where only_row $$;

-- The same, for our own calls: plpgsql keeps its plan, and it pins nothing its callers have not pinned.
create or replace function pgwf._tracing()
returns boolean
language plpgsql
stable
as $$
begin
  return (select s.trace_enabled from pgwf.setting as s where s.only_row);
end
$$;

-- Turn trace rows on or off for every session. Locks the settings row until commit. Errors: 23502.
create or replace function pgwf.set_trace(enabled boolean)
returns boolean
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
as $$
begin
  if enabled is null then
    perform pgwf._refuse('23502', 'enabled cannot be null');
  end if;
  update pgwf.setting set trace_enabled = enabled where trace_enabled <> enabled;
  return enabled;
end
$$;

-- Whether new runnable work is announced on the public channel of its need. Locks nothing.
create or replace function pgwf.is_notify_enabled()
returns boolean
language sql
stable
set search_path = pg_catalog, pg_temp
as $$ select notify_enabled from pgwf.setting where only_row $$;

-- Turn announcements (and the LISTEN of an empty get_work) on or off for every session. Sleeping workers are woken
-- either way. Locks the settings row until commit. Errors: 23502.
create or replace function pgwf.set_notify(enabled boolean)
returns boolean
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
as $$
begin
  if enabled is null then
    perform pgwf._refuse('23502', 'enabled cannot be null');
  end if;
  update pgwf.setting set notify_enabled = enabled where notify_enabled <> enabled;
  return enabled;
end
$$;

-- How many leases in a row may lapse before a job becomes CRASH_CONCERN: the next lapse shelves it. Locks nothing.
create or replace function pgwf.crash_concern_threshold()
returns int
language sql
stable
set search_path = pg_catalog, pg_temp
as $$ select crash_concern_threshold from pgwf.setting where only_row $$;

-- How much waiting a priority level is worth. Locks nothing.
create or replace function pgwf.priority_aging()
returns interval
language sql
stable
set search_path = pg_catalog, pg_temp
as $$ select make_interval(secs => aging_seconds) from pgwf.setting where only_row $$;

-- How long an expired job that nobody waits for stays before it is archived. Locks nothing.
create or replace function pgwf.expired_grace()
returns interval
language sql
stable
set search_path = pg_catalog, pg_temp
as $$ select expired_grace from pgwf.setting where only_row $$;

-- How long a worker without heartbeat stays known. Locks nothing.
create or replace function pgwf.worker_grace()
returns interval
language sql
stable
set search_path = pg_catalog, pg_temp
as $$ select worker_grace from pgwf.setting where only_row $$;

-- Refuses a span of time that is missing, negative or longer than a thousand years; times are added to instants.
create or replace function pgwf._require_span(p_name text, p_span interval)
returns void
language plpgsql
immutable
as $$
begin
  if p_span is null then
    perform pgwf._refuse('23502', format('%s cannot be null', p_name));
  elsif extract(epoch from p_span) not between 0 and 31557600000 then
    perform pgwf._refuse('WF001', format('%s must be between 0 and a thousand years, not %s', p_name, p_span));
  end if;
end
$$;

-- Set how much waiting a priority level is worth: 0 is first come, first served; a day comes close to strict
-- priorities. Counts from the next claim on. Locks the settings row until commit. Errors: 23502, WF001.
create or replace function pgwf.set_priority_aging(p_aging interval)
returns interval
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
as $$
begin
  perform pgwf._require_span('aging', p_aging);
  update pgwf.setting set aging_seconds = extract(epoch from p_aging);
  return p_aging;
end
$$;

-- Set how long an expired job that nobody waits for stays before a sweep archives it: time for an operator to look.
-- Locks the settings row until commit. Errors: 23502, WF001.
create or replace function pgwf.set_expired_grace(p_grace interval)
returns interval
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
as $$
begin
  perform pgwf._require_span('grace', p_grace);
  update pgwf.setting set expired_grace = p_grace;
  return p_grace;
end
$$;

-- Set how long a worker that sends no heartbeat stays known. Locks the settings row until commit. Errors: 23502,
-- WF001.
create or replace function pgwf.set_worker_grace(p_grace interval)
returns interval
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
as $$
begin
  perform pgwf._require_span('grace', p_grace);
  update pgwf.setting set worker_grace = p_grace;
  return p_grace;
end
$$;
