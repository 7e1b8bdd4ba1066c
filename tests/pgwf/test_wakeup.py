"""Notification: the public channel of a need, sleepers, and when to look again."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

import pytest
from psycopg import sql

from tests.pgwf.leasing import Leasing, held, job_ids, refused

if TYPE_CHECKING:
    from datetime import datetime

    from tests.support import Clock, Connect

pytestmark = pytest.mark.own_session  # A session that listens keeps its connection.


class Ear:
    """A session that listens, and tells what it heard since it was asked last."""

    def __init__(self, connect: Connect, pgwf: Leasing, *needs: str) -> None:
        self.conn = connect()
        for need in needs or ("python",):
            (channel,) = pgwf.conn.execute("select pgwf.channel('need.' || %s)", [need]).fetchone() or ("",)
            self.conn.execute(sql.SQL("listen {}").format(sql.Identifier(channel)))

    def heard(self) -> list[str]:
        self.conn.execute("select")
        return [notification.channel for notification in self.conn.notifies(timeout=0)]


@pytest.fixture
def ear(connect: Connect, pgwf: Leasing) -> Ear:
    return Ear(connect, pgwf)


def test_nothing_is_announced_by_default(pgwf: Leasing, ear: Ear) -> None:
    assert pgwf.value("is_notify_enabled") is False

    pgwf.submit("a")

    assert ear.heard() == []


def test_new_runnable_work_is_announced_on_the_channel_of_its_need(pgwf: Leasing, ear: Ear) -> None:
    pgwf.conn.execute("select pgwf.set_notify(true)")

    pgwf.submit("a")
    assert ear.heard() == ["pgwf.need.python"]
    pgwf.submit("b", "gpu")
    assert ear.heard() == []
    pgwf.reschedule(pgwf.take("gpu"), "python")
    assert ear.heard() == ["pgwf.need.python"]


def test_work_is_announced_once_per_transaction_and_need_and_only_on_commit(pgwf: Leasing, ear: Ear) -> None:
    pgwf.conn.execute("select pgwf.set_notify(true)")

    with pgwf.conn.transaction():
        for i in range(5):
            pgwf.submit(f"j{i}")
        assert ear.heard() == []
    assert ear.heard() == ["pgwf.need.python"]
    with pgwf.conn.transaction(force_rollback=True):
        pgwf.submit("never")
    assert ear.heard() == []


def test_work_that_is_not_runnable_is_not_announced(pgwf: Leasing, clock: Clock, ear: Ear) -> None:
    pgwf.submit("child", "child")
    pgwf.conn.execute("select pgwf.set_notify(true)")

    pgwf.submit("future", available_at=clock.now() + timedelta(hours=1))
    pgwf.submit("pending", wait_for=["child"])
    pgwf.submit("expired", expires_at=clock.now())
    assert ear.heard() == []
    pgwf.call("reschedule_unheld_job", job_id="expired", worker_id="operator", next_need="python")
    assert ear.heard() == []

    pgwf.cancel("pending")
    pgwf.complete(pgwf.take("child"))
    assert ear.heard() == []


def test_whatever_becomes_runnable_is_announced(pgwf: Leasing, clock: Clock, ear: Ear) -> None:
    """By a dependency's end, by time, by a lapse, by clearing a crash concern, by a free key, by a wake-up."""
    pgwf.value("set_crash_concern_threshold", threshold=1)
    pgwf.conn.execute("select pgwf.set_notify(true)")
    pgwf.submit("child", "child")
    pgwf.submit("released", wait_for=["child"])
    assert ear.heard() == []
    pgwf.complete(pgwf.take("child"))
    assert ear.heard() == ["pgwf.need.python"], "a dependency ended"
    pgwf.complete(pgwf.take())

    pgwf.submit("timed", available_at=clock.now() + timedelta(seconds=1))
    clock.advance(seconds=1)
    pgwf.sweep()
    assert ear.heard() == ["pgwf.need.python"], "a timer was due"

    pgwf.take(seconds=1)
    clock.advance(seconds=1)
    pgwf.sweep()
    assert ear.heard() == ["pgwf.need.python"], "a lease lapsed"

    pgwf.take(seconds=1)
    clock.advance(seconds=1)
    pgwf.sweep()
    assert ear.heard() == [], "shelved"
    pgwf.call("clear_crash_concern", job_id="timed", worker_id="operator")
    assert ear.heard() == ["pgwf.need.python"], "a crash concern was cleared"
    pgwf.complete(pgwf.take())

    pgwf.submit("holder", "other", singleton_key="K")
    lease = pgwf.take("other")
    pgwf.submit("keyed", singleton_key="K")
    assert pgwf.get_work() == []
    ear.heard()
    pgwf.complete(lease)
    assert ear.heard() == ["pgwf.need.python"], "a key was freed"
    pgwf.complete(pgwf.take())

    pgwf.submit("sleeping", available_at=clock.now() + timedelta(hours=1))
    pgwf.call("wake_jobs", worker_id="w", job_ids=["sleeping"])
    assert ear.heard() == ["pgwf.need.python"], "a job was woken"


@pytest.mark.parametrize(
    "way", ["complete_job", "reschedule_job", "release_job", "lapse", "higher limit", "no limit", "resume_need"]
)
def test_room_for_work_that_claims_had_to_leave_is_announced(pgwf: Leasing, clock: Clock, ear: Ear, way: str) -> None:
    """Nothing of that need becomes ready: what gave the room up is over, elsewhere or asleep."""
    pgwf.limit_need("python", max_active=1)
    pgwf.submit("a")
    lease = pgwf.take(seconds=60)
    pgwf.submit("b")
    assert pgwf.get_work() == []
    if way == "lapse":
        pgwf.cancel("a")
    elif way == "resume_need":
        pgwf.complete(lease)
        pgwf.pause_need("python")
    pgwf.conn.execute("select pgwf.set_notify(true)")

    match way:
        case "complete_job":
            pgwf.complete(lease)
        case "reschedule_job":
            pgwf.reschedule(lease, "gpu")
        case "release_job":
            pgwf.call("release_job", **held(lease), delay_seconds=60)
        case "lapse":
            clock.advance(seconds=60)
            pgwf.sweep()
        case "resume_need":
            pgwf.resume_need("python")
        case _:
            pgwf.limit_need("python", max_active=2 if "higher" in way else None)

    assert ear.heard() == ["pgwf.need.python"]
    assert job_ids(pgwf.get_work()) == ["b"]


@pytest.mark.parametrize("need", ["n" * 53, "n" * 54, "n" * 512, "ü" * 256, 'a "quoted" need', "Müll; drop"])
def test_a_need_of_any_length_is_announced_and_never_fails_the_write(
    pgwf: Leasing, connect: Connect, need: str
) -> None:
    ear = Ear(connect, pgwf, need)
    pgwf.conn.execute("select pgwf.set_notify(true)")

    pgwf.submit("a", need)

    assert len(ear.heard()) == 1
    assert len(pgwf.get_work(need)) == 1
    assert pgwf.get_work(need) == []


def test_an_empty_get_work_listens_on_each_capability_when_notify_is_on(pgwf: Leasing, connect: Connect) -> None:
    worker = Leasing(connect())
    assert worker.get_work("python") == []
    pgwf.submit("unheard", "other")
    assert worker.rows("select pg_listening_channels() as channel") == []

    pgwf.conn.execute("select pgwf.set_notify(true)")
    rows = worker.call("get_work", worker_id="w", worker_caps=[None, "python", "gpu"])

    assert rows == []
    channels = {row["channel"] for row in worker.rows("select pg_listening_channels() as channel")}
    assert channels == {"pgwf.need.python", "pgwf.need.gpu"}
    pgwf.submit("a")
    worker.conn.execute("select")
    assert [notification.channel for notification in worker.conn.notifies(timeout=0)] == ["pgwf.need.python"]


def test_a_sleeper_is_woken_although_notify_is_off(pgwf: Leasing, connect: Connect, ear: Ear) -> None:
    sleeper = Leasing(connect())
    sleeper.value("sleep_on", listener="w1", channels=["need.python", "need.python", None, "need.gpu"])

    pgwf.submit("other", "other")
    assert ear.heard() == []
    pgwf.submit("a")
    assert ear.heard() == ["pgwf.need.python"]

    sleeper.call("wake_up", listener="w1")
    pgwf.submit("b")
    assert ear.heard() == []


def test_work_of_a_paused_need_wakes_nobody_until_it_is_resumed(pgwf: Leasing, ear: Ear) -> None:
    pgwf.value("sleep_on", listener="w1", channels=["need.python"])
    pgwf.pause_need("python")

    pgwf.submit("a")
    assert ear.heard() == []
    pgwf.resume_need("python")
    assert ear.heard() == ["pgwf.need.python"]


def test_wake_up_withdraws_the_listeners_own_requests_only(pgwf: Leasing, ear: Ear) -> None:
    pgwf.value("sleep_on", listener="w1", channels=["need.python"])
    pgwf.value("sleep_on", listener="w2", channels=["need.python"])

    pgwf.call("wake_up", listener="w1")
    pgwf.submit("a")

    assert ear.heard() == ["pgwf.need.python"]


def test_a_session_can_turn_its_notifications_off(pgwf: Leasing, ear: Ear) -> None:
    pgwf.value("sleep_on", listener="w1", channels=["need.python"])

    with pgwf.conn.transaction():
        pgwf.conn.execute("set local pgwf.notify = off")
        pgwf.submit("a")
    assert ear.heard() == []
    pgwf.submit("b")
    assert ear.heard() == ["pgwf.need.python"]


def test_a_submitter_at_repeatable_read_wakes_sleepers_it_cannot_see(pgwf: Leasing, connect: Connect, ear: Ear) -> None:
    worker = Leasing(connect())
    with pgwf.conn.transaction():
        pgwf.conn.execute("set transaction isolation level repeatable read")
        pgwf.conn.execute("select count(*) from pgwf.job")
        worker.value("sleep_on", listener="w1", channels=["need.python"])
        pgwf.submit("a")

    assert ear.heard() == ["pgwf.need.python"]


def test_sleep_on_returns_the_transaction_that_others_must_outlive(pgwf: Leasing) -> None:
    with pgwf.conn.transaction():
        mine = pgwf.value("sleep_on", listener="w1", channels=["need.python"])
        (current,) = pgwf.conn.execute("select pg_current_xact_id()").fetchone() or (None,)
        assert mine == current

    (passed,) = pgwf.conn.execute(
        "select pg_snapshot_xmin(pg_current_snapshot()) > %s::xid8", [str(mine)]
    ).fetchone() or (None,)
    assert passed


def test_next_wakeup_is_the_first_instant_at_which_the_clock_makes_work(pgwf: Leasing, clock: Clock) -> None:
    assert pgwf.value("next_wakeup", worker_caps=["python"]) is None
    pgwf.submit("later", available_at=clock.now() + timedelta(hours=2))
    pgwf.submit("sooner", available_at=clock.now() + timedelta(hours=1))
    assert pgwf.value("next_wakeup", worker_caps=["python"]) == clock.now() + timedelta(hours=1)

    pgwf.submit("leased")
    lease = pgwf.take(seconds=90)

    assert pgwf.value("next_wakeup", worker_caps=["python"]) == lease["lease_expires_at"]


def test_next_wakeup_is_the_next_token_of_a_limited_need(pgwf: Leasing, clock: Clock) -> None:
    pgwf.limit_need("python", rate=0.5, burst=1)
    pgwf.submit("a")
    pgwf.submit("b")
    pgwf.value("release_job", **held(pgwf.take()), delay_seconds=7200)

    assert pgwf.get_work() == []
    assert pgwf.value("next_wakeup", worker_caps=["python"]) == clock.now() + timedelta(seconds=2)
    clock.advance(seconds=2)
    assert len(pgwf.get_work()) == 1


@pytest.mark.parametrize("limits", [{"max_active": 1}, {"rate": 0.5, "burst": 1}], ids=["max_active", "rate"])
def test_a_limited_need_is_looked_at_again_only_while_it_has_work_and_room(
    pgwf: Leasing, clock: Clock, limits: dict[str, float]
) -> None:
    def next_wakeup() -> timedelta | None:
        at: datetime | None = pgwf.value("next_wakeup", worker_caps=["gpu"])
        return None if at is None else at - clock.now()

    pgwf.limit_need("gpu", **limits)
    assert next_wakeup() is None, "there is no work"
    pgwf.submit("a", "gpu")
    assert next_wakeup() == timedelta(0), "somebody else counted, and left it out"
    pgwf.pause_need("gpu")
    assert next_wakeup() is None, "it is paused"
    pgwf.resume_need("gpu")

    pgwf.take("gpu", seconds=60)
    pgwf.submit("b", "gpu")
    assert next_wakeup() == timedelta(seconds=60 if "max_active" in limits else 2)


def test_sleep_on_needs_a_listener_and_read_committed(pgwf: Leasing) -> None:
    with refused("WF001", "listener must have at most 512 bytes, not 514"):
        pgwf.value("sleep_on", listener="é" * 257, channels=["need.python"])
    with refused("WF001", "a channel or need must have at most 1024 bytes, not 1025"):
        pgwf.value("sleep_on", listener="w", channels=["need.python", "x" * 1025])
    with refused("23502", "listener cannot be null"):
        pgwf.call("sleep_on", listener=None, channels=["need.python"])
    with refused("WF020"), pgwf.conn.transaction():
        pgwf.conn.execute("set transaction isolation level repeatable read")
        pgwf.call("sleep_on", listener="w1", channels=["need.python"])


@pytest.mark.parametrize("limits", [{"max_active": 1}, {"rate": 0.5, "burst": 1}], ids=["max_active", "rate"])
def test_a_sweep_wakes_who_sleeps_on_a_limited_need_that_has_work_room_and_a_token(
    pgwf: Leasing, clock: Clock, ear: Ear, limits: dict[str, float]
) -> None:
    """A token comes without a commit, and a claim leaves out a need that another one is counting."""

    def wakes() -> bool:
        pgwf.sweep()
        return bool(ear.heard())

    pgwf.limit_need("python", **limits)
    pgwf.submit("a")
    pgwf.submit("b")
    pgwf.value("sleep_on", listener="w1", channels=["need.python"])
    ear.heard()

    assert wakes(), "a claim that found somebody counting left both"
    lease = pgwf.take(seconds=7200)
    assert not wakes(), "there is no room, or no token"
    if "rate" in limits:
        clock.advance(seconds=2)
    else:
        pgwf.complete(lease)
        ear.heard()
    assert wakes()
    pgwf.pause_need("python")
    assert not wakes(), "it is paused"
    pgwf.resume_need("python")
    pgwf.take()
    ear.heard()
    clock.advance(seconds=2)
    assert not wakes(), "there is no work"
