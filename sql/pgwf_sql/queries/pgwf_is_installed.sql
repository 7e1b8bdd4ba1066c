select pg_catalog.to_regclass('pgwf.schema_version') is not null
