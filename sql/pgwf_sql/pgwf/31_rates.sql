-- Rates of needs and keys: a bucket gets p_rate tokens a second, holds at most p_burst, and a start takes one.

-- Tokens in the bucket of a need or key (p_kind), NULL when it has no rate. The newest row counts, read backwards in
-- one descent.
create or replace function pgwf._tokens(
  p_kind text, p_name text, p_rate double precision, p_burst double precision, p_now timestamptz
)
returns double precision
language sql
stable
as $$
  select case
    when p_rate is not null then least(
      p_burst,
      coalesce((
        -- Within these bounds no product overflows or underflows, which would fail every claim.
        select b.tokens + least(greatest(p_rate, 1e-15), 1e15) * greatest(extract(epoch from p_now - b.filled_at), 0)
        from pgwf.bucket as b
        where b.kind = p_kind
          and b.name = p_name
        order by b.gen desc
        limit 1
      ), p_burst))
  end
$$;

-- When a bucket that is not full has one whole token more than now.
create or replace function pgwf._token_at(p_tokens double precision, p_rate double precision, p_now timestamptz)
returns timestamptz
language sql
stable
as $$
  -- A rate may be as low as one likes, an interval is not as long as one likes.
  select p_now + make_interval(secs => least((floor(p_tokens) + 1 - p_tokens) / greatest(p_rate, 1e-15), 1e9))
$$;

-- Takes a token for each started job out of the buckets of those needs or keys that have a rate; each is named once
-- for each of its jobs. The caller holds their locks.
create or replace function pgwf._spend(p_kind text, p_names text[], p_now timestamptz)
returns void
language plpgsql
volatile
as $$
begin
  insert into pgwf.bucket (kind, name, tokens, filled_at)
  select
    p_kind,
    t.name,
    pgwf._tokens(p_kind, t.name, s.rate, s.burst, p_now) - t.starts,
    greatest(p_now, (
      select b.filled_at from pgwf.bucket as b where b.kind = p_kind and b.name = t.name order by b.gen desc limit 1))
  from (select u.name, count(*) as starts from unnest(p_names) as u(name) group by u.name) as t
  cross join lateral (
    select n.rate, n.burst from pgwf.need_setting as n where p_kind = 'need' and n.need = t.name
    union all
    select k.rate, k.burst from pgwf.key_setting as k where p_kind = 'key' and k.singleton_key = t.name
  ) as s
  where s.rate is not null;
end
$$;
