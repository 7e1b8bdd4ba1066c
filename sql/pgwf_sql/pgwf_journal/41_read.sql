-- Effect: up to p_limit entries of a journal after entry p_after_seq, in order.  An unknown journal has none.
create or replace function pgwf_journal.read(p_journal_id text, p_after_seq bigint default 0, p_limit int default 10000)
returns setof pgwf_journal.entry
language sql stable
set search_path = pg_catalog, pg_temp
as $$
  select e.*
  from pgwf_journal.entry e
  where e.n = (select j.n from pgwf_journal.journal j where j.journal_id = p_journal_id)
    and e.seq > coalesce(p_after_seq, 0)
  order by e.seq
  limit greatest(p_limit, 0)
$$;

-- Effect: the number of the last entry of a journal; 0 when it is empty.  Errors: WJ002.
create or replace function pgwf_journal.head(p_journal_id text) returns bigint
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $$
declare
  v_n bigint;
begin
  select j.n into v_n from pgwf_journal.journal j where j.journal_id = p_journal_id;
  if v_n is null then
    raise exception using errcode = 'WJ002', message = format('no journal %s', coalesce(quote_literal(p_journal_id), 'NULL'));
  end if;
  return pgwf_journal._head(v_n);
end
$$;

-- Effect: the key of an entry as people and the SDK write it, such as /step:charge#1.
create or replace function pgwf_journal.entry_key(p_scope text, p_kind smallint, p_name text, p_occurrence int) returns text
language sql stable
set search_path = pg_catalog, pg_temp
as $$
  select concat(p_scope, '/', (select k.label from pgwf_journal.kind k where k.kind = p_kind), ':', p_name, '#', p_occurrence)
$$;

-- The journal for people: keys, words for kind and phase, payload as text (NULL when it is not text).
create or replace view pgwf_journal.entries as
select
  j.journal_id,
  e.n,
  e.seq,
  concat(e.scope, '/', k.label, ':', e.name, '#', e.occurrence) as key,
  k.label as kind,
  f.label as phase,
  e.scope,
  e.name,
  e.occurrence,
  e.call,
  case when e.encoding in (1, 2, 3) then convert_from(e.payload, 'UTF8') end as payload,
  e.encoding,
  e.recorded_at,
  e.lease_no,
  c.file as code_file,
  c.line as code_line
from pgwf_journal.entry e
join pgwf_journal.kind k on k.kind = e.kind
join pgwf_journal.phase f on f.phase = e.phase
left join pgwf_journal.journal j on j.n = e.n
left join pgwf_journal.code c on c.code = e.code;
