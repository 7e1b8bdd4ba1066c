"""Submitting jobs, one at a time."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

import pytest

from tests.pgwf.leasing import Leasing, job_ids, refused

if TYPE_CHECKING:
    from tests.support import Clock, Connect


def test_submit_job_returns_the_job_as_it_was_taken(pgwf: Leasing, clock: Clock) -> None:
    row = pgwf.submit("a", "python.ingest")

    assert row == {
        "job_id": "a",
        "next_need": "python.ingest",
        "wait_for": [],
        "available_at": clock.now(),
        "n": row["n"],
    }


def test_submit_job_makes_a_runnable_job_that_never_expires_by_default(pgwf: Leasing, clock: Clock) -> None:
    pgwf.submit("a", available_at=None)

    job = pgwf.job("a")
    assert job["status"] == "READY"
    assert (job["singleton_key"], job["expires_at"], job["priority"]) == (None, None, 3)
    assert (job["available_at"], job["created_at"]) == (clock.now(), clock.now())
    assert (job["lease_expiration_count"], job["consecutive_expirations"]) == (0, 0)


def test_submit_job_refuses_an_id_that_is_live_and_leaves_that_job_alone(pgwf: Leasing) -> None:
    pgwf.submit("a", "python")

    with refused("23505", "a"):
        pgwf.submit("a", "gpu")

    assert pgwf.job("a")["next_need"] == "python"


def test_submit_job_refuses_an_id_that_is_finished(pgwf: Leasing) -> None:
    pgwf.submit("a")
    pgwf.complete(pgwf.take())

    with refused("WF010", "job a has already completed and cannot be resubmitted"):
        pgwf.submit("a")


def test_submit_job_refuses_an_id_that_was_cancelled_and_archived(pgwf: Leasing) -> None:
    pgwf.submit("a")
    pgwf.cancel("a")
    pgwf.value("archive_cancelled_jobs", worker_id="operator")

    with refused("WF010", "already completed"):
        pgwf.submit("a")


def test_submit_job_refuses_dependencies_nobody_ever_submitted_and_inserts_nothing(pgwf: Leasing) -> None:
    pgwf.submit("known")

    with refused("WF011", "wait_for references unknown jobs: {ghost,phantom}"):
        pgwf.submit("a", wait_for=["known", "ghost", "phantom"])

    assert pgwf.status("a") is None
    assert pgwf.submit("a")["wait_for"] == []


def test_submit_job_drops_dependencies_that_are_finished(pgwf: Leasing) -> None:
    pgwf.submit("done")
    pgwf.complete(pgwf.take())

    row = pgwf.submit("a", wait_for=["done"])

    assert row["wait_for"] == []
    assert pgwf.status("a") == "READY"


@pytest.mark.parametrize("state", ["READY", "ACTIVE", "PENDING_JOBS", "AWAITING_FUTURE", "EXPIRED", "CRASH_CONCERN"])
def test_submit_job_keeps_dependencies_that_are_live_in_any_state(pgwf: Leasing, clock: Clock, state: str) -> None:
    match state:
        case "READY":
            pgwf.submit("child")
        case "ACTIVE":
            pgwf.submit("child")
            pgwf.take()
        case "PENDING_JOBS":
            pgwf.submit("grandchild")
            pgwf.submit("child", wait_for=["grandchild"])
        case "AWAITING_FUTURE":
            pgwf.submit("child", available_at=clock.now() + timedelta(hours=1))
        case "EXPIRED":
            pgwf.submit("child", expires_at=clock.now())
        case "CRASH_CONCERN":
            pgwf.value("set_crash_concern_threshold", threshold=1)
            pgwf.submit("child")
            for _ in range(2):
                pgwf.take(seconds=1)
                clock.advance(seconds=2)
    assert pgwf.status("child") == state

    row = pgwf.submit("a", wait_for=["child"])

    assert row["wait_for"] == ["child"]
    assert pgwf.status("a") == "PENDING_JOBS"


def test_submit_job_keeps_a_cancelled_dependency_while_it_is_leased(pgwf: Leasing) -> None:
    pgwf.submit("child")
    lease = pgwf.take()
    pgwf.cancel("child")

    pgwf.submit("a", wait_for=["child"])

    assert pgwf.status("a") == "PENDING_JOBS"
    pgwf.complete(lease)
    assert pgwf.status("a") == "READY"


def test_submit_job_does_not_wait_for_a_cancelled_job_that_nobody_holds(pgwf: Leasing) -> None:
    pgwf.submit("child")
    pgwf.cancel("child")

    pgwf.submit("a", wait_for=["child"])

    assert pgwf.status("a") == "READY"


def test_submit_job_keeps_the_order_of_dependencies_without_nulls_and_duplicates(pgwf: Leasing) -> None:
    pgwf.submit_all(*"abc")

    row = pgwf.submit("z", wait_for=["c", None, "a", "c", "b", None])

    assert row["wait_for"] == ["c", "a", "b"]


def test_submit_job_refuses_a_job_that_waits_for_itself(pgwf: Leasing) -> None:
    with refused("WF011", "wait_for references unknown jobs: {a}"):
        pgwf.submit("a", wait_for=["a"])


@pytest.mark.parametrize("argument", ["job_id", "worker_id", "next_need"])
def test_submit_job_refuses_null(pgwf: Leasing, argument: str) -> None:
    arguments = {"job_id": "a", "worker_id": "w", "next_need": "python"} | {argument: None}

    with refused("23502", f"{argument} cannot be null"):
        pgwf.call("submit_job", **arguments)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"job_id": ""}, "job_id must have 1 to 512 bytes, not 0"),
        ({"job_id": "x" * 513}, "job_id must have 1 to 512 bytes, not 513"),
        ({"job_id": "ä" * 257}, "job_id must have 1 to 512 bytes, not 514"),
        ({"job_id": "a\nb"}, "job_id must not contain control characters, as after 'a'"),
        ({"next_need": "x" * 513}, "next_need must have at most 512 bytes, not 513"),
        ({"singleton_key": "x" * 513}, "singleton_key must have at most 512 bytes, not 513"),
        ({"priority": 0}, "priority must be 1 (most urgent) to 4, not 0"),
        ({"priority": 99999}, "priority must be 1 (most urgent) to 4, not 99999"),
    ],
)
def test_submit_job_refuses_arguments_out_of_range(pgwf: Leasing, arguments: dict[str, object], message: str) -> None:
    with refused("WF001", message):
        pgwf.call("submit_job", **({"job_id": "a", "worker_id": "w", "next_need": "python"} | arguments))


def test_submit_job_takes_ids_of_512_bytes_and_any_need(pgwf: Leasing) -> None:
    pgwf.submit("ä" * 256, "")

    assert job_ids(pgwf.get_work("")) == ["ä" * 256]


def test_submit_job_stores_worker_id_verbatim(pgwf: Leasing) -> None:
    pgwf.call("submit_job", job_id="a", worker_id="PROD;HUMAN-REVIEW;jim@oheir.org", next_need="x")

    assert pgwf.rows("select worker_id from pgwf.jobs_trace") == [{"worker_id": "PROD;HUMAN-REVIEW;jim@oheir.org"}]


def test_a_job_and_a_domain_row_commit_together(pgwf: Leasing, connect: Connect) -> None:
    other = Leasing(connect())
    pgwf.conn.execute("create temp table invoice (id text)")

    with pgwf.conn.transaction():
        pgwf.conn.execute("insert into invoice values ('inv-42')")
        pgwf.submit("inv-42")
        assert other.status("inv-42") is None
    assert other.status("inv-42") == "READY"


def test_a_rolled_back_submission_leaves_neither_job_nor_trace(pgwf: Leasing) -> None:
    with pgwf.conn.transaction(force_rollback=True):
        pgwf.submit("a")

    assert pgwf.status("a") is None
    assert pgwf.events() == []
    pgwf.submit("a")


@pytest.mark.parametrize("level", ["repeatable read", "serializable"])
def test_submit_job_works_at_every_isolation_level(pgwf: Leasing, level: str) -> None:
    pgwf.submit("child")

    with pgwf.conn.transaction():
        pgwf.conn.execute("set transaction isolation level " + level)
        pgwf.submit("a", wait_for=["child"])

    assert pgwf.status("a") == "PENDING_JOBS"


def test_a_job_past_its_expires_at_at_submission_is_expired_and_never_leased(pgwf: Leasing, clock: Clock) -> None:
    pgwf.submit("a", expires_at=clock.now() - timedelta(seconds=1))

    assert pgwf.status("a") == "EXPIRED"
    assert pgwf.get_work() == []
