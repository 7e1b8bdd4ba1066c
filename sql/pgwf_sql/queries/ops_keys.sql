with recursive waited_for as (
  (select p.singleton_key from pgwf.parked p order by p.singleton_key limit 1)
  union all
  select (
    select p.singleton_key from pgwf.parked p where p.singleton_key > k.singleton_key order by p.singleton_key limit 1)
  from waited_for k
  where k.singleton_key is not null
), keys as (
  select k.singleton_key from waited_for k where k.singleton_key is not null
  union
  select h.singleton_key from pgwf.held h
  union
  select s.singleton_key from pgwf.key_setting s
)
select
  k.singleton_key,
  (select count(*) from pgwf.held h where h.singleton_key = k.singleton_key)::int as running,
  (select count(*) from (
    select from pgwf.parked p where p.singleton_key = k.singleton_key limit %(count_max)s) counted)::int as waiting,
  s.max_active,
  s.rate
from keys k
left join pgwf.key_setting s on s.singleton_key = k.singleton_key
order by k.singleton_key
limit %(limit)s
