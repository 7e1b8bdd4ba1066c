-- Plans of this schema's hot functions are pinned here; those of pgwf_sdk carry the same settings. A session caches a plan
-- when it first needs it, often while the tables are nearly empty: a sequential scan looks best then, and it stays while
-- dead rows pile up behind it (an index marks dead entries and passes them, a sequential or bitmap scan reads them again
-- each time). Generic plans, because planning costs more than running these statements. No JIT: what is switched off
-- counts as infinitely expensive, which would make every statement worth compiling. For the same reason statements reach
-- a table by `n = any (array)` even where a join condition says as much: a hash join planned on an empty table would later
-- read a million rows to find ten. A setting costs 2,000 instructions a call, so what is on by default is not set.
--
-- Lists of any length: no array is searched once for each of many rows. A list is looked up in a table row by row
-- (lateral, with offset 0, which keeps it from becoming another join) or as a whole (`n = any (array)` alone); two lists
-- meet by hash: `in (select ...)` that is no condition by itself (`is true` makes it so), `not in`, or a full join, none of
-- which can be a nested loop.
do $$
declare
  -- Entry points, and helpers that other schemas call by themselves.
  HOT constant text[] := array[
    'submit_job', 'submit_jobs', 'get_work', 'lease_job', 'extend_lease', 'extend_leases', 'reschedule_job',
    'reschedule_jobs', 'reschedule_unheld_job', 'release_job', 'complete_job', 'complete_jobs', 'complete_unheld_job',
    'cancel_job', 'archive_cancelled_jobs', 'clear_crash_concern', 'wake_jobs', 'set_priority', 'sweep', 'next_wakeup',
    'limit_key', '_lock_jobs', '_place', '_catch', '_release_waiters', '_free_keys', '_claim', '_submit', '_end',
    '_requeue', '_wake_jobs', '_wake'];
  -- Update jobs by a list. A nested loop would go through the list once for each job; these call nothing that needs one.
  HASHED constant text[] := array['_count_down', '_put_off', '_rewrite'];
  v_function regprocedure;
begin
  for v_function in
    select p.oid::regprocedure
    from pg_proc as p
    where p.pronamespace = 'pgwf'::regnamespace
      and p.proname = any (HOT)
      -- Made by this run of the script; an older version's overload is left as it is, for 90_obsolete.sql to find.
      and age(p.xmin) <= 0
  loop
    execute format('alter function %s set enable_seqscan = off', v_function);
    execute format('alter function %s set enable_bitmapscan = off', v_function);
    execute format('alter function %s set plan_cache_mode = force_generic_plan', v_function);
    execute format('alter function %s set jit = off', v_function);
  end loop;
  for v_function in
    select p.oid::regprocedure
    from pg_proc as p
    where p.pronamespace = 'pgwf'::regnamespace
      and p.proname = any (HASHED)
      and age(p.xmin) <= 0
  loop
    execute format('alter function %s set enable_nestloop = off', v_function);
  end loop;
end
$$;
