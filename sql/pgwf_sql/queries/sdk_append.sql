select pgwf_sdk.append(
  p_n => %(n)s::bigint,
  p_lease_id => %(lease_id)s::uuid,
  p_expected_seq => %(expected_seq)s::bigint,
  p_call => %(call)s::int,
  p_kind => %(kind)s::smallint,
  p_phase => %(phase)s::smallint,
  p_scope => %(scope)s::text,
  p_name => %(name)s::text,
  p_occurrence => %(occurrence)s::int,
  p_payload => %(payload)b::bytea,
  p_encoding => %(encoding)s::smallint,
  p_code => %(code)s::int
) as recorded_at
