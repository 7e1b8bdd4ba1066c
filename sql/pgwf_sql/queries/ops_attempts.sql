select
  t.key,
  t.no as number,
  t.first_at,
  t.next_at,
  case when t.error is not null then convert_from(t.error, 'UTF8') end as error
from pgwf_sdk.attempt t
where t.n = %(n)s
order by t.next_at, t.key
