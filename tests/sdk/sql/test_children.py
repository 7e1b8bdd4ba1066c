"""Children: started with an item, heard of in the parent's inbox, asked to cancel when the parent ends."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import psycopg
import pytest

from pgwf_journal import Kind, Phase
from tests.sdk.sql.hand import Hand, Held, child, entry, inbox, journal, rows, signal, start, status, task, value

if TYPE_CHECKING:
    from tests.support import Clock

Conn = psycopg.Connection[Any]


def call(number: int) -> Any:
    return entry("ship", number, kind=Kind.CHILD, phase=Phase.OPENED, occurrence=number, payload=None)


def parent_of(db: Conn, hand: Hand, count: int, *, wake_after: int = 1, **options: Any) -> list[Held]:
    """Start a run that starts `count` children and parks; the children, leased."""
    start(db, **options)
    held = hand.take()
    children = [child(f"order-1/ship#{number}", f"/child:ship#{number}") for number in range(1, count + 1)]
    calls = [call(number) for number in range(1, count + 1)]
    assert hand.say(held.item("park", *calls, children=children, wake_after=wake_after)) == ["ok"]
    return hand.claim(count)


def test_a_child_has_its_parents_priority_trace_and_root(db: Conn, hand: Hand) -> None:
    start(db, priority=1, trace="00-1-2-01")
    held = hand.take()
    hand.say(held.item("keep", call(1), children=[child("order-1/ship#1")]))
    middle = hand.take()
    hand.say(middle.item("keep", call(1), children=[child("order-1/ship#1/ship#1")]))

    assert rows(
        db,
        """
        select run_id, workflow, need, priority, trace, parent_run_id, root_run_id, started_by
        from pgwf_sdk.runs where parent_run_id is not null order by n
        """,
    ) == [
        ("order-1/ship#1", "ship", "python", 1, "00-1-2-01", "order-1", "order-1", "worker-1"),
        ("order-1/ship#1/ship#1", "ship", "python", 1, "00-1-2-01", "order-1/ship#1", "order-1", "worker-1"),
    ]
    assert journal(db, "order-1/ship#1") == [(1, "/run:ship#1", "opened"), (2, "/child:ship#1", "opened")]
    assert value(db, "select parent_key from pgwf_sdk.run where run_id = 'order-1/ship#1'") == "/child:ship#1"


@pytest.mark.parametrize(
    ("disposition", "phase", "payload"),
    [("complete", "completed", b"42"), ("fail", "failed", b'{"type": "m:E"}'), ("cancel", "cancelled", None)],
)
def test_the_end_of_a_child_lands_once_in_the_inbox_of_its_parent_and_wakes_it(
    db: Conn, hand: Hand, disposition: Any, phase: str, payload: bytes | None
) -> None:
    (first,) = parent_of(db, hand, 1)
    assert status(db) == "waiting"
    item = first.end(disposition, payload)

    assert [hand.say(item), hand.say(item)] == [["ok"], ["fenced"]]

    assert inbox(db) == [("child", "/child:ship#1", phase)]
    (row,) = hand.take().claim.inbox
    assert (row.kind, row.phase.label, row.payload, row.encoding) == (
        Kind.CHILD,
        phase,
        payload,
        0 if payload is None else 1,
    )


def test_a_terminated_child_is_heard_of_as_terminated(db: Conn, hand: Hand) -> None:
    parent_of(db, hand, 1)

    db.execute("select pgwf_sdk.terminate_run('order-1/ship#1', 'ann', 'stuck')")

    assert inbox(db) == [("child", "/child:ship#1", "terminated")]
    (row,) = hand.take().claim.inbox
    assert row.payload is not None
    assert b"terminated by ann: stuck" in row.payload


def test_a_parent_that_waits_for_k_children_is_woken_by_the_kth(db: Conn, hand: Hand) -> None:
    one, two, three = parent_of(db, hand, 3, wake_after=3)

    assert hand.say(one.end()) == ["ok"]
    assert hand.say(two.end()) == ["ok"]
    assert (status(db), hand.claim(1)) == ("waiting", [])
    assert hand.say(three.end()) == ["ok"]

    assert [row.name for row in hand.take().claim.inbox] == [f"/child:ship#{number}" for number in (1, 2, 3)]


def test_a_parent_that_counts_any_end_is_woken_by_the_kth_however_they_end(db: Conn, hand: Hand) -> None:
    one, two, three = parent_of(db, hand, 3, wake_after=-3)

    assert hand.say(one.end("fail", b"{}")) == ["ok"]
    assert hand.say(two.end()) == ["ok"]
    assert (status(db), hand.claim(1)) == ("waiting", [])
    assert hand.say(three.end("cancel", b"{}")) == ["ok"]

    assert [row.phase for row in hand.take().claim.inbox] == [Phase.FAILED, Phase.COMPLETED, Phase.CANCELLED]


def test_a_parent_that_counts_any_end_is_woken_by_anything_else_at_once(db: Conn, hand: Hand) -> None:
    one, *_ = parent_of(db, hand, 3, wake_after=-3)
    assert hand.say(one.end("fail", b"{}")) == ["ok"]

    assert signal(db, run_id="order-1")

    assert [row.kind for row in hand.take().claim.inbox] == [Kind.CHILD, Kind.SIGNAL]


@pytest.mark.parametrize(("wake_after", "answers"), [(3, ["unread"]), (-3, ["ok"]), (-2, ["unread"])])
def test_what_ended_before_a_park_counts(db: Conn, hand: Hand, wake_after: int, answers: list[str]) -> None:
    """The children end while their parent is held: one fails, one completes."""
    one, two, _ = parent_of(db, hand, 3, wake_after=3)
    assert signal(db, run_id="order-1")
    parent = hand.take()
    assert hand.say(one.end("fail", b"{}"), two.end()) == ["ok", "ok"]

    seen = max(row.id for row in parent.claim.inbox)
    assert hand.say(parent.item("park", inbox_seen=seen, wake_after=wake_after)) == answers


def test_children_that_end_in_one_call_are_counted_one_by_one(db: Conn, hand: Hand) -> None:
    one, two, three = parent_of(db, hand, 3, wake_after=3)

    assert hand.say(one.end(), two.end()) == ["ok", "ok"]
    assert status(db) == "waiting"
    assert hand.say(three.end()) == ["ok"]
    assert status(db) == "ready"


def test_a_child_that_does_not_complete_wakes_its_parent_at_once(db: Conn, hand: Hand) -> None:
    for disposition in ("fail", "cancel"):
        run_id = f"order-{disposition}"
        start(db, run_id)
        held = hand.take()
        children = [child(f"{run_id}/{number}", f"/child:ship#{number}") for number in (1, 2)]
        hand.say(held.item("park", call(1), call(2), children=children, wake_after=2))
        first, _ = hand.claim(2)

        disposed: Any = disposition
        hand.say(first.end(disposed, b"{}"))

        assert status(db, run_id) == "ready"
        hand.say(hand.take().end())


def test_a_signal_wakes_a_parent_that_waits_for_many_children_at_once(db: Conn, hand: Hand) -> None:
    parent_of(db, hand, 2, wake_after=2)

    signal(db)

    assert status(db) == "ready"


def test_children_that_ended_before_the_park_count(db: Conn, hand: Hand) -> None:
    start(db)
    held = hand.take()
    children = [child(f"order-1/ship#{number}", f"/child:ship#{number}") for number in (1, 2, 3)]
    hand.say(held.item("keep", call(1), call(2), call(3), children=children))
    one, two, three = hand.claim(3)
    hand.say(one.end())

    assert hand.say(held.item("park", wake_after=3)) == ["ok"]
    assert status(db) == "waiting"
    hand.say(two.end())
    assert status(db) == "waiting"
    hand.say(three.end())

    assert status(db) == "ready"


def test_a_parent_does_not_park_when_as_many_children_ended_as_it_waits_for(db: Conn, hand: Hand) -> None:
    start(db)
    held = hand.take()
    children = [child(f"order-1/ship#{number}", f"/child:ship#{number}") for number in (1, 2)]
    hand.say(held.item("keep", call(1), call(2), children=children))
    one, two = hand.claim(2)
    hand.say(one.end(), two.end())

    answer = hand.answer(held.item("park", wake_after=2))

    assert (answer.status, len(answer.inbox)) == ("unread", 2)


def test_a_parent_does_not_park_when_a_child_failed_already(db: Conn, hand: Hand) -> None:
    start(db)
    held = hand.take()
    children = [child(f"order-1/ship#{number}", f"/child:ship#{number}") for number in (1, 2)]
    hand.say(held.item("keep", call(1), call(2), children=children))
    one, _ = hand.claim(2)
    hand.say(one.end("fail", b"{}"))

    assert hand.say(held.item("park", wake_after=2)) == ["unread"]


def test_a_parent_woken_by_its_timer_starts_counting_anew(db: Conn, clock: Clock, hand: Hand) -> None:
    start(db)
    held = hand.take()
    children = [child(f"order-1/ship#{number}", f"/child:ship#{number}") for number in (1, 2)]
    hand.say(held.item("park", call(1), call(2), children=children, wake_after=2, delay=timedelta(hours=1)))
    one, two = hand.claim(2, timedelta(days=1))
    clock.advance(hours=2)
    db.execute("select pgwf.sweep('sweeper')")
    again = hand.take()
    hand.say(one.end())

    assert hand.say(again.item("park", wake_after=2)) == ["ok"]
    hand.say(two.end())

    assert status(db) == "ready"


@pytest.mark.parametrize("taken_by", ["a run", "a job", "a journal", "another item of the call"])
def test_an_item_whose_child_id_is_taken_writes_nothing_and_leaves_no_trace_of_its_other_children(
    db: Conn, hand: Hand, taken_by: str
) -> None:
    start(db, "order-1")
    start(db, "order-2")
    one, two = hand.claim(2)
    if taken_by == "a run":
        start(db, "taken", need="elsewhere")
    elif taken_by == "a job":
        db.execute("select pgwf.submit_job('taken', 'somebody', 'elsewhere')")
    elif taken_by == "a journal":
        db.execute("select pgwf_journal.open('taken')")
    others = [child("taken")] if taken_by == "another item of the call" else [child("order-2/ship#1")]

    answers, claims = hand.call(
        two.item("keep", call(1), children=others),
        one.item(
            "keep",
            call(1),
            call(2),
            children=[child("free", "/child:ship#1"), child("taken", "/child:ship#2")],
            tasks=[task("order-1/human:review#1")],
        ),
        slots=9,
    )

    assert [(answer.status, answer.taken) for answer in answers] == [("ok", []), ("child_exists", ["taken"])]
    assert [held.run_id for held in claims] == [others[0].run_id]
    assert journal(db, "order-1") == [(1, "/run:checkout#1", "opened")]
    for table, column in [
        ("pgwf.name", "job_id"),
        ("pgwf.job", "job_id"),
        ("pgwf_sdk.run", "run_id"),
        ("pgwf_journal.journal", "journal_id"),
    ]:
        statement: Any = f"select count(*) from {table} where {column} in ('free', 'order-1/human:review#1')"
        assert value(db, statement) == 0, table
    assert value(db, "select count(*) from pgwf_sdk.task") == 0
    unknown = "select count(*) from pgwf.trace t where not exists (select from pgwf.name m where m.n = t.n)"
    assert value(db, unknown) == 0
    assert start(db, "free")[2]
    assert hand.say(one.item("keep", call(1), children=[child("order-1/ship#1")])) == ["ok"]


def test_a_child_whose_id_no_job_can_have_is_refused_like_one_that_is_taken(db: Conn, hand: Hand) -> None:
    start(db)
    held = hand.take()

    for run_id in ("", "x" * 513, "a\nb"):
        answer = hand.answer(held.item("keep", call(1), children=[child(run_id)]))
        assert (answer.status, answer.taken) == ("child_exists", [run_id])

    assert value(db, "select count(*) from pgwf_sdk.run") == 1


def test_a_fenced_or_conflicting_item_starts_no_child(db: Conn, hand: Hand) -> None:
    start(db)
    held = hand.take()
    children = [child("order-1/ship#1")]

    assert hand.say(held.item("keep", call(1), children=children, lease_id=uuid4())) == ["fenced"]
    assert hand.say(held.item("keep", call(1), children=children, expected_seq=4)) == ["conflict"]
    assert hand.claim(1) == []
    assert hand.say(held.item("keep", call(1), children=children)) == ["ok"]

    assert hand.take().run_id == "order-1/ship#1"


def test_a_parent_that_ends_cancels_its_live_children_and_closes_its_open_tasks(
    db: Conn, clock: Clock, hand: Hand
) -> None:
    for disposition in ("complete", "fail", "cancel"):
        run_id = f"order-{disposition}"
        start(db, run_id)
        held = hand.take()
        children = [child(f"{run_id}/{number}", f"/child:ship#{number}") for number in (1, 2, 3)]
        hand.say(held.item("keep", call(1), call(2), call(3), children=children, tasks=[task(f"{run_id}/task")]))
        done, parked, leased = hand.claim(3)
        hand.say(done.end(), parked.item("park"))

        disposed: Any = disposition
        assert hand.say(held.end(disposed, b"{}")) == ["ok"]

        assert inbox(db, done.run_id) == []
        assert inbox(db, leased.run_id) == [("cancel", "parent", "completed")]
        assert status(db, parked.run_id) == "ready"
        assert rows(db, "select state from pgwf_sdk.tasks where run_id = %s", run_id) == [("cancelled",)]
        again = hand.take()
        assert again.run_id == parked.run_id
        assert hand.say(again.end("cancel", None), leased.end("cancel", None)) == ["ok", "ok"]
        assert inbox(db, run_id) == []


def test_a_parent_and_its_child_can_end_in_one_call(db: Conn, hand: Hand) -> None:
    start(db)
    held = hand.take()
    hand.say(held.item("keep", call(1), children=[child("order-1/ship#1")]))
    kid = hand.take()

    assert hand.say(kid.end(), held.end()) == ["ok", "ok"]

    assert (status(db), status(db, "order-1/ship#1")) == ("completed", "completed")


def test_what_a_run_starts_and_opens_with_its_last_item_ends_with_it(db: Conn, hand: Hand) -> None:
    start(db)
    held = hand.take()
    last = held.end(entries=[call(1)], children=[child("order-1/ship#1")], tasks=[task("order-1/task")])

    assert hand.say(last) == ["ok"]

    assert inbox(db, "order-1/ship#1") == [("cancel", "parent", "completed")]
    assert rows(db, "select state from pgwf_sdk.tasks") == [("cancelled",)]
