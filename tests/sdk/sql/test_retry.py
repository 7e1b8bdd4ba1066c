"""retry_run: the journal a new run takes over."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from pgwf_journal import Kind, Phase
from tests.sdk.sql.hand import Hand, entry, journal, rows, signal, start, status, value

if TYPE_CHECKING:
    from pgwf_journal import NewEntry
    from tests.support import Clock

Conn = psycopg.Connection[Any]

FAILED = Phase.FAILED


def retry(db: Conn, run_id: str = "order-1") -> tuple[int, str]:
    row = db.execute("select n, run_id from pgwf_sdk.retry_run(%s, 'ann')", [run_id]).fetchone()
    assert row is not None
    return row[0], row[1]


def error(message: str, *, type_: str = "shop:Declined", cause: str | None = None) -> bytes:
    envelope: dict[str, Any] = {"type": type_, "message": message}
    if cause is not None:
        envelope["cause"] = json.loads(error(cause))
    return json.dumps(envelope, separators=(",", ":")).encode()


def failed(db: Conn, hand: Hand, *entries: NewEntry, payload: bytes) -> None:
    start(db)
    hand.say(hand.take().end("fail", payload, entries=list(entries)))


def taken_over(db: Conn, run_id: str = "order-1~2") -> list[tuple[int, str, str]]:
    return journal(db, run_id)[1:]


def test_retry_takes_over_the_journal_up_to_the_failed_entry(db: Conn, clock: Clock, hand: Hand) -> None:
    first, _, _ = start(db, priority=1, trace="t", deadline=clock.START.replace(year=2031))
    held = hand.take()
    hand.say(held.item("keep", entry("reserve", 1, payload=b'"r-1"')))
    clock.advance(minutes=1)
    hand.say(held.end("fail", error("no funds"), entries=[entry("charge", 2, phase=FAILED, payload=error("no funds"))]))

    n, run_id = retry(db)

    assert run_id == "order-1~2"
    assert journal(db, run_id) == [(1, "/run:checkout#1", "opened"), (2, "/step:reserve#1", "completed")]
    assert rows(
        db, "select payload, encoding, recorded_at, lease_no from pgwf_journal.entry where n = %s and seq = 2", n
    ) == [(b'"r-1"', 1, clock.START, None)]
    assert rows(
        db,
        """
        select workflow, need, priority, trace, deadline, status, started_by, root_run_id
        from pgwf_sdk.runs where n = %s
        """,
        n,
    ) == [("checkout", "python", 1, "t", clock.START.replace(year=2031), "ready", "ann", "order-1~2")]
    assert value(db, "select count(distinct seed) from pgwf_sdk.run") == 1
    assert value(db, "select count(distinct payload) from pgwf_journal.entry where seq = 1") == 1
    assert rows(db, "select status, successor_run_id from pgwf_sdk.runs where n = %s", first) == [("failed", run_id)]
    assert hand.take().head == 2


def test_retry_keeps_failures_that_the_code_caught(db: Conn, hand: Hand) -> None:
    failed(
        db,
        hand,
        entry("charge", 1, phase=FAILED, payload=error("card declined")),
        entry("invoice", 2),
        entry("mail", 3, phase=FAILED, payload=error("no such host")),
        payload=error("no such host"),
    )

    retry(db)

    assert taken_over(db) == [(2, "/step:charge#1", "failed"), (3, "/step:invoice#1", "completed")]


def test_retry_finds_the_failed_entry_in_the_causes_of_the_runs_error(db: Conn, hand: Hand) -> None:
    failed(
        db,
        hand,
        entry("reserve", 1),
        entry("charge", 2, phase=FAILED, payload=error('say "no"\n')),
        entry("unreserve", 3),
        payload=error("order-1 is lost", type_="shop:OrderLost", cause='say "no"\n'),
    )

    retry(db)

    assert taken_over(db) == [(2, "/step:reserve#1", "completed")]


def test_retry_finds_the_failed_entry_of_a_class_the_worker_did_not_know(db: Conn, hand: Hand) -> None:
    failed(
        db,
        hand,
        entry("charge", 1, phase=FAILED, payload=error("no funds")),
        entry("mail", 2),
        payload=error("shop:Declined: no funds", type_="pgwf_sdk._errors:StepFailedError"),
    )

    retry(db)

    assert taken_over(db) == []


def test_retry_finds_the_failed_entry_by_its_class_when_it_has_no_message(db: Conn, hand: Hand) -> None:
    failed(
        db,
        hand,
        entry("charge", 1, phase=FAILED, payload=b'{"type":"shop:Declined"}'),
        entry("mail", 2),
        payload=b'{"type":"shop:Declined"}',
    )

    retry(db)

    assert taken_over(db) == []


def test_retry_waits_anew_for_what_timed_out(db: Conn, hand: Hand) -> None:
    failed(
        db,
        hand,
        entry("delivered", 1, kind=Kind.SIGNAL, phase=Phase.OPENED, payload=None),
        entry("delivered", 1, kind=Kind.SIGNAL, phase=Phase.TIMED_OUT, payload=None),
        entry("mail", 2),
        payload=error("no signal in 3 days", type_="pgwf_sdk._errors:WaitTimeoutError"),
    )

    retry(db)

    assert taken_over(db) == []


def test_retry_of_a_run_whose_own_code_failed_takes_over_all_that_was_finished(db: Conn, hand: Hand) -> None:
    failed(
        db,
        hand,
        entry("charge", 1, phase=FAILED, payload=error("caught long ago")),
        entry("mail", 2),
        payload=error("division by zero", type_="builtins:ZeroDivisionError"),
    )

    retry(db)

    assert taken_over(db) == [(2, "/step:charge#1", "failed"), (3, "/step:mail#1", "completed")]


def test_retry_tries_the_last_thing_again_when_it_failed_whatever_the_code_made_of_it(db: Conn, hand: Hand) -> None:
    failed(
        db,
        hand,
        entry("reserve", 1),
        entry("charge", 2, phase=FAILED, payload=error("no funds")),
        payload=error("sorry", type_="shop:Sorry"),
    )

    retry(db)

    assert taken_over(db) == [(2, "/step:reserve#1", "completed")]


def test_retry_drops_calls_that_were_not_finished_before_the_failure(db: Conn, hand: Hand) -> None:
    failed(
        db,
        hand,
        entry("", 1, kind=Kind.TIMER, phase=Phase.OPENED, payload=None),
        entry("delivered", 2, kind=Kind.SIGNAL, phase=Phase.OPENED, payload=None),
        entry("reserve", 1, scope="/branch:parallel#1[0]"),
        entry("delivered", 2, kind=Kind.SIGNAL, payload=b"1"),
        entry("charge", 2, scope="/branch:parallel#1[0]", phase=FAILED, payload=error("no funds")),
        entry("", 1, kind=Kind.TIMER, payload=None),
        payload=error("no funds"),
    )

    retry(db)

    assert taken_over(db) == [
        (2, "/signal:delivered#1", "opened"),
        (3, "/branch:parallel#1[0]/step:reserve#1", "completed"),
        (4, "/signal:delivered#1", "completed"),
    ]


def test_retry_of_a_cancelled_run_goes_on_from_before_the_cancellation(db: Conn, hand: Hand) -> None:
    start(db)
    hand.say(
        hand.take().end(
            "cancel",
            None,
            entries=[
                entry("reserve", 1),
                entry("", 2, kind=Kind.TIMER, phase=Phase.OPENED, payload=None),
                entry("cancel", 0, kind=Kind.CANCEL, payload=None),
                entry("unreserve", 3),
            ],
        )
    )

    retry(db)

    assert taken_over(db) == [(2, "/step:reserve#1", "completed")]


def test_retry_of_a_terminated_run_takes_over_all_that_was_finished(db: Conn, hand: Hand) -> None:
    start(db)
    hand.say(
        hand.take().item(
            "park", entry("reserve", 1), entry("delivered", 2, kind=Kind.SIGNAL, phase=Phase.OPENED, payload=None)
        )
    )
    db.execute("select pgwf_sdk.terminate_run('order-1', 'ann')")

    retry(db)

    assert taken_over(db) == [(2, "/step:reserve#1", "completed")]


def test_retry_twice_gives_the_same_run(db: Conn, hand: Hand) -> None:
    failed(db, hand, payload=error("no funds"))

    assert retry(db) == retry(db)

    assert value(db, "select count(*) from pgwf_sdk.run") == 2


def test_retry_of_a_retry_counts_on(db: Conn, hand: Hand) -> None:
    failed(db, hand, entry("charge"), payload=error("no funds"))
    for number in (2, 3):
        _, run_id = retry(db, f"order-1~{number - 1}" if number > 2 else "order-1")
        assert run_id == f"order-1~{number}"
        assert taken_over(db, run_id) == [(2, "/step:charge#1", "completed")]
        hand.say(hand.take().end("fail", error("no funds")))


def test_retry_passes_over_ids_that_are_taken(db: Conn, hand: Hand) -> None:
    failed(db, hand, entry("charge"), payload=error("no funds"))
    start(db, "order-1~2")
    db.execute("select pgwf.submit_job('order-1~3', 'somebody', 'elsewhere')")
    db.execute("select pgwf_journal.open('order-1~4')")

    assert retry(db)[1] == "order-1~5"

    assert len(journal(db, "order-1~2")) == 1


def test_retry_of_a_run_that_goes_on_completed_or_is_unknown_is_refused(db: Conn, hand: Hand) -> None:
    start(db)
    with pytest.raises(psycopg.Error, match="it is ready, expected failed, cancelled or terminated") as live:
        retry(db)
    hand.say(hand.take().end())
    with pytest.raises(psycopg.Error, match="it is completed") as done:
        retry(db)
    with pytest.raises(psycopg.Error, match="no run 'order-9'") as unknown:
        retry(db, "order-9")

    assert [one.value.sqlstate for one in (live, done, unknown)] == ["WS005", "WS005", "WS002"]


def test_retry_takes_no_signals_over(db: Conn, hand: Hand) -> None:
    start(db)
    held = hand.take()
    signal(db)
    hand.say(held.end("fail", error("no funds")))

    retry(db)

    assert hand.take().claim.inbox == []
    assert status(db) == "failed"
