"""The test kit itself: its databases are apart, its clock moves, its sessions see each other's locks."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from tests.support import StateNotReachedError, wait_until

if TYPE_CHECKING:
    from tests.support import Clock, Connect, Databases, Session


def test_each_test_has_a_database_of_its_own_that_is_gone_afterwards(databases: Databases, database: str) -> None:
    with databases.fresh() as other, psycopg.connect(other) as conn:
        assert conn.info.dbname not in database

    with pytest.raises(psycopg.OperationalError, match="does not exist"):
        psycopg.connect(other)


@pytest.mark.parametrize("schema", ["pgwf", "pgwf_journal", "pgwf_sdk"])
def test_clock_stands_still_until_it_is_moved(db: psycopg.Connection[Any], clock: Clock, schema: str) -> None:
    def now() -> Any:
        return db.execute(f"select {schema}._now()".encode()).fetchone()

    assert now() == now() == (clock.START,)

    clock.advance(timedelta(hours=1))

    assert now() == (clock.START + timedelta(hours=1),)


def test_start_blocked_returns_once_a_session_waits_for_anothers_lock(
    connect: Connect, two_sessions: tuple[Session, Session]
) -> None:
    first, second = two_sessions
    connect().execute("create table seat (n int)")
    first.run("begin")
    first.run("lock table seat")

    rows = second.start_blocked("select * from seat")
    assert not rows.done()

    first.run("commit")
    assert rows.result(timeout=10) == []


def test_wait_blocked_says_so_when_the_statement_ends_instead(two_sessions: tuple[Session, Session]) -> None:
    session, _ = two_sessions
    session.run("select 1")

    with pytest.raises(StateNotReachedError, match="its statement ended"):
        session.wait_blocked()


def test_wait_until_names_the_state_that_did_not_come() -> None:
    with pytest.raises(StateNotReachedError, match="still not so: pigs fly; last seen: 0"):
        wait_until(lambda: 0, "pigs fly", seconds=0.05)
