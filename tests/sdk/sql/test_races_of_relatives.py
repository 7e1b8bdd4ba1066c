"""Two sessions at once on a parent and its children, or on a run and its task: each pair in both orders."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from pgwf_journal import Kind, Phase
from tests.sdk.sql.hand import Hand, Held, child, entry, inbox, journal, rows, signal, start, status, task, value
from tests.sdk.sql.race import act, advance, both_orders, race

if TYPE_CHECKING:
    from tests.support import Session

    Sessions = tuple[Session, Session]

Conn = psycopg.Connection[Any]

pytestmark = pytest.mark.usefixtures("patient")

TASK = "order-1/human:review#1"
TERMINATE = act("terminate_run", "order-1", "ann")


def family(db: Conn, hand: Hand, count: int = 2) -> list[Held]:
    """A parent and `count` children, all leased."""
    start(db)
    held = hand.take()
    calls = [
        entry("ship", number, kind=Kind.CHILD, phase=Phase.OPENED, occurrence=number, payload=None)
        for number in range(1, count + 1)
    ]
    children = [child(f"order-1/ship#{number}", f"/child:ship#{number}") for number in range(1, count + 1)]
    assert hand.say(held.item("keep", *calls, children=children)) == ["ok"]
    return [held, *hand.claim(count)]


def asking(db: Conn, hand: Hand) -> Held:
    """A leased run with an open task."""
    start(db)
    held = hand.take()
    asked = entry("review", kind=Kind.HUMAN, phase=Phase.OPENED, payload=None)
    assert hand.say(held.item("keep", asked, tasks=[task(TASK)])) == ["ok"]
    return held


def late(held: Held, **options: Any) -> Any:
    """The run gives up on its task."""
    timed_out = entry("review", kind=Kind.HUMAN, phase=Phase.TIMED_OUT, payload=None)
    closing: Any = {"key": "/human:review#1", "close": "expired"}
    return held.item("keep", timed_out, tasks=[closing], **options)


def decide(by: str) -> Any:
    return act("decide_task", TASK, by, b"true", 1)


def test_a_child_that_ends_before_its_parent_parks_keeps_it_awake(db: Conn, hand: Hand, two_sessions: Sessions) -> None:
    parent, kid = family(db, hand, 1)

    assert race(two_sessions, advance(hand, kid.end()), advance(hand, parent.item("park"))) == (["ok"], ["unread"])


def test_a_child_that_ends_after_its_parent_parked_wakes_it(db: Conn, hand: Hand, two_sessions: Sessions) -> None:
    parent, kid = family(db, hand, 1)

    assert race(two_sessions, advance(hand, parent.item("park")), advance(hand, kid.end())) == (["ok"], ["ok"])

    assert [row.name for row in hand.take().claim.inbox] == ["/child:ship#1"]


@pytest.mark.parametrize("wake_after", [1, 2])
def test_two_children_that_end_at_once_wake_their_parent(
    db: Conn, hand: Hand, two_sessions: Sessions, wake_after: int
) -> None:
    parent, one, two = family(db, hand)
    hand.say(parent.item("park", wake_after=wake_after))

    assert race(two_sessions, advance(hand, one.end()), advance(hand, two.end())) == (["ok"], ["ok"])

    assert sorted(row.name for row in hand.take().claim.inbox) == ["/child:ship#1", "/child:ship#2"]


def test_a_child_whose_end_rolled_back_does_not_count(db: Conn, hand: Hand, two_sessions: Sessions) -> None:
    parent, one, two = family(db, hand)
    hand.say(parent.item("park", wake_after=2))

    race(two_sessions, advance(hand, one.end()), advance(hand, two.end()), end="rollback")

    assert (status(db), len(inbox(db))) == ("waiting", 1)
    hand.say(one.end())
    assert status(db) == "ready"


@both_orders
def test_a_parent_and_its_child_that_end_at_once_both_end(
    db: Conn, hand: Hand, two_sessions: Sessions, order: int
) -> None:
    parent, kid = family(db, hand, 1)
    calls = [advance(hand, parent.end()), advance(hand, kid.end())][::order]

    assert race(two_sessions, calls[0], calls[1]) == (["ok"], ["ok"])

    assert (status(db), status(db, "order-1/ship#1")) == ("completed", "completed")


@both_orders
def test_two_calls_that_each_end_a_parent_and_the_child_of_the_other_do_not_deadlock(
    db: Conn, hand: Hand, two_sessions: Sessions, order: int
) -> None:
    one, two = (family_of(db, hand, run_id) for run_id in ("order-1", "order-2"))
    calls = [advance(hand, one[0].end(), two[1].end()), advance(hand, two[0].end(), one[1].end())][::order]

    assert race(two_sessions, calls[0], calls[1]) == (["ok", "ok"], ["ok", "ok"])


def family_of(db: Conn, hand: Hand, run_id: str) -> tuple[Held, Held]:
    start(db, run_id)
    held = hand.take()
    called = entry("ship", kind=Kind.CHILD, phase=Phase.OPENED, payload=None)
    hand.say(held.item("keep", called, children=[child(f"{run_id}/ship#1")]))
    return held, hand.take()


@both_orders
def test_a_parent_that_is_terminated_while_its_child_ends(
    db: Conn, hand: Hand, two_sessions: Sessions, order: int
) -> None:
    _, kid = family(db, hand, 1)
    calls = [TERMINATE, advance(hand, kid.end())][::order]

    assert race(two_sessions, calls[0], calls[1]) == tuple([["terminated"], ["ok"]][::order])

    assert (status(db), status(db, "order-1/ship#1")) == ("terminated", "completed")


@both_orders
def test_a_parent_and_its_child_that_are_terminated_at_once(
    db: Conn, hand: Hand, two_sessions: Sessions, order: int
) -> None:
    family(db, hand, 1)
    calls = [TERMINATE, act("terminate_run", "order-1/ship#1", "bob")][::order]

    assert race(two_sessions, calls[0], calls[1]) == (["terminated"], ["terminated"])

    assert (status(db), status(db, "order-1/ship#1")) == ("terminated", "terminated")


@both_orders
def test_a_child_that_is_terminated_while_its_parent_parks(
    db: Conn, hand: Hand, two_sessions: Sessions, order: int
) -> None:
    parent, _ = family(db, hand, 1)
    calls = [act("terminate_run", "order-1/ship#1", "bob"), advance(hand, parent.item("park"))][::order]

    found = race(two_sessions, calls[0], calls[1])

    assert found == ((["terminated"], ["unread"]) if order == 1 else (["ok"], ["terminated"]))
    assert status(db) == ("running" if order == 1 else "ready")


@both_orders
def test_a_child_that_hears_of_its_parents_end_while_it_parks(
    db: Conn, hand: Hand, two_sessions: Sessions, order: int
) -> None:
    parent, kid = family(db, hand, 1)
    calls = [advance(hand, parent.end()), advance(hand, kid.item("park"))][::order]

    assert race(two_sessions, calls[0], calls[1]) == ((["ok"], ["unread"]) if order == 1 else (["ok"], ["ok"]))

    assert inbox(db, "order-1/ship#1") == [("cancel", "parent", "completed")]
    assert status(db, "order-1/ship#1") == ("running" if order == 1 else "ready")


def test_a_decision_before_a_task_expires_counts(db: Conn, hand: Hand, two_sessions: Sessions) -> None:
    held = asking(db, hand)

    assert race(two_sessions, decide("ann"), advance(hand, late(held, decides=True)))[1] == ["undecided"]

    assert rows(db, "select state, decided_by from pgwf_sdk.tasks") == [("decided", "ann")]
    assert len(journal(db)) == 2


def test_a_decision_after_a_task_expired_is_refused(db: Conn, hand: Hand, two_sessions: Sessions) -> None:
    held = asking(db, hand)

    assert race(two_sessions, advance(hand, late(held, decides=True)), decide("ann")) == (["ok"], "WS011")

    assert rows(db, "select state from pgwf_sdk.tasks") == [("expired",)]


def test_a_run_that_forgets_to_ask_does_not_expire_a_task_that_is_decided_just_now(
    db: Conn, hand: Hand, two_sessions: Sessions
) -> None:
    held = asking(db, hand)

    assert race(two_sessions, decide("ann"), advance(hand, late(held)))[1] == ["undecided"]


def test_of_two_decisions_at_once_the_first_counts(db: Conn, hand: Hand, two_sessions: Sessions) -> None:
    asking(db, hand)

    assert race(two_sessions, decide("ann"), decide("bob"))[1] == "WS011"

    assert rows(db, "select decided_by from pgwf_sdk.tasks") == [("ann",)]
    assert len(inbox(db)) == 1


def test_of_two_claims_of_one_task_at_once_the_first_holds_it(db: Conn, hand: Hand, two_sessions: Sessions) -> None:
    asking(db, hand)

    assert race(two_sessions, act("claim_task", TASK, "ann"), act("claim_task", TASK, "bob"))[1] == "WS011"

    assert rows(db, "select holder from pgwf_sdk.tasks") == [("ann",)]


def test_a_claim_whose_rival_rolled_back_holds_the_task(db: Conn, hand: Hand, two_sessions: Sessions) -> None:
    asking(db, hand)

    race(two_sessions, act("claim_task", TASK, "ann"), act("claim_task", TASK, "bob"), end="rollback")

    assert rows(db, "select holder from pgwf_sdk.tasks") == [("bob",)]


@both_orders
def test_a_claim_and_a_decision_of_another_at_once(db: Conn, hand: Hand, two_sessions: Sessions, order: int) -> None:
    asking(db, hand)
    calls = [act("claim_task", TASK, "ann"), decide("bob")][::order]

    assert race(two_sessions, calls[0], calls[1])[1] == "WS011"

    assert rows(db, "select state, holder from pgwf_sdk.tasks") == [
        ("claimed", "ann") if order == 1 else ("decided", "bob")
    ]


@both_orders
def test_a_decision_while_its_run_ends(db: Conn, hand: Hand, two_sessions: Sessions, order: int) -> None:
    held = asking(db, hand)
    calls = [decide("ann"), advance(hand, held.end())][::order]

    answers = race(two_sessions, calls[0], calls[1])

    assert answers[1] == (["ok"] if order == 1 else "WS011")
    assert rows(db, "select state from pgwf_sdk.tasks") == [("decided",) if order == 1 else ("cancelled",)]
    assert (status(db), inbox(db)) == ("completed", [])


@both_orders
def test_a_decision_while_its_run_is_terminated(db: Conn, hand: Hand, two_sessions: Sessions, order: int) -> None:
    asking(db, hand)
    calls = [decide("ann"), TERMINATE][::order]

    answers = race(two_sessions, calls[0], calls[1])

    assert answers[1] == (["terminated"] if order == 1 else "WS011")
    assert rows(db, "select state from pgwf_sdk.tasks") == [("decided",) if order == 1 else ("cancelled",)]


@both_orders
def test_a_decision_while_its_run_parks_is_never_missed(
    db: Conn, hand: Hand, two_sessions: Sessions, order: int
) -> None:
    park = advance(hand, asking(db, hand).item("park"))
    calls = [decide("ann"), park][::order]

    answers = race(two_sessions, calls[0], calls[1])

    assert answers[calls.index(park)] == (["unread"] if order == 1 else ["ok"])
    assert status(db) == ("running" if order == 1 else "ready")


def test_a_termination_knows_of_a_task_that_is_opened_just_now(db: Conn, hand: Hand, two_sessions: Sessions) -> None:
    start(db)
    asked = entry("review", kind=Kind.HUMAN, phase=Phase.OPENED, payload=None)
    item = hand.take().item("keep", asked, tasks=[task(TASK)])

    assert race(two_sessions, advance(hand, item), TERMINATE) == (["ok"], ["terminated"])

    assert rows(db, "select state from pgwf_sdk.tasks") == [("cancelled",)]


def test_a_claim_of_a_task_and_a_signal_to_its_run_do_not_deadlock(
    db: Conn, hand: Hand, two_sessions: Sessions
) -> None:
    held = asking(db, hand)
    hand.say(held.item("park"))

    assert race(two_sessions, act("claim_task", TASK, "ann"), act("signal_run", "order-1", "x", None, 0))[1] == [True]

    signal(db)
    assert value(db, "select count(*) from pgwf_sdk.inbox") == 2
