"""Paused and limited needs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.pgwf.leasing import Leasing, job_ids, refused

if TYPE_CHECKING:
    from tests.support import Clock


def fill(pgwf: Leasing, need: str, count: int) -> None:
    pgwf.call(
        "submit_jobs",
        worker_id="client",
        job_ids=[f"{need}-{i}" for i in range(count)],
        next_needs=[need] * count,
    )


def test_a_paused_need_hands_out_nothing_until_it_is_resumed(pgwf: Leasing) -> None:
    fill(pgwf, "python", 2)
    fill(pgwf, "gpu", 1)
    (lease,) = pgwf.get_work("python")

    pgwf.pause_need("python")

    assert job_ids(pgwf.get_work("python", "gpu", limit=5)) == ["gpu-0"]
    pgwf.extend(lease)
    pgwf.complete(lease)
    pgwf.resume_need("python")
    assert job_ids(pgwf.get_work("python", limit=5)) == ["python-1"]
    assert pgwf.rows("select * from pgwf.need_setting") == []


def test_a_pause_and_a_limit_outlive_each_other(pgwf: Leasing) -> None:
    fill(pgwf, "gpu", 5)
    pgwf.limit_need("gpu", max_active=1)
    pgwf.pause_need("gpu")

    pgwf.resume_need("gpu")
    assert len(pgwf.get_work("gpu", limit=5)) == 1
    pgwf.pause_need("gpu")
    pgwf.limit_need("gpu")
    assert pgwf.get_work("gpu", limit=5) == []


def test_at_most_max_active_jobs_of_a_need_are_leased_at_once(pgwf: Leasing) -> None:
    fill(pgwf, "gpu", 10)
    pgwf.limit_need("gpu", max_active=3)

    first = pgwf.get_work("gpu", limit=2)
    second = pgwf.get_work("gpu", limit=5)
    assert (len(first), len(second), pgwf.get_work("gpu")) == (2, 1, [])

    pgwf.complete(first[0])
    assert len(pgwf.get_work("gpu", limit=5)) == 1


@pytest.mark.parametrize("limits", [{"max_active": 3}, {"rate": 1, "burst": 3}])
def test_a_limit_counts_the_jobs_of_all_priorities_and_takes_the_most_urgent(
    pgwf: Leasing, clock: Clock, limits: dict[str, Any]
) -> None:
    pgwf.submit("old", "gpu", priority=4)
    clock.advance(minutes=10)
    for priority in (4, 3, 2, 1):
        for i in range(2):
            pgwf.submit(f"{priority}-{i}", "gpu", priority=priority)
    pgwf.limit_need("gpu", **limits)

    assert job_ids(pgwf.get_work("gpu", limit=10)) == ["old", "1-0", "1-1"]


def test_a_lapsed_lease_frees_its_slot(pgwf: Leasing, clock: Clock) -> None:
    fill(pgwf, "gpu", 2)
    pgwf.limit_need("gpu", max_active=1)
    pgwf.take("gpu", seconds=1)
    assert pgwf.get_work("gpu") == []

    clock.advance(seconds=1)

    assert len(pgwf.get_work("gpu", limit=5)) == 1


def test_a_need_without_room_does_not_hold_up_others(pgwf: Leasing) -> None:
    fill(pgwf, "gpu", 5)
    fill(pgwf, "python", 5)
    pgwf.limit_need("gpu", max_active=1)

    rows = pgwf.get_work("gpu", "python", limit=4)

    assert sorted(job_ids(rows)) == ["gpu-0", "python-0", "python-1", "python-2"]


def test_lowering_max_active_stops_new_claims_only(pgwf: Leasing) -> None:
    fill(pgwf, "gpu", 5)
    pgwf.limit_need("gpu", max_active=3)
    leases = pgwf.get_work("gpu", limit=3)

    pgwf.limit_need("gpu", max_active=1)

    assert pgwf.get_work("gpu") == []
    pgwf.complete(leases[0])
    pgwf.complete(leases[1])
    assert pgwf.get_work("gpu") == []
    pgwf.complete(leases[2])
    assert len(pgwf.get_work("gpu", limit=5)) == 1


def test_leases_taken_before_a_limit_was_set_count_against_it(pgwf: Leasing) -> None:
    fill(pgwf, "gpu", 5)
    leases = pgwf.get_work("gpu", limit=2)

    pgwf.limit_need("gpu", max_active=2)

    assert pgwf.get_work("gpu") == []
    pgwf.complete(leases[0])
    assert len(pgwf.get_work("gpu", limit=5)) == 1


def test_a_rate_limit_allows_its_burst_and_then_its_rate(pgwf: Leasing, clock: Clock) -> None:
    fill(pgwf, "mail", 20)
    pgwf.limit_need("mail", rate=2, burst=5)

    assert len(pgwf.get_work("mail", limit=20)) == 5
    assert pgwf.get_work("mail", limit=20) == []
    clock.advance(seconds=1)
    assert len(pgwf.get_work("mail", limit=20)) == 2
    clock.advance(hours=1)
    assert len(pgwf.get_work("mail", limit=20)) == 5


def test_a_clock_that_is_set_back_neither_gives_tokens_nor_takes_them(pgwf: Leasing, clock: Clock) -> None:
    fill(pgwf, "mail", 9)
    pgwf.limit_need("mail", rate=1, burst=2)
    assert len(pgwf.get_work("mail")) == 1

    clock.advance(seconds=-10)
    assert len(pgwf.get_work("mail", limit=9)) == 1
    clock.advance(seconds=10)
    assert pgwf.get_work("mail", limit=9) == []
    clock.advance(seconds=1)
    assert len(pgwf.get_work("mail", limit=9)) == 1


def test_a_rolled_back_claim_gives_its_tokens_back(pgwf: Leasing) -> None:
    fill(pgwf, "mail", 5)
    pgwf.limit_need("mail", rate=1, burst=2)

    with pgwf.conn.transaction(force_rollback=True):
        assert len(pgwf.get_work("mail", limit=5)) == 2

    assert len(pgwf.get_work("mail", limit=5)) == 2


def test_a_rate_and_max_active_both_hold(pgwf: Leasing, clock: Clock) -> None:
    fill(pgwf, "mail", 9)
    pgwf.limit_need("mail", rate=1, burst=3, max_active=2)

    leases = pgwf.get_work("mail", limit=9)
    assert len(leases) == 2
    for lease in leases:
        pgwf.complete(lease)
    assert len(pgwf.get_work("mail", limit=9)) == 1
    assert pgwf.get_work("mail", limit=9) == []


def test_limits_are_lifted_by_leaving_them_out(pgwf: Leasing) -> None:
    fill(pgwf, "gpu", 4)
    pgwf.limit_need("gpu", max_active=1)
    pgwf.take("gpu")

    pgwf.limit_need("gpu")

    assert len(pgwf.get_work("gpu", limit=9)) == 3
    assert pgwf.rows("select * from pgwf.need_setting") == []


def test_leases_by_lease_job_are_not_limited_and_do_not_count(pgwf: Leasing) -> None:
    fill(pgwf, "human.review", 3)
    pgwf.limit_need("human.review", max_active=1)
    pgwf.take("human.review")

    pgwf.call("lease_job", job_id="human.review-2", worker_id="jim")

    assert pgwf.status("human.review-2") == "ACTIVE"
    pgwf.limit_need("human.review", max_active=2)
    assert len(pgwf.get_work("human.review", limit=5)) == 1


def test_old_token_buckets_are_trimmed_by_the_sweep(pgwf: Leasing, clock: Clock) -> None:
    fill(pgwf, "mail", 9)
    pgwf.limit_need("mail", rate=1, burst=9)
    for _ in range(5):
        pgwf.take("mail")

    clock.advance(seconds=2)
    pgwf.sweep()

    assert len(pgwf.rows("select from pgwf.bucket")) == 1


@pytest.mark.parametrize("rate", [5e-324, 1e-300, 1e300, 1.7e308])
def test_no_rate_makes_a_claim_fail_however_long_ago_the_last_was(pgwf: Leasing, clock: Clock, rate: float) -> None:
    fill(pgwf, "mail", 3)
    pgwf.limit_need("mail", rate=rate)
    pgwf.call("limit_key", key="K", worker_id="w", max_active=3, rate=rate)
    for name in ("a", "b", "c"):
        pgwf.submit(name, "keyed", singleton_key="K")
    pgwf.get_work("mail", "keyed", limit=2)

    for days in (0.00001, 1, 100_000):
        clock.advance(days=days)
        pgwf.get_work("mail", "keyed", limit=2)
        pgwf.value("next_wakeup", worker_caps=["mail", "keyed"])

    assert pgwf.broken() == []


@pytest.mark.parametrize(
    ("limits", "message"),
    [
        ({"max_active": -1}, "max_active must be 0 or more, not -1"),
        ({"rate": 0}, "rate must be a positive number, not 0"),
        ({"rate": float("nan")}, "rate must be a positive number, not NaN"),
        ({"rate": float("inf")}, "rate must be a positive number, not Infinity"),
        ({"rate": 5, "burst": 0.5}, "burst must be a number of 1 or more, not 0.5"),
        ({"rate": 5, "burst": float("nan")}, "burst must be a number of 1 or more, not NaN"),
        ({"burst": 3}, "burst 3 is given without a rate"),
    ],
)
def test_limits_out_of_range_are_refused(pgwf: Leasing, limits: dict[str, float], message: str) -> None:
    with refused("WF001", message):
        pgwf.limit_need("gpu", **limits)


def test_a_missing_need_is_refused(pgwf: Leasing) -> None:
    with refused("23502", "need cannot be null"):
        pgwf.call("pause_need", need=None, worker_id="operator")
