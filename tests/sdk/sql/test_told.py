"""Who holds a run is told at once that there is something for it to read, on the channel of its name."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from psycopg import sql

from pgwf_journal import Kind, Phase
from tests.sdk.sql.hand import Hand, begin, child, entry, signal, start, value
from tests.sdk.sql.race import act, advance, race

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.sdk.sql.conftest import MakeHand
    from tests.support import Connect, Session

Conn = psycopg.Connection[Any]
CALL = entry("ship", kind=Kind.CHILD, phase=Phase.OPENED, payload=None)
ACTS: dict[str, Callable[[Conn], object]] = {
    "cancel": lambda db: db.execute("select pgwf_sdk.cancel_run('order-1', 'ann')"),
    "pause": lambda db: db.execute("select pgwf_sdk.pause_run('order-1', 'ann')"),
    "terminate": lambda db: db.execute("select pgwf_sdk.terminate_run('order-1', 'ann')"),
    "signal": lambda db: signal(db),
}

pytestmark = [pytest.mark.usefixtures("patient"), pytest.mark.own_session]


class Ear:
    """Listens to what workers are told."""

    def __init__(self, conn: Conn, *worker_ids: str) -> None:
        self._conn = conn
        self._names: dict[str, str] = {}
        for worker_id in worker_ids:
            channel = value(conn, "select pgwf.channel(%s)", f"worker.{worker_id}")
            self._names[channel] = worker_id
            conn.execute(sql.SQL("listen {}").format(sql.Identifier(channel)))

    def told(self) -> list[str]:
        """The workers that were told something since this was asked last."""
        self._conn.execute("select")
        return [self._names[one.channel] for one in self._conn.notifies(timeout=0)]


@pytest.fixture
def ear(connect: Connect) -> Ear:
    return Ear(connect(), "worker-1", "worker-2")


@pytest.mark.parametrize("name", ACTS)
def test_its_holder_is_told_and_nobody_else(db: Conn, ear: Ear, make_hand: MakeHand, name: str) -> None:
    start(db)
    make_hand("worker-1").take()
    start(db, "order-2")
    make_hand("worker-2").take()

    ACTS[name](db)

    assert ear.told() == ["worker-1"]


@pytest.mark.parametrize("name", ACTS)
def test_nobody_is_told_of_a_run_that_nobody_holds(db: Conn, ear: Ear, hand: Hand, name: str) -> None:
    start(db)
    hand.say(hand.take().item("park"))

    ACTS[name](db)

    assert ear.told() == []


def test_a_request_before_the_claim_is_in_its_answer(db: Conn, ear: Ear, hand: Hand) -> None:
    begin(db)
    ACTS["cancel"](db)

    (row,) = hand.take().claim.inbox

    assert (row.kind, ear.told()) == (Kind.CANCEL, [])


def test_a_pause_that_waits_for_a_claim_tells_who_made_it(
    db: Conn, ear: Ear, hand: Hand, two_sessions: tuple[Session, Session]
) -> None:
    start(db)

    assert race(two_sessions, advance(hand, slots=1), act("pause_run", "order-1", "ann")) == (["claimed"], ["paused"])

    assert ear.told() == ["worker-1"]


def test_a_holder_is_told_that_a_child_has_ended(db: Conn, ear: Ear, make_hand: MakeHand) -> None:
    start(db)
    parent, worker = make_hand("worker-1"), make_hand("worker-2")
    parent.say(parent.take().item("keep", CALL, children=[child("order-1/ship")]))
    held = worker.take()

    worker.say(held.end())

    assert ear.told() == ["worker-1"]


def test_the_holder_of_a_child_is_told_that_its_parent_is_over(db: Conn, ear: Ear, make_hand: MakeHand) -> None:
    start(db)
    parent, worker = make_hand("worker-1"), make_hand("worker-2")
    held = parent.take()
    parent.say(held.item("keep", CALL, children=[child("order-1/ship")]))
    worker.take()

    parent.say(held.end())

    assert ear.told() == ["worker-2"]


def test_a_worker_that_is_to_drain_is_told(db: Conn, ear: Ear) -> None:
    db.execute("select pgwf.worker_heartbeat('worker-1', array['python'])")

    assert value(db, "select pgwf.drain_worker('worker-1')") is True
    assert value(db, "select pgwf.drain_worker('worker-2')") is False

    assert ear.told() == ["worker-1"]
