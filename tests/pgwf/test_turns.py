"""Of many that sleep on one need, two are woken: who sleeps in turn, who is next, and how a turn is handed on."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.pgwf.ears import Ear
from tests.pgwf.leasing import Leasing, refused

if TYPE_CHECKING:
    from tests.support import Clock, Connect

pytestmark = pytest.mark.own_session  # A session that listens keeps its connection.


def sleep(pgwf: Leasing, clock: Clock, *listeners: str, needs: tuple[str, ...] = ("python",)) -> None:
    for listener in listeners:
        clock.advance(seconds=1)
        pgwf.call("sleep_in_turn", listener=listener, needs=list(needs))


def test_of_two_hundred_sleepers_the_last_one_and_one_other_are_woken(
    pgwf: Leasing, clock: Clock, connect: Connect
) -> None:
    listeners = [f"w{number}" for number in range(200)]
    ear = Ear(connect, "need.python", "turns.python", *(f"turn.{listener}" for listener in listeners))
    sleep(pgwf, clock, *listeners)
    others: set[str] = set()

    for number in range(30):
        pgwf.submit(f"job-{number}")
        heard = ear.heard()
        assert len(heard) <= 2
        assert "turn.w199" in heard
        others |= set(heard)

    assert len(others) > 10  # By chance, so that nobody who is dead keeps all work to himself.


def test_of_two_sleepers_both_are_woken(pgwf: Leasing, clock: Clock, connect: Connect) -> None:
    """So a dead one that registered last holds up nobody."""
    ear = Ear(connect, "turn.w1", "turn.w2")
    sleep(pgwf, clock, "w1", "w2")

    for number in range(10):
        pgwf.submit(f"job-{number}")
        assert ear.heard() == ["turn.w1", "turn.w2"]


def test_only_who_sleeps_on_a_need_is_woken_for_it(pgwf: Leasing, clock: Clock, connect: Connect) -> None:
    ear = Ear(connect, "turn.w1", "turn.w2")
    sleep(pgwf, clock, "w1")
    sleep(pgwf, clock, "w2", needs=("gpu", "mail"))

    pgwf.submit("a", "gpu")
    assert ear.heard() == ["turn.w2"]
    pgwf.submit("b", "trucks")
    assert ear.heard() == []


def test_a_new_request_replaces_the_old_one_and_wake_up_withdraws_it(
    pgwf: Leasing, clock: Clock, connect: Connect
) -> None:
    ear = Ear(connect, "turn.w1")
    sleep(pgwf, clock, "w1")
    sleep(pgwf, clock, "w1", needs=("gpu",))

    pgwf.submit("a")
    assert ear.heard() == []
    pgwf.submit("b", "gpu")
    assert ear.heard() == ["turn.w1"]
    pgwf.call("wake_up", listener="w1")
    pgwf.submit("c", "gpu")
    assert ear.heard() == []


def test_who_sleeps_for_himself_is_woken_beside_those_who_take_turns(
    pgwf: Leasing, clock: Clock, connect: Connect
) -> None:
    ear = Ear(connect, "need.python", "turn.w1")
    sleep(pgwf, clock, "w1")

    pgwf.submit("a")
    assert ear.heard() == ["turn.w1"]
    pgwf.call("sleep_on", listener="client", channels=["need.python"])
    pgwf.submit("b")
    assert ear.heard() == ["need.python", "turn.w1"]


def test_a_turn_is_handed_on_while_there_is_work(pgwf: Leasing, clock: Clock, connect: Connect) -> None:
    ear = Ear(connect, "turn.w1")
    pgwf.submit("a")
    sleep(pgwf, clock, "w1")

    pgwf.call("wake_next", needs=["gpu", "python", None])
    assert ear.heard() == ["turn.w1"]
    pgwf.pause_need("python")
    pgwf.call("wake_next", needs=["python"])
    assert ear.heard() == []
    pgwf.resume_need("python")
    assert ear.heard() == ["turn.w1"]
    pgwf.take()
    pgwf.call("wake_next", needs=["python"])
    assert ear.heard() == []


def test_a_submitter_that_cannot_see_who_sleeps_wakes_all(pgwf: Leasing, clock: Clock, connect: Connect) -> None:
    ear = Ear(connect, "turns.python")
    worker = Leasing(connect())
    with pgwf.conn.transaction():
        pgwf.conn.execute("set transaction isolation level repeatable read")
        pgwf.conn.execute("select count(*) from pgwf.job")
        worker.call("sleep_in_turn", listener="w1", needs=["python"])
        pgwf.submit("a")

    assert ear.heard() == ["turns.python"]


def test_the_requests_of_workers_that_died_in_their_sleep_are_forgotten(pgwf: Leasing, clock: Clock) -> None:
    for listener in ("dead", "alive"):
        pgwf.call("worker_heartbeat", worker_id=listener, capabilities=["python"])
        sleep(pgwf, clock, listener)
    pgwf.call("sleep_on", listener="client", channels=["need.python"])
    clock.advance(minutes=10)
    pgwf.call("worker_heartbeat", worker_id="alive", capabilities=["python"])

    pgwf.value("sweep", worker_id="alive")

    assert [row["listener"] for row in pgwf.rows("select listener from pgwf.sleeper order by 1")] == ["alive", "client"]


def test_requests_without_a_turn_are_forgotten_unless_they_are_repeated_within_an_hour(
    pgwf: Leasing, clock: Clock, connect: Connect
) -> None:
    ear = Ear(connect, "need.python")
    for listener in ("dead", "alive"):
        pgwf.call("sleep_on", listener=listener, channels=["need.python", "run.7"])
    clock.advance(minutes=40)
    pgwf.call("sleep_on", listener="alive", channels=["need.python", "run.7"])
    clock.advance(minutes=21)

    pgwf.value("sweep", worker_id="w1")

    left = pgwf.rows("select listener, channel from pgwf.sleeper order by 2")
    assert [(row["listener"], row["channel"]) for row in left] == [("alive", "need.python"), ("alive", "run.7")]
    pgwf.submit("a")
    assert ear.heard() == ["need.python"]


def test_a_sweep_forgets_a_bounded_number_of_requests_and_waits_for_none_of_them(
    pgwf: Leasing, clock: Clock, connect: Connect
) -> None:
    for number in range(3):
        pgwf.call("sleep_on", listener=f"dead-{number}", channels=[f"run.{n}" for n in range(400)])
    pgwf.call("sleep_on", listener="asking again", channels=["run.0"])
    clock.advance(minutes=61)
    asking = Leasing(connect())
    asking.conn.execute("begin")
    asking.call("sleep_on", listener="asking again", channels=["run.0"])

    for left_count in (201, 1):
        clock.advance(minutes=1)
        pgwf.conn.execute("set lock_timeout = 1")
        pgwf.value("sweep", worker_id="w1")
        assert pgwf.rows("select count(*) as count from pgwf.sleeper")[0]["count"] == left_count

    asking.conn.execute("commit")
    pgwf.value("sweep", worker_id="w1")
    assert [row["listener"] for row in pgwf.rows("select listener from pgwf.sleeper")] == ["asking again"]


def test_sleeping_in_turn_needs_a_listener_and_read_committed(pgwf: Leasing) -> None:
    with refused("23502", "listener cannot be null"):
        pgwf.call("sleep_in_turn", listener=None, needs=["python"])
    with refused("WF020"), pgwf.conn.transaction():
        pgwf.conn.execute("set transaction isolation level repeatable read")
        pgwf.call("sleep_in_turn", listener="w1", needs=["python"])
