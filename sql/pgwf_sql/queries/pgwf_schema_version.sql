select pgwf.schema_version()
