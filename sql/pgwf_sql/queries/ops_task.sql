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
where t.task_id >= %(prefix)s
  and t.task_id < %(prefix)s || chr(1114111)
order by t.task_id
limit 2
