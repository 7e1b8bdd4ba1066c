-- One thing done to many runs after a deploy. A call does so to a page of them, the newest first, in one transaction; call
-- again with the last number it gave while it fills its page. A run that comes to be such a one meanwhile is not met twice.

-- Effect: blocked runs become leasable at once, those of one workflow or (NULL) of all: up to p_limit with numbers below
-- p_before.  Returns these runs.
-- Locks: run rows, then jobs.  Wake-ups: workers that sleep on the runs' needs.
create or replace function pgwf_sdk.resume_runs(p_workflow text, p_by text, p_before bigint default null, p_limit int default 100)
returns table (n bigint, run_id text)
language plpgsql volatile
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set enable_bitmapscan = off
set jit = off
as $$
declare
  v_run record;
begin
  for v_run in
    select p.n, p.run_id
    from (
      select r.n, r.run_id
      from pgwf_sdk.blocked b
      join pgwf_sdk.run r on r.n = b.n
      where b.n < coalesce(p_before, 9223372036854775807) and r.workflow = coalesce(p_workflow, r.workflow)
      order by b.n desc
      limit greatest(p_limit, 0)
    ) p
    order by p.n
  loop
    perform pgwf_sdk.resume_run(v_run.run_id, p_by);
    n := v_run.n;
    run_id := v_run.run_id;
    return next;
  end loop;
end
$$;

-- Effect: failed runs of a workflow that were not retried yet go on as new runs, each as retry_run has it: up to p_limit
-- with numbers below p_before.  Returns the failed runs and the ids they go on as.
-- Locks: run rows, then the new ids.  Wake-ups: workers that sleep on the runs' home needs.
create or replace function pgwf_sdk.retry_runs(p_workflow text, p_by text, p_before bigint default null, p_limit int default 100)
returns table (n bigint, run_id text, next_run_id text)
language plpgsql volatile
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set enable_bitmapscan = off
set jit = off
as $$
declare
  v_run record;
begin
  for v_run in
    select p.n, p.run_id
    from (
      select r.n, r.run_id
      from pgwf_sdk.run r
      where r.workflow = p_workflow and r.n < coalesce(p_before, 9223372036854775807) and r.status = 'failed' and r.successor is null
      order by r.n desc
      limit greatest(p_limit, 0)
    ) p
    order by p.n
  loop
    n := v_run.n;
    run_id := v_run.run_id;
    next_run_id := (select s.run_id from pgwf_sdk.retry_run(v_run.run_id, p_by) s);
    return next;
  end loop;
end
$$;
