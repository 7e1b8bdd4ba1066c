-- Effect: opens the journal p_journal_id and returns its number; opening it again returns the same number.
-- p_n NULL: the journal gets a number of its own (negative).  p_n given (positive): the caller numbers it and appends
-- through a call of its own that fences writers; append() refuses such a journal.
-- Locks: the id, against another session that opens it at the same time.  Errors: WJ005.  Wake-ups: none.
create or replace function pgwf_journal.open(p_journal_id text, p_n bigint default null) returns bigint
language plpgsql volatile
set search_path = pg_catalog, pg_temp
as $$
declare
  v_n bigint;
begin
  if p_journal_id is null or octet_length(p_journal_id) not between 1 and 512 then
    raise exception using
      errcode = 'WJ005',
      message = format('journal id: found %s bytes, expected 1 to 512', coalesce(octet_length(p_journal_id)::text, 'NULL'));
  end if;
  if p_n <= 0 then
    raise exception using
      errcode = 'WJ005',
      message = format('journal %s: number %s is not positive; pass NULL to let the journal draw its own', p_journal_id, p_n);
  end if;

  insert into pgwf_journal.journal (journal_id, n)
  values (p_journal_id, coalesce(p_n, nextval('pgwf_journal.own_number')))
  on conflict do nothing;

  select j.n into v_n from pgwf_journal.journal j where j.journal_id = p_journal_id;
  if v_n is null or v_n <> p_n then
    raise exception using
      errcode = 'WJ005',
      message = format('journal %s cannot have number %s: %s', p_journal_id, p_n,
        coalesce(format('it is open as number %s', v_n), 'another journal has that number'));
  end if;
  return v_n;
end
$$;

-- Effect: the number of the last entry of journal number p_n; 0 for an empty or unknown one.
create or replace function pgwf_journal._head(p_n bigint) returns bigint
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $$
begin
  return coalesce((select e.seq from pgwf_journal.entry e where e.n = p_n order by e.seq desc limit 1), 0);
end
$$;

-- Effect: the number of an open journal, locked against other appenders until the end of the transaction.
-- Errors: WJ002, WJ003.
create or replace function pgwf_journal._own_number(p_journal_id text) returns bigint
language plpgsql volatile
set search_path = pg_catalog, pg_temp
as $$
declare
  v_n bigint;
begin
  select j.n into v_n from pgwf_journal.journal j where j.journal_id = p_journal_id;
  if v_n is null then
    raise exception using
      errcode = 'WJ002',
      message = format('no journal %s', coalesce(quote_literal(p_journal_id), 'NULL')),
      hint = 'Open it first: select pgwf_journal.open(''...'').';
  end if;
  if v_n > 0 then
    raise exception using
      errcode = 'WJ003',
      message = format('journal %s is numbered by its owner (%s) and takes entries only through the owner''s fenced call', p_journal_id, v_n);
  end if;
  perform pg_advisory_xact_lock(hashtextextended('pgwf_journal.append', v_n));
  return v_n;
end
$$;

-- Effect: whether entries have kinds, phases and encodings that there are, and no NULL among them.
create or replace function pgwf_journal._are_known(p_kinds smallint[], p_phases smallint[], p_encodings smallint[]) returns boolean
language sql immutable
as $$
  select p_kinds <@ '{1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16}'::smallint[] and p_phases <@ '{1,2,3,4,5,6,7}'::smallint[]
    and p_encodings <@ '{0,1,2,3}'::smallint[]
$$;

-- Effect: whether a JSON value is left out, or a whole number that an int can hold.
create or replace function pgwf_journal._is_count(p_value jsonb) returns boolean
language sql immutable
as $$
  select p_value is null or jsonb_typeof(p_value) = 'null'
    or (jsonb_typeof(p_value) = 'number' and p_value::numeric between 0 and 2147483647 and p_value::numeric % 1 = 0)
$$;

-- Effect: appends entries to a journal, all or nothing, after entry p_expected_seq (NULL: after whatever is the last),
-- and returns the new head.  p_entries is a JSON array of objects with name (required), kind (a label of
-- pgwf_journal.kind, default step), phase (default completed), scope, occurrence, call and payload (any JSON value).
-- Locks: the journal, until the end of the transaction.  Errors: WJ001 WJ002 WJ003 WJ005.  Wake-ups: none.
create or replace function pgwf_journal.append(p_journal_id text, p_expected_seq bigint, p_entries jsonb) returns bigint
language plpgsql volatile
set search_path = pg_catalog, pg_temp
as $$
declare
  v_unknown text;
begin
  if jsonb_typeof(p_entries) is distinct from 'array' then
    raise exception using
      errcode = 'WJ005',
      message = format('journal %s: entries are %s, expected a JSON array of objects', p_journal_id, coalesce(jsonb_typeof(p_entries), 'NULL'));
  end if;
  select format('entry %s: %s', e.ord, case
      when jsonb_typeof(e.item) <> 'object' then format('is %s, expected an object', jsonb_typeof(e.item))
      when nullif(e.item ->> 'name', '') is null then 'has no name'
      when k.kind is null then format('kind %L is unknown', left(e.item ->> 'kind', 80))
      when f.phase is null then format('phase %L is unknown', left(e.item ->> 'phase', 80))
      else 'call, occurrence and code are whole numbers of 0 or more' end)
  into v_unknown
  from jsonb_array_elements(p_entries) with ordinality e(item, ord)
  left join pgwf_journal.kind k on k.label = coalesce(e.item ->> 'kind', 'step')
  left join pgwf_journal.phase f on f.label = coalesce(e.item ->> 'phase', 'completed')
  where jsonb_typeof(e.item) <> 'object' or nullif(e.item ->> 'name', '') is null or k.kind is null or f.phase is null
    or not pgwf_journal._is_count(e.item -> 'call') or not pgwf_journal._is_count(e.item -> 'occurrence')
    or not pgwf_journal._is_count(e.item -> 'code')
  order by e.ord
  limit 1;
  if v_unknown is not null then
    raise exception using errcode = 'WJ005', message = format('journal %s: %s', p_journal_id, v_unknown);
  end if;

  return (
    select pgwf_journal.append(
      p_journal_id, p_expected_seq,
      coalesce(array_agg(coalesce((e.item ->> 'call')::int, 0) order by e.ord), '{}'),
      coalesce(array_agg(k.kind order by e.ord), '{}'),
      coalesce(array_agg(f.phase order by e.ord), '{}'),
      coalesce(array_agg(coalesce(e.item ->> 'scope', '') order by e.ord), '{}'),
      coalesce(array_agg(e.item ->> 'name' order by e.ord), '{}'),
      coalesce(array_agg(coalesce((e.item ->> 'occurrence')::int, 1) order by e.ord), '{}'),
      coalesce(array_agg(convert_to((e.item -> 'payload')::text, 'UTF8') order by e.ord), '{}'),
      coalesce(array_agg((case when e.item ? 'payload' then 1 else 0 end)::smallint order by e.ord), '{}'),
      coalesce(array_agg((e.item ->> 'code')::int order by e.ord), '{}'))
    from jsonb_array_elements(p_entries) with ordinality e(item, ord)
    join pgwf_journal.kind k on k.label = coalesce(e.item ->> 'kind', 'step')
    join pgwf_journal.phase f on f.label = coalesce(e.item ->> 'phase', 'completed'));
end
$$;

-- Effect: the same from parallel arrays, one element an entry; payload bytes come back exactly as given.
-- Encoding names how the client wrote the payload (0 no payload, 1 JSON, 2 JSON with type tags).
-- Locks, errors: as the form above; unequal arrays are WJ005.
create or replace function pgwf_journal.append(
  p_journal_id text, p_expected_seq bigint, p_calls int[], p_kinds smallint[], p_phases smallint[], p_scopes text[],
  p_names text[], p_occurrences int[], p_payloads bytea[], p_encodings smallint[], p_codes int[]
) returns bigint
language plpgsql volatile
set search_path = pg_catalog, pg_temp
as $$
declare
  v_count int := cardinality(p_calls);
  v_n bigint;
  v_head bigint;
begin
  if v_count is null or (v_count, v_count, v_count, v_count, v_count, v_count, v_count, v_count) is distinct from
    (cardinality(p_kinds), cardinality(p_phases), cardinality(p_scopes), cardinality(p_names),
     cardinality(p_occurrences), cardinality(p_payloads), cardinality(p_encodings), cardinality(p_codes)) then
    raise exception using
      errcode = 'WJ005',
      message = format('journal %s: the arrays of an append must be of one length, none NULL', p_journal_id);
  end if;
  if greatest(array_ndims(p_calls), array_ndims(p_scopes), array_ndims(p_names), array_ndims(p_occurrences)) > 1 then
    raise exception using
      errcode = 'WJ005',
      message = format('journal %s: the arrays of an append must have one dimension', p_journal_id);
  end if;
  if not pgwf_journal._are_known(p_kinds, p_phases, p_encodings)
    or array_position(p_calls, null) is not null or array_position(p_scopes, null) is not null
    or array_position(p_names, null) is not null or array_position(p_occurrences, null) is not null
  then
    raise exception using
      errcode = 'WJ005',
      message = format('journal %s: entries have NULL, or a kind, phase or encoding that there is not', p_journal_id),
      hint = 'Tables pgwf_journal.kind and pgwf_journal.phase list them; encodings are 0 to 3.';
  end if;
  v_n := pgwf_journal._own_number(p_journal_id);
  -- Read after the lock, in a statement of its own: the snapshot must be younger than the lock.
  v_head := pgwf_journal._head(v_n);
  if v_head <> p_expected_seq then
    raise exception using
      errcode = 'WJ001',
      message = format('journal %s is at entry %s, this writer had read up to %s', p_journal_id, v_head, p_expected_seq),
      detail = jsonb_build_object('expected_seq', p_expected_seq, 'actual_seq', v_head)::text,
      hint = 'Read the new entries and decide again.';
  end if;

  insert into pgwf_journal.entry
    (n, seq, call, kind, phase, scope, name, occurrence, payload, encoding, recorded_at, lease_no, code)
  select v_n, v_head + e.ord, e.call, e.kind, e.phase, e.scope, e.name, e.occurrence, e.payload, e.encoding, pgwf_journal._now(), null, e.code
  from unnest(p_calls, p_kinds, p_phases, p_scopes, p_names, p_occurrences, p_payloads, p_encodings, p_codes)
    with ordinality e(call, kind, phase, scope, name, occurrence, payload, encoding, code, ord);
  return v_head + v_count;
end
$$;

-- Effect: the numbers of the given code positions of one build, made when new.  Called by a client once for each line
-- and kept; on a connection of its own, because an open transaction that made one would hold up everybody else's.
-- Locks: new positions, until the end of the transaction.  Errors: WJ005.
create or replace function pgwf_journal.code_numbers(p_build text, p_files text[], p_lines int[]) returns table (file text, line int, code int)
language plpgsql volatile
set search_path = pg_catalog, pg_temp
as $$
begin
  if p_build is null or octet_length(p_build) > 512 or cardinality(p_files) is distinct from cardinality(p_lines)
    or array_ndims(p_lines) > 1
    or array_position(p_lines, null) is not null
    or exists (select from unnest(p_files) f(path) where f.path is null or octet_length(f.path) > 1024)
  then
    raise exception using
      errcode = 'WJ005',
      message = 'code positions: expected a build of at most 512 bytes, and as many files (at most 1,024 bytes) as lines, none NULL';
  end if;
  insert into pgwf_journal.code (build, file, line)
  select distinct p_build, a.file, a.line
  from unnest(p_files, p_lines) a(file, line)
  where not exists (select from pgwf_journal.code c where c.build = p_build and c.file = a.file and c.line = a.line)
  order by 2, 3
  on conflict do nothing;

  return query
  select c.file, c.line, c.code
  from unnest(p_files, p_lines) a(file, line)
  join pgwf_journal.code c on c.build = p_build and c.file = a.file and c.line = a.line;
end
$$;
