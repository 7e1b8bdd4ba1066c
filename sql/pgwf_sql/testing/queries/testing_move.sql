select
  pgwf_testing.move(
    p_worker_id => %(worker_id)s::text, p_needs => %(needs)s::text[], p_until => %(until)s::timestamptz) as moved,
  pgwf_testing.now_at() as now_at
