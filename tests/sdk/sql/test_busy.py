"""advance in busy mode: whoever needs a row that a long transaction holds is left out; nobody waits."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final, LiteralString

import psycopg
import pytest

from pgwf_journal import Kind, Phase
from tests.sdk.sql.hand import Hand, Held, child, entry, journal, rows, start, status, task, value

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.support import Session

Conn = psycopg.Connection[Any]

TASK: Final = "order-1/human:review#1"
RUN: Final = "select from pgwf_sdk.run where run_id = %s for update"
JOB: Final = "select from pgwf.job where job_id = %s for key share"
LEASE: Final = "select from pgwf.lease where n = (select n from pgwf.name where job_id = %s) for update"
# What a long transaction holds, and whether the parent, who parks, and its child, who ends, can go on meanwhile.
HELD: Final[dict[str, tuple[LiteralString, str, list[str]]]] = {
    "nothing": (RUN, "order-2", ["ok", "ok"]),
    "the lease of the parent": (LEASE, "order-1", ["busy", "ok"]),
    "the run of the parent": (RUN, "order-1", ["busy", "busy"]),
    "the job of the parent": (JOB, "order-1", ["busy", "busy"]),
    "the lease of the child": (LEASE, "order-1/ship#1", ["ok", "busy"]),
    "the run of the child": (RUN, "order-1/ship#1", ["ok", "busy"]),
    "the job of the child": (JOB, "order-1/ship#1", ["ok", "busy"]),
    "the run of the grandchild": (RUN, "order-1/ship#1/ship#1", ["ok", "busy"]),
    "the job of the child's task": (JOB, TASK, ["ok", "busy"]),
}


def opened(kind: Kind = Kind.CHILD, name: str = "ship", call: int = 1) -> Any:
    return entry(name, call, kind=kind, phase=Phase.OPENED, payload=None)


@pytest.fixture
def family(db: Conn, hand: Hand) -> tuple[Held, Held]:
    """A parent and its child, both leased; the child has a child and an open task. And a run apart."""
    start(db)
    parent = hand.take()
    assert hand.say(parent.item("keep", opened(), children=[child("order-1/ship#1")])) == ["ok"]
    ship = hand.take()
    asked = opened(Kind.HUMAN, "review", 2)
    grandchild = child("order-1/ship#1/ship#1", need="nobody")
    assert hand.say(ship.item("keep", opened(), asked, children=[grandchild], tasks=[task(TASK)])) == ["ok"]
    start(db, "order-2")
    return parent, ship


@pytest.mark.parametrize("held", HELD)
def test_who_needs_a_row_that_somebody_holds_is_left_out_and_can_be_sent_again(
    db: Conn, hand: Hand, family: tuple[Held, Held], session: Callable[[], Session], held: str
) -> None:
    statement, job_id, expected = HELD[held]
    parent, ship = family
    items = [parent.item("park"), ship.end()]
    holder = session()
    holder.run("begin")
    holder.run(statement, [job_id])

    # Without busy mode one of the two would make both wait, and then fail.
    answered, _ = hand.call(*items, busy_ok=True)
    assert [answer.status for answer in answered] == expected
    holder.run("commit")

    left = [item for item, state in zip(items, expected, strict=True) if state == "busy"]
    # The parent hears of its child's end, if that came first, and does not park.
    assert {answer.status for answer in hand.call(*left, busy_ok=True)[0]} <= {"ok", "unread"}
    assert status(db, "order-1/ship#1") == "completed"


@pytest.mark.parametrize("held", HELD)
def test_who_commits_before_the_call_leaves_nobody_out(
    hand: Hand, family: tuple[Held, Held], session: Callable[[], Session], held: str
) -> None:
    statement, job_id, _ = HELD[held]
    parent, ship = family
    holder = session()
    holder.run("begin")
    holder.run(statement, [job_id])
    holder.run("commit")

    answered, _ = hand.call(parent.item("park"), ship.end(), busy_ok=True)

    assert [answer.status for answer in answered] == ["ok", "ok"]


def test_a_run_that_only_records_does_not_mind_who_holds_its_run_and_job(
    db: Conn, hand: Hand, session: Callable[[], Session]
) -> None:
    start(db)
    held = hand.take()
    holder = session()
    holder.run("begin")
    holder.run("select pgwf_sdk.signal_run('order-1', 'go', null, 0)")

    assert [answer.status for answer in hand.call(held.item("keep", entry()), busy_ok=True)[0]] == ["ok"]
    assert [answer.status for answer in hand.call(held.item("park"), busy_ok=True)[0]] == ["busy"]
    holder.run("commit")

    assert [answer.status for answer in hand.call(held.item("park"), busy_ok=True)[0]] == ["unread"]


def test_nothing_is_left_of_an_item_that_is_left_out(db: Conn, hand: Hand, session: Callable[[], Session]) -> None:
    start(db)
    start(db, "order-2")
    one, two = hand.claim(2)
    holder = session()
    holder.run("begin")
    holder.run(RUN, ["order-1"])
    starting = one.item(
        "keep", opened(), opened(Kind.HUMAN, "review", 2), children=[child("order-1/ship#1")], tasks=[task(TASK)]
    )

    answered, _ = hand.call(starting, two.item("keep", entry()), busy_ok=True)

    assert [answer.status for answer in answered] == ["busy", "ok"]
    assert [row[1] for row in journal(db, "order-1")] == ["/run:checkout#1"]
    assert rows(db, "select job_id from pgwf.job where job_id like 'order-1/%%'") == []
    assert value(db, "select count(*) from pgwf_sdk.task") == 0
    holder.run("rollback")
    assert hand.say(starting) == ["ok"]


def test_a_lost_lease_is_fenced_and_not_busy(db: Conn, hand: Hand, session: Callable[[], Session]) -> None:
    start(db)
    held = hand.take()
    assert hand.say(held.item("release", delay=timedelta(minutes=1))) == ["ok"]
    holder = session()
    holder.run("begin")
    holder.run(RUN, ["order-1"])

    assert [answer.status for answer in hand.call(held.item("keep", entry()), busy_ok=True)[0]] == ["fenced"]
