-- Effect: what advance does for one item that keeps its lease and appends one entry of a kind that changes nothing else: the
-- step of a run that is alone.  Returns when it was recorded; NULL when nothing was written: the lease is not held, or the
-- entry is none of these. What that is, advance tells.
-- The caller has heard in this session that p_expected_seq is the head. What was appended since is in the way (23505); that
-- the journal has less would not be noticed: to look costs a tenth of the call.
-- No settings: to set and reset them costs another tenth. The session has those of advance (sdk_session.sql), and names are
-- written out, operators too, so that no search_path leads to others.
-- Locks: the lease.  Errors: 23502; 23505; 55P03 when the lease was held by others for longer than the session's lock_timeout.
create or replace function pgwf_sdk.append(
  p_n bigint, p_lease_id uuid, p_expected_seq bigint, p_call int, p_kind smallint, p_phase smallint, p_scope text, p_name text,
  p_occurrence int, p_payload bytea, p_encoding smallint, p_code int
) returns timestamptz
language plpgsql volatile
as $$
declare
  v_recorded_at pg_catalog.timestamptz;
begin
  -- One statement is enough: a look at the head would need one of its own, younger than the lock; the key of entries is as good.
  insert into pgwf_journal.entry
    (n, seq, call, kind, phase, scope, name, occurrence, payload, encoding, recorded_at, lease_no, code)
  select l.n, p_expected_seq operator(pg_catalog.+) 1, p_call, p_kind, p_phase, p_scope, p_name, p_occurrence, p_payload, p_encoding,
    pgwf_sdk._now(), l.lease_no, p_code
  from pgwf.lease as l
  where l.n operator(pg_catalog.=) p_n
    and l.lease_id operator(pg_catalog.=) p_lease_id
    and p_expected_seq operator(pg_catalog.>) 0 and p_expected_seq operator(pg_catalog.<) 9223372036854775807
    and p_call operator(pg_catalog.>=) 0
    and p_kind operator(pg_catalog.=) any ('{2,3,4,6,7,8,9,13,14,16}'::pg_catalog.int2[])
    and p_phase operator(pg_catalog.=) any ('{1,2,3,4,5,6,7}'::pg_catalog.int2[])
    and p_encoding operator(pg_catalog.=) any ('{0,1,2,3}'::pg_catalog.int2[])
  for no key update
  returning recorded_at into v_recorded_at;
  return v_recorded_at;
end
$$;
