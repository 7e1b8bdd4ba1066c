"""Two sessions, both orders: a job expires while somebody leases it, changes it or looks after it."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from tests.pgwf.leasing import Leasing
from tests.pgwf.racing import Racer
from tests.support import outcome

if TYPE_CHECKING:
    from concurrent.futures import Future

    from tests.support import Clock, Rows

LIFE_SECONDS = 10


@pytest.fixture
def short(pgwf: Leasing, clock: Clock) -> str:
    """A job that expires, with another that waits for it. Its leases have lapsed twice already."""
    pgwf.submit("child", "child")
    pgwf.submit("short", "short", expires_at=clock.now() + timedelta(seconds=LIFE_SECONDS + 2))
    pgwf.submit("waiter", "other", wait_for=["short"])
    for _ in range(2):
        pgwf.take("short", seconds=1)
        clock.advance(seconds=1)
    pgwf.sweep()
    return "short"


@pytest.mark.parametrize("came_back", [False, True], ids=["at its first position", "at a later position"])
def test_a_sweep_passes_over_an_expired_job_that_is_being_leased(
    pgwf: Leasing, clock: Clock, racers: tuple[Racer, Racer], came_back: bool
) -> None:
    pgwf.submit("short", "short", expires_at=clock.now() + timedelta(seconds=1))
    pgwf.submit("waiter", "other", wait_for=["short"])
    if came_back:
        pgwf.reschedule(pgwf.take("short"), "short")
    pgwf.sweep()
    first, second = racers
    first.begin()
    assert len(first.claim("short", limit=1, seconds=600)) == 1
    clock.advance(seconds=1)

    assert second.sweep() == 0
    first.commit()

    assert (pgwf.status("short"), pgwf.status("waiter")) == ("ACTIVE", "PENDING_JOBS")


def test_a_claim_passes_over_an_expired_job_that_is_being_archived(
    pgwf: Leasing, clock: Clock, racers: tuple[Racer, Racer], short: str
) -> None:
    clock.advance(seconds=LIFE_SECONDS)
    first, second = racers
    first.begin()
    assert first.sweep() == 1

    assert second.claim("short", limit=1, seconds=600) == []
    first.commit()

    assert (pgwf.status(short), pgwf.status("waiter")) == ("expired", "READY")


def start_to_archive(changer: Racer, sweeper: Racer) -> Future[Rows]:
    """A sweep that has read what is expired, and waits before it locks any of that until `changer` commits."""
    changer.session.run("lock table pgwf.job in exclusive mode")  # which leaves reading to others
    return sweeper.session.start_blocked("select pgwf._archive_expired('s', 500, pgwf._now())")


def test_a_sweep_that_is_about_to_archive_an_expired_job_sees_that_it_was_leased(
    pgwf: Leasing, clock: Clock, racers: tuple[Racer, Racer], short: str
) -> None:
    worker, sweeper = racers
    worker.begin()
    assert len(worker.claim("short", limit=1, seconds=600)) == 1
    clock.advance(seconds=LIFE_SECONDS)

    archiving = start_to_archive(worker, sweeper)
    worker.commit()

    assert outcome(archiving) == [(0,)]
    assert (pgwf.status(short), pgwf.status("waiter")) == ("ACTIVE", "PENDING_JOBS")


CHANGES: dict[str, tuple[str, dict[str, Any]]] = {
    "CANCELLED": ("cancel_job", {}),
    "AWAITING_FUTURE": ("reschedule_unheld_job", {"next_need": "short", "available_at": "2031-01-01"}),
    "PENDING_JOBS": ("reschedule_unheld_job", {"next_need": "short", "wait_for": ["child"]}),
    "CRASH_CONCERN": ("set_crash_concern_threshold", {"threshold": 1}),
}


@pytest.mark.parametrize("status", CHANGES)
def test_a_sweep_that_is_about_to_archive_an_expired_job_sees_that_it_was_changed(
    pgwf: Leasing, clock: Clock, racers: tuple[Racer, Racer], short: str, status: str
) -> None:
    function, arguments = CHANGES[status]
    if function != "set_crash_concern_threshold":
        arguments = arguments | {"job_id": short, "worker_id": "op"}
    clock.advance(seconds=LIFE_SECONDS)
    operator, sweeper = racers
    operator.begin()

    archiving = start_to_archive(operator, sweeper)
    operator.call(function, **arguments)
    operator.commit()

    assert outcome(archiving) == [(0,)]
    assert pgwf.status(short) == status


def test_an_expired_job_is_not_archived_before_its_timer_is_promoted(pgwf: Leasing, clock: Clock) -> None:
    """A sweep that may do little has promoted another one's."""
    pgwf.submit("due", available_at=clock.now() + timedelta(seconds=1))
    pgwf.submit("short", available_at=clock.now() + timedelta(seconds=2), expires_at=clock.now() + timedelta(seconds=3))
    pgwf.submit("waiter", "other", wait_for=["short"])
    clock.advance(seconds=3)

    assert pgwf.value("sweep", worker_id="s", limit=1) == 1
    assert (pgwf.status("short"), pgwf.broken()) == ("EXPIRED", [])

    pgwf.sweep()
    assert (pgwf.status("short"), pgwf.status("waiter")) == ("expired", "READY")
