"""Human tasks: opened by a run, claimed, released, decided, closed."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from pgwf_journal import Kind, Phase
from tests.sdk.sql.hand import Hand, Held, entry, inbox, rows, signal, start, status, task, value

if TYPE_CHECKING:
    from tests.support import Clock

Conn = psycopg.Connection[Any]

TASK = "order-1/human:review#1"


def opened(db: Conn, hand: Hand, **options: Any) -> Held:
    """A run that waits for the decision of one task."""
    start(db)
    held = hand.take()
    asked = entry("review", 1, kind=Kind.HUMAN, phase=Phase.OPENED, payload=None)
    assert hand.say(held.item("park", asked, tasks=[task(TASK, **options)])) == ["ok"]
    return held


def claim(db: Conn, by: str, seconds: float = 600) -> Any:
    return value(db, "select pgwf_sdk.claim_task(%s, %s, %s)", TASK, by, seconds)


def release(db: Conn, by: str) -> None:
    db.execute("select pgwf_sdk.release_task(%s, %s)", [TASK, by])


def decide(db: Conn, by: str, payload: bytes | None = b"true", encoding: int | None = 1) -> None:
    db.execute("select pgwf_sdk.decide_task(%s, %s, %s::bytea, %s::int)", [TASK, by, payload, encoding])


def refused(code: str, match: str) -> Any:
    class Refused:
        def __enter__(self) -> None:
            self._raises = pytest.raises(psycopg.Error, match=match)
            self._error = self._raises.__enter__()

        def __exit__(self, *exc: Any) -> bool | None:
            caught = self._raises.__exit__(*exc)
            assert self._error.value.sqlstate == code
            return caught

    return Refused()


def seen(db: Conn) -> list[tuple[Any, ...]]:
    return rows(db, "select state, holder, claim_until, decided_by from pgwf_sdk.tasks")


def test_a_task_is_open_with_what_the_run_asked(db: Conn, clock: Clock, hand: Hand) -> None:
    held = opened(db, hand, title="Large payment", due_seconds=3600.0, expires_seconds=7200.0, subject='{"cents": 7}')

    assert rows(
        db,
        """
        select task_id, run_id, run_n, key, name, title, need, subject, decision_schema, state, holder, claim_until,
          due_at, expires_at, decision, created_at
        from pgwf_sdk.tasks
        """,
    ) == [
        (
            TASK,
            "order-1",
            held.n,
            "/human:review#1",
            "review",
            "Large payment",
            "human.review",
            '{"cents": 7}',
            {"type": "boolean"},
            "open",
            None,
            None,
            clock.START + timedelta(hours=1),
            clock.START + timedelta(hours=2),
            None,
            clock.START,
        )
    ]
    assert rows(db, "select job_id, next_need, priority from pgwf.jobs where job_id = %s", TASK) == [
        (TASK, "human.review", 3)
    ]


def test_a_claim_holds_the_task_and_claiming_it_again_prolongs_but_never_shortens(
    db: Conn, clock: Clock, hand: Hand
) -> None:
    opened(db, hand)

    assert claim(db, "ann", 600) == clock.START + timedelta(minutes=10)
    assert seen(db) == [("claimed", "ann", clock.START + timedelta(minutes=10), None)]
    assert claim(db, "ann", 60) == clock.START + timedelta(minutes=10)
    assert claim(db, "ann", 1200) == clock.START + timedelta(minutes=20)
    with refused("WS011", "ann holds it"):
        claim(db, "bob")


def test_a_released_task_can_be_claimed_by_others(db: Conn, hand: Hand) -> None:
    opened(db, hand)
    with refused("WS012", "nobody holds it, not ann"):
        release(db, "ann")
    claim(db, "ann")
    with refused("WS012", "ann holds it, not bob"):
        release(db, "bob")

    release(db, "ann")

    assert seen(db) == [("open", None, None, None)]
    claim(db, "bob")
    assert seen(db)[0][1] == "bob"


@pytest.mark.parametrize("swept", [False, True], ids=["before a sweep", "after a sweep"])
def test_a_claim_that_has_run_out_holds_nothing_and_counts_no_crash(
    db: Conn, clock: Clock, hand: Hand, swept: bool
) -> None:
    opened(db, hand)
    claim(db, "ann", 60)
    clock.advance(minutes=2)
    if swept:
        db.execute("select pgwf.sweep('sweeper')")

    assert seen(db) == [("open", None, None, None)]
    with refused("WS012", "nobody holds it"):
        release(db, "ann")
    claim(db, "bob")

    assert seen(db)[0][:2] == ("claimed", "bob")
    assert value(db, "select lease_expiration_count from pgwf.jobs where job_id = %s", TASK) == 0
    with refused("WS011", "bob holds it"):
        decide(db, "ann")


def test_one_can_claim_again_after_ones_claim_has_run_out(db: Conn, clock: Clock, hand: Hand) -> None:
    opened(db, hand)
    claim(db, "ann", 60)
    clock.advance(minutes=2)

    assert claim(db, "ann", 60) == clock.now() + timedelta(minutes=1)


def test_the_decision_of_the_holder_goes_to_the_run_and_wakes_it(db: Conn, clock: Clock, hand: Hand) -> None:
    opened(db, hand)
    claim(db, "ann")
    with refused("WS011", "ann holds it"):
        decide(db, "bob")

    decide(db, "ann", b'{"approve": true}')

    assert seen(db) == [("decided", "ann", None, "ann")]
    assert rows(db, "select decision, decided_at from pgwf_sdk.tasks") == [('{"approve": true}', clock.START)]
    assert status(db) == "ready"
    (row,) = hand.take().claim.inbox
    assert (row.kind, row.name, row.phase, row.encoding) == (Kind.HUMAN, "/human:review#1", Phase.COMPLETED, 1)
    assert row.payload is not None
    delivered = json.loads(row.payload)
    assert (delivered["value"], delivered["by"]) == ({"approve": True}, "ann")
    assert rows(db, "select outcome, worker_id from pgwf.archive") == [("completed", "human:ann")]


def test_a_task_nobody_holds_is_claimed_and_decided_in_one(db: Conn, clock: Clock, hand: Hand) -> None:
    opened(db, hand)
    claim(db, "bob", 60)
    clock.advance(minutes=2)

    decide(db, "ann")

    assert seen(db) == [("decided", "ann", None, "ann")]


def test_a_task_that_is_decided_takes_no_claim_release_or_second_decision(db: Conn, hand: Hand) -> None:
    opened(db, hand)
    decide(db, "ann", b"1")

    for act in (claim, release, decide):
        with refused("WS011", "it is decided already"):
            act(db, "ann")

    assert len(inbox(db)) == 1


def test_a_task_that_is_unknown_is_said_to_be_so(db: Conn) -> None:
    start(db, TASK)

    for act in (claim, release, decide):
        with refused("WS010", f"no human task '{TASK}'"):
            act(db, "ann")


def test_a_decision_is_a_name_and_a_json_value(db: Conn, hand: Hand) -> None:
    opened(db, hand)

    for by, payload, encoding in [
        ("", b"1", 1),
        ("ann", None, 1),
        ("ann", b"{", 1),
        ("ann", b"", 1),
        ("ann", b"\xff\x00", 1),
        ("ann", b"1", None),
        ("ann", b"1", 0),
        ("ann", b"1", 99_999),
    ]:
        with refused("WS004", "decide task"):
            decide(db, by, payload, encoding)
    for by, seconds in [("", 60.0), ("ann", 0.0), ("ann", -1.0), ("ann", float("nan")), ("ann", float("inf"))]:
        with refused("WS004", "claim task"):
            claim(db, by, seconds)

    assert seen(db) == [("open", None, None, None)]


def test_a_name_and_a_value_with_quotes_reach_the_run_as_they_are(db: Conn, hand: Hand) -> None:
    opened(db, hand)

    decide(db, 'an"n\\', b'"say \\"%s\\" {}"')

    (row,) = hand.take().claim.inbox
    delivered = json.loads(row.payload or b"")
    assert (delivered["by"], delivered["value"]) == ('an"n\\', 'say "%s" {}')


def test_a_run_that_expires_its_task_closes_it(db: Conn, clock: Clock, hand: Hand) -> None:
    opened(db, hand)
    claim(db, "ann")
    signal(db)
    held = hand.take()
    late = entry("review", 1, kind=Kind.HUMAN, phase=Phase.TIMED_OUT, payload=None)
    closing: Any = {"key": "/human:review#1", "close": "expired"}

    seen_up_to = held.claim.inbox[-1].id
    assert hand.say(held.item("keep", late, tasks=[closing], decides=True, inbox_seen=seen_up_to)) == ["ok"]

    assert seen(db) == [("expired", "ann", None, None)]
    with refused("WS011", "it is expired already"):
        decide(db, "ann")
    assert rows(db, "select outcome from pgwf.archive") == [("cancelled",)]


def test_a_run_does_not_close_a_task_whose_decision_it_has_not_read(db: Conn, hand: Hand) -> None:
    opened(db, hand)
    signal(db)
    held = hand.take()
    decide(db, "ann")
    closing: Any = {"key": "/human:review#1", "close": "expired"}

    answer = hand.answer(held.item("keep", tasks=[closing], inbox_seen=held.claim.inbox[-1].id))

    assert (answer.status, [row.kind for row in answer.inbox]) == ("undecided", [Kind.HUMAN])
    assert seen(db)[0][0] == "decided"


def test_a_task_is_closed_when_its_run_ends(db: Conn, hand: Hand) -> None:
    opened(db, hand)
    claim(db, "ann")
    signal(db)

    hand.say(hand.take().end())

    assert seen(db)[0][:2] == ("cancelled", "ann")
    with refused("WS011", "it is cancelled already"):
        claim(db, "bob")


def test_a_task_of_a_paused_run_can_be_decided_and_wakes_nobody(db: Conn, hand: Hand) -> None:
    opened(db, hand)
    db.execute("select pgwf_sdk.pause_run('order-1', 'ann')")

    decide(db, "ann")

    assert (status(db), hand.claim(1)) == ("paused", [])
    db.execute("select pgwf_sdk.resume_run('order-1', 'ann')")
    assert len(hand.take().claim.inbox) == 1


def test_a_task_takes_no_claim_or_decision_of_people_it_excludes(db: Conn, hand: Hand) -> None:
    opened(db, hand, excluded=["ann", "eve"])

    for act in (claim, decide):
        with refused("WS013", "ann is excluded from it"):
            act(db, "ann")
    decide(db, "bob")

    assert rows(db, "select excluded, decided_by from pgwf_sdk.tasks") == [(["ann", "eve"], "bob")]


def test_a_task_that_is_assigned_is_for_that_person_alone(db: Conn, hand: Hand) -> None:
    opened(db, hand, assigned="ann", prefill='{"ok": true}')

    for act in (claim, decide):
        with refused("WS013", "it is assigned to ann, not to bob"):
            act(db, "bob")
    decide(db, "ann")

    assert rows(db, "select assigned, prefill, decided_by from pgwf_sdk.tasks") == [("ann", '{"ok": true}', "ann")]
