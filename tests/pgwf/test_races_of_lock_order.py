"""Calls that meet in the middle of their locks, each with what the other wants next: neither waits for ever."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.pgwf.leasing import Leasing, held
from tests.pgwf.racing import Racer
from tests.support import outcome

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.support import Clock, Session


def wait_for_child(pgwf: Leasing) -> dict[str, Any]:
    """Make two jobs that wait for a later one, and return what completes that."""
    pgwf.submit("sibling", "sibling")
    pgwf.submit("waiter", "waiter")
    pgwf.submit("child", "child")
    for name in ("sibling", "waiter"):
        pgwf.reschedule(pgwf.take(name), name, wait_for=["child"])
    return held(pgwf.take("child"))


def test_waking_a_job_and_what_it_waits_for_is_not_in_the_way_of_whoever_ends_that(
    pgwf: Leasing, session: Callable[[], Session]
) -> None:
    child = wait_for_child(pgwf)
    sibling, completer, waker = Racer(session()), Racer(session()), Racer(session())
    sibling.begin()
    sibling.lock_job("sibling")
    completing = completer.start_blocked("complete_job", **child)

    waking = waker.start_blocked("wake_jobs", worker_id="w", job_ids=["waiter", "child"])
    sibling.commit()

    assert outcome(completing) == [(True,)]
    assert outcome(waking) == [(1, "waiter", "unchanged"), (2, "child", "finished")]
    assert pgwf.status("waiter") == "READY"


def test_who_may_not_move_a_waiting_job_learns_it_before_waiting_for_what_that_waits_for(
    pgwf: Leasing, session: Callable[[], Session]
) -> None:
    child = wait_for_child(pgwf)
    sibling, completer, mover = Racer(session()), Racer(session()), Racer(session())
    sibling.begin()
    sibling.lock_job("sibling")
    completing = completer.start_blocked("complete_job", **child)

    moving = mover.start(
        "reschedule_unheld_job", job_id="waiter", worker_id="w", next_need="waiter", wait_for=["child"]
    )
    refusal = outcome(moving)
    sibling.commit()

    assert refusal == "WF005"
    assert outcome(completing) == [(True,)]
    assert pgwf.status("waiter") == "READY"


@pytest.mark.parametrize("function", ["complete_unheld_job", "reschedule_unheld_job"])
def test_a_lapsed_lease_is_ended_once_the_rows_of_other_jobs_are_locked(
    pgwf: Leasing, clock: Clock, racers: tuple[Racer, Racer], function: str
) -> None:
    arguments: dict[str, Any] = {"job_id": "lapsed", "worker_id": "w"}
    pgwf.submit("lapsed", "lapsed", singleton_key="K")
    if function == "complete_unheld_job":
        pgwf.submit("other", "other", wait_for=["lapsed"], singleton_key="K")
    else:
        pgwf.submit("other", "other", singleton_key="K")
        arguments |= {"next_need": "lapsed", "wait_for": ["other"]}
    pgwf.take("lapsed", seconds=1)
    clock.advance(seconds=2)
    first, second = racers
    second.begin()
    second.lock_job("other")

    ending = first.start_blocked(function, **arguments)
    second.call("cancel_job", job_id="other", worker_id="w")  # takes the key of both
    second.commit()

    assert isinstance(outcome(ending), list)


@pytest.mark.parametrize(
    ("function", "arguments"),
    [
        ("cancel_job", {}),
        ("complete_unheld_job", {}),
        ("clear_crash_concern", {}),
        ("set_priority", {"priority": 1}),
        ("lease_job", {}),
        ("reschedule_unheld_job", {"next_need": "lapsed"}),
    ],
)
def test_who_ends_a_lapsed_lease_waits_for_a_registrant_that_frees_the_same_key(
    pgwf: Leasing, clock: Clock, racers: tuple[Racer, Racer], function: str, arguments: dict[str, Any]
) -> None:
    pgwf.call("limit_key", key="K", worker_id="w", max_active=2)
    pgwf.submit("lapsed", "lapsed", singleton_key="K")
    pgwf.submit("parent", "parent", singleton_key="K")
    pgwf.take("lapsed", seconds=1)
    parent = held(pgwf.take("parent"))
    clock.advance(seconds=2)
    first, second = racers
    second.begin()
    second.session.run("select from pgwf.job where job_id = 'lapsed' for key share")

    ending = first.start_blocked(function, job_id="lapsed", worker_id="w", **arguments)
    second.call("reschedule_job", **parent, next_need="parent", wait_for=["lapsed"])  # frees its place in the key
    second.commit()

    assert isinstance(outcome(ending), list)


def test_who_ends_a_lapsed_lease_waits_for_whoever_is_moving_its_key(
    pgwf: Leasing, clock: Clock, racers: tuple[Racer, Racer]
) -> None:
    pgwf.submit("lapsed", "lapsed", singleton_key="K")
    pgwf.take("lapsed", seconds=1)
    clock.advance(seconds=2)
    first, second = racers
    second.begin()
    second.call("limit_key", key="K", worker_id="w", max_active=2)

    completing = first.start_blocked("complete_unheld_job", job_id="lapsed", worker_id="w")
    second.commit()

    assert outcome(completing) == [(True,)]


def test_a_sweep_forgets_no_buckets_and_workers_that_somebody_else_is_changing(
    pgwf: Leasing, clock: Clock, racers: tuple[Racer, Racer]
) -> None:
    pgwf.call("limit_key", key="K", worker_id="w", max_active=2, rate=1, burst=2)
    for name in ("a", "b"):
        pgwf.submit(name, singleton_key="K")
        pgwf.take()
    pgwf.call("worker_heartbeat", worker_id="silent", capabilities=["x"])
    clock.advance(days=2)
    first, second = racers
    first.begin()
    first.call("worker_heartbeat", worker_id="silent", capabilities=["x"])
    first.call("limit_key", key="K", worker_id="w")

    assert second.sweep() == 0  # the key of the leases is being moved
    first.commit()

    assert pgwf.rows("select worker_id from pgwf.worker") == [{"worker_id": "silent"}]
