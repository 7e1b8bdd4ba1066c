"""Lapsed leases are counted, and a job whose leases keep lapsing is shelved."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.pgwf.leasing import Leasing, held, job_ids, refused

if TYPE_CHECKING:
    from tests.support import Clock


def lapse(pgwf: Leasing, clock: Clock, times: int = 1) -> None:
    for _ in range(times):
        pgwf.take(seconds=1)
        clock.advance(seconds=1)


def counters(pgwf: Leasing, job_id: str = "a") -> tuple[int, int]:
    job = pgwf.job(job_id)
    return job["lease_expiration_count"], job["consecutive_expirations"]


def test_threshold_n_allows_n_plus_one_leases(pgwf: Leasing, clock: Clock) -> None:
    pgwf.value("set_crash_concern_threshold", threshold=1)
    pgwf.submit("a")

    lapse(pgwf, clock)
    assert (pgwf.status("a"), counters(pgwf)) == ("READY", (1, 1))
    lapse(pgwf, clock)

    assert (pgwf.status("a"), counters(pgwf)) == ("CRASH_CONCERN", (2, 2))
    assert pgwf.get_work() == []


def test_the_default_threshold_is_five(pgwf: Leasing, clock: Clock) -> None:
    assert pgwf.value("crash_concern_threshold") == 5
    pgwf.submit("a")

    lapse(pgwf, clock, times=6)

    assert (pgwf.status("a"), pgwf.get_work()) == ("CRASH_CONCERN", [])


def test_status_and_counters_do_not_wait_for_a_sweep(pgwf: Leasing, clock: Clock) -> None:
    pgwf.value("set_crash_concern_threshold", threshold=1)
    pgwf.submit("a")
    lapse(pgwf, clock, times=2)

    before = pgwf.status("a"), counters(pgwf)
    pgwf.sweep()

    assert before == ("CRASH_CONCERN", (2, 2)) == (pgwf.status("a"), counters(pgwf))


def test_clear_crash_concern_makes_the_job_ready_and_keeps_the_lifetime_count(pgwf: Leasing, clock: Clock) -> None:
    pgwf.value("set_crash_concern_threshold", threshold=1)
    pgwf.submit("a")
    lapse(pgwf, clock, times=2)

    assert pgwf.value("clear_crash_concern", job_id="a", worker_id="operator", reason="disk was full") == 2

    assert (pgwf.status("a"), counters(pgwf)) == ("READY", (2, 0))
    assert job_ids(pgwf.get_work()) == ["a"]
    (event,) = pgwf.rows("select * from pgwf.jobs_trace where event_type = 'crash_concern_cleared'")
    assert event["input_data"] == {"reason": "disk was full"}
    assert event["output_data"] == {"previous_consecutive_expirations": 2}


@pytest.mark.parametrize(("state", "sqlstate"), [("unknown", "WF004"), ("finished", "WF010"), ("cancelled", "WF003")])
def test_clear_crash_concern_tells_unknown_finished_and_cancelled_apart(
    pgwf: Leasing, state: str, sqlstate: str
) -> None:
    if state != "unknown":
        pgwf.submit("a")
    if state == "finished":
        pgwf.complete(pgwf.take())
    if state == "cancelled":
        pgwf.cancel("a")

    with refused(sqlstate):
        pgwf.call("clear_crash_concern", job_id="a", worker_id="operator")


def test_clear_crash_concern_of_a_leased_job_resets_its_streak_only(pgwf: Leasing, clock: Clock) -> None:
    pgwf.submit("a")
    lapse(pgwf, clock)
    lease = pgwf.take()

    pgwf.call("clear_crash_concern", job_id="a", worker_id="operator")

    assert (pgwf.status("a"), counters(pgwf)) == ("ACTIVE", (1, 0))
    pgwf.complete(lease)


@pytest.mark.parametrize("call", ["reschedule_unheld_job", "complete_unheld_job"])
def test_unheld_calls_resolve_a_crash_concern(pgwf: Leasing, clock: Clock, call: str) -> None:
    pgwf.value("set_crash_concern_threshold", threshold=1)
    pgwf.submit("a")
    lapse(pgwf, clock, times=2)
    more: dict[str, Any] = {"next_need": "gpu"} if call == "reschedule_unheld_job" else {}

    pgwf.call(call, job_id="a", worker_id="operator", **more)

    if call == "reschedule_unheld_job":
        assert (pgwf.status("a"), counters(pgwf)) == ("READY", (2, 0))
        assert job_ids(pgwf.get_work("gpu")) == ["a"]
    else:
        row = pgwf.archived("a")
        assert (row["lease_expiration_count"], row["consecutive_expirations"]) == (2, 0)


@pytest.mark.parametrize("function", ["reschedule_job", "release_job"])
def test_an_orderly_end_of_a_lease_ends_the_streak(pgwf: Leasing, clock: Clock, function: str) -> None:
    pgwf.value("set_crash_concern_threshold", threshold=2)
    pgwf.submit("a")
    lapse(pgwf, clock, times=2)
    more: dict[str, Any] = {"next_need": "python"} if function == "reschedule_job" else {}
    pgwf.call(function, **held(pgwf.take()), **more)
    lapse(pgwf, clock, times=2)

    assert (pgwf.status("a"), counters(pgwf)) == ("READY", (4, 2))


def test_raising_the_threshold_makes_shelved_jobs_ready(pgwf: Leasing, clock: Clock) -> None:
    pgwf.value("set_crash_concern_threshold", threshold=1)
    pgwf.submit("a")
    lapse(pgwf, clock, times=2)
    pgwf.sweep()
    assert pgwf.status("a") == "CRASH_CONCERN"

    pgwf.value("set_crash_concern_threshold", threshold=2)

    assert pgwf.status("a") == "READY"
    assert job_ids(pgwf.get_work()) == ["a"]


def test_lowering_the_threshold_shelves_ready_jobs_and_spares_leased_ones(pgwf: Leasing, clock: Clock) -> None:
    for job_id, lapses in (("ready", 3), ("leased", 3), ("at threshold", 2)):
        pgwf.submit(job_id, job_id)
        for _ in range(lapses):
            pgwf.take(job_id, seconds=1)
            clock.advance(seconds=1)
    pgwf.sweep()
    lease = pgwf.take("leased")

    pgwf.value("set_crash_concern_threshold", threshold=2)

    assert (pgwf.status("ready"), pgwf.get_work("ready")) == ("CRASH_CONCERN", [])
    assert pgwf.status("at threshold") == "READY"
    assert pgwf.status("leased") == "ACTIVE"
    pgwf.complete(lease)


@pytest.mark.parametrize("threshold", [0, -3, None])
def test_set_crash_concern_threshold_refuses_what_is_not_positive(pgwf: Leasing, threshold: int | None) -> None:
    with refused("WF001", f"threshold must be positive, not {'NULL' if threshold is None else threshold}"):
        pgwf.call("set_crash_concern_threshold", threshold=threshold)


def test_a_lapse_is_counted_without_anybody_asking_for_work(pgwf: Leasing, clock: Clock) -> None:
    pgwf.submit("a")
    lapse(pgwf, clock)

    pgwf.sweep()

    assert pgwf.rows("select streak, lapses from pgwf.job") == [{"streak": 1, "lapses": 1}]
