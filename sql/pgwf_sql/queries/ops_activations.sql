with written as (
  select e.lease_no, min(e.recorded_at) as first_at, max(e.recorded_at) as last_at
  from pgwf_journal.entry e
  where e.n = %(n)s and e.lease_no is not null
  group by e.lease_no
), traced as (
  select
    t.lease_no,
    min(t.worker_id) filter (where t.event_type in ('get_work', 'lease_job')) as worker_id,
    min(t.event_at) filter (where t.event_type in ('get_work', 'lease_job')) as started_at,
    max(t.event_at) filter (where t.event_type in ('lease_lapsed', 'reschedule_job', 'release_job', 'complete_job')) as ended_at,
    max(t.event_type) filter (where t.event_type in ('lease_lapsed', 'reschedule_job', 'release_job', 'complete_job')) as ended_by
  from pgwf.trace t
  where t.n = %(n)s and t.lease_no is not null
  group by t.lease_no
), held as (
  select l.lease_no, l.worker_id, l.leased_at, l.until
  from pgwf.lease l
  where l.n = %(n)s
)
select
  lease_no,
  coalesce(h.worker_id, t.worker_id) as worker_id,
  coalesce(h.leased_at, t.started_at, w.first_at) as started_at,
  case
    when h.lease_no is null then coalesce(t.ended_at, w.last_at, t.started_at)
    when h.until <= pgwf._now() then h.until
  end as ended_at,
  case
    when h.until <= pgwf._now() then 'lease_lapsed'
    when h.lease_no is null then t.ended_by
  end as ended_by
from written w
full join traced t using (lease_no)
full join held h using (lease_no)
order by lease_no
