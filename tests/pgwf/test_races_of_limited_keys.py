"""Two sessions, both orders, on keys with a limit, and on places that people take."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.pgwf.leasing import Leasing, held, job_ids
from tests.pgwf.racing import Racer, both_ends
from tests.support import outcome

if TYPE_CHECKING:
    from tests.support import Clock


def test_two_claimers_of_the_last_place_get_it_once(pgwf: Leasing, racers: tuple[Racer, Racer]) -> None:
    pgwf.limit_key(max_active=2)
    pgwf.submit_keyed("a", "b", "c", need="a")
    pgwf.submit_keyed("d", need="b")
    pgwf.take("a")
    first, second = racers
    first.begin()
    second.begin()

    assert first.claim("a") == ["b"]
    assert second.claim("b") == []
    first.commit()
    second.commit()

    assert pgwf.get_work("a", "b", limit=5) == []


@pytest.mark.parametrize("limits", [{"max_active": 9, "rate": 0.001, "burst": 1}], ids=["rate"])
def test_two_claimers_of_the_last_token_get_it_once(
    pgwf: Leasing, racers: tuple[Racer, Racer], limits: dict[str, Any]
) -> None:
    pgwf.limit_key(**limits)
    pgwf.submit_keyed("a", need="a")
    pgwf.submit_keyed("b", need="b")
    first, second = racers
    first.begin()
    assert len(first.claim("a")) == 1

    assert second.claim("b") == []
    first.rollback()
    assert len(second.claim("b")) == 1

    assert pgwf.get_work("a", limit=5) == []


@pytest.mark.parametrize("max_active", [1, 3])
def test_a_change_of_a_limit_waits_for_a_claim_of_that_key(
    pgwf: Leasing, racers: tuple[Racer, Racer], max_active: int
) -> None:
    pgwf.limit_key(max_active=2)
    pgwf.submit_keyed("a", "b", "c", "d")
    first, second = racers
    first.begin()
    assert len(first.claim()) == 2

    limiting = second.start_blocked("limit_key", key="K", worker_id="op", max_active=max_active)
    first.commit()
    assert isinstance(outcome(limiting), list)

    assert job_ids(pgwf.get_work(limit=5)) == (["c"] if max_active == 3 else [])


@pytest.mark.parametrize("max_active", [1, 3])
def test_a_claim_passes_over_a_key_whose_limit_is_being_changed(
    pgwf: Leasing, racers: tuple[Racer, Racer], max_active: int
) -> None:
    pgwf.limit_key(max_active=2)
    pgwf.submit_keyed("a", "b", "c", "d")
    pgwf.submit("free")
    first, second = racers
    first.begin()
    first.call("limit_key", key="K", worker_id="op", max_active=max_active)

    assert second.claim() == ["free"]
    first.commit()

    assert len(pgwf.get_work(limit=5)) == max_active


@pytest.mark.parametrize("limit", [1, 2])
@pytest.mark.parametrize("need", ["python", "other"])
def test_a_small_claim_looks_behind_the_jobs_of_a_key_that_somebody_is_moving(
    pgwf: Leasing, racers: tuple[Racer, Racer], limit: int, need: str
) -> None:
    pgwf.limit_key(max_active=4)
    pgwf.submit_keyed("holder", "a", "b", "c")
    lease = pgwf.take()
    pgwf.submit("free", need)
    pgwf.submit("last", need)
    first, second = racers
    first.begin()
    first.call("complete_job", **held(lease))

    assert second.claim("python", "other", limit=limit) == ["free", "last"][:limit]
    first.commit()

    assert job_ids(pgwf.get_work(limit=3)) == ["a", "b", "c"]


def test_one_claim_takes_all_that_stands_between_jobs_of_a_key_that_somebody_is_moving(
    pgwf: Leasing, racers: tuple[Racer, Racer]
) -> None:
    pgwf.limit_key(max_active=40)
    pgwf.submit_keyed("holder")
    lease = pgwf.take()
    for i in range(20):
        pgwf.submit(f"free-{i}")
        pgwf.submit_keyed(f"keyed-{i}")
    first, second = racers
    first.begin()
    first.call("complete_job", **held(lease))

    # One claim, where get_work may make two.
    claimed = second.session.run("select cardinality(n) from pgwf._claim('w', '{python}', 20, 60, pgwf._now())")
    first.commit()

    assert claimed == [(20,)]


def test_jobs_of_a_key_that_somebody_is_moving_take_no_others_turn(pgwf: Leasing, racers: tuple[Racer, Racer]) -> None:
    pgwf.limit_key(max_active=40)
    pgwf.submit_keyed("holder")
    lease = pgwf.take()
    for name in ("k0", "free-1", "k1", "free-2", "k2", "k3", "other", "free-3"):
        pgwf.submit(name, "other" if name == "other" else "python", singleton_key="K" if name[0] == "k" else None)
    first, second = racers
    first.begin()
    first.call("complete_job", **held(lease))

    claimed = second.claim("python", "other", limit=3)
    first.commit()

    assert claimed == ["free-1", "free-2", "other"]


def test_a_release_waits_for_a_change_of_its_keys_limit_and_fills_the_place(
    pgwf: Leasing, racers: tuple[Racer, Racer]
) -> None:
    pgwf.limit_key(max_active=2)
    pgwf.submit_keyed("a", "b", "c", "d", "e")
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
    pgwf.limit_key(max_active=2)
    pgwf.submit_keyed("a", "b", "c", "d", "e")
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
    pgwf.limit_key(max_active=9, rate=1, burst=1)
    pgwf.submit_keyed("a", "b")
    pgwf.take(seconds=600)
    assert pgwf.get_work(limit=5) == []
    pgwf.submit_keyed("c", need="b")
    pgwf.submit("free", "b")
    first, second = racers
    first.begin()
    assert first.claim("b", limit=1) == ["free"]
    clock.advance(seconds=1)

    assert second.sweep() == 0
    first.commit()
    assert pgwf.sweep() == 2

    assert len(pgwf.get_work("python", "b", limit=5)) == 1


def test_a_claim_passes_over_a_key_that_a_sweep_brings_up(
    pgwf: Leasing, clock: Clock, racers: tuple[Racer, Racer]
) -> None:
    pgwf.limit_key(max_active=9, rate=1, burst=1)
    pgwf.submit_keyed("a", "b")
    pgwf.take(seconds=600)
    assert pgwf.get_work(limit=5) == []
    pgwf.submit_keyed("c", need="b")
    clock.advance(seconds=1)
    first, second = racers
    first.begin()
    assert first.sweep() == 1

    assert second.claim("python", "b") == []
    first.commit()

    assert len(pgwf.get_work("python", "b", limit=5)) == 1


@pytest.mark.parametrize("first_call", ["lease_job", "get_work"])
@both_ends
def test_a_person_who_takes_the_last_place_of_a_key_waits_for_whoever_is_taking_it(
    pgwf: Leasing, racers: tuple[Racer, Racer], first_call: str, committed: bool
) -> None:
    pgwf.submit_keyed("a", need="a")
    pgwf.submit_keyed("b", need="b")
    first, second = racers
    first.begin()
    if first_call == "lease_job":
        first.call("lease_job", job_id="a", worker_id="ann")
    else:
        first.claim("a")

    taking = second.start_blocked("lease_job", job_id="b", worker_id="bob")
    first.end(committed=committed)

    answer = outcome(taking)
    assert (answer == "WF006", isinstance(answer, list)) == (committed, not committed)
    assert (pgwf.status("a"), pgwf.status("b")) == (("ACTIVE", "READY") if committed else ("READY", "ACTIVE"))


def test_a_claim_passes_over_a_key_whose_last_place_a_person_is_taking(
    pgwf: Leasing, racers: tuple[Racer, Racer]
) -> None:
    pgwf.submit_keyed("a", need="a")
    pgwf.submit_keyed("b", need="b")
    first, second = racers
    first.begin()
    first.call("lease_job", job_id="a", worker_id="ann")

    assert second.claim("b") == []
    first.rollback()

    assert job_ids(pgwf.get_work("b")) == ["b"]


@pytest.mark.parametrize("max_active", [1, 2])
def test_a_person_waits_for_a_change_of_the_limit_and_takes_a_place_if_there_is_one(
    pgwf: Leasing, racers: tuple[Racer, Racer], max_active: int
) -> None:
    pgwf.submit_keyed("a", need="a")
    pgwf.submit_keyed("b", need="b")
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
    pgwf.submit_keyed("a", "b")
    first, second = racers
    first.begin()
    first.call("lease_job", job_id="a", worker_id="ann")

    changing = second.start_blocked("limit_key", key="K", worker_id="op", max_active=2)
    first.commit()

    assert isinstance(outcome(changing), list)
    assert job_ids(pgwf.get_work(limit=5)) == ["b"]
