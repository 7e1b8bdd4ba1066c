"""Runs with a singleton key that jobs of the leasing core wait for: nobody waits for a waiter with a key in hand."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from uuid import uuid4

import psycopg
import pytest

from pgwf_journal import Kind, Phase
from tests.sdk.sql.hand import Hand, Held, child, entry, start, status, value
from tests.sdk.sql.race import Call, act, advance, both_orders

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.support import Session

Conn = psycopg.Connection[Any]

CANCEL_THE_WAITER = Call("select cancelled_by from pgwf.cancel_job('waiter', 'ann')")
HOLD_THE_KEY = "select pgwf.limit_key('K', 'op', 1)"


def waiter(db: Conn) -> None:
    """A job with the key that waits for the run."""
    value(db, "select n from pgwf.submit_job('waiter', 'client', 'other', '{order-1}', 'K')")


def keyed(db: Conn, hand: Hand) -> Held:
    """A leased run of the key, and the job that waits for it."""
    start(db, singleton_key="K")
    waiter(db)
    return hand.take()


def queue(session: Callable[[], Session], hold: Any, calls: list[Call]) -> list[Any]:
    """Somebody does `hold`, for which `calls` wait one behind the other, and goes. Their answers."""
    holder = session()
    holder.run("begin")
    holder.run(hold)
    started = []
    for call in calls:
        one = session()
        started.append(one.start_blocked(call.statement, call.parameters))
    holder.run("commit")
    return [call.answer(future.result(timeout=20)) for call, future in zip(calls, started, strict=True)]


@both_orders
def test_a_run_is_terminated_while_who_waits_for_it_with_the_same_key_is_cancelled(
    db: Conn, session: Callable[[], Session], order: int
) -> None:
    start(db, singleton_key="K")
    waiter(db)
    calls = [act("terminate_run", "order-1", "bob"), CANCEL_THE_WAITER][::order]

    assert queue(session, HOLD_THE_KEY, calls) == [["terminated"], ["ann"]][::order]

    assert status(db) == "terminated"


@both_orders
def test_a_leased_run_is_terminated_while_who_waits_for_it_with_the_same_key_is_cancelled(
    db: Conn, hand: Hand, session: Callable[[], Session], order: int
) -> None:
    keyed(db, hand)
    calls = [act("terminate_run", "order-1", "bob"), CANCEL_THE_WAITER][::order]

    assert queue(session, HOLD_THE_KEY, calls) == [["terminated"], ["ann"]][::order]


@both_orders
@pytest.mark.usefixtures("patient")
def test_a_run_ends_while_who_waits_for_it_with_the_same_key_is_cancelled(
    db: Conn, hand: Hand, session: Callable[[], Session], order: int
) -> None:
    held = keyed(db, hand)
    calls = [advance(hand, held.end()), CANCEL_THE_WAITER][::order]

    assert queue(session, HOLD_THE_KEY, calls) == [["ok"], ["ann"]][::order]

    assert status(db) == "completed"


@pytest.mark.parametrize("busy", ["lease", "job"])
def test_end_overdue_leaves_a_run_whose_rows_somebody_holds_for_the_next_time(
    db: Conn, hand: Hand, session: Callable[[], Session], busy: str
) -> None:
    held = keyed(db, hand)
    hand.say(held.item("keep", entry("ann", 0, kind=Kind.CANCEL, payload=b'{"grace_seconds": 0}')))
    holder = session()
    holder.run("begin")
    holder.run(
        {"lease": "select from pgwf.lease for update", "job": "select from pgwf.job where n = 1 for update"}[busy]
    )
    overdue = act("end_overdue", "w")

    ended = session().run(overdue.statement, overdue.parameters)

    assert (ended, status(db)) == ([(0,)], "running")
    holder.run("commit")
    assert value(db, "select pgwf_sdk.end_overdue('w')") == 1


def test_end_overdue_leaves_a_run_whose_waiter_somebody_holds_for_the_next_time(
    db: Conn, hand: Hand, session: Callable[[], Session]
) -> None:
    held = keyed(db, hand)
    hand.say(held.item("keep", entry("ann", 0, kind=Kind.CANCEL, payload=b'{"grace_seconds": 0}')))
    holder = session()
    holder.run("begin")
    holder.run("select * from pgwf.cancel_job('waiter', 'ann')")

    assert value(db, "select pgwf_sdk.end_overdue('w')") == 0
    holder.run("commit")

    assert value(db, "select pgwf_sdk.end_overdue('w')") == 1


def test_who_keeps_a_lease_or_has_lost_it_needs_the_key_for_nothing(
    db: Conn, hand: Hand, session: Callable[[], Session]
) -> None:
    """Somebody holds the key: a child is started all the same, and who has lost the lease is told at once."""
    start(db, singleton_key="K")
    held = hand.take()
    holder = session()
    holder.run("begin")
    holder.run(HOLD_THE_KEY)
    opened = entry("ship", kind=Kind.CHILD, phase=Phase.OPENED, payload=None)

    assert hand.say(held.item("keep", opened, children=[child("part")])) == ["ok"]
    assert hand.say(held.item("release", lease_id=uuid4())) == ["fenced"]
    holder.run("commit")
