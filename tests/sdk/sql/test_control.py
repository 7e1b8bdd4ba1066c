"""terminate_run, pause_run, resume_run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from pgwf_journal import Kind, Phase
from tests.sdk.sql.hand import Hand, child, entry, inbox, journal, rows, signal, start, status, task, value

if TYPE_CHECKING:
    from tests.support import Clock

Conn = psycopg.Connection[Any]


def terminate(db: Conn, run_id: str = "order-1") -> str:
    return str(value(db, "select pgwf_sdk.terminate_run(%s, 'ann', 'stuck')", run_id))


def pause(db: Conn) -> str:
    return str(value(db, "select pgwf_sdk.pause_run('order-1', 'ann')"))


def resume(db: Conn) -> str:
    return str(value(db, "select pgwf_sdk.resume_run('order-1', 'ann')"))


@pytest.mark.parametrize("state", ["ready", "waiting", "timed", "running", "paused", "blocked", "crash_concern"])
def test_terminate_ends_a_run_in_whatever_state(db: Conn, clock: Clock, hand: Hand, state: str) -> None:
    n, _, _ = start(db)
    if state != "ready":
        held = hand.take()
    if state == "waiting":
        hand.say(held.item("park"))
    elif state == "timed":
        hand.say(held.item("park", until=clock.START.replace(year=2031)))
    elif state == "paused":
        hand.say(held.item("park"))
        pause(db)
    elif state == "blocked":
        hand.say(held.item("block", note="{}"))
    elif state == "crash_concern":
        db.execute("select pgwf.set_crash_concern_threshold(1)")
        for _ in range(2):
            clock.advance(hours=1)
            db.execute("select pgwf.sweep('sweeper')")
            hand.claim(1)
    signal(db)

    assert terminate(db) == "terminated"

    assert journal(db) == [(1, "/run:checkout#1", "opened"), (2, "/run:checkout#1", "terminated")]
    assert rows(db, "select status, finished_at, need from pgwf_sdk.runs") == [("terminated", clock.now(), "python")]
    assert rows(db, "select n, outcome from pgwf.archive") == [(n, "cancelled")]
    result = value(db, "select pgwf_sdk.result('order-1')")
    assert (result["status"], result["error"]["message"]) == ("terminated", "terminated by ann: stuck")
    assert inbox(db) == []
    assert value(db, "select count(*) from pgwf_sdk.blocked") == 0
    assert hand.claim(1) == []


def test_terminate_fences_the_worker_that_holds_the_run(db: Conn, hand: Hand) -> None:
    start(db)
    held = hand.take()

    terminate(db)

    assert hand.say(held.item("keep", entry())) == ["fenced"]
    assert value(
        db,
        "select lost from pgwf_sdk.keepalive('worker-1', array[%s::bigint], array[%s], '{0}')",
        held.n,
        held.lease_id,
    )


def test_terminate_of_a_run_that_is_over_or_unknown_changes_nothing(db: Conn, hand: Hand) -> None:
    start(db)
    hand.say(hand.take().end())
    before = journal(db)

    assert terminate(db) == "completed"
    assert journal(db) == before
    start(db, "order-2")
    assert [terminate(db, "order-2"), terminate(db, "order-2")] == ["terminated", "terminated"]
    assert len(journal(db, "order-2")) == 2
    with pytest.raises(psycopg.Error) as error:
        terminate(db, "order-9")
    assert error.value.sqlstate == "WS002"


def test_terminate_tells_parent_and_children_and_closes_tasks(db: Conn, hand: Hand) -> None:
    start(db)
    hand.say(hand.take().item("park", entry(kind=Kind.CHILD, phase=Phase.OPENED), children=[child("order-1/a")]))
    middle = hand.take()
    hand.say(
        middle.item(
            "park",
            entry(kind=Kind.CHILD, phase=Phase.OPENED),
            children=[child("order-1/a/b")],
            tasks=[task("order-1/a/task")],
        )
    )
    db.execute("select pgwf_sdk.claim_task('order-1/a/task', 'bob')")

    assert terminate(db, "order-1/a") == "terminated"

    assert inbox(db, "order-1") == [("child", "/child:ship#1", "terminated")]
    assert status(db, "order-1") == "ready"
    assert inbox(db, "order-1/a/b") == [("cancel", "parent", "completed")]
    assert rows(db, "select state, holder from pgwf_sdk.tasks") == [("cancelled", "bob")]
    with pytest.raises(psycopg.Error, match="it is cancelled already") as error:
        db.execute("select pgwf_sdk.decide_task('order-1/a/task', 'bob', 'true', 1)")
    assert error.value.sqlstate == "WS011"


def test_terminate_gives_a_run_its_end_whose_job_was_cancelled_and_archived_in_the_leasing_core(
    db: Conn, hand: Hand
) -> None:
    start(db)
    hand.say(hand.take().item("park", entry(kind=Kind.CHILD, phase=Phase.OPENED), children=[child("order-1/ship#1")]))
    db.execute("select pgwf.cancel_job('order-1/ship#1', 'ops')")
    db.execute("select pgwf.sweep('sweeper')")
    assert (status(db, "order-1/ship#1"), status(db)) == ("terminated", "waiting")

    assert terminate(db, "order-1/ship#1") == "terminated"

    assert (inbox(db), status(db)) == ([("child", "/child:ship#1", "terminated")], "ready")


@pytest.mark.parametrize("state", ["ready", "waiting", "timed"])
def test_pause_keeps_a_run_from_being_leased_until_it_is_resumed(
    db: Conn, clock: Clock, hand: Hand, state: str
) -> None:
    start(db)
    if state != "ready":
        until = clock.START.replace(year=2031) if state == "timed" else None
        hand.say(hand.take().item("park", until=until))

    assert [pause(db), pause(db)] == ["paused", "paused"]

    assert status(db) == "paused"
    signal(db)
    clock.advance(days=1000)
    db.execute("select pgwf.sweep('sweeper')")
    assert hand.claim(1) == []
    assert resume(db) == "resumed"
    assert [row.name for row in hand.take().claim.inbox] == ["delivered"]


def test_pause_of_a_leased_run_leaves_the_lease_and_tells_its_holder(db: Conn, hand: Hand) -> None:
    start(db)
    held = hand.take()

    assert pause(db) == "paused"

    assert value(
        db,
        "select paused from pgwf_sdk.keepalive('worker-1', array[%s::bigint], array[%s], '{0}')",
        held.n,
        held.lease_id,
    )
    assert hand.say(held.item("keep", entry())) == ["ok"]
    assert hand.say(held.item("park")) == ["ok"]
    assert (status(db), hand.claim(1)) == ("paused", [])
    resume(db)
    assert hand.take().head == 2


def test_a_paused_run_whose_worker_dies_is_not_leased_again(db: Conn, clock: Clock, hand: Hand) -> None:
    start(db)
    hand.take()
    pause(db)
    clock.advance(hours=1)
    db.execute("select pgwf.sweep('sweeper')")

    assert (status(db), hand.claim(1)) == ("paused", [])

    resume(db)
    assert hand.take().claim.streak == 1


def test_a_run_paused_and_resumed_while_it_is_leased_is_leased_again_after_its_worker_died(
    db: Conn, clock: Clock, hand: Hand
) -> None:
    start(db)
    hand.take()
    pause(db)
    resume(db)
    assert status(db) == "running"
    clock.advance(hours=1)
    db.execute("select pgwf.sweep('sweeper')")

    assert hand.take().run_id == "order-1"


def test_a_paused_run_can_end_and_be_terminated(db: Conn, hand: Hand) -> None:
    start(db)
    held = hand.take()
    pause(db)

    assert hand.say(held.end()) == ["ok"]

    assert status(db) == "completed"
    assert (pause(db), resume(db)) == ("completed", "completed")


def test_resume_of_a_run_that_is_neither_paused_nor_blocked_changes_nothing(db: Conn, clock: Clock, hand: Hand) -> None:
    start(db)
    assert resume(db) == "ready"
    hand.say(hand.take().item("park"))

    assert resume(db) == "waiting"

    assert (status(db), hand.claim(1)) == ("waiting", [])
    for name in ("pause_run", "resume_run"):
        with pytest.raises(psycopg.Error) as error:
            db.execute(f"select pgwf_sdk.{name}('order-9', 'ann')".encode())
        assert error.value.sqlstate == "WS002"
