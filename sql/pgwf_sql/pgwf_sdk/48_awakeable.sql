-- Awakeables: a run opens one by an entry of its journal and gives its token away; whoever has the token settles it, once.

-- Effect: the key from which workers derive tokens: token = 'awk_' and, in base64url without padding, the first 18 bytes
-- of HMAC-SHA256(key, run id || 0x00 || key of the call).
create or replace function pgwf_sdk.token_key() returns bytea
language sql stable
set search_path = pg_catalog, pg_temp
as $$ select k.key from pgwf_sdk.token_key k $$;

-- Effect: settles the awakeable of a token: with p_is_failed as failed, p_payload is then an error envelope.  It counts if
-- this call holds the run's row by the deadline, however late its worker looks.  Returns false when the awakeable was settled before;
-- what it was settled with stays.
-- Locks: the run row, then its job.  Errors: WS003 the run is over, WS004, WS020, WS021.  Wake-ups: the run's.
create or replace function pgwf_sdk.settle_awakeable(p_token text, p_payload bytea, p_encoding int, p_is_failed boolean default false)
returns boolean
language plpgsql volatile
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set enable_bitmapscan = off
set jit = off
set plan_cache_mode = force_generic_plan
as $$
declare
  v_awakeable pgwf_sdk.awakeable;
  v_now timestamptz;
  v_phase smallint := case when p_is_failed then 3 else 2 end;
begin
  if p_encoding is null or p_encoding not in (0, 1, 2, 3) or p_is_failed is null
    or (p_encoding = 0) <> (p_payload is null) or (p_is_failed and p_encoding = 0)
    or (p_encoding <> 0 and not pgwf_sdk._is_json(p_payload))
  then
    raise exception using
      errcode = 'WS004',
      message = format('awakeable: found %s in encoding %s, expected JSON in encoding 1 (JSON), 2 (tagged JSON) or 3 (sealed), or no value in encoding 0',
        coalesce(quote_literal(left(encode(p_payload, 'escape'), 80)), 'NULL'), coalesce(p_encoding::text, 'NULL')),
      hint = 'An awakeable that fails needs an error: {"type": ..., "message": ...}.';
  end if;

  select * into v_awakeable from pgwf_sdk.awakeable a where a.token_hash = sha256(convert_to(p_token, 'UTF8'));
  if v_awakeable.n is null then
    raise exception using
      errcode = 'WS020',
      message = format('no awakeable with the token %s', coalesce(quote_literal(left(p_token, 8) || '...'), 'NULL')),
      hint = 'Was it copied whole? A retry of the run gives out tokens of its own.';
  end if;

  -- Whoever settles or gives up an awakeable holds its run's row, so it is read again under the lock.
  perform pgwf_sdk._lock_runs(array[v_awakeable.n]);
  v_now := pgwf_sdk._now();
  select * into v_awakeable from pgwf_sdk.awakeable a where a.token_hash = v_awakeable.token_hash;
  if v_awakeable.state in ('completed', 'failed') then
    return false;
  end if;
  if v_awakeable.state <> 'open' or v_awakeable.deadline < v_now then
    raise exception using
      errcode = 'WS021',
      message = format('awakeable %s of run %s is not open any more: %s', v_awakeable.key,
        (select r.run_id from pgwf_sdk.run r where r.n = v_awakeable.n),
        case v_awakeable.state when 'cancelled' then 'its run waits for it no longer'
          else format('its time ended at %s', v_awakeable.deadline) end);
  end if;
  if not pgwf_sdk._send(v_awakeable.n, 5::smallint, v_awakeable.key, v_phase, p_payload, p_encoding::smallint, v_now) then
    raise exception using
      errcode = 'WS003',
      message = (select format('awakeable %s: the run %s is over (%s)', v_awakeable.key, r.run_id, r.status)
        from pgwf_sdk.run r where r.n = v_awakeable.n);
  end if;
  update pgwf_sdk.awakeable a set state = case when p_is_failed then 'failed' else 'completed' end
  where a.token_hash = v_awakeable.token_hash;
  return true;
end
$$;

-- Effect: completes an awakeable with a JSON value, from SQL.  Returns, locks, wake-ups: as settle_awakeable.
-- Errors: WS003, WS004, WS020, WS021.
create or replace function pgwf_sdk.complete_awakeable(p_token text, p_value jsonb default 'null') returns boolean
language sql volatile
set search_path = pg_catalog, pg_temp
as $$
  select pgwf_sdk.settle_awakeable(p_token, convert_to(p_value::text, 'UTF8'), 1)
$$;

-- Effect: fails an awakeable, from SQL: who waits for it gets AwakeableFailedError with this message.
-- Returns, locks, wake-ups: as settle_awakeable.
-- Errors: WS003, WS004, WS020, WS021.
create or replace function pgwf_sdk.fail_awakeable(p_token text, p_message text) returns boolean
language sql volatile
set search_path = pg_catalog, pg_temp
as $$
  select pgwf_sdk.settle_awakeable(p_token, convert_to(jsonb_build_object('type', 'pgwf_sdk:AwakeableFailedError',
    'message', p_message, 'args', jsonb_build_array(p_message))::text, 'UTF8'), 1, true)
$$;
