-- Effect: functions that this script did not just make are of an older version and go: a changed signature would
-- otherwise leave its old overload behind, and calls would be ambiguous. What this transaction or a savepoint of it made
-- has an xmin that is not older than the transaction's own. Names of the previous minor version are still in the script.
do $$
declare
  v_function regprocedure;
begin
  for v_function in
    select p.oid::regprocedure
    from pg_catalog.pg_proc p
    where p.pronamespace = any (array['pgwf', 'pgwf_journal', 'pgwf_sdk']::regnamespace[])
      and pg_catalog.age(p.xmin) > 0
  loop
    execute format('drop function %s', v_function);
  end loop;
end
$$;
