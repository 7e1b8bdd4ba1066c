select pgwf_testing.end_leases(p_worker_id => %(worker_id)s::text)
