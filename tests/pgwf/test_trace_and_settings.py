"""The trace of every call, and the switches of the leasing core."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

import pytest

from tests.pgwf.leasing import Leasing, held, job_ids, refused

if TYPE_CHECKING:
    from tests.support import Clock, Connect


def test_every_mutation_writes_one_trace_row_with_worker_time_input_and_output(pgwf: Leasing, clock: Clock) -> None:
    pgwf.submit("a", singleton_key="K")
    lease = pgwf.take(worker_id="w1")
    pgwf.extend(lease)
    pgwf.reschedule(lease, "gpu")
    pgwf.complete(pgwf.take("gpu"))

    rows = pgwf.rows("select * from pgwf.jobs_trace order by trace_id")

    assert [row["event_type"] for row in rows] == [
        "submit_job",
        "get_work",
        "extend_lease",
        "reschedule_job",
        "get_work",
        "complete_job",
    ]
    assert {row["job_id"] for row in rows} == {"a"}
    assert {row["event_at"] for row in rows} == {clock.now()}
    assert [row["worker_id"] for row in rows] == ["client", "w1", "worker", "worker", "worker", "worker"]
    assert all(isinstance(row["input_data"], dict) and isinstance(row["output_data"], dict) for row in rows)


def test_trace_rows_carry_the_number_of_the_lease_never_its_id(pgwf: Leasing) -> None:
    pgwf.submit("a")
    lease = pgwf.take()
    pgwf.extend(lease)
    pgwf.complete(lease)

    rows = pgwf.rows("select lease_no, t::text as text from pgwf.jobs_trace as t order by trace_id")

    assert [row["lease_no"] for row in rows] == [None, *[lease["lease_no"]] * 3]
    assert not any(lease["lease_id"] in row["text"] for row in rows)


def test_the_trace_of_a_reschedule_holds_the_values_before_and_after(pgwf: Leasing, clock: Clock) -> None:
    pgwf.submit("child", "child")
    pgwf.submit("a", "python", singleton_key="K")
    wake = clock.now() + timedelta(hours=1)
    pgwf.reschedule(pgwf.take(), "gpu", wait_for=["child"], singleton_key="L", available_at=wake)

    (row,) = pgwf.rows("select * from pgwf.jobs_trace where event_type = 'reschedule_job'")

    assert (row["input_data"]["wait_for"], row["input_data"]["next_need"]) == (["child"], "gpu")
    assert row["output_data"]["previous"]["next_need"] == "python"
    assert row["output_data"]["previous"]["singleton_key"] == "K"
    assert (row["output_data"]["next_need"], row["output_data"]["singleton_key"]) == ("gpu", "L")


def test_the_trace_of_a_claim_holds_what_was_asked_and_until_when(pgwf: Leasing) -> None:
    pgwf.submit("a")
    pgwf.get_work("python", "gpu", seconds=90, limit=3)

    (row,) = pgwf.rows("select * from pgwf.jobs_trace where event_type = 'get_work'")

    assert sorted(row["input_data"].pop("worker_caps")) == ["gpu", "python"]
    assert row["input_data"] == {"lease_seconds": 90, "limit_jobs": 3}
    assert list(row["output_data"]) == ["lease_expires_at"]


def test_a_lapse_is_traced_with_both_counters(pgwf: Leasing, clock: Clock) -> None:
    pgwf.submit("a")
    lease = pgwf.take(seconds=1, worker_id="crashed")
    clock.advance(seconds=1)
    pgwf.sweep()

    (row,) = pgwf.rows("select * from pgwf.jobs_trace where event_type = 'lease_lapsed'")

    assert (row["worker_id"], row["lease_no"]) == ("sweeper", lease["lease_no"])
    assert row["input_data"]["leased_by"] == "crashed"
    assert row["output_data"] == {
        "lease_expiration_count": 1,
        "consecutive_expirations": 1,
        "crash_concern": False,
    }


def test_completion_without_a_lease_says_so(pgwf: Leasing) -> None:
    pgwf.submit("held")
    pgwf.complete(pgwf.take())
    pgwf.submit("unheld")
    pgwf.call("complete_unheld_job", job_id="unheld", worker_id="operator")

    rows = pgwf.rows("select output_data from pgwf.jobs_trace where event_type = 'complete_job' order by trace_id")

    assert [row["output_data"]["completed_without_lease"] for row in rows] == [False, True]


def test_the_trace_of_a_cancel_holds_the_reason_and_whether_the_job_was_active(pgwf: Leasing) -> None:
    pgwf.submit("active")
    pgwf.take()
    pgwf.submit("idle")
    pgwf.cancel("active", reason="r1")
    pgwf.cancel("idle", reason="r2")

    rows = pgwf.rows("select * from pgwf.jobs_trace where event_type = 'cancel_job' order by trace_id")

    assert [(row["input_data"]["reason"], row["output_data"]["active"]) for row in rows] == [
        ("r1", True),
        ("r2", False),
    ]


def test_archiving_cancelled_jobs_traces_each_job_and_the_run_if_there_were_any(pgwf: Leasing) -> None:
    pgwf.value("archive_cancelled_jobs", worker_id="operator")
    assert pgwf.events() == []
    for job_id in "ab":
        pgwf.submit(job_id)
        pgwf.cancel(job_id)

    pgwf.value("archive_cancelled_jobs", worker_id="operator", limit=7)

    assert pgwf.events().count("job_cancel_archived") == 2
    (run,) = pgwf.rows("select * from pgwf.jobs_trace where event_type = 'job_cancel_archived_run'")
    assert (run["job_id"], run["input_data"], run["output_data"]) == (None, {"limit": 7}, {"count": 2})


def test_nothing_is_traced_while_trace_is_off(pgwf: Leasing, clock: Clock) -> None:
    assert pgwf.value("is_trace_enabled") is True
    assert pgwf.conn.execute("select pgwf.set_trace(enabled => false)").fetchone() == (False,)

    pgwf.submit("a")
    lease = pgwf.take()
    pgwf.extend(lease)
    pgwf.reschedule(lease)
    pgwf.call("release_job", **held(pgwf.take(seconds=1)))
    pgwf.take(seconds=1)
    clock.advance(seconds=1)
    pgwf.sweep()
    pgwf.cancel("a")
    pgwf.sweep()

    assert (pgwf.value("is_trace_enabled"), pgwf.events(), pgwf.status("a")) == (False, [], "cancelled")
    pgwf.conn.execute("select pgwf.set_trace(true)")
    pgwf.submit("b")
    assert pgwf.events() == ["submit_job"]


@pytest.mark.parametrize("function", ["set_trace", "set_notify"])
def test_switches_refuse_null(pgwf: Leasing, function: str) -> None:
    with refused("23502", "enabled cannot be null"):
        pgwf.conn.execute(f"select pgwf.{function}(enabled => null)")


def test_a_switch_holds_for_every_session_from_its_commit_on(pgwf: Leasing, connect: Connect) -> None:
    other = Leasing(connect())

    with pgwf.conn.transaction():
        pgwf.conn.execute("select pgwf.set_notify(true)")
        assert (pgwf.value("is_notify_enabled"), other.value("is_notify_enabled")) == (True, False)

    assert other.value("is_notify_enabled") is True


def test_a_null_worker_is_refused_whether_or_not_it_would_be_traced(pgwf: Leasing) -> None:
    pgwf.conn.execute("select pgwf.set_trace(false)")

    with refused("23502", "worker_id cannot be null"):
        pgwf.call("submit_job", job_id="a", worker_id=None, next_need="python")
    with refused("23502", "worker_id cannot be null"):
        pgwf.call("sweep", worker_id=None)


def test_the_aging_of_priorities_decides_between_age_and_urgency(pgwf: Leasing, clock: Clock) -> None:
    pgwf.submit("old", priority=4)
    clock.advance(seconds=100)
    pgwf.submit("urgent", priority=1)

    order = {}
    for aging in (timedelta(0), timedelta(minutes=1)):
        pgwf.call("set_priority_aging", aging=aging)
        with pgwf.conn.transaction(force_rollback=True):
            order[aging] = job_ids(pgwf.get_work(limit=2))

    assert list(order.values()) == [["old", "urgent"], ["urgent", "old"]]


def test_an_expired_job_nobody_waits_for_is_archived_after_the_grace(pgwf: Leasing, clock: Clock) -> None:
    pgwf.call("set_expired_grace", grace=timedelta(minutes=5))
    pgwf.submit("a", expires_at=clock.now() + timedelta(minutes=1))

    clock.advance(minutes=5)
    pgwf.sweep()
    assert pgwf.status("a") == "EXPIRED"
    clock.advance(minutes=1)
    pgwf.sweep()

    assert pgwf.status("a") == "expired"


def test_a_worker_without_heartbeat_is_forgotten_after_the_grace(pgwf: Leasing, clock: Clock) -> None:
    pgwf.call("set_worker_grace", grace=timedelta(minutes=5))
    pgwf.call("worker_heartbeat", worker_id="w", capabilities=["python"])

    clock.advance(minutes=5)
    pgwf.sweep()
    assert len(pgwf.rows("select from pgwf.worker")) == 1
    clock.advance(seconds=2)
    pgwf.sweep()

    assert pgwf.rows("select from pgwf.worker") == []


@pytest.mark.parametrize(
    ("function", "parameter"), [("priority_aging", "aging"), ("expired_grace", "grace"), ("worker_grace", "grace")]
)
@pytest.mark.parametrize(
    ("span", "sqlstate", "message"),
    [
        (None, "23502", "cannot be null"),
        (timedelta(days=-1), "WF001", "must be between 0 and a thousand years, not -1 days"),
        (timedelta(days=365_251), "WF001", "must be between 0 and a thousand years, not 365251 days"),
    ],
)
def test_a_span_of_time_that_is_missing_negative_or_absurd_is_refused(
    pgwf: Leasing, function: str, parameter: str, span: timedelta | None, sqlstate: str, message: str
) -> None:
    before = pgwf.value(function)

    with refused(sqlstate, f"{parameter} {message}"):
        pgwf.call(f"set_{function}", **{parameter: span})

    assert pgwf.value(function) == before
