"""Singleton keys: at most one job of a key is leased at any time, and nobody of a key is forgotten."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

from tests.pgwf.leasing import Leasing, held, job_ids

if TYPE_CHECKING:
    from tests.support import Clock


def test_a_second_job_of_a_key_is_leased_only_after_the_first_is_completed(pgwf: Leasing) -> None:
    pgwf.submit_keyed("a", "b")
    lease = pgwf.take()

    assert pgwf.get_work(limit=5) == []
    assert pgwf.status("b") == "READY"
    pgwf.complete(lease)

    assert job_ids(pgwf.get_work(limit=5)) == ["b"]


def test_one_call_leases_at_most_one_job_of_a_key(pgwf: Leasing) -> None:
    pgwf.submit_keyed("a", "b", "c")
    pgwf.submit("free")

    assert job_ids(pgwf.get_work(limit=10)) == ["a", "free"]


def test_a_key_excludes_across_needs(pgwf: Leasing) -> None:
    pgwf.submit_keyed("a")
    pgwf.submit_keyed("b", need="gpu")
    lease = pgwf.take("python")

    assert pgwf.get_work("gpu") == []
    pgwf.complete(lease)

    assert job_ids(pgwf.get_work("gpu")) == ["b"]


def test_jobs_of_a_busy_key_do_not_keep_free_jobs_waiting(pgwf: Leasing) -> None:
    pgwf.submit_keyed("holder")
    pgwf.take()
    pgwf.submit_keyed(*(f"parked-{i}" for i in range(12)))
    pgwf.submit("free")

    assert job_ids(pgwf.get_work(limit=5)) == ["free"]


def test_a_key_is_free_again_when_its_lease_lapses(pgwf: Leasing, clock: Clock) -> None:
    pgwf.submit_keyed("a", "b")
    pgwf.take(seconds=60)
    assert pgwf.get_work() == []

    clock.advance(seconds=60)

    assert job_ids(pgwf.get_work(limit=5)) in (["a"], ["b"])


def test_a_holder_that_sleeps_gives_its_key_up(pgwf: Leasing, clock: Clock) -> None:
    pgwf.submit_keyed("a", "b")
    lease = pgwf.take()
    assert pgwf.get_work() == []

    pgwf.reschedule(lease, available_at=clock.now() + timedelta(hours=1))

    assert job_ids(pgwf.get_work()) == ["b"]
    clock.advance(hours=1)
    assert job_ids(pgwf.get_work(limit=5)) in (["a"], ["b"])


def test_a_holder_that_changes_its_key_frees_the_old_one(pgwf: Leasing) -> None:
    pgwf.submit_keyed("a", "b")
    lease = pgwf.take()
    assert pgwf.get_work() == []

    pgwf.reschedule(lease, singleton_key="L")

    assert sorted(job_ids(pgwf.get_work(limit=5))) == ["a", "b"]


def test_a_released_key_goes_to_the_most_urgent_parked_job(pgwf: Leasing) -> None:
    pgwf.submit_keyed("holder")
    lease = pgwf.take()
    pgwf.submit("p4", singleton_key="K", priority=4)
    pgwf.submit("p1", singleton_key="K", priority=1)
    pgwf.submit("p2", singleton_key="K", priority=2)
    assert pgwf.get_work(limit=10) == []

    pgwf.complete(lease)

    assert job_ids(pgwf.get_work(limit=10)) == ["p1"]


def test_cancelling_the_candidate_of_a_key_brings_up_the_next(pgwf: Leasing) -> None:
    pgwf.submit_keyed("a", "b", "c")
    lease = pgwf.take()
    assert pgwf.get_work(limit=10) == []
    pgwf.complete(lease)

    pgwf.cancel("b")

    assert job_ids(pgwf.get_work(limit=10)) == ["c"]


def test_cancelling_a_parked_job_leaves_the_others_in_line(pgwf: Leasing) -> None:
    pgwf.submit_keyed("a", "b", "c")
    lease = pgwf.take()
    assert pgwf.get_work(limit=10) == []

    pgwf.cancel("b")
    pgwf.complete(lease)

    assert job_ids(pgwf.get_work(limit=10)) == ["c"]


def test_completing_or_moving_the_candidate_unheld_brings_up_the_next(pgwf: Leasing, clock: Clock) -> None:
    pgwf.submit_keyed("a", "b", "c", "d")
    lease = pgwf.take()
    assert pgwf.get_work(limit=10) == []
    pgwf.complete(lease)

    pgwf.call("complete_unheld_job", job_id="b", worker_id="operator")
    pgwf.call(
        "reschedule_unheld_job",
        job_id="c",
        worker_id="operator",
        next_need="python",
        available_at=clock.now() + timedelta(hours=1),
    )

    assert job_ids(pgwf.get_work(limit=10)) == ["d"]


def test_an_expired_candidate_brings_up_the_next(pgwf: Leasing, clock: Clock) -> None:
    pgwf.submit_keyed("holder")
    lease = pgwf.take(seconds=600)
    pgwf.submit("short", singleton_key="K", expires_at=clock.now() + timedelta(seconds=10), priority=1)
    pgwf.submit_keyed("long")
    assert pgwf.get_work(limit=10) == []
    clock.advance(seconds=10)

    pgwf.complete(lease)

    assert job_ids(pgwf.get_work(limit=10)) == ["long"]


def test_an_expired_job_leaves_the_line(pgwf: Leasing, clock: Clock) -> None:
    pgwf.submit_keyed("holder")
    lease = pgwf.take(seconds=600)
    pgwf.submit("short", singleton_key="K", expires_at=clock.now() + timedelta(seconds=10))
    pgwf.submit("waiter", "other", wait_for=["short"])
    assert pgwf.get_work(limit=10) == []
    clock.advance(seconds=10)

    pgwf.sweep()

    assert (pgwf.status("short"), pgwf.status("waiter"), pgwf.broken()) == ("expired", "READY", [])
    pgwf.complete(lease)


def test_set_priority_moves_a_job_to_the_front_of_the_line(pgwf: Leasing) -> None:
    pgwf.submit_keyed("holder", "b", "c", "d")
    lease = pgwf.take()
    assert pgwf.get_work(limit=10) == []

    pgwf.call("set_priority", job_id="d", worker_id="operator", priority=1)
    pgwf.call("set_priority", job_id="b", worker_id="operator", priority=4)
    assert pgwf.get_work(limit=10) == []
    pgwf.complete(lease)

    assert job_ids(pgwf.get_work(limit=10)) == ["d"]


def test_lease_job_takes_and_gives_back_the_key(pgwf: Leasing) -> None:
    pgwf.submit_keyed("a", "b")

    (lease,) = pgwf.call("lease_job", job_id="b", worker_id="jim")
    assert pgwf.get_work(limit=5) == []
    pgwf.complete(lease)

    assert job_ids(pgwf.get_work(limit=5)) == ["a"]


def test_lease_job_takes_a_parked_job_once_its_key_is_free(pgwf: Leasing) -> None:
    pgwf.submit_keyed("a", "b", "c")
    lease = pgwf.take()
    assert pgwf.get_work(limit=5) == []
    pgwf.complete(lease)

    (chosen,) = pgwf.call("lease_job", job_id="c", worker_id="jim")

    assert pgwf.get_work(limit=5) == []
    pgwf.complete(chosen)
    assert job_ids(pgwf.get_work(limit=5)) == ["b"]


def test_an_empty_key_is_no_key(pgwf: Leasing) -> None:
    pgwf.submit("a", singleton_key="")
    pgwf.submit("b", singleton_key="")

    assert len(pgwf.get_work(limit=5)) == 2


def test_a_long_line_on_one_key_is_worked_off_one_by_one(pgwf: Leasing) -> None:
    pgwf.submit_keyed(*(f"j{i:02}" for i in range(30)))
    done = []
    while rows := pgwf.get_work(limit=10):
        (lease,) = rows
        done.append(lease["job_id"])
        pgwf.call("release_job" if len(done) == 7 else "complete_job", **held(lease))

    assert sorted(set(done)) == [f"j{i:02}" for i in range(30)]
    assert len(done) == 31
