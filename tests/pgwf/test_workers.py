"""The table of workers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from psycopg.types.json import Jsonb

from tests.pgwf.ears import Ear
from tests.pgwf.leasing import Leasing, refused

if TYPE_CHECKING:
    from tests.support import Clock, Connect


def test_a_heartbeat_says_what_a_worker_offers_and_when_it_was_seen(pgwf: Leasing, clock: Clock) -> None:
    started = clock.now()
    pgwf.value("worker_heartbeat", worker_id="w1", capabilities=["python"], build="b1")
    clock.advance(seconds=10)

    draining = pgwf.value(
        "worker_heartbeat",
        worker_id="w1",
        capabilities=["python", "gpu"],
        build="b2",
        slots=8,
        slots_used=3,
        details=Jsonb({"host": "box"}),
    )

    assert draining is False
    assert pgwf.rows("select * from pgwf.worker") == [
        {
            "worker_id": "w1",
            "capabilities": ["python", "gpu"],
            "build": "b2",
            "slots": 8,
            "slots_used": 3,
            "details": {"host": "box"},
            "started_at": started,
            "heartbeat_at": clock.now(),
            "draining": False,
        }
    ]


def test_a_worker_learns_from_its_heartbeat_that_it_should_drain(pgwf: Leasing) -> None:
    pgwf.value("worker_heartbeat", worker_id="w1", capabilities=[])

    assert pgwf.value("drain_worker", worker_id="w1") is True
    assert pgwf.value("worker_heartbeat", worker_id="w1", capabilities=[]) is True
    assert pgwf.value("drain_worker", worker_id="w1", draining=False) is True
    assert pgwf.value("worker_heartbeat", worker_id="w1", capabilities=[]) is False


@pytest.mark.own_session
def test_a_worker_hears_at_once_that_it_should_drain_or_go_on(pgwf: Leasing, connect: Connect) -> None:
    ear = Ear(connect, "worker.w1", "worker.w2")
    for worker_id in ("w1", "w2"):
        pgwf.value("worker_heartbeat", worker_id=worker_id, capabilities=[])

    pgwf.value("drain_worker", worker_id="w1")
    assert ear.heard() == ["worker.w1"]
    pgwf.value("drain_worker", worker_id="w1", draining=False)
    assert ear.heard() == ["worker.w1"]


@pytest.mark.own_session
def test_workers_that_offer_a_need_hear_at_once_that_its_settings_have_changed(pgwf: Leasing, connect: Connect) -> None:
    ear = Ear(connect, "worker.w1", "worker.w2")
    pgwf.value("worker_heartbeat", worker_id="w1", capabilities=["python", "gpu"])
    pgwf.value("worker_heartbeat", worker_id="w2", capabilities=["python"])

    pgwf.pause_need("gpu")
    assert ear.heard() == ["worker.w1"]
    pgwf.limit_need("gpu", max_active=1)
    assert ear.heard() == ["worker.w1"]
    pgwf.resume_need("gpu")
    assert ear.heard() == ["worker.w1"]


def test_draining_a_worker_nobody_heard_of_says_so(pgwf: Leasing) -> None:
    assert pgwf.value("drain_worker", worker_id="ghost") is False


def test_a_worker_that_says_goodbye_is_gone(pgwf: Leasing) -> None:
    pgwf.value("worker_heartbeat", worker_id="w1", capabilities=["python"])

    assert pgwf.value("forget_worker", worker_id="w1") is True
    assert pgwf.value("forget_worker", worker_id="w1") is False


def test_a_worker_silent_for_a_day_is_forgotten_unless_it_still_holds_leases(pgwf: Leasing, clock: Clock) -> None:
    for worker_id in ("holder", "silent"):
        pgwf.value("worker_heartbeat", worker_id=worker_id, capabilities=["python"])
    pgwf.submit("a")
    pgwf.take(worker_id="holder", seconds=10**6)
    clock.advance(hours=25)
    pgwf.value("worker_heartbeat", worker_id="alive", capabilities=["python"])

    pgwf.sweep()

    assert [row["worker_id"] for row in pgwf.rows("select worker_id from pgwf.worker order by 1")] == [
        "alive",
        "holder",
    ]


def test_a_heartbeat_without_capabilities_is_refused(pgwf: Leasing) -> None:
    with refused("23502", "capabilities cannot be null"):
        pgwf.call("worker_heartbeat", worker_id="w1", capabilities=None)
