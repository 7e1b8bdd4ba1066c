-- Install pgwf with psql alone: psql -f sql/install.sql. One transaction; a second run changes nothing.
-- The same files, in the same order, as pgwf_sql.script(). Roles are created by roles.sql, on request.
\set ON_ERROR_STOP on
begin;
set local client_min_messages = warning;
\ir pgwf_sql/pgwf/10_schema.sql
\ir pgwf_sql/pgwf/20_tables.sql
\ir pgwf_sql/pgwf/30_guards.sql
\ir pgwf_sql/pgwf/31_rates.sql
\ir pgwf_sql/pgwf/31_wakeup.sql
\ir pgwf_sql/pgwf/32_keys.sql
\ir pgwf_sql/pgwf/33_places.sql
\ir pgwf_sql/pgwf/34_dependencies.sql
\ir pgwf_sql/pgwf/35_trace.sql
\ir pgwf_sql/pgwf/40_submit.sql
\ir pgwf_sql/pgwf/41_claim.sql
\ir pgwf_sql/pgwf/42_lease.sql
\ir pgwf_sql/pgwf/43_reschedule.sql
\ir pgwf_sql/pgwf/44_complete.sql
\ir pgwf_sql/pgwf/45_unheld.sql
\ir pgwf_sql/pgwf/46_cancel.sql
\ir pgwf_sql/pgwf/47_sweep.sql
\ir pgwf_sql/pgwf/48_crash.sql
\ir pgwf_sql/pgwf/49_limits.sql
\ir pgwf_sql/pgwf/50_workers.sql
\ir pgwf_sql/pgwf/51_views.sql
\ir pgwf_sql/pgwf/52_check.sql
\ir pgwf_sql/pgwf/53_plans.sql
\ir pgwf_sql/pgwf/55_retention.sql
\ir pgwf_sql/pgwf_journal/20_tables.sql
\ir pgwf_sql/pgwf_journal/40_append.sql
\ir pgwf_sql/pgwf_journal/41_read.sql
\ir pgwf_sql/pgwf_journal/42_retention.sql
\ir pgwf_sql/pgwf_sdk/20_tables.sql
\ir pgwf_sql/pgwf_sdk/30_internals.sql
\ir pgwf_sql/pgwf_sdk/31_admission.sql
\ir pgwf_sql/pgwf_sdk/31_advance.sql
\ir pgwf_sql/pgwf_sdk/32_settle.sql
\ir pgwf_sql/pgwf_sdk/33_dispose.sql
\ir pgwf_sql/pgwf_sdk/34_chain.sql
\ir pgwf_sql/pgwf_sdk/34_projections.sql
\ir pgwf_sql/pgwf_sdk/35_append.sql
\ir pgwf_sql/pgwf_sdk/36_attach.sql
\ir pgwf_sql/pgwf_sdk/40_start.sql
\ir pgwf_sql/pgwf_sdk/41_signal.sql
\ir pgwf_sql/pgwf_sdk/42_control.sql
\ir pgwf_sql/pgwf_sdk/43_human.sql
\ir pgwf_sql/pgwf_sdk/44_keepalive.sql
\ir pgwf_sql/pgwf_sdk/45_fork.sql
\ir pgwf_sql/pgwf_sdk/46_many.sql
\ir pgwf_sql/pgwf_sdk/47_retention.sql
\ir pgwf_sql/pgwf_sdk/48_awakeable.sql
\ir pgwf_sql/pgwf_sdk/50_views.sql
\ir pgwf_sql/pgwf_sdk/90_obsolete.sql
commit;
