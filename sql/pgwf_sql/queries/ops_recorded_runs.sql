select
  r.n,
  r.run_id,
  r.workflow,
  r.seed,
  (select b.report::text from pgwf_sdk.blocked b where b.n = r.n) as blocked_report
from pgwf_sdk.run r
where r.workflow = any (%(workflows)s::text[])
  and (%(before)s::bigint is null or r.n < %(before)s::bigint)
order by r.n desc
limit %(limit)s::int
