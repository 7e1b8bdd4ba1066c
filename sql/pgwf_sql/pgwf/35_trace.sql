-- Trace: one row per call and job. Callers ask is_trace_enabled first, so that nothing is built for nobody.

create or replace function pgwf._trace(
  p_event_type text,
  p_n bigint,
  p_worker_id text,
  p_lease_no bigint,
  p_input jsonb,
  p_output jsonb,
  p_now timestamptz
)
returns void
language plpgsql
volatile
as $$
begin
  insert into pgwf.trace (event_at, event_type, n, lease_no, worker_id, input_data, output_data)
  values (p_now, p_event_type, p_n, p_lease_no, p_worker_id, p_input, p_output);
end
$$;

-- What a trace says of a live job. A plain expression, so that it is inlined where rows are traced in sets.
create or replace function pgwf._job_facts(p_job pgwf.job)
returns jsonb
language sql
stable
as $$
  select jsonb_build_object(
    'next_need', p_job.need,
    'pending', p_job.pending,
    'singleton_key', p_job.singleton_key,
    'priority', p_job.priority,
    'available_at', p_job.available_at,
    'expires_at', p_job.expires_at,
    'lease_expiration_count', p_job.lapses,
    'consecutive_expirations', p_job.streak
  )
$$;

-- Ids of the jobs that job p_n still waits for, in the order in which they were given.
create or replace function pgwf._remaining(p_n bigint, p_wait_for bigint[])
returns text[]
language plpgsql
stable
as $$
begin
  if p_wait_for is null then
    return '{}';
  end if;
  return array(
    select j.job_id
    from (
      select e.child, w.ord
      from (select q.child from pgwf.edge as q where q.waiter = p_n) as e
      full join unnest(p_wait_for) with ordinality as w(n, ord) on w.n = e.child
      offset 0
    ) as r
    cross join lateral (select q.job_id from pgwf.job as q where q.n = r.child offset 0) as j
    order by r.ord);
end
$$;
