select pg_catalog.pg_snapshot_xmin(pg_catalog.pg_current_snapshot()) >= %(xid)s::xid8 as is_past
