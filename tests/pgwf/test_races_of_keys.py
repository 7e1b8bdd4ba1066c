"""Two sessions, both orders, on singleton keys: one holder at a time, no claim waits, nobody in line is forgotten."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from tests.pgwf.leasing import Leasing, held, job_ids
from tests.pgwf.racing import Racer, outcome

if TYPE_CHECKING:
    from tests.support import Clock


def submit_keyed(pgwf: Leasing, *names: str, need: str = "python", key: str = "K") -> None:
    for name in names:
        pgwf.submit(name, need, singleton_key=key)


def claim(*needs: str, limit: int = 5) -> dict[str, Any]:
    return {"worker_id": "w", "worker_caps": list(needs or ("python",)), "limit_jobs": limit}


def test_two_sessions_with_different_needs_lease_one_job_of_a_key(pgwf: Leasing, racers: tuple[Racer, Racer]) -> None:
    submit_keyed(pgwf, "a", need="a")
    submit_keyed(pgwf, "b", need="b")
    first, second = racers
    first.begin()
    second.begin()

    (leased,) = first.call("get_work", **claim("a"))
    assert second.call("get_work", **claim("b")) == []
    first.commit()
    second.commit()

    pgwf.complete({"job_id": leased[0], "lease_id": leased[1]})
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
    submit_keyed(pgwf, "holder", "next")
    lease = pgwf.take()
    function = "reschedule_job" if ending == "change of key" else ending
    first, second = racers
    first.begin()
    first.call(function, **held(lease), **ENDINGS[ending])

    assert second.call("get_work", **claim()) == []
    first.commit()

    assert "next" in job_ids(pgwf.get_work(limit=5))


@pytest.mark.parametrize("ending", ENDINGS)
def test_a_holder_that_gives_its_key_up_waits_for_a_claim_that_is_parking_on_it(
    pgwf: Leasing, racers: tuple[Racer, Racer], ending: str
) -> None:
    submit_keyed(pgwf, "holder", "next")
    lease = pgwf.take()
    function = "reschedule_job" if ending == "change of key" else ending
    first, second = racers
    first.begin()
    assert first.call("get_work", **claim()) == []

    ending_call = second.start_blocked(function, **held(lease), **ENDINGS[ending])
    first.commit()

    assert isinstance(outcome(ending_call), list)
    assert "next" in job_ids(pgwf.get_work(limit=5))


def test_expiry_of_a_holder_passes_over_a_key_on_which_a_claim_is_parking(
    pgwf: Leasing, clock: Clock, racers: tuple[Racer, Racer]
) -> None:
    submit_keyed(pgwf, "holder")
    pgwf.take(seconds=60)
    submit_keyed(pgwf, "next")
    first, second = racers
    first.begin()
    assert first.call("get_work", **claim()) == []
    clock.advance(seconds=60)

    assert second.call("sweep", worker_id="s") == [(0,)]
    first.commit()
    assert pgwf.sweep() == 1

    assert len(pgwf.get_work(limit=5)) == 1


def test_crosswise_free_and_claim_of_two_keys_neither_waits_nor_deadlocks(
    pgwf: Leasing, racers: tuple[Racer, Racer]
) -> None:
    submit_keyed(pgwf, "h1", key="K1")
    submit_keyed(pgwf, "h2", key="K2")
    h1, h2 = pgwf.get_work(limit=2)
    submit_keyed(pgwf, "n2", need="b", key="K2")
    submit_keyed(pgwf, "n1", need="c", key="K1")
    first, second = racers
    first.begin()
    second.begin()
    first.call("complete_job", **held(h1))
    second.call("complete_job", **held(h2))

    assert first.call("get_work", **claim("b")) == []
    assert second.call("get_work", **claim("c")) == []
    first.commit()
    second.commit()

    assert sorted(job_ids(pgwf.get_work("b", "c", limit=5))) == ["n1", "n2"]


def test_a_claim_left_open_keeps_nobody_else_from_other_work(pgwf: Leasing, racers: tuple[Racer, Racer]) -> None:
    submit_keyed(pgwf, "a", "b")
    pgwf.submit("free")
    first, second = racers
    first.begin()
    first.call("get_work", **claim(limit=1))

    assert [row[0] for row in second.call("get_work", **claim())] == ["free"]
    first.rollback()

    assert job_ids(pgwf.get_work(limit=5)) == ["a"]


def test_submitting_and_moving_a_keyed_job_never_waits_for_its_key(pgwf: Leasing, racers: tuple[Racer, Racer]) -> None:
    submit_keyed(pgwf, "holder")
    first, second = racers
    first.begin()
    first.call("get_work", **claim())

    second.call("submit_job", job_id="b", worker_id="w", next_need="python", singleton_key="K")
    second.call("submit_job", job_id="c", worker_id="w", next_need="python", singleton_key="K")
    first.commit()

    assert pgwf.get_work(limit=5) == []


def test_cancelling_the_candidate_waits_for_a_claim_of_it(pgwf: Leasing, racers: tuple[Racer, Racer]) -> None:
    submit_keyed(pgwf, "a", "b")
    first, second = racers
    first.begin()
    first.call("get_work", **claim(limit=1))

    cancelling = second.start_blocked("cancel_job", job_id="a", worker_id="op")
    first.commit()
    assert isinstance(outcome(cancelling), list)

    assert (pgwf.status("a"), pgwf.job("a")["cancel_requested"]) == ("ACTIVE", True)


def test_a_claim_passes_over_a_candidate_that_is_being_cancelled(pgwf: Leasing, racers: tuple[Racer, Racer]) -> None:
    submit_keyed(pgwf, "a", "b")
    first, second = racers
    first.begin()
    first.call("cancel_job", job_id="a", worker_id="op")

    assert second.call("get_work", **claim()) == []
    first.commit()

    assert job_ids(pgwf.get_work(limit=5)) == ["b"]


def test_parking_and_cancelling_the_parked_job_exclude_each_other(pgwf: Leasing, racers: tuple[Racer, Racer]) -> None:
    submit_keyed(pgwf, "holder", "b")
    lease = pgwf.take()
    first, second = racers
    first.begin()
    assert first.call("get_work", **claim()) == []

    cancelling = second.start_blocked("cancel_job", job_id="b", worker_id="op")
    first.commit()
    assert isinstance(outcome(cancelling), list)

    pgwf.complete(lease)
    assert pgwf.get_work(limit=5) == []


def test_an_expired_candidate_with_a_busy_key_is_archived_later(
    pgwf: Leasing, clock: Clock, racers: tuple[Racer, Racer]
) -> None:
    pgwf.submit("short", singleton_key="K", expires_at=clock.now() + timedelta(seconds=1))
    pgwf.submit("waiter", "other", wait_for=["short"])
    submit_keyed(pgwf, "next", need="b")
    clock.advance(seconds=1)
    first, second = racers
    first.begin()
    assert [row[0] for row in first.call("get_work", **claim("b"))] == ["next"]

    assert second.call("sweep", worker_id="s") == [(0,)]
    first.commit()
    pgwf.sweep()

    assert (pgwf.status("short"), pgwf.status("waiter")) == ("expired", "READY")


def test_ten_thousand_jobs_on_one_busy_key_are_parked_once_each(pgwf: Leasing) -> None:
    """The claim that looks for free work behind them stays cheap: parked rows are not met again."""
    pgwf.conn.execute("select pgwf.set_trace(false)")
    submit_keyed(pgwf, "holder")
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


def test_two_claimers_of_the_last_place_get_it_once(pgwf: Leasing, racers: tuple[Racer, Racer]) -> None:
    pgwf.call("limit_key", key="K", worker_id="op", max_active=2)
    submit_keyed(pgwf, "a", "b", "c", need="a")
    submit_keyed(pgwf, "d", need="b")
    pgwf.take("a")
    first, second = racers
    first.begin()
    second.begin()

    assert [row[0] for row in first.call("get_work", **claim("a"))] == ["b"]
    assert second.call("get_work", **claim("b")) == []
    first.commit()
    second.commit()

    assert pgwf.get_work("a", "b", limit=5) == []


@pytest.mark.parametrize("limits", [{"max_active": 9, "rate": 0.001, "burst": 1}], ids=["rate"])
def test_two_claimers_of_the_last_token_get_it_once(
    pgwf: Leasing, racers: tuple[Racer, Racer], limits: dict[str, Any]
) -> None:
    pgwf.call("limit_key", key="K", worker_id="op", **limits)
    submit_keyed(pgwf, "a", need="a")
    submit_keyed(pgwf, "b", need="b")
    first, second = racers
    first.begin()
    assert len(first.call("get_work", **claim("a"))) == 1

    assert second.call("get_work", **claim("b")) == []
    first.rollback()
    assert len(second.call("get_work", **claim("b"))) == 1

    assert pgwf.get_work("a", limit=5) == []


@pytest.mark.parametrize("max_active", [1, 3])
def test_a_change_of_a_limit_waits_for_a_claim_of_that_key(
    pgwf: Leasing, racers: tuple[Racer, Racer], max_active: int
) -> None:
    pgwf.call("limit_key", key="K", worker_id="op", max_active=2)
    submit_keyed(pgwf, "a", "b", "c", "d")
    first, second = racers
    first.begin()
    assert len(first.call("get_work", **claim())) == 2

    limiting = second.start_blocked("limit_key", key="K", worker_id="op", max_active=max_active)
    first.commit()
    assert isinstance(outcome(limiting), list)

    assert job_ids(pgwf.get_work(limit=5)) == (["c"] if max_active == 3 else [])


@pytest.mark.parametrize("max_active", [1, 3])
def test_a_claim_passes_over_a_key_whose_limit_is_being_changed(
    pgwf: Leasing, racers: tuple[Racer, Racer], max_active: int
) -> None:
    pgwf.call("limit_key", key="K", worker_id="op", max_active=2)
    submit_keyed(pgwf, "a", "b", "c", "d")
    pgwf.submit("free")
    first, second = racers
    first.begin()
    first.call("limit_key", key="K", worker_id="op", max_active=max_active)

    assert [row[0] for row in second.call("get_work", **claim())] == ["free"]
    first.commit()

    assert len(pgwf.get_work(limit=5)) == max_active


@pytest.mark.parametrize("limit", [1, 2])
def test_a_small_claim_looks_behind_the_jobs_of_a_key_that_somebody_is_moving(
    pgwf: Leasing, racers: tuple[Racer, Racer], limit: int
) -> None:
    pgwf.call("limit_key", key="K", worker_id="op", max_active=4)
    submit_keyed(pgwf, "holder", "a", "b", "c")
    lease = pgwf.take()
    pgwf.submit("free")
    pgwf.submit("last")
    first, second = racers
    first.begin()
    first.call("complete_job", **held(lease))

    assert [row[0] for row in second.call("get_work", **claim(limit=limit))] == ["free", "last"][:limit]
    first.commit()

    assert job_ids(pgwf.get_work(limit=3)) == ["a", "b", "c"]


def test_a_release_waits_for_a_change_of_its_keys_limit_and_fills_the_place(
    pgwf: Leasing, racers: tuple[Racer, Racer]
) -> None:
    pgwf.call("limit_key", key="K", worker_id="op", max_active=2)
    submit_keyed(pgwf, "a", "b", "c", "d", "e")
    (lease, _) = pgwf.get_work(limit=2)
    assert pgwf.get_work(limit=5) == []
    first, second = racers
    first.begin()
    first.call("limit_key", key="K", worker_id="op", max_active=3)

    completing = second.start_blocked("complete_job", **held(lease))
    first.commit()
    assert isinstance(outcome(completing), list)

    assert job_ids(pgwf.get_work(limit=5)) == ["c", "d"]


def test_a_change_of_a_limit_waits_for_a_release_of_that_key(pgwf: Leasing, racers: tuple[Racer, Racer]) -> None:
    pgwf.call("limit_key", key="K", worker_id="op", max_active=2)
    submit_keyed(pgwf, "a", "b", "c", "d", "e")
    (lease, _) = pgwf.get_work(limit=2)
    assert pgwf.get_work(limit=5) == []
    first, second = racers
    first.begin()
    first.call("complete_job", **held(lease))

    limiting = second.start_blocked("limit_key", key="K", worker_id="op", max_active=1)
    first.commit()
    assert isinstance(outcome(limiting), list)

    assert pgwf.get_work(limit=5) == []


def test_the_sweep_passes_over_a_key_that_a_claim_is_moving_when_its_token_comes(
    pgwf: Leasing, clock: Clock, racers: tuple[Racer, Racer]
) -> None:
    pgwf.call("limit_key", key="K", worker_id="op", max_active=9, rate=1, burst=1)
    submit_keyed(pgwf, "a", "b")
    pgwf.take(seconds=600)
    assert pgwf.get_work(limit=5) == []
    submit_keyed(pgwf, "c", need="b")
    first, second = racers
    first.begin()
    assert first.call("get_work", **claim("b")) == []
    clock.advance(seconds=1)

    assert second.call("sweep", worker_id="s") == [(0,)]
    first.commit()
    assert pgwf.sweep() == 2

    assert len(pgwf.get_work("python", "b", limit=5)) == 1


def test_a_claim_passes_over_a_key_that_a_sweep_brings_up(
    pgwf: Leasing, clock: Clock, racers: tuple[Racer, Racer]
) -> None:
    pgwf.call("limit_key", key="K", worker_id="op", max_active=9, rate=1, burst=1)
    submit_keyed(pgwf, "a", "b")
    pgwf.take(seconds=600)
    assert pgwf.get_work(limit=5) == []
    submit_keyed(pgwf, "c", need="b")
    clock.advance(seconds=1)
    first, second = racers
    first.begin()
    assert first.call("sweep", worker_id="s") == [(1,)]

    assert second.call("get_work", **claim("python", "b")) == []
    first.commit()

    assert len(pgwf.get_work("python", "b", limit=5)) == 1


@pytest.mark.parametrize("first_call", ["lease_job", "get_work"])
@pytest.mark.parametrize("committed", [True, False], ids=["committed", "rolled back"])
def test_a_person_who_takes_the_last_place_of_a_key_waits_for_whoever_is_taking_it(
    pgwf: Leasing, racers: tuple[Racer, Racer], first_call: str, committed: bool
) -> None:
    submit_keyed(pgwf, "a", need="a")
    submit_keyed(pgwf, "b", need="b")
    first, second = racers
    first.begin()
    if first_call == "lease_job":
        first.call("lease_job", job_id="a", worker_id="ann")
    else:
        first.call("get_work", **claim("a"))

    taking = second.start_blocked("lease_job", job_id="b", worker_id="bob")
    if committed:
        first.commit()
    else:
        first.rollback()

    answer = outcome(taking)
    assert (answer == "WF006", isinstance(answer, list)) == (committed, not committed)
    assert (pgwf.status("a"), pgwf.status("b")) == (("ACTIVE", "READY") if committed else ("READY", "ACTIVE"))


def test_a_claim_passes_over_a_key_whose_last_place_a_person_is_taking(
    pgwf: Leasing, racers: tuple[Racer, Racer]
) -> None:
    submit_keyed(pgwf, "a", need="a")
    submit_keyed(pgwf, "b", need="b")
    first, second = racers
    first.begin()
    first.call("lease_job", job_id="a", worker_id="ann")

    assert second.call("get_work", **claim("b")) == []
    first.rollback()

    assert job_ids(pgwf.get_work("b")) == ["b"]


@pytest.mark.parametrize("max_active", [1, 2])
def test_a_person_waits_for_a_change_of_the_limit_and_takes_a_place_if_there_is_one(
    pgwf: Leasing, racers: tuple[Racer, Racer], max_active: int
) -> None:
    submit_keyed(pgwf, "a", need="a")
    submit_keyed(pgwf, "b", need="b")
    pgwf.take("a")
    first, second = racers
    first.begin()
    first.call("limit_key", key="K", worker_id="op", max_active=max_active)

    taking = second.start_blocked("lease_job", job_id="b", worker_id="bob")
    first.commit()

    assert (outcome(taking) == "WF006") == (max_active == 1)


def test_a_change_of_the_limit_waits_for_a_person_who_is_taking_a_place(
    pgwf: Leasing, racers: tuple[Racer, Racer]
) -> None:
    submit_keyed(pgwf, "a", "b")
    first, second = racers
    first.begin()
    first.call("lease_job", job_id="a", worker_id="ann")

    changing = second.start_blocked("limit_key", key="K", worker_id="op", max_active=2)
    first.commit()

    assert isinstance(outcome(changing), list)
    assert job_ids(pgwf.get_work(limit=5)) == ["b"]
