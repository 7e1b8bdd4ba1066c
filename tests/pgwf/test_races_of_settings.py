"""Two sessions, both orders, on settings: limits and pauses of needs, the crash concern threshold, switches."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.pgwf.leasing import Leasing, job_ids
from tests.pgwf.racing import Racer, both_ends
from tests.pgwf.test_races_of_leases import UNHELD, on
from tests.support import outcome

if TYPE_CHECKING:
    from tests.support import Clock

PYTHON: dict[str, Any] = {"need": "python", "worker_id": "op"}


@pytest.mark.parametrize("limits", [{"max_active": 1}, {"rate": 1, "burst": 1}], ids=["max_active", "rate"])
def test_of_two_claims_of_a_limited_need_the_second_leaves_it_out(
    pgwf: Leasing, racers: tuple[Racer, Racer], limits: dict[str, int]
) -> None:
    pgwf.limit_need("python", **limits)
    pgwf.submit_all(*"abc")
    pgwf.submit("other", "other")
    first, second = racers
    first.begin()
    assert len(first.claim()) == 1

    assert second.claim("python", "other") == ["other"]
    first.commit()

    assert pgwf.get_work() == []


def test_a_pause_does_not_wait_for_claims_and_claims_do_not_wait_for_it(
    pgwf: Leasing, racers: tuple[Racer, Racer]
) -> None:
    pgwf.submit_all(*"abc")
    first, second = racers
    first.begin()
    assert len(first.claim(limit=1)) == 1
    second.begin()
    second.call("pause_need", need="python", worker_id="op")

    assert len(pgwf.get_work()) == 1
    second.commit()
    first.commit()

    assert pgwf.get_work() == []


@both_ends
def test_a_claim_does_not_wait_for_a_need_that_is_being_resumed_and_leaves_it_out(
    pgwf: Leasing, racers: tuple[Racer, Racer], committed: bool
) -> None:
    pgwf.pause_need("python")
    pgwf.submit("a")
    first, second = racers
    first.begin()
    first.call("resume_need", **PYTHON)

    assert second.claim() == []
    first.end(committed=committed)

    assert job_ids(pgwf.get_work()) == (["a"] if committed else [])


def test_a_need_is_resumed_without_waiting_for_a_claim_that_left_it_out(
    pgwf: Leasing, racers: tuple[Racer, Racer]
) -> None:
    pgwf.pause_need("python")
    pgwf.submit("a")
    pgwf.submit("other", "other")
    first, second = racers
    first.begin()
    assert first.claim("python", "other") == ["other"]

    second.call("resume_need", **PYTHON)
    assert second.claim() == ["a"]
    first.commit()

    assert (pgwf.status("a"), pgwf.status("other")) == ("ACTIVE", "ACTIVE")


def test_a_claim_that_began_before_a_need_was_resumed_may_lease_of_it(
    pgwf: Leasing, racers: tuple[Racer, Racer]
) -> None:
    """The claim has read that something is paused when the resumption takes the settings row away."""
    pgwf.pause_need("python")
    pgwf.submit_all(*"abc")
    operator, worker = racers
    operator.begin()
    operator.session.run("lock table pgwf.need_setting in access exclusive mode")  # the first table a claim reads
    claiming = worker.start_blocked("get_work", worker_id="w", worker_caps=["python"], limit_jobs=2)

    operator.call("resume_need", **PYTHON)
    operator.commit()

    assert [row[0] for row in claiming.result(timeout=20)] == ["a", "b"]
    assert job_ids(pgwf.get_work(limit=5)) == ["c"]


def test_leases_of_a_claim_in_flight_count_against_a_limit_that_is_lowered_meanwhile(
    pgwf: Leasing, racers: tuple[Racer, Racer]
) -> None:
    pgwf.limit_need("python", max_active=3)
    pgwf.submit_all(*"abcd")
    first, second = racers
    first.begin()
    lease, _ = first.take(), first.take()

    second.call("limit_need", **PYTHON, max_active=2)
    first.commit()

    assert pgwf.get_work() == []
    pgwf.complete(lease)
    assert len(pgwf.get_work(limit=5)) == 1


def test_a_claim_goes_by_the_limit_that_was_committed_last(pgwf: Leasing, racers: tuple[Racer, Racer]) -> None:
    pgwf.limit_need("python", max_active=1)
    pgwf.submit_all(*"abc")
    first, second = racers
    first.begin()
    first.call("limit_need", **PYTHON, max_active=2)

    assert len(second.claim()) == 1
    first.commit()

    assert len(second.claim()) == 1


@pytest.mark.parametrize("function", ["set_trace", "set_notify"])
def test_two_sessions_may_turn_a_switch_at_once(pgwf: Leasing, racers: tuple[Racer, Racer], function: str) -> None:
    first, second = racers
    first.begin()
    first.session.run(f"select pgwf.{function}(not pgwf.is_{function[4:]}_enabled())")

    turning = second.session.start_blocked(f"select pgwf.{function}(not pgwf.is_{function[4:]}_enabled())")
    first.commit()

    assert isinstance(outcome(turning), list)


def test_a_threshold_waits_for_a_lapse_in_flight_and_decides_after_it(
    pgwf: Leasing, clock: Clock, racers: tuple[Racer, Racer]
) -> None:
    pgwf.value("set_crash_concern_threshold", threshold=1)
    pgwf.submit("a")
    for _ in range(2):
        pgwf.take(seconds=1)
        clock.advance(seconds=1)
    first, second = racers
    first.begin()
    assert first.sweep() == 1

    raising = second.start_blocked("set_crash_concern_threshold", threshold=9)
    first.commit()

    assert outcome(raising) == [(9,)]
    assert job_ids(pgwf.get_work()) == ["a"]


@pytest.mark.parametrize("function", [*UNHELD, "cancel_job", "clear_crash_concern"])
@pytest.mark.usefixtures("lapsed")
def test_a_call_that_has_to_end_a_lapsed_lease_waits_for_a_threshold_that_is_being_set(
    pgwf: Leasing, racers: tuple[Racer, Racer], function: str
) -> None:
    first, second = racers
    first.begin()
    first.call("set_crash_concern_threshold", threshold=3)

    calling = second.start_blocked(function, **on("a", function))
    first.commit()

    assert isinstance(outcome(calling), list)
    assert pgwf.rows(
        "select lease_expiration_count as lapses from pgwf.jobs_with_status"
        " union all select lease_expiration_count from pgwf.jobs_archive"
    ) == [{"lapses": 1}]
    assert pgwf.events("a")[2] == "lease_lapsed"


@pytest.mark.usefixtures("lapsed")
def test_a_lapse_is_left_for_later_while_the_threshold_changes(pgwf: Leasing, racers: tuple[Racer, Racer]) -> None:
    first, second = racers
    first.begin()
    first.call("set_crash_concern_threshold", threshold=1)

    assert second.sweep() == 0
    first.commit()

    assert pgwf.sweep() == 1


THRESHOLDS = {"lowered": (5, 1), "raised": (1, 5)}


@pytest.fixture
def lapsed_twice(pgwf: Leasing, clock: Clock, thresholds: tuple[int, int]) -> str:
    """A job whose leases lapsed twice under the first of two thresholds: CRASH_CONCERN if that is 1."""
    pgwf.value("set_crash_concern_threshold", threshold=thresholds[0])
    pgwf.submit("a")
    for _ in range(2):
        pgwf.take(seconds=1)
        clock.advance(seconds=1)
    pgwf.sweep()
    assert pgwf.status("a") == ("CRASH_CONCERN" if thresholds[0] == 1 else "READY")
    return "a"


def is_ready_once(pgwf: Leasing, job_id: str) -> bool:
    counters = pgwf.job(job_id)["lease_expiration_count"], pgwf.job(job_id)["consecutive_expirations"]
    return (pgwf.status(job_id), counters, job_ids(pgwf.get_work(limit=5))) == ("READY", (2, 0), [job_id])


@pytest.mark.parametrize("thresholds", THRESHOLDS.values(), ids=THRESHOLDS)
@both_ends
def test_clearing_a_crash_concern_waits_for_a_threshold_that_is_being_set(
    pgwf: Leasing, racers: tuple[Racer, Racer], thresholds: tuple[int, int], lapsed_twice: str, committed: bool
) -> None:
    first, second = racers
    first.begin()
    first.call("set_crash_concern_threshold", threshold=thresholds[1])

    clearing = second.start_blocked("clear_crash_concern", job_id=lapsed_twice, worker_id="op")
    first.end(committed=committed)

    assert outcome(clearing) == [(2,)]
    assert is_ready_once(pgwf, lapsed_twice)


@pytest.mark.parametrize("thresholds", THRESHOLDS.values(), ids=THRESHOLDS)
@both_ends
def test_setting_a_threshold_waits_for_a_crash_concern_that_is_being_cleared(
    pgwf: Leasing, racers: tuple[Racer, Racer], thresholds: tuple[int, int], lapsed_twice: str, committed: bool
) -> None:
    first, second = racers
    first.begin()
    first.call("clear_crash_concern", job_id=lapsed_twice, worker_id="op")

    setting = second.start_blocked("set_crash_concern_threshold", threshold=thresholds[1])
    first.end(committed=committed)

    assert outcome(setting) == [(thresholds[1],)]
    if committed:
        assert is_ready_once(pgwf, lapsed_twice)
    else:
        assert pgwf.status(lapsed_twice) == ("CRASH_CONCERN" if thresholds[1] == 1 else "READY")


@pytest.mark.parametrize("thresholds", [THRESHOLDS["lowered"]])
def test_a_threshold_that_is_lowered_waits_for_a_claim_in_flight_and_spares_its_lease(
    pgwf: Leasing, racers: tuple[Racer, Racer], thresholds: tuple[int, int], lapsed_twice: str
) -> None:
    first, second = racers
    first.begin()
    lease = first.take()

    lowering = second.start_blocked("set_crash_concern_threshold", threshold=thresholds[1])
    first.commit()

    assert outcome(lowering) == [(thresholds[1],)]
    assert (lease["job_id"], pgwf.status(lapsed_twice)) == (lapsed_twice, "ACTIVE")
    pgwf.call("clear_crash_concern", job_id=lapsed_twice, worker_id="op")
    assert pgwf.get_work() == []
    pgwf.reschedule(lease)
    assert job_ids(pgwf.get_work()) == [lapsed_twice]


@pytest.mark.parametrize("thresholds", [THRESHOLDS["lowered"]])
def test_a_claim_passes_over_a_job_that_a_lowered_threshold_is_shelving(
    pgwf: Leasing, racers: tuple[Racer, Racer], thresholds: tuple[int, int], lapsed_twice: str
) -> None:
    first, second = racers
    first.begin()
    first.call("set_crash_concern_threshold", threshold=thresholds[1])

    assert second.claim() == []
    first.commit()

    assert (pgwf.status(lapsed_twice), pgwf.get_work()) == ("CRASH_CONCERN", [])
