select
  pgwf._now() as asked_at,
  b.note,
  (select s.run_id from pgwf_sdk.run s where s.n = b.successor) as successor,
  j.last_error,
  coalesce(c.recorded_at, i.received_at) as cancel_at,
  coalesce(c.by, i.name) as cancel_by,
  coalesce(c.reason, i.reason) as cancel_reason,
  b.grace_until,
  (select coalesce(l.report ->> 'text', l.report::text) from pgwf_sdk.blocked l where l.n = b.n) as blocked_report,
  (select count(*) from pgwf.worker w
    where j.need = any (w.capabilities) and not w.draining
      and w.heartbeat_at > pgwf._now() - make_interval(secs => %(live_seconds)s))::int as live_workers,
  (select max(w.heartbeat_at) from pgwf.worker w where j.need = any (w.capabilities)) as last_worker_seen_at,
  coalesce((select s.paused from pgwf.need_setting s where s.need = j.need), false) as is_need_paused,
  (select s.max_active from pgwf.need_setting s where s.need = j.need) as max_active,
  (select s.rate from pgwf.need_setting s where s.need = j.need) as rate,
  (select count(*) from pgwf.lease l where l.need = j.need and l.capped)::int as active,
  (select count(*) from pgwf.held h where h.singleton_key = j.singleton_key)::int as key_active,
  coalesce((select k.max_active from pgwf.key_setting k where k.singleton_key = j.singleton_key), 1) as key_max_active,
  (select k.next_token_at from pgwf.key_setting k where k.singleton_key = j.singleton_key) as key_token_at,
  (select count(*) from (
    select from pgwf.ready q
    where q.need = j.need and q.priority <= j.priority and q.ready_at <= pgwf._now() and q.n <> b.n
    limit %(count_max)s) ahead)::int as ready_with_same_need
from pgwf_sdk.run b
left join pgwf.job j on j.n = b.n
left join lateral (
  select i.received_at, i.name, convert_from(i.payload, 'UTF8')::json ->> 'reason' as reason from pgwf_sdk.inbox i where i.n = b.n and i.kind = 11 limit 1
) i on true
left join lateral (
  select e.recorded_at, convert_from(e.payload, 'UTF8')::json ->> 'by' as by,
    convert_from(e.payload, 'UTF8')::json ->> 'reason' as reason
  from pgwf_journal.entry e
  where e.n = b.n and e.kind = 11
  limit 1
) c on true
where b.n = %(n)s
