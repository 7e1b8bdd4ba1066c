select pgwf.limit_key(
  p_key => %(key)s,
  p_worker_id => %(worker_id)s,
  p_max_active => %(max_active)s::int,
  p_rate => %(rate)s::double precision,
  p_burst => %(burst)s::double precision)
