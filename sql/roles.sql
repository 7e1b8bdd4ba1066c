-- Create the roles with psql alone, after install.sql and again after each upgrade: psql -f sql/roles.sql
\set ON_ERROR_STOP on
begin;
set local client_min_messages = warning;
\ir pgwf_sql/pgwf/60_roles.sql
commit;
