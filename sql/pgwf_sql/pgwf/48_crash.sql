-- Crash concern: a job whose leases keep lapsing is shelved until a person looks at it.

-- Set how many leases in a row may lapse before a job becomes CRASH_CONCERN, and decide anew for every job that has
-- lapses.
-- Locks: waits for calls that are ending leases, then the rows of jobs with lapses, then the keys of those it shelves.
-- Errors: WF001, WF020.
-- Wakes workers for jobs that became runnable.
create or replace function pgwf.set_crash_concern_threshold(p_threshold int)
returns int
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
as $$
declare
  v_now timestamptz := pgwf._now();
  v_lapsed bigint[];
  v_freed bigint[];
  v_shelved bigint[];
  v_n bigint;
begin
  perform pgwf._require_read_committed();
  if p_threshold is null or p_threshold <= 0 then
    perform pgwf._refuse_nonpositive('threshold', p_threshold);
  end if;
  perform pg_advisory_xact_lock(pgwf._threshold_lock());
  update pgwf.setting set crash_concern_threshold = p_threshold where crash_concern_threshold <> p_threshold;
  -- None of them waits for jobs. One that begins to meanwhile would be held while another is waited for (_lock_to_wake).
  loop
    v_lapsed := array(select j.n from pgwf.job as j where j.streak > 0);
    begin
      perform
      from pgwf.job as j
      where j.n = any (v_lapsed)
        and (j.pending = 0 or pgwf._refuse('40001', format('job %s has begun to wait', j.n)) is null)
      order by j.n
      for update;
      exit;
    exception when serialization_failure then
      null;
    end;
  end loop;
  select
    array_agg(j.n order by j.n) filter (where j.shelved and j.streak <= p_threshold),
    array_agg(j.n order by j.n) filter (where not j.shelved and j.streak > p_threshold)
  into v_freed, v_shelved
  from pgwf.job as j
  where j.streak > 0
    and not exists (select from pgwf.lease as l where l.n = j.n);
  -- All at once, in their order: taking the jobs out of where they stand takes them one by one.
  perform pgwf._lock_keys(array(select j.singleton_key from pgwf.job as j where j.n = any (v_shelved) and j.singleton_key is not null));
  update pgwf.job set shelved = false where n = any (v_freed);
  perform pgwf._place(v_freed, v_now);
  foreach v_n in array coalesce(v_shelved, '{}') loop
    -- A job that a claim took just now keeps its lease; its next lapse decides.
    if pgwf._catch(v_n, v_now) <> 'lease' then
      update pgwf.job set shelved = true where n = v_n;
    end if;
  end loop;
  return p_threshold;
end
$$;

-- Declare the cause of a job's lapses remedied: its streak starts at 0 again, its lifetime count stays. A
-- CRASH_CONCERN job is READY again. Returns the streak before.
-- Locks: the job FOR UPDATE. Errors: 23502, WF003 cancelled, WF004 unknown, WF010 finished, WF020.
-- Wakes workers that offer its need, if it became runnable.
create or replace function pgwf.clear_crash_concern(p_job_id text, p_worker_id text, p_reason text default null)
returns int
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
as $$
declare
  v_now timestamptz := pgwf._now();
  v_n bigint;
  v_job pgwf.job;
begin
  perform pgwf._require_read_committed();
  perform pgwf._require_worker(p_worker_id);
  v_n := pgwf._number(p_job_id, v_now);
  select j.* into v_job from pgwf.job as j where j.n = v_n for update;
  perform pgwf._refuse_absent(v_job, v_n, p_job_id, 'cleared');
  v_job := pgwf._end_lapsed(v_n, p_worker_id, v_now);
  update pgwf.job set streak = 0, shelved = false where n = v_n;
  if v_job.shelved then
    perform pgwf._place(array[v_n], v_now);
  end if;
  if pgwf._tracing() then
    perform pgwf._trace(
      'crash_concern_cleared', v_n, p_worker_id, null, jsonb_build_object('reason', p_reason),
      jsonb_build_object('previous_consecutive_expirations', v_job.streak), v_now);
  end if;
  return v_job.streak;
end
$$;
