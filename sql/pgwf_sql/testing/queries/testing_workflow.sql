select r.workflow from pgwf_sdk.run as r where r.n = %(n)s::bigint
