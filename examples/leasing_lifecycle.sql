-- One job, three fleets and a person: python.ingest -> python.transform -> human.review -> python.finalize.
-- Nothing but psql and the leasing core:  psql -f examples/leasing_lifecycle.sql
-- Everything happens in one transaction that is rolled back, so the example leaves nothing behind.
\set ON_ERROR_STOP on
\pset pager off
begin;
select 'example-' || gen_random_uuid() as job_id \gset

\echo '\n1. Somebody submits a job. It says what it needs, never how it is done.'
select job_id, next_need, available_at is not null as available
from pgwf.submit_job(p_job_id => :'job_id', p_worker_id => 'uploader', p_next_need => 'python.ingest');

\echo '\n2. A worker of the ingest fleet leases it. The lease id is its proof from now on.'
select lease_id, next_need
from pgwf.get_work(p_worker_id => 'ingest-1', p_worker_caps => array['python.ingest'], p_lease_seconds => 30) \gset

\echo '\n3. It splits the work: two children, for which the parent will wait on its way to the next fleet.'
select ord, status
from pgwf.submit_jobs(
  p_worker_id => 'ingest-1',
  p_job_ids => array[:'job_id' || '/left', :'job_id' || '/right'],
  p_next_needs => array['python.part', 'python.part']);
select next_need, cardinality(wait_for) as waits_for
from pgwf.reschedule_job(
  p_job_id => :'job_id',
  p_lease_id => :'lease_id',
  p_worker_id => 'ingest-1',
  p_next_need => 'python.transform',
  p_wait_for => array[:'job_id' || '/left', :'job_id' || '/right']);
select status, cardinality(pending_jobs) as pending from pgwf.jobs_friendly_status where job_id = :'job_id';

\echo '\n4. Both children are done in one call each way; the parent is runnable by itself.'
select c.status
from (
  select array_agg(w.job_id) as job_ids, array_agg(w.lease_id) as lease_ids
  from pgwf.get_work(p_worker_id => 'part-1', p_worker_caps => array['python.part'], p_limit_jobs => 2) as w
) as work
cross join lateral pgwf.complete_jobs('part-1', work.job_ids, work.lease_ids) as c;
select status from pgwf.jobs_with_status where job_id = :'job_id';

\echo '\n5. The transform fleet does its part, keeps its lease meanwhile, and asks for a person.'
select lease_id from pgwf.get_work(p_worker_id => 'transform-1', p_worker_caps => array['python.transform']) \gset
select pgwf.extend_lease(:'job_id', :'lease_id', 'transform-1', 120) > clock_timestamp() as extended;
select next_need
from pgwf.reschedule_job(
  p_job_id => :'job_id',
  p_lease_id => :'lease_id',
  p_worker_id => 'transform-1',
  p_next_need => 'human.review');

\echo '\n6. A person picks this job, whatever its turn, for as long as people take.'
select lease_id
from pgwf.lease_job(
  p_job_id => :'job_id',
  p_worker_id => 'PROD;HUMAN-REVIEW;jim@example.org',
  p_worker_caps => array['human.review'],
  p_lease_seconds => 14400) \gset
select status, worker_id from pgwf.jobs_friendly_status where job_id = :'job_id';
select next_need
from pgwf.reschedule_job(
  p_job_id => :'job_id',
  p_lease_id => :'lease_id',
  p_worker_id => 'PROD;HUMAN-REVIEW;jim@example.org',
  p_next_need => 'python.finalize');

\echo '\n7. The last fleet publishes, and the job is done.'
select lease_id from pgwf.get_work(p_worker_id => 'finalize-1', p_worker_caps => array['python.finalize']) \gset
select pgwf.complete_job(:'job_id', :'lease_id', 'finalize-1') as completed;
select outcome, worker_id, lease_expiration_count as lapses from pgwf.jobs_archive where job_id = :'job_id';

\echo '\nWho did what:'
select row_number() over (order by trace_id) as no, event_type, worker_id, output_data ->> 'next_need' as next_need
from pgwf.jobs_trace
where job_id = :'job_id'
order by trace_id;
rollback;
