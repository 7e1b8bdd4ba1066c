select m.job_id as run_id
from pgwf.name m
join pgwf_sdk.run r on r.n = m.n
where m.job_id >= %(prefix)s
  and m.job_id < %(prefix)s || chr(1114111)
order by m.job_id
limit %(limit)s
