"""Calls that meet in the middle of their locks, each with what the other wants next: neither waits for ever."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.pgwf.leasing import Leasing, held
from tests.pgwf.racing import Racer
from tests.support import outcome, wait_until

if TYPE_CHECKING:
    from collections.abc import Callable
    from concurrent.futures import Future

    from tests.support import Clock, Rows, Session


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


def wait_until_blocked(pgwf: Leasing, racer: Racer, *, by: Racer) -> None:
    """Wait until a session has come to a lock that another one holds."""
    pids = [by.session.pid, racer.session.pid]
    wait_until(
        lambda: pgwf.rows("select %s = any (pg_blocking_pids(%s)) as blocked", pids)[0]["blocked"],
        f"session {pids[1]} waits for {pids[0]}",
    )


class Waking:
    """A call wakes `gate`, `waiter` and `child` while the waiter begins to wait for the child, and the child ends.

    The waker locks in that order, but `gate_first` or not. Whoever ends the child holds it and wants the waiter, as
    soon as it has the sibling that waits too: a waker that held the waiter and wanted the child would close a circle.
    """

    def __init__(self, pgwf: Leasing, session: Callable[[], Session], *, gate_first: bool) -> None:
        for name in ("sibling", "gate", "waiter") if gate_first else ("sibling", "waiter", "gate"):
            pgwf.submit(name, name)
        pgwf.submit("child", "child")
        pgwf.reschedule(pgwf.take("sibling"), "sibling", wait_for=["child"])
        self.waiter, self.child = pgwf.take("waiter"), pgwf.take("child")
        self.pgwf = pgwf
        self.sibling, self.gate = Racer(session()), Racer(session())
        self.registrant, self.waker, self.completer = Racer(session()), Racer(session()), Racer(session())
        for racer, name in ((self.sibling, "sibling"), (self.gate, "gate")):
            racer.begin()
            racer.lock_job(name)

    def start(self) -> Future[Rows]:
        return self.waker.start_blocked("wake_jobs", worker_id="w", job_ids=["gate", "waiter", "child"])

    def register(self) -> None:
        self.registrant.call("reschedule_job", **held(self.waiter), next_need="waiter", wait_for=["child"])

    def wait_for(self, racer: Racer) -> None:
        """The waker has come to the row that `racer` holds."""
        wait_until(
            lambda: (
                self.pgwf.conn.execute(
                    "select %s = any (pg_blocking_pids(%s))", [racer.session.pid, self.waker.session.pid]
                ).fetchone()
                == (True,)
            ),
            "the waker waits for that session",
        )

    def end_child(self) -> Rows | str:
        completing = self.completer.start_blocked("complete_job", **held(self.child))
        self.gate.commit()
        wait_until_blocked(self.pgwf, self.waker, by=self.completer)
        self.sibling.commit()
        return outcome(completing)


def test_a_job_that_begins_to_wait_before_its_waker_comes_to_it_is_not_held_while_that_waits_for_its_child(
    pgwf: Leasing, session: Callable[[], Session]
) -> None:
    """The waker's statement saw it as one that waits for nothing."""
    race = Waking(pgwf, session, gate_first=True)
    waking = race.start()

    race.register()

    assert race.end_child() == [(True,)]
    assert outcome(waking) == [(1, "gate", "unchanged"), (2, "waiter", "unchanged"), (3, "child", "finished")]
    assert pgwf.status("waiter") == "READY"


def test_a_job_that_begins_to_wait_while_its_waker_waits_for_it_is_not_held_while_that_waits_for_its_child(
    pgwf: Leasing, session: Callable[[], Session]
) -> None:
    race = Waking(pgwf, session, gate_first=False)
    race.registrant.begin()
    race.register()
    waking = race.start()

    race.registrant.commit()
    wait_until_blocked(pgwf, race.waker, by=race.gate)

    assert race.end_child() == [(True,)]
    assert outcome(waking) == [(1, "gate", "unchanged"), (2, "waiter", "unchanged"), (3, "child", "finished")]
    assert pgwf.status("waiter") == "READY"


def test_a_job_that_its_waker_has_locked_begins_to_wait_afterwards(
    pgwf: Leasing, session: Callable[[], Session]
) -> None:
    race = Waking(pgwf, session, gate_first=True)
    race.gate.commit()
    race.waker.begin()
    race.waker.call("wake_jobs", worker_id="w", job_ids=["gate", "waiter", "child"])
    arguments = {**held(race.waiter), "next_need": "waiter", "wait_for": ["child"]}

    registering = race.registrant.start_blocked("reschedule_job", **arguments)
    completing = race.completer.start_blocked("complete_job", **held(race.child))
    race.waker.commit()
    race.sibling.commit()

    assert outcome(completing) == [(True,)]
    assert isinstance(outcome(registering), list)
    assert pgwf.status("waiter") == "READY"


def test_a_waiting_job_is_not_held_by_its_waker_while_that_waits_for_another(
    pgwf: Leasing, session: Callable[[], Session]
) -> None:
    """That other job, which had waited too, is leased and ends by then; it is what the first one waits for."""
    for name in ("other", "gate", "sibling", "waiter", "middle", "child"):
        pgwf.submit(name, name)
    for waiter, child in (("gate", "other"), ("sibling", "middle"), ("waiter", "middle"), ("middle", "child")):
        pgwf.reschedule(pgwf.take(waiter), waiter, wait_for=[child])
    gate, sibling, waker, completer = (Racer(session()) for _ in range(4))
    for racer, name in ((gate, "gate"), (sibling, "sibling")):
        racer.begin()
        racer.lock_job(name)
    waking = waker.start_blocked("wake_jobs", worker_id="w", job_ids=["gate", "waiter", "middle"])
    pgwf.complete(pgwf.take("child"))
    completing = completer.start_blocked("complete_job", **held(pgwf.take("middle")))

    gate.commit()
    wait_until_blocked(pgwf, waker, by=completer)
    sibling.commit()

    assert outcome(completing) == [(True,)]
    assert outcome(waking) == [(1, "gate", "unchanged"), (2, "waiter", "unchanged"), (3, "middle", "finished")]
    assert pgwf.status("waiter") == "READY"


@pytest.mark.parametrize("gate_first", [True, False])
def test_a_job_that_begins_to_wait_is_not_held_by_a_threshold_while_that_waits_for_its_child(
    pgwf: Leasing, clock: Clock, session: Callable[[], Session], gate_first: bool
) -> None:
    """All three have lapses, so the threshold decides about each of them."""
    names = ("gate", "waiter", "child") if gate_first else ("waiter", "gate", "child")
    for name in ("sibling", *names):
        pgwf.submit(name, name)
    for name in names:
        pgwf.take(name, seconds=1)
    clock.advance(seconds=2)
    pgwf.sweep()
    pgwf.reschedule(pgwf.take("sibling"), "sibling", wait_for=["child"])
    waiter, child = held(pgwf.take("waiter")), held(pgwf.take("child"))
    sibling, gate, registrant, setter, completer = (Racer(session()) for _ in range(5))
    for racer, name in ((sibling, "sibling"), (gate, "gate")):
        racer.begin()
        racer.lock_job(name)
    registrant.begin()
    registrant.call("reschedule_job", **waiter, next_need="waiter", wait_for=["child"])

    setting = setter.start_blocked("set_crash_concern_threshold", threshold=9)
    registrant.commit()
    wait_until_blocked(pgwf, setter, by=gate)
    completing = completer.start_blocked("complete_job", **child)
    gate.commit()
    wait_until_blocked(pgwf, setter, by=completer)
    sibling.commit()

    assert outcome(completing) == [(True,)]
    assert outcome(setting) == [(9,)]
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
