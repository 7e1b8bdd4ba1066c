select
  r.n,
  r.run_id,
  r.workflow,
  r.seed,
  (select b.report::text from pgwf_sdk.blocked b where b.n = r.n) as blocked_report
from pgwf.job j
join pgwf_sdk.run r on r.n = j.n
where r.workflow = any (%(workflows)s::text[])
  and (%(before)s::bigint is null or j.n < %(before)s::bigint)
order by j.n desc
limit %(limit)s::int
