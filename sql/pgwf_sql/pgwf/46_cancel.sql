-- Cancellation: a job is marked, and archived once nobody holds it.

-- Mark a job for cancellation. It is never leased again, and unless it is leased, its waiters are released at once. A
-- live lease goes on: its holder may still complete the job, but neither extend nor reschedule it. A second call
-- changes nothing. Returns who cancelled it and when.
-- Locks: the job FOR UPDATE; its key; its waiters by try (the next sweep releases a busy one). Errors: 23502, WF004
-- unknown, WF010 finished, WF020. Wakes workers for waiters that became runnable and for the next job of its key.
create or replace function pgwf.cancel_job(p_job_id text, p_worker_id text, p_reason text default null)
returns table (job_id text, cancelled_at timestamptz, cancelled_by text, cancel_reason text)
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
  v_now timestamptz := pgwf._now();
  v_n bigint;
  v_job pgwf.job;
  v_place text;
  v_already boolean;
begin
  perform pgwf._require_read_committed();
  perform pgwf._require_worker(p_worker_id);
  v_n := pgwf._number(p_job_id, v_now);
  -- FOR UPDATE, so that whoever registers a wait for this job right now is waited for.
  select j.* into v_job from pgwf.job as j where j.n = v_n for update;
  perform pgwf._refuse_absent(v_job, v_n, p_job_id, 'cancelled');
  v_job := pgwf._end_lapsed(v_n, p_worker_id, v_now);
  v_already := v_job.cancel_at is not null;
  if not v_already then
    v_place := pgwf._catch(v_n, v_now);
    update pgwf.job as j
    set
      cancel_at = v_now,
      cancel_by = p_worker_id,
      cancel_reason = p_reason
    where j.n = v_n
    returning j.* into v_job;
    if v_place <> 'lease' then
      perform pgwf._release_waiters(array[v_n], v_now, p_skip => true);
    end if;
  end if;
  if pgwf._tracing() then
    insert into pgwf.trace (event_at, event_type, n, lease_no, worker_id, input_data, output_data)
    select
      v_now,
      'cancel_job',
      v_n,
      l.lease_no,
      p_worker_id,
      jsonb_build_object('reason', p_reason),
      jsonb_build_object('active', l.n is not null, 'already_cancelled', v_already)
    from (values (v_n)) as i(n)
    left join pgwf.lease as l on l.n = i.n and l.n = v_n;
  end if;
  return query select v_job.job_id, v_job.cancel_at, v_job.cancel_by, v_job.cancel_reason;
end
$$;

-- Archives cancelled jobs without a live lease, oldest first, and releases who still waits for them. The caller holds
-- L0. Waits for no row: a job or waiter that somebody has locked stays for the next time.
create or replace function pgwf._archive_cancelled(p_worker_id text, p_limit int, p_now timestamptz)
returns int
language plpgsql
volatile
as $$
declare
  v_ended bigint[];
begin
  v_ended := array(
    select j.n
    from pgwf.job as j
    where j.cancel_at is not null
      and exists (select from pgwf.lease as l where l.n = j.n and l.until <= p_now offset 0)
    order by j.n
    limit p_limit);
  if cardinality(v_ended) > 0 then
    perform pgwf._lapse(v_ended, p_worker_id, p_now);
  end if;
  v_ended := array(
    select j.n
    from pgwf.job as j
    where j.cancel_at is not null
      and not exists (select from pgwf.lease as l where l.n = j.n offset 0)
    order by j.n
    limit p_limit
    for update skip locked);
  v_ended := pgwf._with_free_waiters(v_ended);
  if cardinality(v_ended) = 0 then
    return 0;
  end if;
  perform pgwf._end(v_ended, null, 'cancelled', p_worker_id, p_now, true);
  if pgwf._tracing() then
    perform pgwf._trace(
      'job_cancel_archived_run', null, p_worker_id, null, jsonb_build_object('limit', p_limit),
      jsonb_build_object('count', cardinality(v_ended)), p_now);
  end if;
  return cardinality(v_ended);
end
$$;

-- Archive up to p_limit cancelled jobs that nobody holds, and release who waits for them. Returns how many. Jobs
-- whose row or waiters are locked by others stay for the next time. Sweeps do this too; nobody has to call it.
-- Locks: waits for a running sweep, then for nothing. Errors: 23502, WF001, WF020. Wakes workers for released
-- waiters.
create or replace function pgwf.archive_cancelled_jobs(p_worker_id text, p_limit int default 100)
returns int
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
as $$
begin
  perform pgwf._require_read_committed();
  perform pgwf._require_worker(p_worker_id);
  if p_limit is null or p_limit <= 0 then
    perform pgwf._refuse_nonpositive('limit', p_limit);
  end if;
  perform pg_advisory_xact_lock(pgwf._sweep_lock());
  return pgwf._archive_cancelled(p_worker_id, p_limit, pgwf._now());
end
$$;
