"""The end of a job: complete_job, complete_unheld_job, cancel_job, archive_cancelled_jobs, expiry."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from tests.pgwf.leasing import Leasing, held, job_ids, refused

if TYPE_CHECKING:
    from tests.support import Clock


def test_complete_job_moves_the_job_to_the_archive(pgwf: Leasing, clock: Clock) -> None:
    expires_at = clock.now() + timedelta(days=1)
    pgwf.submit("a", "gpu", singleton_key="K", expires_at=expires_at, priority=2)
    created_at = clock.now()
    lease = pgwf.take("gpu", worker_id="the one that did it")
    clock.advance(seconds=5)

    assert pgwf.complete(lease) is True

    assert pgwf.rows("select * from pgwf.jobs") == []
    row = pgwf.archived("a")
    expected = {
        "next_need": "gpu",
        "wait_for": [],
        "singleton_key": "K",
        "created_at": created_at,
        "expires_at": expires_at,
        "lease_id": lease["lease_id"],
        "lease_expiration_count": 0,
        "consecutive_expirations": 0,
        "archived_at": clock.now(),
        "cancel_requested": False,
        "cancelled_at": None,
        "outcome": "completed",
        "worker_id": "the one that did it",
        "priority": 2,
    }
    assert {name: row[name] for name in expected} == expected


def test_complete_job_keeps_the_lifetime_count_of_lapses_and_ends_the_streak(pgwf: Leasing, clock: Clock) -> None:
    pgwf.submit("a")
    pgwf.take(seconds=1)
    clock.advance(seconds=1)
    pgwf.complete(pgwf.take())

    row = pgwf.archived("a")
    assert (row["lease_expiration_count"], row["consecutive_expirations"]) == (1, 0)


def test_a_second_completion_is_refused(pgwf: Leasing) -> None:
    pgwf.submit("a")
    lease = pgwf.take()
    pgwf.complete(lease)

    with refused("WF002", "job a is not actively leased by worker"):
        pgwf.complete(lease)


def test_completing_the_last_of_several_dependencies_makes_the_waiter_runnable(pgwf: Leasing) -> None:
    children = [f"child-{i}" for i in range(4)]
    for child in children:
        pgwf.submit(child, "child")
    pgwf.submit("parent", wait_for=children)

    for left, lease in zip((3, 2, 1, 0), pgwf.get_work("child", limit=4), strict=True):
        assert pgwf.status("parent") == "PENDING_JOBS"
        pgwf.complete(lease)
        assert len(pgwf.job("parent")["wait_for"]) == left

    assert pgwf.status("parent") == "READY"


def test_a_released_waiter_still_waits_for_its_available_at(pgwf: Leasing, clock: Clock) -> None:
    pgwf.submit("child", "child")
    pgwf.submit("parent", wait_for=["child"], available_at=clock.now() + timedelta(hours=1))
    pgwf.complete(pgwf.take("child"))

    assert (pgwf.status("parent"), pgwf.get_work()) == ("AWAITING_FUTURE", [])
    clock.advance(hours=1)
    assert job_ids(pgwf.get_work()) == ["parent"]


def test_completion_in_one_transaction_with_a_domain_row_is_rolled_back_with_it(pgwf: Leasing) -> None:
    pgwf.submit("a")
    pgwf.submit("waiter", "other", wait_for=["a"])
    lease = pgwf.take()

    with pgwf.conn.transaction(force_rollback=True):
        pgwf.complete(lease)

    assert (pgwf.status("a"), pgwf.status("waiter")) == ("ACTIVE", "PENDING_JOBS")
    pgwf.complete(lease)


def test_complete_job_is_allowed_on_a_cancelled_job_that_is_leased(pgwf: Leasing) -> None:
    pgwf.submit("a")
    lease = pgwf.take()
    pgwf.cancel("a", reason="duplicate")

    pgwf.complete(lease)

    row = pgwf.archived("a")
    assert (row["outcome"], row["cancel_requested"]) == ("completed", True)
    assert (row["cancelled_by"], row["cancel_reason"]) == ("operator", "duplicate")


def test_complete_unheld_job_archives_a_ready_job_and_releases_its_waiters(pgwf: Leasing) -> None:
    pgwf.submit("a")
    pgwf.submit("waiter", "other", wait_for=["a"])

    assert pgwf.value("complete_unheld_job", job_id="a", worker_id="operator") is True

    row = pgwf.archived("a")
    assert (row["outcome"], row["lease_id"], row["worker_id"]) == ("completed", None, "operator")
    assert pgwf.status("waiter") == "READY"
    assert pgwf.get_work() == []


def test_complete_unheld_job_accepts_an_expired_job(pgwf: Leasing, clock: Clock) -> None:
    pgwf.submit("a", expires_at=clock.now() + timedelta(seconds=1))
    clock.advance(seconds=1)

    pgwf.value("complete_unheld_job", job_id="a", worker_id="operator")

    assert pgwf.status("a") == "completed"


def test_cancel_job_marks_the_job_and_says_who_and_when(pgwf: Leasing, clock: Clock) -> None:
    pgwf.submit("a")

    row = pgwf.cancel("a", reason="customer left")

    assert row == {
        "job_id": "a",
        "cancelled_at": clock.now(),
        "cancelled_by": "operator",
        "cancel_reason": "customer left",
    }
    assert (pgwf.status("a"), pgwf.get_work()) == ("CANCELLED", [])


def test_a_second_cancel_keeps_the_first_canceller_and_is_traced(pgwf: Leasing, clock: Clock) -> None:
    pgwf.submit("a")
    first = pgwf.cancel("a", reason="first")
    clock.advance(seconds=1)

    (second,) = pgwf.call("cancel_job", job_id="a", worker_id="somebody else", reason="second")

    assert second == first
    traced = pgwf.rows("select output_data from pgwf.jobs_trace where event_type = 'cancel_job' order by trace_id")
    assert [row["output_data"]["already_cancelled"] for row in traced] == [False, True]


@pytest.mark.parametrize(("state", "sqlstate", "message"), [
    ("finished", "WF010", "job a has already completed and cannot be cancelled"),
    ("unknown", "WF004", "job a does not exist"),
])  # fmt: skip
def test_cancel_job_refuses_what_cannot_be_cancelled(pgwf: Leasing, state: str, sqlstate: str, message: str) -> None:
    if state == "finished":
        pgwf.submit("a")
        pgwf.complete(pgwf.take())

    with refused(sqlstate, message):
        pgwf.cancel("a")


@pytest.mark.parametrize("argument", ["job_id", "worker_id"])
def test_cancel_job_refuses_null(pgwf: Leasing, argument: str) -> None:
    pgwf.submit("a")

    with refused("23502", f"{argument} cannot be null"):
        pgwf.call("cancel_job", **({"job_id": "a", "worker_id": "w"} | {argument: None}))


def test_a_cancelled_lease_goes_on_and_the_job_is_never_leased_again(pgwf: Leasing, clock: Clock) -> None:
    pgwf.submit("a")
    pgwf.take(seconds=60)
    pgwf.cancel("a")
    assert pgwf.status("a") == "ACTIVE"

    clock.advance(seconds=60)

    assert pgwf.status("a") == "CANCELLED"
    assert pgwf.get_work() == []
    assert pgwf.status("a") == "cancelled"


def test_cancel_job_releases_waiters_at_once(pgwf: Leasing) -> None:
    pgwf.submit("child", "child")
    pgwf.submit("parent", wait_for=["child"])

    pgwf.cancel("child")

    assert pgwf.status("parent") == "READY"
    assert job_ids(pgwf.get_work()) == ["parent"]


def test_a_cancelled_leased_job_releases_its_waiters_when_its_lease_ends(pgwf: Leasing, clock: Clock) -> None:
    pgwf.submit("child", "child")
    pgwf.take("child", seconds=60)
    pgwf.submit("parent", wait_for=["child"])
    pgwf.cancel("child")
    assert pgwf.status("parent") == "PENDING_JOBS"

    clock.advance(seconds=60)
    pgwf.sweep()

    assert (pgwf.status("child"), pgwf.status("parent")) == ("cancelled", "READY")


def test_a_cancelled_waiter_keeps_its_dependencies_in_the_archive(pgwf: Leasing) -> None:
    for child in ("x", "y"):
        pgwf.submit(child, "child")
    pgwf.submit("waiter", wait_for=["y", "x"], singleton_key="K")
    pgwf.cancel("waiter")
    assert (pgwf.job("waiter")["wait_for"], pgwf.job("waiter")["singleton_key"]) == (["y", "x"], "K")

    pgwf.sweep()

    row = pgwf.archived("waiter")
    assert (sorted(row["wait_for"]), row["singleton_key"], row["outcome"]) == (["x", "y"], "K", "cancelled")


def test_a_cancelled_waiter_is_not_woken_by_its_dependencies(pgwf: Leasing) -> None:
    pgwf.submit("child", "child")
    pgwf.submit("waiter", wait_for=["child"])
    pgwf.cancel("waiter")

    pgwf.complete(pgwf.take("child"))

    assert pgwf.get_work() == []
    assert pgwf.status("waiter") == "cancelled"


def test_archive_cancelled_jobs_archives_oldest_first_up_to_a_limit(pgwf: Leasing) -> None:
    for job_id in "abc":
        pgwf.submit(job_id)
        pgwf.cancel(job_id)

    assert pgwf.value("archive_cancelled_jobs", worker_id="operator", limit=2) == 2

    assert [pgwf.status(job_id) for job_id in "abc"] == ["cancelled", "cancelled", "CANCELLED"]
    assert pgwf.value("archive_cancelled_jobs", worker_id="operator") == 1
    assert pgwf.value("archive_cancelled_jobs", worker_id="operator") == 0


def test_archive_cancelled_jobs_leaves_live_leases_and_takes_lapsed_ones(pgwf: Leasing, clock: Clock) -> None:
    pgwf.submit("a")
    pgwf.take(seconds=60)
    pgwf.cancel("a")
    assert pgwf.value("archive_cancelled_jobs", worker_id="operator") == 0

    clock.advance(seconds=60)

    assert pgwf.value("archive_cancelled_jobs", worker_id="operator") == 1


@pytest.mark.parametrize(("arguments", "sqlstate"), [
    ({"worker_id": None}, "23502"),
    ({"worker_id": "w", "limit": 0}, "WF001"),
    ({"worker_id": "w", "limit": None}, "WF001"),
])  # fmt: skip
def test_archive_cancelled_jobs_refuses_arguments_out_of_range(
    pgwf: Leasing, arguments: dict[str, Any], sqlstate: str
) -> None:
    with refused(sqlstate):
        pgwf.call("archive_cancelled_jobs", **arguments)


def test_an_expired_dependency_is_archived_and_releases_who_waits_for_it(pgwf: Leasing, clock: Clock) -> None:
    pgwf.submit("child", "child", expires_at=clock.now() + timedelta(seconds=1))
    pgwf.submit("parent", wait_for=["child"])
    clock.advance(seconds=1)
    assert pgwf.status("parent") == "PENDING_JOBS"

    pgwf.sweep()

    assert (pgwf.status("child"), pgwf.status("parent")) == ("expired", "READY")
    assert pgwf.call("job_dependencies", job_id="parent") == [
        {"job_id": "child", "outcome": "expired", "ended_at": clock.now()}
    ]


def test_a_line_of_expired_jobs_releases_who_waits_at_its_end_in_one_sweep(pgwf: Leasing, clock: Clock) -> None:
    soon = clock.now() + timedelta(seconds=1)
    pgwf.submit("j0", "other", expires_at=soon)
    for i in range(1, 5):
        pgwf.submit(f"j{i}", "other", wait_for=[f"j{i - 1}"], expires_at=soon)
    pgwf.submit("last", wait_for=["j4"])
    clock.advance(seconds=1)

    pgwf.sweep()

    assert pgwf.status("last") == "READY"


def test_an_expired_job_nobody_waits_for_stays_changeable_for_a_day(pgwf: Leasing, clock: Clock) -> None:
    pgwf.submit("a", expires_at=clock.now() + timedelta(seconds=1))
    clock.advance(hours=23)
    pgwf.sweep()
    assert pgwf.status("a") == "EXPIRED"

    clock.advance(hours=2)
    pgwf.sweep()

    assert pgwf.status("a") == "expired"


def test_an_expired_job_with_a_key_lets_the_next_one_up(pgwf: Leasing, clock: Clock) -> None:
    pgwf.submit("holder", singleton_key="K")
    holder = pgwf.take()
    pgwf.submit("short", singleton_key="K", expires_at=clock.now() + timedelta(seconds=1))
    pgwf.submit("long", singleton_key="K")
    pgwf.submit("waiter", "other", wait_for=["short"])
    assert pgwf.get_work(limit=5) == []
    pgwf.complete(holder)

    clock.advance(seconds=1)
    pgwf.sweep()

    assert (pgwf.status("short"), pgwf.status("waiter")) == ("expired", "READY")
    assert job_ids(pgwf.get_work(limit=5)) == ["long"]


def test_a_waiter_sees_how_each_dependency_ended(pgwf: Leasing, clock: Clock) -> None:
    for child in ("completed", "cancelled", "live"):
        pgwf.submit(child, child)
    pgwf.submit("early", "early")
    pgwf.complete(pgwf.take("early"))
    pgwf.submit("waiter", wait_for=["early", "cancelled", "completed", "live"])
    pgwf.complete(pgwf.take("completed"))
    pgwf.cancel("cancelled")

    def outcomes() -> dict[str, str | None]:
        return {row["job_id"]: row["outcome"] for row in pgwf.call("job_dependencies", job_id="waiter")}

    expected = {"early": "completed", "cancelled": "cancelled", "completed": "completed", "live": None}
    assert list(outcomes().items()) == list(expected.items())
    pgwf.sweep()
    pgwf.complete(pgwf.take("live"))
    assert outcomes() == expected | {"live": "completed"}
    pgwf.complete(pgwf.take())
    assert outcomes() == expected | {"live": "completed"}
    clock.advance(seconds=1)
    pgwf.value("retain", keep=timedelta(0))
    assert pgwf.call("job_dependencies", job_id="waiter") == []


def test_completion_needs_read_committed(pgwf: Leasing) -> None:
    pgwf.submit("a")
    lease = pgwf.take()

    with refused("WF020"), pgwf.conn.transaction():
        pgwf.conn.execute("set transaction isolation level repeatable read")
        pgwf.call("complete_job", **held(lease))
