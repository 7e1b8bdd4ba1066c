select
  e.seq,
  e.key,
  e.kind,
  e.name,
  e.recorded_at,
  coalesce(
    (wait.said ->> 'until')::timestamptz,
    e.recorded_at + (wait.said ->> 'microseconds')::double precision * interval '1 microsecond') as ends_at,
  wait.said ->> 'run_id' as run_id
from pgwf_journal.entries e
left join lateral (
  select convert_from(o.payload, 'UTF8')::jsonb as said
  from pgwf_journal.entry o
  where o.n = e.n and o.seq = e.seq and o.encoding = 1 and e.kind in ('timer', 'signal', 'awakeable', 'attach')
) wait on true
where e.n = %(n)s
  and e.phase = 'opened'
  and e.kind <> 'run'
  and not exists (
    select from pgwf_journal.entry o
    where o.n = e.n and o.seq > e.seq and o.scope = e.scope and o.call = e.call and o.phase between 2 and 5)
order by e.seq
limit %(limit)s
