-- Effect: what advance does for one item that keeps its lease and appends one entry: the step of a run that is alone.
-- It does so in two statements, with the same locks and answers: status ok, fenced or conflict.
-- Locks: the lease.  Errors: WS004; 55P03 when the lease was held by others for longer than 100 ms.
create or replace function pgwf_sdk.append_entry(
  p_n bigint, p_lease_id uuid, p_expected_seq bigint, p_call int, p_kind smallint, p_phase smallint, p_scope text, p_name text,
  p_occurrence int, p_payload bytea, p_encoding smallint, p_code int, out status text, out now_at timestamptz
)
language plpgsql volatile
set search_path = pg_catalog, pg_temp
set lock_timeout = '100ms'
set enable_seqscan = off
set enable_bitmapscan = off
set jit = off
set plan_cache_mode = force_generic_plan
as $$
declare
  v_lease_no bigint;
begin
  if not coalesce(pgwf_journal._are_known(array[p_kind], array[p_phase], array[p_encoding]), false)
    or p_call is null or p_scope is null or p_name is null or p_occurrence is null
  then
    raise exception using errcode = 'WS004', message = 'append_entry: the entry has NULL, or a kind, phase or encoding that there is not';
  end if;
  if current_setting('transaction_isolation') <> 'read committed' then
    raise exception using
      errcode = 'WS004', message = format('append_entry runs at read committed, found %s', current_setting('transaction_isolation'));
  end if;
  now_at := pgwf_sdk._now();
  select l.lease_no into v_lease_no from pgwf.lease l where l.n = p_n and l.lease_id = p_lease_id for no key update;
  if not found then
    status := 'fenced';
    return;
  end if;
  -- In a statement of its own: its snapshot is younger than the lock, so the head is final for this call, and a look at it
  -- costs less than ON CONFLICT, which writes twice to the log. It is where the caller says when nothing follows that entry.
  insert into pgwf_journal.entry
    (n, seq, call, kind, phase, scope, name, occurrence, payload, encoding, recorded_at, lease_no, code)
  select p_n, p_expected_seq + 1, p_call, p_kind, p_phase, p_scope, p_name, p_occurrence, p_payload, p_encoding, now_at, v_lease_no, p_code
  where array[p_expected_seq] = array(select e.seq from pgwf_journal.entry e where e.n = p_n and e.seq >= p_expected_seq);
  status := case when found then 'ok' else 'conflict' end;
  if p_kind in (5, 10) and status = 'ok' then
    perform pgwf_sdk._project(array[p_n], now_at, array[1], array[p_kind], array[p_phase], array[p_scope], array[p_name],
      array[p_occurrence], array[p_payload], array[p_encoding]);
  end if;
end
$$;
