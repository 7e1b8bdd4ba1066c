"""What the views show of a job in each status."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

from tests.pgwf.leasing import Leasing

if TYPE_CHECKING:
    from tests.support import Clock

LIVE_COLUMNS = [
    "job_id",
    "next_need",
    "wait_for",
    "singleton_key",
    "available_at",
    "expires_at",
    "lease_id",
    "lease_expires_at",
    "lease_expiration_count",
    "consecutive_expirations",
    "created_at",
    "cancel_requested",
    "cancelled_at",
    "cancelled_by",
    "cancel_reason",
]


def one_job_of_each_status(pgwf: Leasing, clock: Clock) -> None:
    pgwf.value("set_crash_concern_threshold", threshold=1)
    pgwf.submit("crash_concern", "crash")
    for _ in range(2):
        pgwf.take("crash", seconds=1)
        clock.advance(seconds=1)
    pgwf.submit("active", "active")
    pgwf.take("active", seconds=600, worker_id="gpu-box-7")
    pgwf.submit("ready")
    pgwf.submit("pending", wait_for=["ready"])
    pgwf.submit("awaiting", available_at=clock.now() + timedelta(hours=1))
    pgwf.submit("expired", expires_at=clock.now())
    pgwf.submit("cancelled")
    pgwf.cancel("cancelled")


def test_every_job_has_exactly_one_of_seven_statuses(pgwf: Leasing, clock: Clock) -> None:
    one_job_of_each_status(pgwf, clock)

    rows = pgwf.rows("select job_id, status from pgwf.jobs_with_status order by job_id")

    assert {row["job_id"]: row["status"] for row in rows} == {
        "active": "ACTIVE",
        "awaiting": "AWAITING_FUTURE",
        "cancelled": "CANCELLED",
        "crash_concern": "CRASH_CONCERN",
        "expired": "EXPIRED",
        "pending": "PENDING_JOBS",
        "ready": "READY",
    }
    assert len(rows) == 7


def test_the_friendly_view_fills_columns_only_where_they_apply(pgwf: Leasing, clock: Clock) -> None:
    one_job_of_each_status(pgwf, clock)
    always = {"job_id", "status", "creation_dt", "lease_expiration_count", "consecutive_expirations"}

    rows = pgwf.rows("select * from pgwf.jobs_friendly_status")

    filled = {row["job_id"]: {name: value for name, value in row.items() if value is not None} for row in rows}
    extra: dict[str, dict[str, Any]] = {
        job_id: {name: value for name, value in row.items() if name not in always} for job_id, row in filled.items()
    }
    assert extra == {
        "active": {"worker_id": "gpu-box-7"},
        "awaiting": {"sleep_until": clock.now() + timedelta(hours=1)},
        "cancelled": {"cancelled_at": clock.now(), "cancelled_by": "operator"},
        "crash_concern": {},
        "expired": {"expires_at": clock.now()},
        "pending": {"pending_jobs": ["ready"]},
        "ready": {},
    }
    assert filled["crash_concern"]["consecutive_expirations"] == 2


def test_jobs_and_jobs_with_status_show_the_seeds_columns(pgwf: Leasing) -> None:
    pgwf.submit("a")

    (job,) = pgwf.rows("select * from pgwf.jobs")
    (with_status,) = pgwf.rows("select * from pgwf.jobs_with_status")

    assert list(job)[: len(LIVE_COLUMNS)] == LIVE_COLUMNS
    assert with_status == job | {"status": "READY"}


def test_the_archive_and_the_trace_show_the_seeds_columns(pgwf: Leasing) -> None:
    pgwf.submit("a")
    pgwf.complete(pgwf.take())

    assert set(pgwf.archived("a")) >= {
        "job_id", "next_need", "wait_for", "singleton_key", "created_at", "expires_at", "lease_id",
        "lease_expiration_count", "consecutive_expirations", "archived_at", "cancel_requested", "cancelled_at",
        "cancelled_by", "cancel_reason",
    }  # fmt: skip
    assert list(pgwf.rows("select * from pgwf.jobs_trace limit 1")[0]) == [
        "trace_id", "job_id", "event_type", "worker_id", "event_at", "input_data", "output_data", "lease_no",
    ]  # fmt: skip


def test_statuses_take_precedence_in_one_order(pgwf: Leasing, clock: Clock) -> None:
    """ACTIVE > CANCELLED > AWAITING_FUTURE > PENDING_JOBS > CRASH_CONCERN > EXPIRED > READY."""
    pgwf.value("set_crash_concern_threshold", threshold=1)
    pgwf.submit("child", "child")
    pgwf.submit("a", expires_at=clock.now() + timedelta(seconds=2))
    for _ in range(2):
        pgwf.take(seconds=1)
        clock.advance(seconds=1)
    assert pgwf.status("a") == "CRASH_CONCERN"

    pgwf.submit("b", expires_at=clock.now(), wait_for=["child"], available_at=clock.now() + timedelta(seconds=1))
    assert pgwf.status("b") == "AWAITING_FUTURE"
    clock.advance(seconds=1)
    assert pgwf.status("b") == "PENDING_JOBS"
    pgwf.complete(pgwf.take("child"))
    assert pgwf.status("b") == "EXPIRED"
    pgwf.cancel("b")
    assert pgwf.status("b") == "CANCELLED"


def test_the_views_name_the_holder_of_a_lease(pgwf: Leasing, clock: Clock) -> None:
    pgwf.submit("a")
    lease = pgwf.take(worker_id="w1")

    job = pgwf.job("a")

    assert (job["leased_by"], job["leased_at"], job["lease_no"]) == ("w1", clock.now(), lease["lease_no"])


def test_one_look_by_id_reads_no_table_whole(pgwf: Leasing) -> None:
    pgwf.call("submit_jobs", worker_id="w", job_ids=[f"j{i}" for i in range(2000)], next_needs=["python"] * 2000)
    pgwf.conn.execute("analyze pgwf.job")
    pgwf.conn.execute("analyze pgwf.name")

    plan = "\n".join(
        row[0] for row in pgwf.conn.execute("explain select status from pgwf.jobs_with_status where n = 17").fetchall()
    )

    assert "Index Scan using job_pkey on job j" in plan, plan
