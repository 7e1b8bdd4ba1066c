select
  pgwf.worker_heartbeat(
    p_worker_id => %(worker_id)s::text,
    p_capabilities => %(capabilities)s::text[],
    p_build => %(build)s::text,
    p_slots => %(slots)s::int,
    p_slots_used => %(slots_used)s::int
  ) as is_draining,
  pgwf.sweep(p_worker_id => %(worker_id)s::text, p_limit => %(sweep_max)s::int) as moved,
  pgwf_sdk.end_overdue(p_worker_id => %(worker_id)s::text) as ended,
  pgwf_sdk.escalate_tasks(p_worker_id => %(worker_id)s::text, p_limit => %(escalations_max)s::int) as escalated,
  pgwf_sdk.limited_needs(%(capabilities)s::text[]) as limited_needs,
  extract(epoch from least(
    pgwf.next_wakeup('{}'),
    pgwf_sdk.next_overdue()) - pgwf._now())::double precision as due_seconds,
  case when %(watches_tokens)s::boolean then
    extract(epoch from pgwf.next_wakeup(%(capabilities)s::text[]) - pgwf._now())::double precision
  end as token_seconds
