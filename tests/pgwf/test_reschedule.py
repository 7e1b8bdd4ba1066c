"""reschedule_job, reschedule_unheld_job and the other calls that change a waiting job."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest

from tests.pgwf.leasing import Leasing, held, job_ids, refused

if TYPE_CHECKING:
    from tests.support import Clock


def test_reschedule_job_hands_the_job_to_another_fleet(pgwf: Leasing) -> None:
    pgwf.submit("a", "python.ingest")
    lease = pgwf.take("python.ingest")

    row = pgwf.reschedule(lease, "human.review")

    assert row["next_need"] == "human.review"
    job = pgwf.job("a")
    assert (job["status"], job["lease_id"], job["lease_expires_at"]) == ("READY", None, None)
    assert pgwf.get_work("python.ingest") == []
    assert job_ids(pgwf.get_work("human.review")) == ["a"]


def test_reschedule_job_sleeps_until_available_at(pgwf: Leasing, clock: Clock) -> None:
    pgwf.submit("a")
    wake = clock.now() + timedelta(days=3)

    row = pgwf.reschedule(pgwf.take(), available_at=wake)

    assert row["available_at"] == wake
    assert (pgwf.status("a"), pgwf.get_work()) == ("AWAITING_FUTURE", [])
    clock.set(wake)
    assert job_ids(pgwf.get_work()) == ["a"]


def test_reschedule_job_forks_and_joins(pgwf: Leasing) -> None:
    pgwf.submit("parent")
    lease = pgwf.take()
    for child in ("child-1", "child-2"):
        pgwf.submit(child, "child")

    row = pgwf.reschedule(lease, wait_for=["child-1", "child-2"])

    assert row["wait_for"] == ["child-1", "child-2"]
    first, second = pgwf.get_work("child", limit=2)
    pgwf.complete(first)
    assert (pgwf.status("parent"), pgwf.job("parent")["wait_for"]) == ("PENDING_JOBS", ["child-2"])
    pgwf.complete(second)
    assert (pgwf.status("parent"), pgwf.job("parent")["wait_for"]) == ("READY", [])
    assert job_ids(pgwf.get_work()) == ["parent"]


def test_reschedule_job_may_wait_for_a_leased_job(pgwf: Leasing) -> None:
    pgwf.submit("child", "child")
    child = pgwf.take("child")
    pgwf.submit("parent")

    pgwf.reschedule(pgwf.take(), wait_for=["child"])

    assert pgwf.status("parent") == "PENDING_JOBS"
    pgwf.complete(child)
    assert pgwf.status("parent") == "READY"


@pytest.mark.parametrize("function", ["reschedule_job", "reschedule_unheld_job"])
@pytest.mark.parametrize("leased", [True, False])
def test_a_cancelled_job_is_waited_for_only_while_it_is_leased(pgwf: Leasing, function: str, leased: bool) -> None:
    pgwf.submit("child", "child")
    pgwf.submit("parent")
    child = pgwf.take("child") if leased else None
    parent: dict[str, Any] = {"job_id": "parent", "worker_id": "worker", "next_need": "python", "wait_for": ["child"]}
    if function == "reschedule_job":
        parent |= held(pgwf.take())
    pgwf.cancel("child")

    pgwf.call(function, **parent)

    assert pgwf.status("parent") == ("PENDING_JOBS" if leased else "READY")
    if child is not None:
        pgwf.complete(child)
    assert job_ids(pgwf.get_work(limit=5)) == ["parent"]


def test_reschedule_job_without_wait_for_waits_for_nothing(pgwf: Leasing) -> None:
    pgwf.submit("child", "child")
    pgwf.submit("a", wait_for=["child"])
    pgwf.complete(pgwf.take("child"))

    row = pgwf.reschedule(pgwf.take(), wait_for=None)

    assert (row["wait_for"], pgwf.status("a")) == ([], "READY")
    assert pgwf.call("job_dependencies", job_id="a") == []


def test_reschedule_job_checks_wait_for_as_submit_does(pgwf: Leasing) -> None:
    pgwf.submit("done")
    pgwf.complete(pgwf.take())
    pgwf.submit("live", "other")
    pgwf.submit("a")
    lease = pgwf.take()

    with refused("WF011", "job a: wait_for references unknown jobs: {ghost}"):
        pgwf.reschedule(lease, wait_for=["live", "ghost"])
    assert pgwf.status("a") == "ACTIVE"
    row = pgwf.reschedule(lease, wait_for=["done", "live", "live", None])

    assert row["wait_for"] == ["live"]


def test_reschedule_job_refuses_a_job_that_waits_for_itself(pgwf: Leasing) -> None:
    pgwf.submit("a")
    lease = pgwf.take()

    with refused("WF012", "job a"):
        pgwf.reschedule(lease, wait_for=["a"])

    assert pgwf.status("a") == "ACTIVE"


@pytest.mark.parametrize("length", [2, 3, 5])
def test_reschedule_job_refuses_a_cycle_of_any_length(pgwf: Leasing, length: int) -> None:
    names = [f"j{i}" for i in range(length)]
    pgwf.submit_all(*names)
    leases = pgwf.get_work(limit=length)
    for lease, name in zip(leases[:-1], names[1:], strict=True):
        pgwf.reschedule(lease, wait_for=[name])

    with refused("WF012"):
        pgwf.reschedule(leases[-1], wait_for=[names[0]])

    assert pgwf.status(names[-1]) == "ACTIVE"
    pgwf.complete(leases[-1])
    assert pgwf.status(names[-2]) == "READY"


def test_a_cancelled_waiter_closes_no_cycle(pgwf: Leasing) -> None:
    """Nobody waits for it any more, although its own dependencies are still written down until it is archived."""
    pgwf.submit("a")
    lease = pgwf.take()
    pgwf.submit("b", wait_for=["a"])
    pgwf.submit("c", "other", wait_for=["a"])
    pgwf.cancel("b")

    pgwf.reschedule(lease, wait_for=["b"])

    assert pgwf.status("a") == "READY"


def test_a_diamond_is_no_cycle(pgwf: Leasing) -> None:
    pgwf.submit_all("top", "left", "right", "bottom")
    top, left, right, bottom = pgwf.get_work(limit=4)

    pgwf.reschedule(left, wait_for=["bottom"])
    pgwf.reschedule(right, wait_for=["bottom"])
    pgwf.reschedule(top, wait_for=["left", "right"])

    pgwf.complete(bottom)
    for lease in pgwf.get_work(limit=5):
        assert lease["job_id"] in ("left", "right")
        pgwf.complete(lease)
    assert pgwf.status("top") == "READY"


def test_reschedule_job_ends_the_streak_of_lapses_and_keeps_the_lifetime_count(pgwf: Leasing, clock: Clock) -> None:
    pgwf.submit("a")
    pgwf.take(seconds=1)
    clock.advance(seconds=1)

    pgwf.reschedule(pgwf.take())

    job = pgwf.job("a")
    assert (job["lease_expiration_count"], job["consecutive_expirations"]) == (1, 0)


@pytest.mark.parametrize(("given", "kept"), [(None, "K"), ("", None), ("L", "L")])
def test_reschedule_job_keeps_clears_or_changes_the_singleton_key(
    pgwf: Leasing, given: str | None, kept: str | None
) -> None:
    pgwf.submit("a", singleton_key="K")

    row = pgwf.reschedule(pgwf.take(), singleton_key=given)

    assert row["singleton_key"] == kept
    assert pgwf.job("a")["singleton_key"] == kept


def test_reschedule_job_does_not_change_expires_at(pgwf: Leasing, clock: Clock) -> None:
    expires_at = clock.now() + timedelta(hours=1)
    pgwf.submit("a", expires_at=expires_at)

    pgwf.reschedule(pgwf.take())

    assert pgwf.job("a")["expires_at"] == expires_at


def test_reschedule_job_refuses_a_null_need(pgwf: Leasing) -> None:
    pgwf.submit("a")
    lease = pgwf.take()

    with refused("23502", "next_need cannot be null"):
        pgwf.call("reschedule_job", job_id="a", lease_id=lease["lease_id"], worker_id="w", next_need=None)

    assert pgwf.status("a") == "ACTIVE"


def test_reschedule_unheld_job_changes_a_ready_job(pgwf: Leasing, clock: Clock) -> None:
    pgwf.submit("child", "child")
    pgwf.submit("a")

    (row,) = pgwf.call(
        "reschedule_unheld_job",
        job_id="a",
        worker_id="operator",
        next_need="gpu",
        wait_for=["child"],
        singleton_key="K",
    )

    assert row == {
        "job_id": "a",
        "next_need": "gpu",
        "wait_for": ["child"],
        "singleton_key": "K",
        "available_at": clock.now(),
    }
    assert pgwf.status("a") == "PENDING_JOBS"
    pgwf.complete(pgwf.take("child"))
    assert job_ids(pgwf.get_work("python", "gpu", limit=5)) == ["a"]


def test_reschedule_unheld_job_leaves_a_job_without_key_without_one(pgwf: Leasing) -> None:
    pgwf.submit("a")

    pgwf.call("reschedule_unheld_job", job_id="a", worker_id="operator", next_need="gpu")

    assert pgwf.job("a")["singleton_key"] is None


def test_reschedule_unheld_job_accepts_an_expired_job_which_stays_expired(pgwf: Leasing, clock: Clock) -> None:
    pgwf.submit("a", expires_at=clock.now())

    pgwf.call("reschedule_unheld_job", job_id="a", worker_id="operator", next_need="gpu")

    assert (pgwf.status("a"), pgwf.get_work("gpu")) == ("EXPIRED", [])


def test_reschedule_unheld_job_accepts_a_job_whose_lease_has_lapsed(pgwf: Leasing, clock: Clock) -> None:
    pgwf.submit("a")
    pgwf.take(seconds=1)
    clock.advance(seconds=1)

    pgwf.call("reschedule_unheld_job", job_id="a", worker_id="operator", next_need="gpu")

    assert job_ids(pgwf.get_work("gpu")) == ["a"]


def test_reschedule_unheld_job_refuses_a_cycle(pgwf: Leasing) -> None:
    pgwf.submit("a")
    pgwf.submit("b", wait_for=["a"])

    with refused("WF012"):
        pgwf.call("reschedule_unheld_job", job_id="a", worker_id="operator", next_need="python", wait_for=["b"])

    assert job_ids(pgwf.get_work(limit=5)) == ["a"]


def test_reschedule_unheld_job_of_an_unknown_job_is_refused_whatever_it_should_wait_for(pgwf: Leasing) -> None:
    pgwf.submit("child")

    with refused("WF004", "job a is not available to reschedule: it does not exist"):
        pgwf.call("reschedule_unheld_job", job_id="a", worker_id="w", next_need="x", wait_for=["child"])


@pytest.mark.parametrize("function", ["reschedule_unheld_job", "complete_unheld_job"])
@pytest.mark.parametrize(
    ("state", "sqlstate"),
    [
        ("ACTIVE", "WF005"),
        ("AWAITING_FUTURE", "WF005"),
        ("PENDING_JOBS", "WF005"),
        ("CANCELLED", "WF003"),
        ("unknown", "WF004"),
        ("finished", "WF010"),
    ],
)
def test_unheld_calls_refuse_any_other_status(
    pgwf: Leasing, clock: Clock, function: str, state: str, sqlstate: str
) -> None:
    match state:
        case "ACTIVE" | "finished":
            pgwf.submit("a")
            lease = pgwf.take()
            if state == "finished":
                pgwf.complete(lease)
        case "AWAITING_FUTURE":
            pgwf.submit("a", available_at=clock.now() + timedelta(hours=1))
        case "PENDING_JOBS":
            pgwf.submit("child")
            pgwf.submit("a", wait_for=["child"])
        case "CANCELLED":
            pgwf.submit("a")
            pgwf.cancel("a")
    verb = "complete" if function == "complete_unheld_job" else "reschedule"
    more = {} if verb == "complete" else {"next_need": "gpu"}

    with refused(sqlstate, f"job a is not available to {verb}"):
        pgwf.call(function, job_id="a", worker_id="operator", **more)


def test_wake_jobs_makes_sleeping_jobs_available_now(pgwf: Leasing, clock: Clock) -> None:
    pgwf.submit("sleeping", available_at=clock.now() + timedelta(days=1))
    pgwf.submit("parked", available_at=datetime(9999, 1, 1, tzinfo=UTC))
    pgwf.submit("ready")
    pgwf.submit("done", "other")
    pgwf.complete(pgwf.take("other"))

    rows = pgwf.call("wake_jobs", worker_id="w", job_ids=["sleeping", "ready", "ghost", "parked", "done", "sleeping"])

    assert [row["status"] for row in rows] == ["woken", "unchanged", "unknown", "woken", "finished", "woken"]
    assert sorted(job_ids(pgwf.get_work(limit=5))) == ["parked", "ready", "sleeping"]


@pytest.mark.parametrize("from_the_start", [True, False])
def test_a_job_parked_for_ever_is_found_by_wake_jobs_alone(pgwf: Leasing, clock: Clock, from_the_start: bool) -> None:
    if from_the_start:
        pgwf.conn.execute("select from pgwf.submit_job('a', 'client', 'python', p_available_at => 'infinity')")
    else:
        pgwf.submit("a")
        pgwf.conn.execute(
            "select from pgwf.reschedule_job(%(job_id)s, %(lease_id)s, 'w', 'python', p_available_at => 'infinity')",
            held(pgwf.take()),
        )
    clock.advance(days=10_000)
    pgwf.sweep()
    assert (pgwf.status("a"), pgwf.get_work()) == ("AWAITING_FUTURE", [])
    assert pgwf.value("next_wakeup", worker_caps=["python"]) is None

    pgwf.call("wake_jobs", worker_id="w", job_ids=["a"])

    assert job_ids(pgwf.get_work()) == ["a"]


def test_wake_jobs_leaves_leased_and_cancelled_jobs_alone(pgwf: Leasing, clock: Clock) -> None:
    pgwf.submit("leased")
    pgwf.take()
    for name, waits in (("cancelled", []), ("cancelled waiter", ["leased"])):
        pgwf.submit(name, wait_for=waits, available_at=clock.now() + timedelta(days=1))
        pgwf.cancel(name)

    rows = pgwf.call("wake_jobs", worker_id="w", job_ids=["leased", "cancelled", "cancelled waiter"])

    assert [row["status"] for row in rows] == ["unchanged"] * 3
    assert (pgwf.status("leased"), pgwf.status("cancelled")) == ("ACTIVE", "CANCELLED")


def test_wake_jobs_ends_the_sleep_of_an_expired_job(pgwf: Leasing, clock: Clock) -> None:
    pgwf.submit("late", available_at=clock.now() + timedelta(days=1), expires_at=clock.now())
    assert pgwf.status("late") == "AWAITING_FUTURE"

    (row,) = pgwf.call("wake_jobs", worker_id="w", job_ids=["late"])

    assert (row["status"], pgwf.status("late")) == ("woken", "EXPIRED")


def test_wake_jobs_ends_the_sleep_of_a_job_that_also_waits_for_jobs(pgwf: Leasing, clock: Clock) -> None:
    pgwf.submit("child", "child")
    pgwf.submit("a", wait_for=["child"], available_at=clock.now() + timedelta(days=1))
    assert pgwf.status("a") == "AWAITING_FUTURE"

    pgwf.call("wake_jobs", worker_id="w", job_ids=["a"])

    assert pgwf.status("a") == "PENDING_JOBS"
    pgwf.complete(pgwf.take("child"))
    assert job_ids(pgwf.get_work()) == ["a"]


def test_set_priority_moves_a_ready_job_to_another_lane(pgwf: Leasing) -> None:
    pgwf.submit("a")
    pgwf.submit("b")

    pgwf.call("set_priority", job_id="b", worker_id="operator", priority=1)

    assert pgwf.job("b")["priority"] == 1
    assert job_ids(pgwf.get_work(limit=2)) == ["b", "a"]


def test_set_priority_of_a_leased_job_takes_effect_when_it_comes_back(pgwf: Leasing) -> None:
    pgwf.submit("a", priority=4)
    lease = pgwf.take()
    pgwf.call("set_priority", job_id="a", worker_id="operator", priority=1)
    pgwf.submit("b")

    pgwf.reschedule(lease)

    assert job_ids(pgwf.get_work(limit=2)) == ["a", "b"]


def test_set_priority_of_a_sleeping_job_lets_it_sleep(pgwf: Leasing, clock: Clock) -> None:
    pgwf.submit("a", available_at=clock.now() + timedelta(hours=1))

    pgwf.call("set_priority", job_id="a", worker_id="operator", priority=2)

    assert pgwf.status("a") == "AWAITING_FUTURE"
    clock.advance(hours=1)
    assert job_ids(pgwf.get_work()) == ["a"]


@pytest.mark.parametrize("priority", [0, 5, None])
def test_set_priority_refuses_what_is_no_priority(pgwf: Leasing, priority: int | None) -> None:
    pgwf.submit("a")

    with refused("WF001", "priority must be 1 (most urgent) to 4"):
        pgwf.call("set_priority", job_id="a", worker_id="operator", priority=priority)
