"""Fixtures of the leasing core's tests. Every test of fixture `pgwf` ends with a look at the invariants."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from pgwf import Client
from tests.pgwf.leasing import Leasing
from tests.pgwf.racing import Racer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.pooler import Pooler
    from tests.support import Clock, Databases, Session

RESET = """
do $$
declare
  v_name regclass;
begin
  for v_name in
    select c.oid::regclass
    from pg_class as c
    where c.relnamespace = 'pgwf'::regnamespace
      and c.relkind in ('r', 'p')
      and not c.relispartition
      and c.relname <> 'schema_version'
  loop
    execute 'delete from ' || v_name;
  end loop;
  insert into pgwf.setting default values;
  for v_name in
    select c.oid::regclass from pg_class as c where c.relnamespace = 'pgwf'::regnamespace and c.relkind = 'S'
  loop
    execute 'alter sequence ' || v_name || ' restart';
  end loop;
  drop schema if exists test_clock cascade;
  create or replace function pgwf._now() returns timestamptz language sql volatile as 'select clock_timestamp()';
end
$$
"""


@pytest.fixture(scope="session")
def leasing_dsn(databases: Databases) -> Iterator[str]:
    """A database that the tests of this folder share, one after the other: emptying it is faster than a new one."""
    with databases.fresh() as dsn:
        yield dsn


@pytest.fixture
def database(leasing_dsn: str, pooler: Pooler | None) -> str:
    """The connection string of an empty leasing core, with nobody else connected."""
    if pooler is not None:
        pooler.forget(leasing_dsn)
    with psycopg.connect(leasing_dsn, autocommit=True) as conn:
        conn.execute(
            "select pg_terminate_backend(pid, 10000) from pg_stat_activity"
            " where datname = current_database() and pid <> pg_backend_pid()"
        )
        conn.execute(RESET)
    return leasing_dsn


@pytest.fixture
def reset() -> str:
    """The statement that empties a leasing core."""
    return RESET


@pytest.fixture
def own_database(databases: Databases) -> Iterator[str]:
    """A database of the test's own, for tests that change the schema."""
    with databases.fresh() as dsn:
        yield dsn


@pytest.fixture
def empty_database(databases: Databases) -> Iterator[str]:
    """A database without any schema of ours."""
    with databases.fresh(template="template0") as dsn:
        yield dsn


@pytest.fixture
def pgwf(db: psycopg.Connection[Any], clock: Clock) -> Iterator[Leasing]:
    """The leasing core of this test's database. Its clock stands still; move it with `clock`."""
    leasing = Leasing(db)
    yield leasing
    if db.closed:
        return
    db.rollback()
    assert leasing.broken() == []


@pytest.fixture
def lapsed(pgwf: Leasing, clock: Clock) -> dict[str, Any]:
    """A lease of job `a` whose time is over; no sweep has ended it."""
    pgwf.submit("a")
    lease = pgwf.take(seconds=60)
    clock.advance(seconds=60)
    return lease


@pytest.fixture
def client(dsn: str, database: str) -> Iterator[Client]:
    """A client that hears notifications, also behind a pooler."""
    with Client(dsn, listen_dsn=database) as client:
        yield client


@pytest.fixture
def racers(session: Callable[[], Session]) -> tuple[Racer, Racer]:
    """Two sessions on this test's database that race."""
    return Racer(session()), Racer(session())
