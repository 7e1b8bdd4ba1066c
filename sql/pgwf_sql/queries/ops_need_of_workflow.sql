select r.need
from pgwf_sdk.run r
where r.workflow = %(workflow)s
order by r.n desc
limit 1
