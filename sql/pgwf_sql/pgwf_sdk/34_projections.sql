-- Entries of some kinds say something that others look for in a table of its own; both are written in one transaction.

-- Effect: awakeables that entries open or give up, and attributes that they set.  p_n: as in _append.
create or replace function pgwf_sdk._project(
  p_n bigint[], p_now timestamptz, p_items int[], p_kinds smallint[], p_phases smallint[], p_scopes text[], p_names text[],
  p_occurrences int[], p_payloads bytea[], p_encodings smallint[]
) returns void
language plpgsql volatile
as $$
begin
  insert into pgwf_sdk.awakeable (token_hash, n, key, deadline)
  select decode(o.details ->> 'token_hash', 'hex'), o.n, o.key,
    p_now + make_interval(secs => (o.details ->> 'microseconds')::double precision / 1e6)
  from (
    select p_n[e.item] as n, concat(e.scope, '/awakeable:', e.name, '#', e.occurrence) as key,
      convert_from(e.payload, 'UTF8')::jsonb as details
    from unnest(p_items, p_kinds, p_phases, p_scopes, p_names, p_occurrences, p_payloads)
      e(item, kind, phase, scope, name, occurrence, payload)
    where e.kind = 5 and e.phase = 1 and p_n[e.item] is not null
  ) o;

  update pgwf_sdk.awakeable a
  set state = case e.phase when 4 then 'expired' else 'cancelled' end
  from unnest(p_items, p_kinds, p_phases, p_scopes, p_names, p_occurrences) e(item, kind, phase, scope, name, occurrence)
  where e.kind = 5 and e.phase in (4, 5)
    and a.n = p_n[e.item] and a.key = concat(e.scope, '/awakeable:', e.name, '#', e.occurrence) and a.state = 'open';

  -- Of several entries for one attribute the last one counts; no value takes it away.
  with said as (
    select distinct on (p_n[e.item], e.name) p_n[e.item] as n, e.name,
      case when e.encoding <> 0 then convert_from(e.payload, 'UTF8')::jsonb end as value
    from unnest(p_items, p_kinds, p_names, p_payloads, p_encodings) with ordinality e(item, kind, name, payload, encoding, ord)
    where e.kind = 10 and p_n[e.item] is not null
    order by p_n[e.item], e.name, e.ord desc
  ), taken_away as (
    delete from pgwf_sdk.attribute a using said s where s.value is null and a.n = s.n and a.name = s.name
  )
  insert into pgwf_sdk.attribute (n, name, value)
  select s.n, s.name, s.value
  from said s
  where s.value is not null
  order by s.n, s.name
  on conflict (n, name) do update set value = excluded.value;
end
$$;

-- Effect: a run that goes on as another one can be found by the same attributes.
create or replace function pgwf_sdk._copy_attributes(p_from bigint, p_to bigint) returns void
language plpgsql volatile
as $$
begin
  insert into pgwf_sdk.attribute (n, name, value)
  select p_to, a.name, a.value
  from pgwf_sdk.attribute a
  where a.n = p_from
  on conflict do nothing;
end
$$;
