"""Awakeables in SQL: what a token opens, once; and each pair of calls that can meet, in both orders."""

from __future__ import annotations

import hashlib
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import msgspec
import psycopg
import pytest
from psycopg import sql

from pgwf_journal import Kind, NewEntry, Phase
from tests.sdk.sql.hand import Hand, Held, Item, inbox, journal, rows, start, status, value
from tests.sdk.sql.race import act, advance, race

if TYPE_CHECKING:
    from tests.support import Clock, Session

    Sessions = tuple[Session, Session]

Conn = psycopg.Connection[Any]

TOKEN = "awk_0123456789abcdefghijklmn"
COMPLETE = act("settle_awakeable", TOKEN, b"7", 1)
HOUR = timedelta(hours=1)

pytestmark = pytest.mark.usefixtures("patient")


def promise(phase: Phase = Phase.OPENED, *, timeout: timedelta | None = None) -> NewEntry:
    """An entry of an awakeable."""
    details: dict[str, Any] = {"token_hash": hashlib.sha256(TOKEN.encode()).hexdigest()}
    if timeout is not None:
        details["microseconds"] = timeout // timedelta(microseconds=1)
    payload = msgspec.json.encode(details) if phase is Phase.OPENED else None
    return NewEntry(1, Kind.AWAKEABLE, phase, "", "paid", 1, payload, 0 if payload is None else 1)


def opened(db: Conn, hand: Hand, *, timeout: timedelta | None = None) -> Held:
    """A leased run that has opened an awakeable."""
    start(db)
    held = hand.take()
    assert hand.say(held.item("keep", promise(timeout=timeout))) == ["ok"]
    return held


def in_time(held: Held) -> Item:
    """The run's worker finds that nobody completed the awakeable in time."""
    return held.item("keep", promise(Phase.TIMED_OUT), decides=True)


def complete(db: Conn, token: str | None = TOKEN, payload: str = "7") -> Any:
    return value(db, "select pgwf_sdk.complete_awakeable(%s, %s::jsonb)", token, payload)


def test_an_awakeable_is_completed_once_and_its_run_woken(db: Conn, hand: Hand) -> None:
    held = opened(db, hand)
    assert hand.say(held.item("park")) == ["ok"]

    assert complete(db)
    assert not complete(db, payload="8")
    assert not value(db, "select pgwf_sdk.fail_awakeable(%s, 'no')", TOKEN)

    assert [(row.kind, row.name, row.phase, row.payload) for row in hand.take().claim.inbox] == [
        (Kind.AWAKEABLE, "/awakeable:paid#1", Phase.COMPLETED, b"7")
    ]


def test_what_fails_an_awakeable_is_an_error_of_the_run(db: Conn, hand: Hand) -> None:
    held = opened(db, hand)
    assert hand.say(held.item("park")) == ["ok"]

    assert value(db, "select pgwf_sdk.fail_awakeable(%s, 'no \"money\"')", TOKEN)

    (row,) = hand.take().claim.inbox
    assert row.phase is Phase.FAILED
    assert msgspec.json.decode(row.payload or b"") == {
        "type": "pgwf_sdk:AwakeableFailedError",
        "message": 'no "money"',
        "args": ['no "money"'],
    }


def test_the_token_is_stored_nowhere(db: Conn, hand: Hand) -> None:
    opened(db, hand)
    complete(db)

    tables = rows(db, "select schemaname, tablename from pg_tables where schemaname ~ '^pgwf'")
    found = [
        table
        for table in tables
        if db.execute(
            sql.SQL("select from {} t where t::text like any (%s)").format(sql.Identifier(*table)),
            [[f"%{TOKEN}%", f"%{TOKEN.encode().hex()}%"]],
        ).fetchall()
    ]

    assert len(tables) > 20
    assert found == []


@pytest.mark.parametrize("token", ["", "awk_", TOKEN[:-1], TOKEN.upper(), None])
def test_a_token_that_was_never_given_out_opens_nothing(db: Conn, hand: Hand, token: str | None) -> None:
    opened(db, hand)

    with pytest.raises(psycopg.errors.Error) as refused:
        complete(db, token)

    assert refused.value.sqlstate == "WS020"
    assert TOKEN not in str(refused.value)


@pytest.mark.parametrize(
    ("payload", "encoding", "is_failed"),
    [
        (b"7", 0, False),
        (None, 1, False),
        (b"{", 1, False),
        (b"\xff", 2, False),
        (b"7", 4, False),
        (None, 0, True),
        (b"7", 1, None),
    ],
)
def test_a_value_that_the_run_could_not_read_is_refused(
    db: Conn, hand: Hand, payload: bytes | None, encoding: int, is_failed: bool | None
) -> None:
    opened(db, hand)

    with pytest.raises(psycopg.errors.Error) as refused:
        value(db, "select pgwf_sdk.settle_awakeable(%s, %s, %s, %s)", TOKEN, payload, encoding, is_failed)

    assert refused.value.sqlstate == "WS004"
    assert inbox(db) == []


def test_the_deadline_is_decided_by_the_time_of_the_database(db: Conn, clock: Clock, hand: Hand) -> None:
    held = opened(db, hand, timeout=HOUR)
    assert hand.say(held.item("park")) == ["ok"]

    clock.advance(HOUR)
    assert complete(db), "the last microsecond counts"

    (row,) = hand.take().claim.inbox
    assert row.received_at == clock.now()


def test_an_awakeable_is_closed_when_its_time_is_over_even_if_no_worker_has_looked(
    db: Conn, clock: Clock, hand: Hand
) -> None:
    opened(db, hand, timeout=HOUR)
    clock.advance(HOUR + timedelta(microseconds=1))

    with pytest.raises(psycopg.errors.Error, match="its time ended at 2030-01-01 13:00:00") as refused:
        complete(db)

    assert refused.value.sqlstate == "WS021"


def test_an_awakeable_its_run_gave_up_is_closed(db: Conn, hand: Hand) -> None:
    held = opened(db, hand)
    assert hand.say(held.item("keep", promise(Phase.CANCELLED))) == ["ok"]

    with pytest.raises(psycopg.errors.Error, match="its run waits for it no longer") as refused:
        complete(db)

    assert refused.value.sqlstate == "WS021"


def test_an_awakeable_of_a_run_that_is_over_says_how_it_ended(db: Conn, hand: Hand) -> None:
    assert hand.say(opened(db, hand).end()) == ["ok"]

    with pytest.raises(psycopg.errors.Error, match=r"the run order-1 is over \(completed\)") as refused:
        complete(db)

    assert refused.value.sqlstate == "WS003"


def test_a_completion_before_the_end_of_its_time_wins(db: Conn, hand: Hand, two_sessions: Sessions) -> None:
    held = opened(db, hand, timeout=HOUR)

    assert race(two_sessions, COMPLETE, advance(hand, in_time(held))) == ([True], ["undecided"])

    assert journal(db)[-1] == (2, "/awakeable:paid#1", "opened")


def test_a_completion_after_the_end_of_its_time_is_refused(db: Conn, hand: Hand, two_sessions: Sessions) -> None:
    held = opened(db, hand, timeout=HOUR)

    assert race(two_sessions, advance(hand, in_time(held)), COMPLETE) == (["ok"], "WS021")

    assert inbox(db) == []


def test_a_completion_before_a_park_keeps_the_run_awake(db: Conn, hand: Hand, two_sessions: Sessions) -> None:
    held = opened(db, hand)

    assert race(two_sessions, COMPLETE, advance(hand, held.item("park"))) == ([True], ["unread"])


def test_a_completion_after_a_park_wakes_the_run(db: Conn, hand: Hand, two_sessions: Sessions) -> None:
    held = opened(db, hand)

    assert race(two_sessions, advance(hand, held.item("park")), COMPLETE) == (["ok"], [True])

    assert status(db) == "ready"


def test_a_completion_before_the_end_of_its_run_is_dropped_with_it(
    db: Conn, hand: Hand, two_sessions: Sessions
) -> None:
    held = opened(db, hand)

    assert race(two_sessions, COMPLETE, advance(hand, held.end())) == ([True], ["ok"])

    assert (status(db), inbox(db)) == ("completed", [])


def test_a_completion_after_the_end_of_its_run_is_refused(db: Conn, hand: Hand, two_sessions: Sessions) -> None:
    held = opened(db, hand)

    assert race(two_sessions, advance(hand, held.end()), COMPLETE) == (["ok"], "WS003")


def test_two_completions_at_once_are_one(db: Conn, hand: Hand, two_sessions: Sessions) -> None:
    opened(db, hand)

    assert race(two_sessions, COMPLETE, COMPLETE) == ([True], [False])

    assert len(inbox(db)) == 1


def test_a_completion_whose_twin_rolled_back_counts(db: Conn, hand: Hand, two_sessions: Sessions) -> None:
    opened(db, hand)

    assert race(two_sessions, COMPLETE, COMPLETE, end="rollback") == ([True], [True])

    assert len(inbox(db)) == 1


def test_an_item_that_is_refused_opens_nothing(db: Conn, hand: Hand) -> None:
    start(db)
    held = hand.take()

    assert hand.say(held.item("keep", promise(), expected_seq=9)) == ["conflict"]

    assert rows(db, "select from pgwf_sdk.awakeable") == []
