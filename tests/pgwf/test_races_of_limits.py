"""Two sessions, both orders, on the first limit of a need: whoever claims meanwhile counts, or is counted."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.pgwf.leasing import Leasing, held, job_ids
from tests.pgwf.racing import Racer, both_ends
from tests.support import outcome

if TYPE_CHECKING:
    from collections.abc import Callable
    from concurrent.futures import Future

    from tests.support import Rows, Session

ONE: dict[str, Any] = {"need": "python", "worker_id": "op", "max_active": 1}
# What there is already when the need gets its first limit of that kind.
BEFORE: dict[str, dict[str, Any]] = {
    "nothing": {},
    "a rate": {"rate": 1e9},
    "a limit that was lifted": {"max_active": 9},
}


@pytest.fixture
def third(session: Callable[[], Session]) -> Racer:
    return Racer(session())


def limited_before(pgwf: Leasing, before: str) -> None:
    if limits := BEFORE[before]:
        pgwf.limit_need("python", **limits)
    if before == "a limit that was lifted":
        pgwf.limit_need("python")


def claim_that_has_looked(claimer: Racer, holder: Racer) -> Future[Rows]:
    """A claim that knows which needs are limited and has leased nothing yet; it goes on when `holder` commits."""
    holder.begin()
    holder.session.run("lock table pgwf.ready in access exclusive mode")
    return claimer.start_blocked("get_work", worker_id="w", worker_caps=["python"], limit_jobs=2)


@pytest.mark.parametrize("before", BEFORE)
def test_leases_of_a_claim_that_looked_before_the_first_limit_count(
    pgwf: Leasing, racers: tuple[Racer, Racer], third: Racer, before: str
) -> None:
    limited_before(pgwf, before)
    pgwf.submit_all(*"abcd")
    claimer, operator = racers
    claiming = claim_that_has_looked(claimer, third)

    limiting = operator.start_blocked("limit_need", **ONE | {"max_active": 2})
    third.commit()

    assert [row[0] for row in claiming.result(timeout=20)] == ["a", "b"]
    assert isinstance(outcome(limiting), list)
    assert pgwf.get_work() == []
    pgwf.complete({"job_id": "a", "lease_id": claiming.result()[0][1]})
    assert job_ids(pgwf.get_work(limit=5)) == ["c"]


def test_a_claim_that_looked_before_the_first_rate_leases_before_it(
    pgwf: Leasing, racers: tuple[Racer, Racer], third: Racer
) -> None:
    pgwf.submit_all(*"abcd")
    claimer, operator = racers
    claiming = claim_that_has_looked(claimer, third)

    limiting = operator.start_blocked("limit_need", need="python", worker_id="op", rate=0.001, burst=1)
    third.commit()

    assert [row[0] for row in claiming.result(timeout=20)] == ["a", "b"]
    assert isinstance(outcome(limiting), list)
    assert job_ids(pgwf.get_work(limit=5)) == ["c"]


@pytest.mark.parametrize("before", BEFORE)
@both_ends
def test_the_first_limit_waits_for_a_claim_that_has_leased_and_counts_what_it_did(
    pgwf: Leasing, racers: tuple[Racer, Racer], before: str, committed: bool
) -> None:
    limited_before(pgwf, before)
    pgwf.submit_all(*"abc")
    first, second = racers
    first.begin()
    lease = first.take()

    limiting = second.start_blocked("limit_need", **ONE)
    first.end(committed=committed)

    assert isinstance(outcome(limiting), list)
    assert job_ids(pgwf.get_work(limit=5)) == ([] if committed else ["a"])
    if committed:
        pgwf.complete(lease)
        assert job_ids(pgwf.get_work(limit=5)) == ["b"]


@pytest.mark.parametrize("limits", [{"max_active": 1}, {"rate": 0.001, "burst": 1}], ids=["max_active", "rate"])
@pytest.mark.parametrize("claims_before", [0, 8], ids=["a new session", "a session that has its plans"])
@both_ends
def test_a_claim_waits_for_the_first_limit_and_goes_by_it(
    pgwf: Leasing, racers: tuple[Racer, Racer], limits: dict[str, float], claims_before: int, committed: bool
) -> None:
    pgwf.submit_all(*"abc")
    operator, worker = racers
    for _ in range(claims_before):
        assert worker.claim("other") == []
    operator.begin()
    operator.call("limit_need", need="python", worker_id="op", **limits)

    claiming = worker.start_blocked("get_work", worker_id="w", worker_caps=["python"], limit_jobs=5)
    operator.end(committed=committed)

    assert len(claiming.result(timeout=20)) == (1 if committed else 3)
    assert pgwf.get_work() == []


def test_a_limit_that_comes_while_another_is_being_lifted_counts_what_was_leased_in_between(
    pgwf: Leasing, racers: tuple[Racer, Racer]
) -> None:
    pgwf.limit_need("python", max_active=9)
    pgwf.submit_all(*"abc")
    first, second = racers
    first.begin()
    first.call("limit_need", need="python", worker_id="op")
    first.take()

    limiting = second.start_blocked("limit_need", **ONE)
    first.commit()

    assert isinstance(outcome(limiting), list)
    assert pgwf.get_work() == []


def test_the_first_limit_waits_for_calls_of_who_holds_a_lease(pgwf: Leasing, racers: tuple[Racer, Racer]) -> None:
    pgwf.submit_all(*"abc")
    (lease,) = pgwf.get_work()
    first, second = racers
    first.begin()
    first.call("extend_lease", **held(lease))

    limiting = second.start_blocked("limit_need", **ONE)
    first.call("complete_job", **held(lease))  # It has locked leases already, and does not wait behind the limit.
    first.commit()

    assert isinstance(outcome(limiting), list)
    assert len(pgwf.get_work(limit=5)) == 1


def test_a_first_limit_that_waits_lets_others_work_and_gives_up(pgwf: Leasing, racers: tuple[Racer, Racer]) -> None:
    pgwf.submit_all(*"ab")
    first, second = racers
    first.begin()
    first.take()

    limiting = second.start_blocked("limit_need", **ONE)
    completed = 0
    while not limiting.done():
        pgwf.submit(f"c{completed}")
        pgwf.complete(pgwf.take())
        completed += 1

    assert outcome(limiting) == "55P03"
    assert completed > 20
    assert "need python is not limited: for 5 seconds a transaction kept leases locked" in str(limiting.exception())
    assert pgwf.rows("select * from pgwf.need_setting") == []
    first.commit()
    pgwf.limit_need("python", max_active=1)
    assert pgwf.get_work() == []


@pytest.mark.parametrize("limits", [{"max_active": 2}, {}, {"max_active": 1, "rate": 1e9}], ids=str)
def test_a_limit_that_is_changed_waits_for_nobody_who_works(
    pgwf: Leasing, racers: tuple[Racer, Racer], limits: dict[str, float]
) -> None:
    pgwf.limit_need("python", max_active=1, rate=1e9)
    pgwf.submit_all(*"abc")
    (lease,) = pgwf.get_work()
    first, second = racers
    first.begin()
    first.call("extend_lease", **held(lease))

    second.call("limit_need", need="python", worker_id="op", **limits)
    first.commit()

    assert len(pgwf.get_work(limit=5)) == limits.get("max_active", 3) - 1
