select pgwf._now() as now_at
