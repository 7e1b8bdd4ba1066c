select pgwf.worker_heartbeat(
  p_worker_id => %(worker_id)s,
  p_capabilities => %(capabilities)s::text[],
  p_build => %(build)s,
  p_slots => %(slots)s::int,
  p_slots_used => %(slots_used)s::int,
  p_details => %(details)s::jsonb)
