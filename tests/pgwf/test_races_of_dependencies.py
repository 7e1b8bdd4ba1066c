"""Two sessions, both orders: registering a dependency against its end. Nobody waits for ever, nobody deadlocks."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest
from psycopg.types.json import Jsonb

from tests.pgwf.leasing import Leasing, held, job_ids
from tests.pgwf.racing import Racer, both_ends
from tests.support import outcome

if TYPE_CHECKING:
    from tests.support import Clock

REGISTRANTS = ["submit_job", "submit_jobs", "reschedule_job", "reschedule_unheld_job"]
ENDERS = ["complete_job", "complete_unheld_job", "cancel_job"]


def prepare(
    pgwf: Leasing, registrant: str, ender: str = "cancel_job", **dependency: Any
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Make a job `dep` that `ender` can end, and return the arguments of both calls; the waiter is called `kid`."""
    pgwf.submit("dep", "dep", **dependency)
    end: dict[str, Any] = {"job_id": "dep", "worker_id": "w"}
    if ender == "complete_job":
        end |= {"lease_id": pgwf.take("dep")["lease_id"]}
    register: dict[str, Any] = {"job_id": "kid", "worker_id": "w", "next_need": "kid", "wait_for": ["dep"]}
    match registrant:
        case "submit_jobs":
            register = {"worker_id": "w", "job_ids": ["kid"], "next_needs": ["kid"], "wait_for": '[["dep"]]'}
        case "reschedule_job":
            pgwf.submit("kid", "kid")
            register |= {"lease_id": pgwf.take("kid", seconds=10**6)["lease_id"]}
        case "reschedule_unheld_job":
            pgwf.submit("kid", "kid")
    return register, end


@pytest.mark.parametrize("registrant", REGISTRANTS)
@pytest.mark.parametrize("ender", ENDERS)
def test_whoever_ends_a_job_waits_for_a_registrant_in_flight_and_releases_it(
    pgwf: Leasing, racers: tuple[Racer, Racer], registrant: str, ender: str
) -> None:
    register, end = prepare(pgwf, registrant, ender)
    first, second = racers
    first.begin()
    first.call(registrant, **register)

    ending = second.start_blocked(ender, **end)
    first.commit()

    assert isinstance(outcome(ending), list)
    assert pgwf.status("kid") == "READY"
    assert job_ids(pgwf.get_work("kid", limit=5)) == ["kid"]


@pytest.mark.parametrize("registrant", REGISTRANTS)
@pytest.mark.parametrize("ender", ENDERS)
@both_ends
def test_a_registrant_waits_for_whoever_ends_the_job_and_sees_the_end(
    pgwf: Leasing, racers: tuple[Racer, Racer], registrant: str, ender: str, committed: bool
) -> None:
    register, end = prepare(pgwf, registrant, ender)
    first, second = racers
    first.begin()
    first.call(ender, **end)

    registering = second.start_blocked(registrant, **register)
    first.end(committed=committed)

    assert isinstance(outcome(registering), list)
    assert pgwf.status("kid") == ("READY" if committed else "PENDING_JOBS")


def prepare_over(pgwf: Leasing, clock: Clock, registrant: str, end: str) -> dict[str, Any]:
    """Make a job `dep` that is cancelled or expired and not archived yet, and return the arguments of `registrant`."""
    if end == "expired":
        register, _ = prepare(pgwf, registrant, expires_at=clock.now() + timedelta(seconds=1))
        clock.advance(days=2)
    else:
        register, cancel = prepare(pgwf, registrant)
        pgwf.call("cancel_job", **cancel)
    return register


@pytest.mark.parametrize("registrant", REGISTRANTS)
@pytest.mark.parametrize("end", ["cancelled", "expired"])
def test_a_registrant_waits_for_the_archiving_of_a_job_that_is_over(
    pgwf: Leasing, clock: Clock, racers: tuple[Racer, Racer], registrant: str, end: str
) -> None:
    register = prepare_over(pgwf, clock, registrant, end)
    first, second = racers
    first.begin()
    assert first.sweep() == 1

    registering = second.start_blocked(registrant, **register)
    first.commit()

    assert isinstance(outcome(registering), list)
    assert (pgwf.status("dep"), pgwf.status("kid")) == (end, "READY")


@pytest.mark.parametrize("registrant", REGISTRANTS)
@pytest.mark.parametrize("end", ["cancelled", "expired"])
def test_a_sweep_passes_over_a_job_that_is_over_while_somebody_is_about_to_wait_for_it(
    pgwf: Leasing, clock: Clock, racers: tuple[Racer, Racer], registrant: str, end: str
) -> None:
    register = prepare_over(pgwf, clock, registrant, end)
    first, second = racers
    first.begin()
    first.call(registrant, **register)

    assert second.sweep() == 0
    first.commit()

    assert pgwf.status("kid") == ("READY" if end == "cancelled" else "PENDING_JOBS")
    assert pgwf.sweep() == 1
    assert (pgwf.status("dep"), pgwf.status("kid")) == (end, "READY")


def test_two_completers_of_one_waiter_release_it_once(pgwf: Leasing, racers: tuple[Racer, Racer]) -> None:
    for child in ("x", "y"):
        pgwf.submit(child, "child")
    pgwf.submit("waiter", wait_for=["x", "y"])
    x, y = pgwf.get_work("child", limit=2)
    first, second = racers
    first.begin()
    first.call("complete_job", **held(x))

    completing = second.start_blocked("complete_job", **held(y))
    first.commit()

    assert outcome(completing) == [(True,)]
    assert (pgwf.status("waiter"), pgwf.job("waiter")["wait_for"]) == ("READY", [])
    assert job_ids(pgwf.get_work(limit=5)) == ["waiter"]


@pytest.mark.parametrize("order", ["x first", "y first"])
def test_completers_of_crossed_waiters_do_not_deadlock(pgwf: Leasing, racers: tuple[Racer, Racer], order: str) -> None:
    for child in ("x", "y"):
        pgwf.submit(child, "child")
    pgwf.submit("w1", wait_for=["x", "y"])
    pgwf.submit("w2", wait_for=["y", "x"])
    leases = pgwf.get_work("child", limit=2)
    if order == "y first":
        leases.reverse()
    first, second = racers
    first.begin()
    first.call("complete_job", **held(leases[0]))

    completing = second.start_blocked("complete_job", **held(leases[1]))
    first.commit()

    assert outcome(completing) == [(True,)]
    assert job_ids(pgwf.get_work(limit=5)) == ["w1", "w2"]


def test_a_waiter_cancelled_while_its_dependency_completes_is_archived(
    pgwf: Leasing, racers: tuple[Racer, Racer]
) -> None:
    pgwf.submit("child", "child")
    pgwf.submit("waiter", wait_for=["child"])
    lease = pgwf.take("child")
    first, second = racers
    first.begin()
    first.call("cancel_job", job_id="waiter", worker_id="op")

    completing = second.start_blocked("complete_job", **held(lease))
    first.commit()

    assert outcome(completing) == [(True,)]
    pgwf.sweep()
    assert (pgwf.status("child"), pgwf.status("waiter")) == ("completed", "cancelled")


def test_a_waiter_released_while_it_is_being_cancelled_is_archived(pgwf: Leasing, racers: tuple[Racer, Racer]) -> None:
    pgwf.submit("child", "child")
    pgwf.submit("waiter", wait_for=["child"])
    lease = pgwf.take("child")
    first, second = racers
    first.begin()
    first.call("complete_job", **held(lease))

    cancelling = second.start_blocked("cancel_job", job_id="waiter", worker_id="op")
    first.commit()

    assert isinstance(outcome(cancelling), list)
    assert pgwf.get_work() == []
    assert pgwf.status("waiter") == "cancelled"


@pytest.mark.parametrize("first_name", ["A", "B"])
def test_of_two_sessions_that_close_a_cycle_the_second_is_refused(
    pgwf: Leasing, racers: tuple[Racer, Racer], first_name: str
) -> None:
    pgwf.submit_all(*"AB")
    leases = {lease["job_id"]: lease for lease in pgwf.get_work(limit=2)}
    second_name = "B" if first_name == "A" else "A"
    first, second = racers
    first.begin()
    first.call("reschedule_job", **held(leases[first_name]), next_need="python", wait_for=[second_name])

    closing = second.start_blocked(
        "reschedule_job", **held(leases[second_name]), next_need="python", wait_for=[first_name]
    )
    first.commit()

    assert outcome(closing) == "WF012"
    assert (pgwf.status(first_name), pgwf.status(second_name)) == ("PENDING_JOBS", "ACTIVE")


@pytest.mark.parametrize("as_set", [False, True])
@pytest.mark.parametrize("swapped", [False, True])
def test_a_cycle_of_four_with_disjoint_row_locks_is_refused(
    pgwf: Leasing, racers: tuple[Racer, Racer], swapped: bool, as_set: bool
) -> None:
    """B waits for C, D for A. One session makes A wait for B, the other C for D: only the graph lock joins them."""
    pgwf.submit_all(*"ABCD")
    leases = {lease["job_id"]: lease for lease in pgwf.get_work(limit=4)}
    pgwf.reschedule(leases["B"], wait_for=["C"])
    pgwf.reschedule(leases["D"], wait_for=["A"])
    edges = [("A", "B"), ("C", "D")]
    (waiter1, child1), (waiter2, child2) = reversed(edges) if swapped else edges
    first, second = racers
    first.begin()
    if as_set:
        lease = leases[waiter1]
        first.call(
            "reschedule_jobs",
            worker_id="w",
            job_ids=[lease["job_id"]],
            lease_ids=[lease["lease_id"]],
            next_needs=["python"],
            wait_for=Jsonb([[child1]]),
        )
    else:
        first.call("reschedule_job", **held(leases[waiter1]), next_need="python", wait_for=[child1])

    closing = second.start_blocked("reschedule_job", **held(leases[waiter2]), next_need="python", wait_for=[child2])
    first.commit()

    assert outcome(closing) == "WF012"
    assert pgwf.status(waiter2) == "ACTIVE"


def test_row_locks_are_taken_in_one_ordered_pass(pgwf: Leasing, racers: tuple[Racer, Racer]) -> None:
    """One call ends a and waits for y, the other ends y and waits for a: in two passes they would deadlock."""
    a, y = (pgwf.submit(name)["n"] for name in ("a", "y"))
    first, second = racers
    first.begin()
    first.session.run("select pgwf._lock_jobs(%s, %s)", [[a], [y]])

    locking = second.session.start_blocked("select pgwf._lock_jobs(%s, %s)", [[y], [a]])
    first.commit()

    assert outcome(locking) == [([a, y],)]


@pytest.mark.parametrize("waiter_first", [True, False], ids=["waiter number below", "waiter number above"])
@pytest.mark.parametrize("way", ["archive", "cancel"])
def test_ending_a_cancelled_waiter_never_waits_for_a_completion(
    pgwf: Leasing, racers: tuple[Racer, Racer], waiter_first: bool, way: str
) -> None:
    """P waits for M and X, M waits for X. X completes and holds P and M; M goes away and must release P."""
    names = ["P", "M", "X"] if waiter_first else ["X", "M", "P"]
    for name in names:
        pgwf.submit(name, name)
    leases = {name: pgwf.take(name) for name in names}
    pgwf.reschedule(leases["M"], "M", wait_for=["X"])
    pgwf.reschedule(leases["P"], "P", wait_for=["M", "X"])
    first, second = racers
    if way == "archive":
        pgwf.conn.execute("update pgwf.job set cancel_at = pgwf._now(), cancel_by = 'op' where job_id = 'M'")
        first.begin()
        first.call("complete_job", **held(leases["X"]))

        second.sweep()
        first.commit()
    else:
        first.begin()
        first.lock_job("M")
        completing = second.start_blocked("complete_job", **held(leases["X"]))

        first.call("cancel_job", job_id="M", worker_id="op")
        first.commit()
        assert outcome(completing) == [(True,)]

    pgwf.sweep()
    assert (pgwf.status("M"), pgwf.status("P"), pgwf.status("X")) == ("cancelled", "READY", "completed")


def test_two_cancels_of_a_waiter_and_its_dependency_with_one_key_do_not_deadlock(
    pgwf: Leasing, racers: tuple[Racer, Racer]
) -> None:
    pgwf.submit("A", singleton_key="K")
    pgwf.submit("B", singleton_key="K", wait_for=["A"])
    first, second = racers
    second.begin()
    second.lock_job("B")
    first.begin()
    first.call("cancel_job", job_id="A", worker_id="op")

    cancelling = second.start_blocked("cancel_job", job_id="B", worker_id="op")
    first.commit()
    assert isinstance(outcome(cancelling), list)
    second.commit()

    pgwf.sweep()
    assert (pgwf.status("A"), pgwf.status("B")) == ("cancelled", "cancelled")


@pytest.mark.parametrize("ender", ["complete_job", "complete_unheld_job", "release_job", "cancel_job"])
def test_whoever_ends_a_job_has_its_waiter_before_its_key(
    pgwf: Leasing, racers: tuple[Racer, Racer], ender: str
) -> None:
    """Who cancels the waiter has its row and takes the key of both: the other way round they would deadlock."""
    pgwf.submit("A", singleton_key="K")
    lease = held(pgwf.take()) if ender in ("complete_job", "release_job") else {"job_id": "A", "worker_id": "op"}
    pgwf.submit("B", singleton_key="K", wait_for=["A"])
    if ender == "release_job":
        pgwf.cancel("A")  # which makes release_job its end
    first, second = racers
    first.begin()
    first.lock_job("B")
    ending = second.start(ender, **lease)
    if ender == "cancel_job":
        ending.result(timeout=20)
    else:
        second.session.wait_blocked()

    first.call("cancel_job", job_id="B", worker_id="op")
    first.commit()

    assert isinstance(outcome(ending), list)
    pgwf.sweep()
    assert pgwf.status("A") == ("completed" if ender.startswith("complete") else "cancelled")
    assert pgwf.status("B") == "cancelled"


@pytest.mark.parametrize("end", ["expired", "cancelled"])
def test_a_job_whose_waiter_is_busy_is_left_to_the_next_sweep(
    pgwf: Leasing, clock: Clock, racers: tuple[Racer, Racer], end: str
) -> None:
    pgwf.submit("child", "child", expires_at=clock.now() + timedelta(seconds=1))
    pgwf.submit("waiter", wait_for=["child"])
    first, second = racers
    first.begin()
    first.lock_job("waiter")
    if end == "expired":
        clock.advance(seconds=1)
    else:
        second.call("cancel_job", job_id="child", worker_id="op")

    assert second.sweep() == 0
    first.commit()
    assert pgwf.sweep() == 1

    assert (pgwf.status("child"), pgwf.status("waiter")) == (end, "READY")
