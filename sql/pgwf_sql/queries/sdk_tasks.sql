select
  t.task_id,
  t.run_id,
  t.key,
  t.name,
  t.title,
  t.need,
  t.subject::text as subject,
  t.decision_schema::text as decision_schema,
  t.state,
  t.holder,
  t.claim_until,
  t.due_at,
  t.expires_at,
  t.decision::text as decision,
  t.decided_by,
  t.decided_at,
  t.created_at
from pgwf_sdk.tasks t
where (%(need)s::text is null or t.need = %(need)s)
  and (%(state)s::text is null or t.state = %(state)s)
  and (%(run_id)s::text is null or t.run_id = %(run_id)s)
order by t.due_at nulls last, t.created_at, t.task_id
limit %(limit)s
