select pgwf_journal.append(
  p_journal_id => %(journal_id)s,
  p_expected_seq => %(expected_seq)s::bigint,
  p_calls => %(calls)s::int[],
  p_kinds => %(kinds)s::smallint[],
  p_phases => %(phases)s::smallint[],
  p_scopes => %(scopes)s::text[],
  p_names => %(names)s::text[],
  p_occurrences => %(occurrences)s::int[],
  p_payloads => %(payloads)s::bytea[],
  p_encodings => %(encodings)s::smallint[],
  p_codes => %(codes)s::int[])
