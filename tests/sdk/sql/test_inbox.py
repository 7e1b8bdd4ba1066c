"""Signals and cancel requests: rows of a run's inbox."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from pgwf_journal import Kind
from tests.sdk.sql.hand import Hand, begin, entry, inbox, rows, signal, start, status, value

if TYPE_CHECKING:
    from tests.support import Clock

Conn = psycopg.Connection[Any]


def cancel(db: Conn, by: str | None = "ann", reason: str | None = None) -> str:
    return str(value(db, "select pgwf_sdk.cancel_run('order-1', %s, %s)", by, reason))


def test_signals_are_read_in_the_order_they_were_sent(db: Conn, clock: Clock, hand: Hand) -> None:
    start(db)
    for number in range(5):
        assert signal(db, "item", payload=str(number).encode())
        clock.advance(seconds=-1)

    found = hand.take().claim.inbox

    assert [row.payload for row in found] == [b"0", b"1", b"2", b"3", b"4"]
    assert [row.id for row in found] == sorted(row.id for row in found)
    assert [row.received_at for row in found] == sorted((row.received_at for row in found), reverse=True)


def test_the_bytes_of_a_signal_come_back_exactly(db: Conn, hand: Hand) -> None:
    start(db)
    payload = bytes(range(256)) * 2000

    signal(db, payload=payload)
    db.execute("select pgwf_sdk.signal_run('order-1', 'empty', null, 0)")

    assert [(row.payload, row.encoding) for row in hand.take().claim.inbox] == [(payload, 1), (None, 0)]


def test_a_signal_from_sql_is_json_text(db: Conn, hand: Hand) -> None:
    start(db)

    db.execute("select pgwf_sdk.signal('order-1', 'paid', '{\"cents\": 12}')")
    db.execute("select pgwf_sdk.signal('order-1', 'paid')")

    assert [(row.name, row.payload, row.encoding) for row in hand.take().claim.inbox] == [
        ("paid", b'{"cents": 12}', 1),
        ("paid", b"null", 1),
    ]


def test_a_signal_sent_again_with_its_own_id_is_dropped_also_after_the_first_was_consumed(db: Conn, hand: Hand) -> None:
    start(db)
    start(db, "order-2")

    assert signal(db, dedup_id="d-1")
    assert not signal(db, "another name", dedup_id="d-1")
    held = hand.take()
    hand.say(held.item("keep", entry(kind=Kind.SIGNAL), consumed=[held.claim.inbox[0].id]))

    assert not signal(db, dedup_id="d-1")
    assert signal(db, dedup_id="d-2")
    assert signal(db, run_id="order-2", dedup_id="d-1")
    assert len(inbox(db)) == 1


def test_a_signal_that_is_refused_does_not_use_up_its_id(db: Conn) -> None:
    start(db)
    with pytest.raises(psycopg.Error, match="encoding"):
        db.execute("select pgwf_sdk.signal_run('order-1', 'paid', null, 9, 'd-1')")

    with db.transaction(force_rollback=True):
        assert signal(db, dedup_id="d-1")

    assert signal(db, dedup_id="d-1")


def test_a_signal_to_a_run_that_is_over_or_unknown_is_refused(db: Conn, hand: Hand) -> None:
    start(db)
    hand.say(hand.take().end("fail", b"{}"))

    with pytest.raises(psycopg.Error, match=r"signal 'delivered' to run order-1: the run is over \(failed\)") as over:
        signal(db)
    with pytest.raises(psycopg.Error, match="no run 'order-9'") as unknown:
        signal(db, run_id="order-9")

    assert (over.value.sqlstate, unknown.value.sqlstate) == ("WS003", "WS002")
    assert inbox(db) == []


def test_a_signal_to_a_job_that_is_no_run_is_refused(db: Conn) -> None:
    db.execute("select pgwf.submit_job('order-1', 'somebody', 'python')")

    with pytest.raises(psycopg.Error, match="no run 'order-1'"):
        signal(db)


def test_a_signal_needs_a_name_of_1_to_512_bytes(db: Conn) -> None:
    start(db)

    for name in ("", None, "x" * 513):
        with pytest.raises(psycopg.Error, match="expected 1 to 512 bytes") as error:
            db.execute("select pgwf_sdk.signal_run('order-1', %s::text, null, 0)", [name])
        assert error.value.sqlstate == "WS004"


def test_a_signal_wakes_a_run_that_waits_and_leaves_one_that_is_leased_alone(db: Conn, hand: Hand) -> None:
    start(db)
    held = hand.take()
    signal(db, "while it is leased")
    assert rows(db, "select n, lease_id from pgwf.lease") == [(held.n, held.lease_id)]
    (row,) = rows(db, "select id from pgwf_sdk.inbox")
    hand.say(held.item("park", inbox_seen=row[0]))

    signal(db, "while it waits")

    assert status(db) == "ready"
    assert [row.name for row in hand.take().claim.inbox] == ["while it is leased", "while it waits"]


def test_a_signal_does_not_take_a_ready_run_out_of_its_turn(db: Conn, hand: Hand) -> None:
    start(db, "order-1")
    start(db, "order-2")

    signal(db, run_id="order-1")

    assert [held.run_id for held in hand.claim(2)] == ["order-1", "order-2"]


def test_a_cancel_request_is_one_row_however_often_it_is_made(db: Conn, hand: Hand) -> None:
    begin(db)

    assert cancel(db, "ann", "changed my mind") == "requested"
    assert cancel(db, "bob") == "already_requested"

    held = hand.take()
    (row,) = held.claim.inbox
    assert (row.kind, row.name, row.payload) == (Kind.CANCEL, "ann", b'{"by": "ann", "reason": "changed my mind"}')
    hand.say(held.item("keep", entry("cancel", 0, kind=Kind.CANCEL), consumed=[row.id]))
    assert cancel(db) == "already_requested"
    assert inbox(db) == []


def test_a_cancel_request_wakes_a_run_that_waits(db: Conn, hand: Hand) -> None:
    start(db)
    hand.say(hand.take().item("park", entry()))

    cancel(db)

    assert status(db) == "ready"


def test_a_cancel_request_by_nobody_in_particular_is_by_unknown(db: Conn) -> None:
    begin(db)

    assert cancel(db, None) == "requested"

    assert inbox(db) == [("cancel", "unknown", "completed")]


def test_a_cancel_request_to_a_run_that_is_over_tells_how_it_ended(db: Conn, hand: Hand) -> None:
    start(db)
    hand.say(hand.take().end())

    assert cancel(db) == "completed"

    with pytest.raises(psycopg.Error) as error:
        db.execute("select pgwf_sdk.cancel_run('order-9', 'ann')")
    assert error.value.sqlstate == "WS002"


def test_a_run_cancelled_before_it_ended_tells_how_it_ended(db: Conn, hand: Hand) -> None:
    begin(db)
    cancel(db)
    held = hand.take()
    (row,) = held.claim.inbox
    hand.say(held.item("keep", entry("cancel", 0, kind=Kind.CANCEL), consumed=[row.id]))
    hand.say(held.end("cancel", None))

    assert cancel(db) == "cancelled"


def test_an_answer_brings_at_most_a_thousand_inbox_rows_oldest_first(db: Conn, hand: Hand) -> None:
    start(db)
    db.execute("select pgwf_sdk.signal_run('order-1', 's' || i, null, 0) from generate_series(1, 1001) i")

    held = hand.take()

    assert [row.name for row in held.claim.inbox] == [f"s{number}" for number in range(1, 1001)]
    answer = hand.answer(held.item("park", inbox_seen=held.claim.inbox[-1].id))
    assert (answer.status, [row.name for row in answer.inbox]) == ("unread", ["s1001"])
