select
  s.n, s.run_id, s.workflow, s.need, s.current_need, s.build, s.seed, s.trace, s.deadline, s.lease_id, s.lease_no,
  s.streak, s.head, s.now_at
from pgwf_sdk.stray_leases(p_worker_id => %(worker_id)s::text, p_known => %(known)s::bigint[]) s
