"""Two sessions, both orders, on singleton keys: one holder at a time, no claim waits, nobody in line is forgotten."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from tests.pgwf.leasing import Leasing, held, job_ids
from tests.pgwf.racing import Racer, both_ends
from tests.support import outcome, wait_until

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.support import Clock, Session


def test_two_sessions_with_different_needs_lease_one_job_of_a_key(pgwf: Leasing, racers: tuple[Racer, Racer]) -> None:
    pgwf.submit_keyed("a", need="a")
    pgwf.submit_keyed("b", need="b")
    first, second = racers
    first.begin()
    second.begin()

    lease = first.take("a")
    assert second.claim("b") == []
    first.commit()
    second.commit()

    pgwf.complete(lease)
    assert job_ids(pgwf.get_work("a", "b", limit=5)) == ["b"]


ENDINGS: dict[str, dict[str, Any]] = {
    "complete_job": {},
    "release_job": {},
    "reschedule_job": {"next_need": "python", "available_at": "2031-01-01"},
    "change of key": {"next_need": "python", "singleton_key": "L"},
}


@pytest.mark.parametrize("ending", ENDINGS)
def test_a_claim_does_not_wait_for_a_holder_that_is_giving_its_key_up(
    pgwf: Leasing, racers: tuple[Racer, Racer], ending: str
) -> None:
    pgwf.submit_keyed("holder", "next")
    lease = pgwf.take()
    function = "reschedule_job" if ending == "change of key" else ending
    first, second = racers
    first.begin()
    first.call(function, **held(lease), **ENDINGS[ending])

    assert second.claim() == []
    first.commit()

    assert "next" in job_ids(pgwf.get_work(limit=5))


@pytest.mark.parametrize("ending", ENDINGS)
def test_a_holder_that_gives_its_key_up_waits_for_a_claim_that_is_parking_on_it(
    pgwf: Leasing, racers: tuple[Racer, Racer], ending: str
) -> None:
    pgwf.submit_keyed("holder", "next")
    lease = pgwf.take()
    function = "reschedule_job" if ending == "change of key" else ending
    first, second = racers
    first.begin()
    assert first.claim() == []

    ending_call = second.start_blocked(function, **held(lease), **ENDINGS[ending])
    first.commit()

    assert isinstance(outcome(ending_call), list)
    assert "next" in job_ids(pgwf.get_work(limit=5))


def test_expiry_of_a_holder_passes_over_a_key_on_which_a_claim_is_parking(
    pgwf: Leasing, clock: Clock, racers: tuple[Racer, Racer]
) -> None:
    pgwf.submit_keyed("holder")
    pgwf.take(seconds=60)
    pgwf.submit_keyed("next")
    pgwf.submit("free")
    first, second = racers
    first.begin()
    assert first.claim(limit=1, seconds=600) == ["free"]
    clock.advance(seconds=60)

    assert second.sweep() == 0
    first.commit()
    assert pgwf.sweep() == 1

    assert len(pgwf.get_work(limit=5)) == 1


def test_crosswise_free_and_claim_of_two_keys_neither_waits_nor_deadlocks(
    pgwf: Leasing, racers: tuple[Racer, Racer]
) -> None:
    pgwf.submit_keyed("h1", key="K1")
    pgwf.submit_keyed("h2", key="K2")
    h1, h2 = pgwf.get_work(limit=2)
    pgwf.submit_keyed("n2", need="b", key="K2")
    pgwf.submit_keyed("n1", need="c", key="K1")
    first, second = racers
    first.begin()
    second.begin()
    first.call("complete_job", **held(h1))
    second.call("complete_job", **held(h2))

    assert first.claim("b") == []
    assert second.claim("c") == []
    first.commit()
    second.commit()

    assert sorted(job_ids(pgwf.get_work("b", "c", limit=5))) == ["n1", "n2"]


def test_a_claim_left_open_keeps_nobody_else_from_other_work(pgwf: Leasing, racers: tuple[Racer, Racer]) -> None:
    pgwf.submit_keyed("a", "b")
    pgwf.submit("free")
    first, second = racers
    first.begin()
    first.claim(limit=1)

    assert second.claim() == ["free"]
    first.rollback()

    assert job_ids(pgwf.get_work(limit=5)) == ["a"]


def test_submitting_and_moving_a_keyed_job_never_waits_for_its_key(pgwf: Leasing, racers: tuple[Racer, Racer]) -> None:
    pgwf.submit_keyed("holder")
    first, second = racers
    first.begin()
    first.claim()

    second.call("submit_job", job_id="b", worker_id="w", next_need="python", singleton_key="K")
    second.call("submit_job", job_id="c", worker_id="w", next_need="python", singleton_key="K")
    first.commit()

    assert pgwf.get_work(limit=5) == []


def test_cancelling_the_candidate_waits_for_a_claim_of_it(pgwf: Leasing, racers: tuple[Racer, Racer]) -> None:
    pgwf.submit_keyed("a", "b")
    first, second = racers
    first.begin()
    first.claim(limit=1)

    cancelling = second.start_blocked("cancel_job", job_id="a", worker_id="op")
    first.commit()
    assert isinstance(outcome(cancelling), list)

    assert (pgwf.status("a"), pgwf.job("a")["cancel_requested"]) == ("ACTIVE", True)


def test_a_claim_passes_over_a_candidate_that_is_being_cancelled(pgwf: Leasing, racers: tuple[Racer, Racer]) -> None:
    pgwf.submit_keyed("a", "b")
    first, second = racers
    first.begin()
    first.call("cancel_job", job_id="a", worker_id="op")

    assert second.claim() == []
    first.commit()

    assert job_ids(pgwf.get_work(limit=5)) == ["b"]


def test_parking_and_cancelling_the_parked_job_exclude_each_other(pgwf: Leasing, racers: tuple[Racer, Racer]) -> None:
    pgwf.submit_keyed("holder", "b")
    lease = pgwf.take()
    first, second = racers
    first.begin()
    assert first.claim() == []

    cancelling = second.start_blocked("cancel_job", job_id="b", worker_id="op")
    first.commit()
    assert isinstance(outcome(cancelling), list)

    pgwf.complete(lease)
    assert pgwf.get_work(limit=5) == []


@both_ends
def test_a_release_waits_for_whoever_takes_the_next_of_the_key_out_of_line(
    pgwf: Leasing, racers: tuple[Racer, Racer], committed: bool
) -> None:
    pgwf.submit_keyed("holder", "b", "c")
    lease = pgwf.take()
    assert pgwf.get_work(limit=5) == []
    first, second = racers
    first.begin()
    first.call("cancel_job", job_id="b", worker_id="op")

    completing = second.start_blocked("complete_job", **held(lease))
    first.end(committed=committed)

    assert outcome(completing) == [(True,)]
    assert job_ids(pgwf.get_work(limit=5)) == (["c"] if committed else ["b"])


def test_whoever_takes_a_job_out_of_line_waits_for_a_release_and_brings_up_the_next(
    pgwf: Leasing, racers: tuple[Racer, Racer]
) -> None:
    pgwf.submit_keyed("holder", "b", "c")
    lease = pgwf.take()
    assert pgwf.get_work(limit=5) == []
    first, second = racers
    first.begin()
    first.call("complete_job", **held(lease))

    cancelling = second.start_blocked("cancel_job", job_id="b", worker_id="op")
    first.commit()

    assert isinstance(outcome(cancelling), list)
    assert job_ids(pgwf.get_work(limit=5)) == ["c"]


def test_an_expired_candidate_with_a_busy_key_is_archived_later(
    pgwf: Leasing, clock: Clock, racers: tuple[Racer, Racer]
) -> None:
    pgwf.submit("short", singleton_key="K", expires_at=clock.now() + timedelta(seconds=1))
    pgwf.submit("waiter", "other", wait_for=["short"])
    pgwf.submit_keyed("next", need="b")
    pgwf.sweep()
    clock.advance(seconds=1)
    first, second = racers
    first.begin()
    assert first.claim("b", limit=1) == ["next"]

    assert second.sweep() == 0
    first.commit()
    pgwf.sweep()

    assert (pgwf.status("short"), pgwf.status("waiter")) == ("expired", "READY")


def test_a_lowered_threshold_locks_the_keys_of_what_it_shelves_in_the_order_of_who_frees_them(
    pgwf: Leasing, clock: Clock, session: Callable[[], Session]
) -> None:
    """Keys are locked by hash. The job with the lower number has the later key, and both sessions wait for their first
    one before either has any: in orders of their own each would then have the key that the other waits for."""
    keys = pgwf.rows("select key from unnest(array['K', 'L']) as key order by pgwf._key_lock(key)")
    early, late = (row["key"] for row in keys)
    pgwf.value("set_crash_concern_threshold", threshold=5)
    for job_id, key in (("first", late), ("second", early)):
        pgwf.submit_keyed(job_id, need=job_id, key=key)
        for _ in range(3):
            pgwf.take(job_id, seconds=1)
            clock.advance(seconds=1)
        pgwf.sweep()
    blockers = {key: session() for key in (early, late)}
    for key, blocker in blockers.items():
        blocker.run("begin")
        blocker.run("select pgwf._lock_keys(array[%s])", [key])
    first, second = Racer(session()), session()

    lowering = first.start_blocked("set_crash_concern_threshold", threshold=2)
    second.run("begin")
    freeing = second.start_blocked("select pgwf._lock_keys(array['K', 'L'])")
    blockers[early].run("commit")
    wait_until(lambda: has_key(pgwf, early), "one of them has the early key")
    blockers[late].run("commit")

    assert outcome(lowering) == [(2,)]
    assert outcome(freeing) == [("",)]
    second.run("commit")
    assert [pgwf.status(job_id) for job_id in ("first", "second")] == ["CRASH_CONCERN"] * 2


def has_key(pgwf: Leasing, key: str) -> bool:
    """Whether a session has the lock of a key."""
    (row,) = pgwf.rows(
        """
        select count(*) as count
        from pg_locks l, pgwf._key_lock(%s) k
        where l.locktype = 'advisory' and l.granted and l.objsubid = 1
          and l.classid::bigint = (k >> 32) & 4294967295 and l.objid::bigint = k & 4294967295
        """,
        [key],
    )
    return bool(row["count"])


def test_ten_thousand_jobs_on_one_busy_key_are_parked_once_each(pgwf: Leasing) -> None:
    """The claim that looks for free work behind them stays cheap: parked rows are not met again."""
    pgwf.conn.execute("select pgwf.set_trace(false)")
    pgwf.submit_keyed("holder")
    lease = pgwf.take()
    ids = [f"j{i}" for i in range(10_000)]
    pgwf.call(
        "submit_jobs",
        worker_id="w",
        job_ids=ids,
        next_needs=["python"] * len(ids),
        singleton_keys=["K"] * len(ids),
    )
    pgwf.submit("free")

    rows: list[dict[str, Any]] = []
    for _ in range(60):
        rows = pgwf.get_work(limit=100)
        if rows:
            break

    assert job_ids(rows) == ["free"]
    assert pgwf.rows("select count(*) as count from pgwf.parked") == [{"count": 10_000}]
    pgwf.complete(lease)
    assert pgwf.rows("select count(*) as count from pgwf.parked") == [{"count": 9_999}]
    assert len(pgwf.get_work(limit=100)) == 1


@pytest.mark.parametrize("taken", [["k2"], ["k2", "g"]], ids=["one-lane", "each-lane"])
def test_an_open_claim_of_who_waited_longest_keeps_nobody_from_what_stands_before_it(
    pgwf: Leasing, clock: Clock, racers: tuple[Racer, Racer], taken: list[str]
) -> None:
    """Who was parked comes back to the end of the lane, and is yet more urgent than who came meanwhile."""
    pgwf.submit("k1", singleton_key="K")
    pgwf.submit("k2", singleton_key="K")
    (lease,) = pgwf.get_work(limit=5)
    clock.advance(seconds=1)
    pgwf.submit("g", "gpu")
    clock.advance(seconds=1)
    pgwf.submit("late")
    pgwf.complete(lease)
    first, second = racers
    first.begin()
    for job_id in taken:
        first.call("lease_job", job_id=job_id, worker_id="op")

    claimed = second.claim("python", "gpu", limit=2)

    assert sorted(claimed) == sorted({"g", "late"} - set(taken))
    first.commit()
