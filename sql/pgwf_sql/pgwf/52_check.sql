-- Invariants, as queries. Both functions read whole tables: they are for tests and for operators in doubt.

-- Rows that break an invariant, one per rule and subject. Empty at every snapshot, whatever runs concurrently.
-- Locks nothing.
create or replace function pgwf.check()
returns table (rule text, subject text)
language sql
volatile
set search_path = pg_catalog, pg_temp
set jit = off
-- Nobody may have analysed the tables since they grew, and a nested loop over two of a million rows never ends.
set enable_nestloop = off
as $$
  with recursive clock as materialized (
    select pgwf._now() as now
  ), place as materialized (
    select r.n, 'ready' as name from pgwf.ready as r
    union all select l.n, 'lease' from pgwf.lease as l
    union all select t.n, 'timer' from pgwf.timer as t
    union all select p.n, 'parked' from pgwf.parked as p
  ), below as (
    -- Numbers cannot only fall around a cycle, so walking from where they rise finds each, and a long chain of jobs
    -- that each wait for the one before costs nothing.
    select e.waiter as start, e.child as n from pgwf.edge as e where e.child >= e.waiter
    union
    select b.start, e.child from below as b join pgwf.edge as e on e.waiter = b.n
  )
  select 'a job stands in one place at most', format('job %s: %s', p.n, string_agg(p.name, ', '))
  from place as p group by p.n having count(*) > 1
  union all
  select 'whatever stands somewhere is a job', format('%s row %s', p.name, p.n)
  from place as p where not exists (select from pgwf.job as j where j.n = p.n)
  union all
  select 'a job that can run some day stands somewhere', j.job_id
  from pgwf.job as j cross join clock
  where j.cancel_at is null and j.pending = 0 and not j.shelved and j.available_at < 'infinity'
    and (j.expires_at is null or j.expires_at > clock.now)
    and not exists (select from place as p where p.n = j.n)
  union all
  select 'a job that is parked for ever stands nowhere unless it is leased', format('%s: %s', j.job_id, p.name)
  from pgwf.job as j join place as p on p.n = j.n
  where j.available_at = 'infinity' and p.name <> 'lease'
  union all
  select 'a cancelled job stands nowhere unless it is leased', format('%s: %s', j.job_id, p.name)
  from pgwf.job as j join place as p on p.n = j.n
  where j.cancel_at is not null and p.name <> 'lease'
  union all
  select 'a job that waits for jobs stands nowhere', format('%s: %s', j.job_id, p.name)
  from pgwf.job as j join place as p on p.n = j.n
  where j.pending > 0
  union all
  select 'a shelved job stands nowhere', format('%s: %s', j.job_id, p.name)
  from pgwf.job as j join place as p on p.n = j.n
  where j.shelved
  union all
  select 'a timer is due when its job is available', j.job_id
  from pgwf.timer as t join pgwf.job as j on j.n = t.n
  where t.due <> j.available_at
  union all
  select 'a place says what the job says', j.job_id
  from pgwf.job as j join (
    select r.n, r.need, r.priority, r.singleton_key, r.expires_at from pgwf.ready as r
    union all select p.n, p.need, p.priority, p.singleton_key, p.expires_at from pgwf.parked as p
    union all select l.n, l.need, j2.priority, l.singleton_key, j2.expires_at
    from pgwf.lease as l join pgwf.job as j2 on j2.n = l.n
  ) as p on p.n = j.n
  where (j.need, j.priority, j.singleton_key, j.expires_at)
    is distinct from (p.need, p.priority, p.singleton_key, p.expires_at)
  union all
  select 'pending counts the edges of the waiter', format('%s: %s, %s edges', j.job_id, j.pending, coalesce(e.edges, 0))
  from pgwf.job as j
  left join (select e.waiter, count(*) as edges from pgwf.edge as e group by e.waiter) as e on e.waiter = j.n
  where j.pending <> coalesce(e.edges, 0)
  union all
  select 'an edge joins two live jobs', format('%s waits for %s', e.waiter, e.child)
  from pgwf.edge as e
  where not exists (select from pgwf.job as j where j.n = e.child)
    or not exists (select from pgwf.job as j where j.n = e.waiter)
  union all
  select 'no job waits for itself', format('job %s', b.start)
  from below as b where b.n = b.start
  union all
  select 'a key is held by the lease that has it', h.singleton_key
  from pgwf.held as h
  where not exists (select from pgwf.lease as l where l.n = h.n and l.singleton_key = h.singleton_key)
  union all
  select 'a lease with a key holds it', l.singleton_key
  from pgwf.lease as l
  where l.singleton_key is not null
    and not exists (select from pgwf.held as h where h.n = l.n and h.singleton_key = l.singleton_key)
  union all
  select 'who is parked on a key has somebody to wait for', format('%s, need %s', p.singleton_key, p.need)
  from (select distinct q.singleton_key, q.need from pgwf.parked as q) as p
  left join pgwf.key_setting as s on s.singleton_key = p.singleton_key
  left join (
    select h.singleton_key, count(*) as leases from pgwf.held as h group by h.singleton_key
  ) as h on h.singleton_key = p.singleton_key
  left join (
    select r.singleton_key, r.need, count(*) as jobs
    from pgwf.ready as r where r.singleton_key is not null group by r.singleton_key, r.need
  ) as r on r.singleton_key = p.singleton_key and r.need = p.need
  where s.next_token_at is null
    and coalesce(r.jobs, 0) < least(coalesce(s.max_active, 1) - coalesce(h.leases, 0), floor(s.burst))
  union all
  select 'a live job has its name', j.job_id
  from pgwf.job as j
  where not exists (select from pgwf.name as nm where nm.job_id = j.job_id and nm.n = j.n)
  union all
  select 'a name belongs to a live or finished job', nm.job_id
  from pgwf.name as nm
  where not exists (select from pgwf.job as j where j.n = nm.n)
    and not exists (select from pgwf.archive as a where a.n = nm.n)
  union all
  select 'a job is live or finished, not both', a.job_id
  from pgwf.archive as a join pgwf.job as j on j.n = a.n
  union all
  select 'an id is live or finished, not both', a.job_id
  from pgwf.archive as a join pgwf.job as j on j.job_id = a.job_id
  union all
  select 'a lease is given out once', l.lease_id::text
  from pgwf.lease as l join pgwf.archive as a on a.lease_id = l.lease_id
  union all
  select 'a lease number is given out once', l.lease_no::text
  from pgwf.lease as l join pgwf.archive as a on a.lease_no = l.lease_no
  union all
  select 'a job has one status', v.job_id
  from pgwf.jobs_with_status as v group by v.job_id having count(*) > 1
$$;

-- What the next undisturbed sweep will do away with. Locks nothing.
create or replace function pgwf.overdue()
returns table (rule text, subject text)
language sql
volatile
set search_path = pg_catalog, pg_temp
set jit = off
as $$
  with clock as materialized (
    select pgwf._now() as now
  )
  select 'a lease ends when its time is over', format('job %s', l.n)
  from pgwf.lease as l cross join clock where l.until <= clock.now
  union all
  select 'a timer is promoted when it is due', format('job %s', t.n)
  from pgwf.timer as t cross join clock where t.due <= clock.now
  union all
  select 'a token lets the next jobs of a key up when it comes', s.singleton_key
  from pgwf.key_setting as s cross join clock where s.next_token_at <= clock.now
  union all
  select 'a cancelled job is archived when nobody holds it', j.job_id
  from pgwf.job as j
  where j.cancel_at is not null and not exists (select from pgwf.lease as l where l.n = j.n)
  union all
  select 'an expired job does not keep others waiting', j.job_id
  from pgwf.job as j cross join clock
  where j.expires_at <= clock.now and j.available_at <= clock.now and j.cancel_at is null and j.pending = 0
    and not j.shelved
    and not exists (select from pgwf.lease as l where l.n = j.n)
    and exists (select from pgwf.edge as e where e.child = j.n)
  union all
  select 'crash concern follows from the threshold', j.job_id
  from pgwf.job as j cross join pgwf.setting as s
  where j.shelved <> (j.streak > s.crash_concern_threshold)
    and not exists (select from pgwf.lease as l where l.n = j.n)
$$;
