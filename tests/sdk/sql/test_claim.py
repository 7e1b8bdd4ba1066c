"""What a claim brings: the runs, their journals and inboxes, and the failed attempts of their steps."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from tests.sdk.sql.hand import Hand, entry, rows, start, value

if TYPE_CHECKING:
    from tests.sdk.sql.conftest import MakeHand
    from tests.support import Clock

Conn = psycopg.Connection[Any]


def test_a_call_that_settles_also_claims(db: Conn, hand: Hand) -> None:
    start(db, "order-1")
    start(db, "order-2")
    first = hand.take()

    answers, claims = hand.call(first.end(), slots=5)

    assert [answer.status for answer in answers] == ["ok"]
    assert [(held.run_id, held.claim.head) for held in claims] == [("order-2", 1)]


def test_a_run_that_was_to_leave_and_stays_keeps_its_place(db: Conn, hand: Hand) -> None:
    for run_id in ("order-1", "order-2", "order-3"):
        start(db, run_id)
    parking, ending = hand.claim(2)
    db.execute("select pgwf_sdk.signal('order-1', 'news', '1')")

    answers, claims = hand.call(parking.item("park"), ending.item("park", expected_seq=17), slots=2)

    assert [answer.status for answer in answers] == ["unread", "conflict"]
    assert claims == []


def test_a_call_claims_the_very_run_it_gives_back_for_another_need(db: Conn, make_hand: MakeHand) -> None:
    hand = make_hand("worker-1", "python", "gpu")
    start(db)
    held = hand.take()

    _, claims = hand.call(held.item("hop", entry(), need="gpu"), slots=1)

    assert [(one.n, one.head, one.lease_id != held.lease_id) for one in claims] == [(held.n, 2, True)]


def test_a_claim_offers_at_most_so_many_runs_of_the_needs_of_the_worker(db: Conn, hand: Hand) -> None:
    for index in range(3):
        start(db, f"order-{index}")
    start(db, "scan-1", need="gpu")

    assert [held.run_id for held in hand.claim(2)] == ["order-0", "order-1"]
    assert [held.run_id for held in hand.claim(2)] == ["order-2"]
    assert hand.claim(2) == []


def test_entries_of_a_run_whose_lease_had_lapsed_end_its_streak(db: Conn, clock: Clock, hand: Hand) -> None:
    start(db)
    for _ in range(2):
        hand.take()
        clock.advance(hours=1)
        db.execute("select pgwf.sweep('sweeper')")
    held = hand.take()
    assert held.claim.streak == 2

    hand.say(held.item("keep", lapsed=True))
    assert rows(db, "select lapses, streak from pgwf_sdk.runs") == [(2, 2)]
    hand.say(held.item("keep", entry(), lapsed=True))

    assert rows(db, "select lapses, streak from pgwf_sdk.runs") == [(2, 0)]


def test_failed_attempts_are_kept_until_the_step_is_over_and_come_with_the_claim(
    db: Conn, clock: Clock, hand: Hand
) -> None:
    start(db)
    held = hand.take()
    note = {"key": "/step:charge#1", "no": 1, "next_seconds": 10.0, "error": '{"type": "m:E"}'}
    hand.say(held.item("keep", attempts=[note]))
    clock.advance(minutes=1)
    hand.say(held.item("release", attempts=[{**note, "no": 2, "next_seconds": 20.0}]))

    assert value(db, "select attempts from pgwf_sdk.runs") == 2
    again = hand.take()
    attempt = again.claim.attempts["/step:charge#1"]
    assert (attempt.no, attempt.first_at, attempt.next_at) == (
        2,
        clock.START,
        clock.START + timedelta(minutes=1, seconds=20),
    )

    hand.say(again.item("keep", entry(), attempts=[{**note, "next_seconds": None}]))
    assert value(db, "select count(*) from pgwf_sdk.attempt") == 0


@pytest.mark.parametrize(("seconds", "left"), [((10.0, None), 0), ((None, 10.0), 1), ((10.0, 20.0), 1)])
def test_the_last_of_several_notes_on_one_step_in_one_call_counts(
    db: Conn, hand: Hand, seconds: tuple[float | None, ...], left: int
) -> None:
    start(db)
    held = hand.take()

    notes: list[Any] = [
        {"key": "/step:charge#1", "no": number, "next_seconds": one, "error": None}
        for number, one in enumerate(seconds, 1)
    ]
    assert hand.say(held.item("keep", attempts=notes)) == ["ok"]

    assert rows(db, "select no from pgwf_sdk.attempt") == [(2,)] * left


def test_a_refused_item_notes_no_attempt(db: Conn, hand: Hand) -> None:
    start(db)
    note: Any = {"key": "/step:charge#1", "no": 1, "next_seconds": 10.0, "error": None}

    assert hand.say(hand.take().item("keep", attempts=[note], expected_seq=9)) == ["conflict"]

    assert value(db, "select count(*) from pgwf_sdk.attempt") == 0


def test_a_job_that_is_no_run_is_given_back_for_a_minute(db: Conn, clock: Clock, hand: Hand) -> None:
    db.execute("select pgwf.submit_job('alien', 'somebody', 'python')")
    start(db)

    assert [held.run_id for held in hand.claim(5)] == ["order-1"]

    assert rows(db, "select status, available_at from pgwf.jobs_with_status where job_id = 'alien'") == [
        ("AWAITING_FUTURE", clock.START + timedelta(minutes=1))
    ]


def test_a_claim_brings_at_most_a_thousand_entries_and_the_head(db: Conn, hand: Hand) -> None:
    start(db)
    held = hand.take()
    hand.say(held.item("release", *(entry("charge", call) for call in range(1, 1501))))

    claim = hand.take().claim

    assert (claim.head, len(claim.history), claim.history[-1].seq) == (1501, 1000, 1000)
