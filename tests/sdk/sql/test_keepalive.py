"""pgwf_sdk.keepalive."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import psycopg
import pytest

from pgwf_sql import query
from tests.sdk.sql.hand import Hand, Held, rows, signal, start, value

if TYPE_CHECKING:
    from tests.sdk.sql.conftest import MakeHand
    from tests.support import Clock, Connect

Conn = psycopg.Connection[Any]
FINE = (False, False, False, False)


def keep(db: Conn, *held: Held, seconds: float = 60, seen: int = 0, **changed: Any) -> list[tuple[bool, ...]]:
    """Keep leases alive: lost, unread, cancel, paused of each."""
    found = db.execute(
        query("sdk_keepalive").encode(),
        {
            "worker_id": "worker-1",
            "n": [one.n for one in held],
            "lease_ids": [one.lease_id for one in held],
            "inbox_seen": [seen for _ in held],
            "lease_seconds": seconds,
            **changed,
        },
    ).fetchall()
    assert [row[0] for row in found] == [one.n for one in held]
    return [row[1:] for row in found]


def until(db: Conn) -> datetime:
    found: datetime = value(db, "select until from pgwf.lease")
    return found


def test_keepalive_extends_leases_and_never_shortens_them(db: Conn, clock: Clock, hand: Hand) -> None:
    start(db)
    held = hand.take(timedelta(seconds=60))

    assert keep(db, held, seconds=90) == [FINE]
    assert until(db) == clock.START + timedelta(seconds=90)
    assert keep(db, held, seconds=10) == [FINE]
    assert until(db) == clock.START + timedelta(seconds=90)
    clock.advance(seconds=89)
    assert keep(db, held, seconds=15) == [FINE]
    assert until(db) == clock.START + timedelta(seconds=104)


def test_keepalive_keeps_a_lease_past_its_time_that_nobody_took(db: Conn, clock: Clock, hand: Hand) -> None:
    start(db)
    held = hand.take()
    clock.advance(hours=1)

    assert keep(db, held) == [FINE]

    db.execute("select pgwf.sweep('sweeper')")
    assert until(db) == clock.now() + timedelta(seconds=60)


def test_keepalive_tells_of_leases_that_are_lost(db: Conn, clock: Clock, hand: Hand, make_hand: MakeHand) -> None:
    for index in range(3):
        start(db, f"order-{index}")
    swept, ended, kept = hand.claim(3)
    clock.advance(hours=1)
    keep(db, kept, ended)
    db.execute("select pgwf.sweep('sweeper')")
    make_hand("worker-2").take()
    hand.say(ended.end())

    assert [lost for lost, *_ in keep(db, swept, ended, kept)] == [True, True, False]
    assert [lost for lost, *_ in keep(db, kept, lease_ids=[uuid4()])] == [True]
    assert value(db, "select until from pgwf.lease where n = %s", swept.n) == clock.now() + timedelta(minutes=1)


def test_keepalive_tells_of_rows_the_worker_has_not_read(db: Conn, hand: Hand) -> None:
    start(db)
    start(db, "order-2")
    held, other = hand.claim(2)
    signal(db)
    row = value(db, "select id from pgwf_sdk.inbox")

    assert keep(db, held, other) == [(False, True, False, False), FINE]
    assert keep(db, held, seen=row) == [FINE]


def test_keepalive_tells_of_a_cancel_request_that_the_worker_has_not_read(db: Conn, hand: Hand) -> None:
    start(db)
    held = hand.take()
    db.execute("select pgwf_sdk.cancel_run('order-1', 'ann')")
    row = value(db, "select id from pgwf_sdk.inbox")

    assert keep(db, held) == [(False, True, True, False)]
    assert keep(db, held, seen=row) == [FINE]


def test_keepalive_tells_that_a_run_is_paused(db: Conn, hand: Hand) -> None:
    start(db)
    held = hand.take()
    db.execute("select pgwf_sdk.pause_run('order-1', 'ann')")

    assert keep(db, held) == [(False, False, False, True)]


def test_keepalive_of_nothing_answers_nothing(db: Conn) -> None:
    assert keep(db) == []


@pytest.mark.own_session
def test_keepalive_changes_leases_only(db: Conn, connect: Connect, hand: Hand) -> None:
    start(db)
    held = hand.take()
    other = connect()

    with other.transaction():
        keep(other, held)
        written = rows(
            other,
            """
            select relname, n_tup_ins, n_tup_upd, n_tup_del from pg_stat_xact_user_tables
            where n_tup_ins + n_tup_upd + n_tup_del > 0
            """,
        )

    assert written == [("lease", 0, 1, 0)]
