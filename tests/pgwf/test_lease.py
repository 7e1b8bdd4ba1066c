"""get_work, extend_lease and the fence that a lease is."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from tests.pgwf.leasing import Leasing, held, job_ids, refused

if TYPE_CHECKING:
    from tests.support import Clock

ANOTHER_LEASE = "00000000-0000-4000-8000-000000000000"


def test_get_work_leases_a_job_whose_need_the_worker_offers(pgwf: Leasing, clock: Clock) -> None:
    pgwf.submit("a", "python")
    pgwf.submit("b", "gpu")

    (row,) = pgwf.get_work("python", "java", seconds=30, limit=10)

    assert row["job_id"] == "a"
    assert row["next_need"] == "python"
    assert row["wait_for"] == []
    assert row["lease_expires_at"] == clock.now() + timedelta(seconds=30)
    job = pgwf.job("a")
    assert (job["status"], job["lease_id"], job["leased_by"]) == ("ACTIVE", row["lease_id"], "worker")
    assert pgwf.status("b") == "READY"


def test_get_work_returns_no_rows_when_nothing_matches(pgwf: Leasing) -> None:
    pgwf.submit("a", "gpu")

    assert pgwf.get_work("python") == []


def test_get_work_returns_as_many_jobs_as_asked_for_in_order(pgwf: Leasing) -> None:
    pgwf.submit_all(*"abcde")

    assert job_ids(pgwf.get_work(limit=3)) == ["a", "b", "c"]
    assert job_ids(pgwf.get_work(limit=3)) == ["d", "e"]


def test_each_lease_has_an_id_and_a_number_of_its_own(pgwf: Leasing) -> None:
    pgwf.submit("a")
    seen: set[str] = set()
    numbers: list[int] = []

    for _ in range(5):
        lease = pgwf.take()
        seen.add(lease["lease_id"])
        numbers.append(lease["lease_no"])
        pgwf.reschedule(lease)

    assert len(seen) == 5
    assert numbers == sorted(set(numbers))


def test_get_work_hands_out_only_ready_jobs(pgwf: Leasing, clock: Clock) -> None:
    pgwf.submit("active", "other")
    pgwf.take("other")
    pgwf.submit("future", available_at=clock.now() + timedelta(seconds=1))
    pgwf.submit("pending", wait_for=["active"])
    pgwf.submit("expired", expires_at=clock.now())
    pgwf.submit("cancelled")
    pgwf.cancel("cancelled")

    assert pgwf.get_work("python", "other", limit=10) == []


@pytest.mark.parametrize("key", [None, "K"])
def test_a_ready_job_is_leased_before_it_expires_or_not_at_all(pgwf: Leasing, clock: Clock, key: str | None) -> None:
    for job_id in ("in-time", "late"):
        pgwf.submit(job_id, job_id, singleton_key=key, expires_at=clock.now() + timedelta(seconds=2))
    clock.advance(seconds=1)
    lease = pgwf.take("in-time")
    pgwf.complete(lease)

    clock.advance(seconds=1)

    assert (pgwf.status("late"), pgwf.get_work("late")) == ("EXPIRED", [])
    assert pgwf.events("late") == ["submit_job"]


def test_more_urgent_jobs_come_first(pgwf: Leasing) -> None:
    for priority in (4, 2, 3, 1):
        pgwf.submit(f"p{priority}", priority=priority)

    assert job_ids(pgwf.get_work(limit=4)) == ["p1", "p2", "p3", "p4"]


def test_a_job_that_waited_long_enough_comes_before_a_more_urgent_one(pgwf: Leasing, clock: Clock) -> None:
    pgwf.submit("patient", priority=4)
    clock.advance(seconds=181)
    pgwf.submit("urgent", priority=1)

    assert job_ids(pgwf.get_work(limit=2)) == ["patient", "urgent"]


def test_the_most_urgent_jobs_of_all_needs_come_first(pgwf: Leasing) -> None:
    for priority in (4, 2, 3, 1):
        for need in ("gpu", "python"):
            pgwf.submit(f"{need}-{priority}", need, priority=priority)

    assert job_ids(pgwf.get_work("python", "gpu", limit=3)) == ["gpu-1", "python-1", "gpu-2"]
    assert job_ids(pgwf.get_work("python", "gpu", limit=3)) == ["python-2", "gpu-3", "python-3"]


def test_a_job_that_was_given_back_queues_behind_those_that_came_meanwhile(pgwf: Leasing) -> None:
    pgwf.submit("loop")
    lease = pgwf.take()
    pgwf.submit("fresh")
    pgwf.reschedule(lease)

    assert job_ids(pgwf.get_work(limit=2)) == ["fresh", "loop"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"worker_caps": None}, "worker_caps cannot be empty"),
        ({"worker_caps": []}, "worker_caps cannot be empty"),
        ({"worker_caps": [None]}, "worker_caps cannot be empty"),
        ({"lease_seconds": 0}, "lease_seconds must be positive, not 0"),
        ({"lease_seconds": None}, "lease_seconds must be positive, not NULL"),
        ({"limit_jobs": 0}, "limit_jobs must be positive, not 0"),
        ({"limit_jobs": None}, "limit_jobs must be positive, not NULL"),
    ],
)
def test_get_work_refuses_arguments_out_of_range(pgwf: Leasing, arguments: dict[str, Any], message: str) -> None:
    with refused("WF001", message):
        pgwf.call("get_work", **({"worker_id": "w", "worker_caps": ["python"]} | arguments))


def test_get_work_refuses_a_null_worker(pgwf: Leasing) -> None:
    with refused("23502", "worker_id cannot be null"):
        pgwf.call("get_work", worker_id=None, worker_caps=["python"])


def test_get_work_ignores_null_among_capabilities(pgwf: Leasing) -> None:
    pgwf.submit("a")

    rows = pgwf.call("get_work", worker_id="w", worker_caps=[None, "python", "python", None], limit_jobs=5)

    assert job_ids(rows) == ["a"]


@pytest.mark.parametrize("level", ["repeatable read", "serializable"])
def test_get_work_refuses_isolation_levels_above_read_committed(pgwf: Leasing, level: str) -> None:
    with refused("WF020", "READ COMMITTED"), pgwf.conn.transaction():
        pgwf.conn.execute("set transaction isolation level " + level)
        pgwf.get_work()


def test_a_waiting_job_becomes_ready_by_the_clock_alone(pgwf: Leasing, clock: Clock) -> None:
    pgwf.submit("a", available_at=clock.now() + timedelta(hours=1))
    assert (pgwf.status("a"), pgwf.get_work()) == ("AWAITING_FUTURE", [])

    clock.advance(hours=1)

    assert pgwf.status("a") == "READY"
    assert job_ids(pgwf.get_work()) == ["a"]


def test_a_sweep_that_may_not_do_everything_promotes_what_was_due_first(pgwf: Leasing, clock: Clock) -> None:
    for seconds in (3, 1, 2):
        pgwf.submit(f"due-{seconds}", available_at=clock.now() + timedelta(seconds=seconds))
    clock.advance(seconds=3)

    assert pgwf.value("sweep", worker_id="sweeper", limit=1) == 1

    assert job_ids(pgwf.get_work()) == ["due-1"]


def test_get_work_offers_a_job_again_once_its_lease_has_ended(pgwf: Leasing, clock: Clock) -> None:
    pgwf.submit("a")
    first = pgwf.take(seconds=60)
    assert pgwf.get_work() == []

    clock.advance(seconds=60)
    assert pgwf.status("a") == "READY"
    second = pgwf.take()

    assert second["lease_id"] != first["lease_id"]
    job = pgwf.job("a")
    assert (job["lease_expiration_count"], job["consecutive_expirations"]) == (1, 1)


def test_a_lease_ends_although_every_claim_finds_as_much_as_it_asks_for(pgwf: Leasing, clock: Clock) -> None:
    for i in range(4):
        pgwf.submit(f"j{i}")
    pgwf.take(seconds=1)
    clock.advance(seconds=2)

    assert pgwf.take()["job_id"] == "j1"

    assert pgwf.events("j0")[-1] == "lease_lapsed"
    assert job_ids(pgwf.get_work(limit=3)) == ["j2", "j3", "j0"]


def test_a_replaced_lease_is_dead_for_ever(pgwf: Leasing, clock: Clock) -> None:
    pgwf.submit("a")
    old = pgwf.take(seconds=60)
    clock.advance(seconds=60)
    new = pgwf.take()

    with refused("WF002"):
        pgwf.extend(old)
    with refused("WF002"):
        pgwf.reschedule(old)
    with refused("WF002"):
        pgwf.complete(old)
    with refused("WF002"):
        pgwf.call("release_job", **held(old))

    assert pgwf.job("a")["lease_id"] == new["lease_id"]


def test_a_lease_past_its_time_is_its_holders_until_somebody_takes_it_away(pgwf: Leasing, clock: Clock) -> None:
    pgwf.submit_all("extended", "rescheduled", "completed")
    extended, rescheduled, completed = pgwf.get_work(limit=3)
    clock.advance(minutes=5)

    pgwf.extend(extended)
    pgwf.reschedule(rescheduled)
    pgwf.complete(completed)

    assert pgwf.status("extended") == "ACTIVE"
    assert pgwf.job("extended")["lease_expiration_count"] == 0
    assert pgwf.status("rescheduled") == "READY"
    assert pgwf.status("completed") == "completed"


def test_extend_lease_counts_from_now_and_returns_the_new_end(pgwf: Leasing, clock: Clock) -> None:
    pgwf.submit("a")
    lease = pgwf.take(seconds=60)
    clock.advance(seconds=50)

    until = pgwf.extend(lease, 100)

    assert until == clock.now() + timedelta(seconds=100)
    assert pgwf.job("a")["lease_expires_at"] == until


def test_extend_lease_never_shortens_a_lease(pgwf: Leasing) -> None:
    pgwf.submit("a")
    lease = pgwf.take(seconds=600)

    assert pgwf.extend(lease, 1) == lease["lease_expires_at"]


def test_extend_lease_defaults_to_a_minute(pgwf: Leasing, clock: Clock) -> None:
    pgwf.submit("a")
    lease = pgwf.take(seconds=1)

    assert pgwf.value("extend_lease", **held(lease)) == clock.now() + timedelta(seconds=60)


@pytest.mark.parametrize("seconds", [0, -1, None])
def test_extend_lease_refuses_a_time_that_is_not_positive(pgwf: Leasing, seconds: int | None) -> None:
    pgwf.submit("a")
    lease = pgwf.take()

    found = "NULL" if seconds is None else seconds
    with refused("WF001", f"additional_seconds must be positive and at most 1e10, not {found}"):
        pgwf.value("extend_lease", **held(lease), additional_seconds=seconds)


def test_a_leased_job_past_its_expires_at_stays_active_and_can_be_extended(pgwf: Leasing, clock: Clock) -> None:
    pgwf.submit("a", expires_at=clock.now() + timedelta(seconds=10))
    lease = pgwf.take(seconds=60)
    clock.advance(seconds=30)

    assert pgwf.status("a") == "ACTIVE"
    assert pgwf.extend(lease, 90) > lease["lease_expires_at"]
    clock.advance(seconds=100)
    assert pgwf.status("a") == "EXPIRED"
    assert pgwf.get_work() == []


@pytest.mark.parametrize("call", ["extend_lease", "reschedule_job", "complete_job", "release_job"])
@pytest.mark.parametrize("lease_id", [ANOTHER_LEASE, "lease1234", "", "'; drop table pgwf.job; --"])
def test_a_wrong_lease_id_is_refused_and_changes_nothing(pgwf: Leasing, call: str, lease_id: str) -> None:
    pgwf.submit("a")
    pgwf.take()
    before = pgwf.job("a")
    message = {
        "extend_lease": "active lease not found for job a",
        "reschedule_job": "job a is not currently leased with lease",
        "complete_job": "job a is not actively leased by",
        "release_job": "job a is not currently leased with lease",
    }[call]
    more = {"next_need": "gpu"} if call == "reschedule_job" else {}

    with refused("WF002", message):
        pgwf.call(call, job_id="a", lease_id=lease_id, worker_id="worker", **more)

    assert pgwf.job("a") == before


@pytest.mark.parametrize("call", ["extend_lease", "reschedule_job", "complete_job", "release_job"])
def test_a_null_lease_id_never_passes_the_fence(pgwf: Leasing, call: str) -> None:
    pgwf.submit("a")
    pgwf.take()
    before = pgwf.job("a")
    more = {"next_need": "gpu"} if call == "reschedule_job" else {}

    with refused("23502", "lease_id cannot be null"):
        pgwf.call(call, job_id="a", lease_id=None, worker_id="intruder", **more)

    assert pgwf.job("a") == before


@pytest.mark.parametrize("job_id", ["b", "nobody"])
def test_a_lease_id_opens_no_other_job(pgwf: Leasing, job_id: str) -> None:
    pgwf.submit("a")
    pgwf.submit("b")
    lease, _ = pgwf.get_work(limit=2)

    with refused("WF002"):
        pgwf.complete(lease | {"job_id": job_id})


def test_a_cancelled_job_can_be_neither_extended_nor_rescheduled(pgwf: Leasing) -> None:
    pgwf.submit("a")
    lease = pgwf.take()
    pgwf.cancel("a")

    with refused("WF003", "job a is cancelled"):
        pgwf.extend(lease)
    with refused("WF003", "job a is cancelled"):
        pgwf.reschedule(lease)


def test_lease_job_takes_a_chosen_job_whatever_its_turn(pgwf: Leasing, clock: Clock) -> None:
    pgwf.submit("first", "human.review")
    pgwf.submit("second", "human.review", priority=4)

    (row,) = pgwf.call("lease_job", job_id="second", worker_id="jim", worker_caps=["human.review"], lease_seconds=900)

    assert row["job_id"] == "second"
    assert row["lease_expires_at"] == clock.now() + timedelta(seconds=900)
    assert (pgwf.status("second"), pgwf.job("second")["leased_by"]) == ("ACTIVE", "jim")
    assert pgwf.complete(row)


def test_the_lapse_of_a_lease_by_lease_job_is_no_crash(pgwf: Leasing, clock: Clock) -> None:
    pgwf.value("set_crash_concern_threshold", threshold=1)
    pgwf.submit("a", "human.review")

    for _ in range(4):
        pgwf.call("lease_job", job_id="a", worker_id="jim", lease_seconds=10)
        clock.advance(seconds=10)
        assert pgwf.status("a") == "READY"
        pgwf.sweep()

    job = pgwf.job("a")
    assert (job["status"], job["lease_expiration_count"], job["consecutive_expirations"]) == ("READY", 0, 0)


def test_lease_job_takes_a_lapsed_lease_over_at_once(pgwf: Leasing, clock: Clock) -> None:
    pgwf.submit("a")
    pgwf.take(seconds=1)
    clock.advance(seconds=1)

    (row,) = pgwf.call("lease_job", job_id="a", worker_id="jim")

    assert pgwf.job("a")["lease_id"] == row["lease_id"]
    assert pgwf.job("a")["lease_expiration_count"] == 1


@pytest.mark.parametrize(
    ("state", "sqlstate", "message"),
    [
        ("ACTIVE", "WF005", "ACTIVE"),
        ("AWAITING_FUTURE", "WF005", "waits until"),
        ("PENDING_JOBS", "WF005", "waits for 1 jobs"),
        ("EXPIRED", "WF005", "EXPIRED"),
        ("CRASH_CONCERN", "WF005", "CRASH_CONCERN"),
        ("CANCELLED", "WF003", "cancelled"),
        ("paused", "WF005", "paused"),
        ("other need", "WF005", "needs human.review, this worker offers"),
        ("key held", "WF006", "singleton key K is held"),
        ("unknown", "WF004", "does not exist"),
        ("finished", "WF010", "already completed"),
    ],
)
def test_lease_job_refuses_a_job_that_is_not_ready(
    pgwf: Leasing, clock: Clock, state: str, sqlstate: str, message: str
) -> None:
    need = "human.review"
    match state:
        case "ACTIVE" | "finished":
            pgwf.submit("a", need)
            lease = pgwf.take(need)
            if state == "finished":
                pgwf.complete(lease)
        case "AWAITING_FUTURE":
            pgwf.submit("a", need, available_at=clock.now() + timedelta(hours=1))
        case "PENDING_JOBS":
            pgwf.submit("child")
            pgwf.submit("a", need, wait_for=["child"])
        case "EXPIRED":
            pgwf.submit("a", need, expires_at=clock.now())
        case "CRASH_CONCERN":
            pgwf.value("set_crash_concern_threshold", threshold=1)
            pgwf.submit("a", need)
            for _ in range(2):
                pgwf.take(need, seconds=1)
                clock.advance(seconds=1)
        case "CANCELLED":
            pgwf.submit("a", need)
            pgwf.cancel("a")
        case "paused":
            pgwf.submit("a", need)
            pgwf.pause_need(need)
        case "key held":
            pgwf.submit("holder", singleton_key="K")
            pgwf.take()
            pgwf.submit("a", need, singleton_key="K")
        case "other need":
            pgwf.submit("a", need)
    caps = ["human.other"] if state == "other need" else [need]

    with refused(sqlstate, message):
        pgwf.call("lease_job", job_id="a", worker_id="jim", worker_caps=caps)


def test_release_job_gives_the_job_back_with_a_note_after_a_delay(pgwf: Leasing, clock: Clock) -> None:
    pgwf.submit("a")
    lease = pgwf.take()

    until = pgwf.value("release_job", **held(lease), error="HTTP 503 from billing", delay_seconds=30)

    assert until == clock.now() + timedelta(seconds=30)
    job = pgwf.job("a")
    assert (job["status"], job["last_error"], job["lease_id"]) == ("AWAITING_FUTURE", "HTTP 503 from billing", None)
    assert (job["lease_expiration_count"], job["consecutive_expirations"]) == (0, 0)
    clock.advance(seconds=30)
    assert job_ids(pgwf.get_work()) == ["a"]
    assert pgwf.events("a") == ["submit_job", "get_work", "release_job", "get_work"]


def test_release_job_archives_a_cancelled_job(pgwf: Leasing) -> None:
    pgwf.submit("a")
    lease = pgwf.take()
    pgwf.submit("waiter", "other", wait_for=["a"])
    pgwf.cancel("a")

    assert pgwf.value("release_job", **held(lease)) is None

    assert pgwf.status("a") == "cancelled"
    assert pgwf.status("waiter") == "READY"


@pytest.mark.parametrize("delay", [-1, float("nan"), float("inf")])
def test_release_job_refuses_a_delay_that_is_none(pgwf: Leasing, delay: float) -> None:
    pgwf.submit("a")
    lease = pgwf.take()

    with refused("WF001", "delay_seconds must be between 0 and 1e9"):
        pgwf.value("release_job", **held(lease), delay_seconds=delay)
