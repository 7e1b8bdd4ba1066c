select pgwf_sdk.decision_schema(p_task_id => %(task_id)s)::text as decision_schema
