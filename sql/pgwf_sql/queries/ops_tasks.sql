select
  t.task_id,
  t.run_id,
  t.key,
  t.name,
  t.title,
  t.need,
  t.first_need,
  t.escalate_need,
  t.escalated_at,
  t.subject,
  t.decision_schema::text as decision_schema,
  t.prefill::text as prefill,
  t.assigned,
  t.excluded,
  t.state,
  t.holder,
  t.claim_until,
  t.due_at,
  t.is_undecided and coalesce(t.due_at < pgwf._now(), false) as is_overdue,
  nullif(t.expires_at, 'infinity') as expires_at,
  t.decision,
  t.decided_by,
  t.decided_at,
  t.created_at
from pgwf_sdk.tasks t
-- Constant for each call, so what is undecided is read in the order of its index, no further than the limit.
where (t.is_undecided or not %(is_undecided)s::boolean)
  and (%(states)s::text[] is null or t.state = any (%(states)s::text[]))
  and (%(need)s::text is null or t.need = %(need)s::text)
  and (%(holder)s::text is null or t.holder = %(holder)s::text)
  and (not %(is_overdue)s::boolean or t.due_at < pgwf._now())
  and (%(run_n)s::bigint is null or t.run_n = %(run_n)s::bigint)
order by t.due_at nulls last, t.created_at, t.task_id
limit %(limit)s
