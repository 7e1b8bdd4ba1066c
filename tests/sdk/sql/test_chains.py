"""Runs that continue: what becomes of their inboxes, relatives and ids, and who is first when two things meet."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from pgwf_journal import Kind, NewEntry, Phase
from tests.sdk.sql.hand import Hand, Held, Item, child, entry, inbox, journal, rows, signal, start, status, value
from tests.sdk.sql.race import act, advance, both_orders, race

if TYPE_CHECKING:
    from tests.sdk.sql.conftest import MakeHand
    from tests.support import Clock, Session

    Sessions = tuple[Session, Session]

Conn = psycopg.Connection[Any]
INPUT = b'{"args":[2],"kwargs":{}}'


def continuing(held: Held, *, need: str = "python", **options: Any) -> Item:
    last = NewEntry(0, Kind.RUN, Phase.CONTINUED, "", held.claim.workflow, 1, INPUT, 1)
    note = json.dumps({"workflow": held.claim.workflow, "build": None})
    return held.item("continue", *options.pop("entries", ()), last, need=need, note=note, **options)


def chain(db: Conn) -> list[tuple[str, str]]:
    return rows(db, "select run_id, status from pgwf_sdk.runs order by n")


def test_a_successor_takes_over_signals_and_cancel_requests_and_nothing_else(db: Conn, hand: Hand) -> None:
    start(db)
    held = hand.take()
    hand.say(held.item("keep", entry("ship", kind=Kind.CHILD, phase=Phase.OPENED), children=[child("c-1")]))
    signal(db, "go", payload=b"1")
    ending = hand.take()
    hand.say(ending.end())
    value(db, "select pgwf_sdk.cancel_run('order-1', 'ann')")

    assert hand.say(continuing(held)) == ["ok"]

    assert chain(db) == [("order-1", "continued"), ("c-1", "completed"), ("order-1~2", "ready")]
    assert inbox(db, "order-1~2") == [("signal", "go", "completed"), ("cancel", "ann", "completed")]
    assert journal(db, "order-1~2") == [(1, "/run:checkout#1", "opened")]
    written = "select payload from pgwf_journal.entry e join pgwf_sdk.run r using (n) where r.run_id = 'order-1~2'"
    assert value(db, written) == INPUT


def test_a_successor_takes_the_first_id_that_is_free(db: Conn, hand: Hand) -> None:
    start(db)
    start(db, "order-1~2", need="other")
    held = hand.take()

    assert hand.say(continuing(held)) == ["ok"]

    assert chain(db)[-1] == ("order-1~3", "ready")


@pytest.mark.parametrize("fault", ["fenced", "conflict"])
def test_a_continuation_that_is_refused_leaves_no_successor(db: Conn, hand: Hand, fault: str) -> None:
    start(db)
    held = hand.take()
    if fault == "fenced":
        value(db, "select pgwf_sdk.terminate_run('order-1', 'ann')")
    else:
        held.head = 7

    assert hand.say(continuing(held)) == [fault]

    assert [run_id for run_id, _ in chain(db)] == ["order-1"]
    assert rows(db, "select job_id from pgwf.name where job_id like '%%~%%'") == []


def test_children_go_over_to_the_successor_and_their_results_reach_nobody(db: Conn, hand: Hand) -> None:
    start(db)
    held = hand.take()
    hand.say(held.item("keep", entry("ship", kind=Kind.CHILD, phase=Phase.OPENED), children=[child("c-1")]))
    hand.say(continuing(held))
    first, second = sorted(hand.claim(2), key=lambda one: one.n)

    hand.say(first.end())

    assert first.run_id == "c-1"
    assert inbox(db, "order-1~2") == []
    hand.say(second.end())
    assert status(db, "order-1~2") == "completed"


def test_the_parent_of_a_chain_is_told_when_the_chain_ends(db: Conn, hand: Hand) -> None:
    start(db, "p")
    parent = hand.take()
    hand.say(parent.item("keep", entry("ship", kind=Kind.CHILD, phase=Phase.OPENED), children=[child("c")]))
    hand.say(continuing(hand.take()))
    assert inbox(db, "p") == []

    hand.say(hand.take().end())

    assert inbox(db, "p") == [("child", "/child:ship#1", "completed")]


@both_orders
def test_a_child_that_continues_while_its_parent_ends_is_cancelled_whoever_is_first(
    db: Conn, make_hand: MakeHand, patient: None, two_sessions: Sessions, order: int
) -> None:
    """Both orders: the parent's end before the child's continuation has committed, and after."""
    start(db, "p")
    one, two = make_hand("worker-1"), make_hand("worker-2")
    parent = one.take()
    one.say(parent.item("keep", entry("ship", kind=Kind.CHILD, phase=Phase.OPENED), children=[child("c")]))
    held = two.take()
    calls = [advance(one, parent.end()), advance(two, continuing(held))][::order]

    assert race(two_sessions, calls[0], calls[1]) == (["ok"], ["ok"])

    assert chain(db) == [("p", "completed"), ("c", "continued"), ("c~2", "ready")]
    assert inbox(db, "c~2") == [("cancel", "parent", "completed")]


@both_orders
@pytest.mark.parametrize("call", ["signal", "cancel"])
def test_what_is_sent_while_a_run_continues_reaches_its_successor(
    db: Conn, hand: Hand, patient: None, two_sessions: Sessions, order: int, call: str
) -> None:
    """Both orders: sent before the continuation has committed, and after."""
    start(db)
    held = hand.take()
    sent = act("signal_run", "order-1", "go", b"1", 1) if call == "signal" else act("cancel_run", "order-1", "ann")
    calls = [sent, advance(hand, continuing(held))][::order]

    race(two_sessions, calls[0], calls[1])

    name = "go" if call == "signal" else "ann"
    assert inbox(db, "order-1~2") == [(call, name, "completed")]


@both_orders
def test_a_termination_that_meets_a_continuation_ends_the_chain(
    db: Conn, hand: Hand, patient: None, two_sessions: Sessions, order: int
) -> None:
    start(db)
    held = hand.take()
    calls = [act("terminate_run", "order-1", "ann"), advance(hand, continuing(held))][::order]

    race(two_sessions, calls[0], calls[1])

    assert chain(db)[-1][1] == "terminated"


def test_a_run_that_cancels_is_terminated_when_its_grace_period_is_over(db: Conn, hand: Hand, clock: Clock) -> None:
    start(db)
    held = hand.take()
    cancel = entry("cancel", 0, kind=Kind.CANCEL, payload=b'{"by":"ann","grace_seconds":60}')
    hand.say(held.item("keep", cancel))

    clock.advance(seconds=59)
    assert value(db, "select pgwf_sdk.end_overdue('sweeper')") == 0
    clock.advance(seconds=2)

    assert value(db, "select pgwf_sdk.end_overdue('sweeper')") == 1
    assert status(db) == "terminated"
    assert hand.say(held.item("keep", entry())) == ["fenced"]


def test_a_compensation_ends_the_grace_period_and_no_later_request_begins_one(
    db: Conn, hand: Hand, clock: Clock
) -> None:
    start(db)
    held = hand.take()
    hand.say(held.item("keep", entry("cancel", 0, kind=Kind.CANCEL, payload=b'{"by":"ann"}')))
    undoing = entry("undo", kind=Kind.COMPENSATION, phase=Phase.OPENED, payload=b'{"undoes":"/step:book#1"}')
    hand.say(held.item("keep", undoing))
    hand.say(held.item("keep", entry("cancel", 0, kind=Kind.CANCEL, payload=b'{"by":"deadline"}')))

    clock.advance(hours=9)

    assert value(db, "select pgwf_sdk.end_overdue('sweeper')") == 0
    assert status(db) == "ready"


def test_a_child_given_up_is_asked_to_cancel_once(db: Conn, hand: Hand) -> None:
    start(db)
    held = hand.take()
    hand.say(held.item("keep", entry("ship", kind=Kind.CHILD, phase=Phase.OPENED), children=[child("c-1")]))

    hand.say(held.item("keep", cancels=["/child:ship#1"]))
    hand.say(held.item("keep", cancels=["/child:ship#1", "/child:unknown#1"]))

    assert inbox(db, "c-1") == [("cancel", "parent", "completed")]
