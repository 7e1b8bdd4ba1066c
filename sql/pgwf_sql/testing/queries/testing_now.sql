select pgwf_testing.now_at() as now_at
