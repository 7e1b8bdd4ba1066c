-- Effect: removes journals and their entries for good.  The caller sees to it that nobody appends to them any more.
create or replace function pgwf_journal._forget(p_n bigint[]) returns void
language plpgsql volatile
as $$
begin
  -- In this order: entries can be removed only once their journal is gone.
  delete from pgwf_journal.journal j where j.n = any (p_n);
  delete from pgwf_journal.entry e where e.n = any (p_n);
end
$$;

-- Effect: the partitions of numbers that callers brought, with the numbers they are for, lowest first.
create or replace function pgwf_journal._partitions() returns table (name text, from_n bigint, to_n bigint)
language sql stable
as $$
  -- Materialized: bounds of somebody else's partitions may be no numbers, and are never to be cast.
  with own as materialized (
    select
      c.relname::text as name,
      regexp_match(pg_catalog.pg_get_expr(c.relpartbound, c.oid), $re$FROM \('?(\d+)'?\) TO \('?(\d+)'?\)$re$) as bounds
    from pg_catalog.pg_inherits i
    join pg_catalog.pg_class c on c.oid = i.inhrelid
    where i.inhparent = 'pgwf_journal.entry'::regclass
  )
  select o.name, o.bounds[1]::bigint, o.bounds[2]::bigint
  from own o
  where o.bounds is not null
  order by 2
$$;
