select
  e.seq,
  e.key,
  e.kind,
  e.name,
  e.recorded_at,
  case when e.kind = 'attach' then (
    select convert_from(o.payload, 'UTF8')::jsonb ->> 'run_id'
    from pgwf_journal.entry o
    where o.n = e.n and o.seq = e.seq and o.encoding = 1) end as run_id
from pgwf_journal.entries e
where e.n = %(n)s
  and e.phase = 'opened'
  and e.kind <> 'run'
  and not exists (
    select from pgwf_journal.entry o
    where o.n = e.n and o.seq > e.seq and o.scope = e.scope and o.call = e.call and o.phase between 2 and 5)
order by e.seq
limit %(limit)s
