"""retain: what it forgets, what it drops, and that it gets in nobody's way."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from tests.pgwf.leasing import Leasing, held, refused
from tests.support import Clock, Session

if TYPE_CHECKING:
    from collections.abc import Iterator

DAY = timedelta(days=1)
RESCHEDULE = "select from pgwf.reschedule_job(%(job_id)s, %(lease_id)s, %(worker_id)s, 'python', %(wait_for)s::text[])"


@pytest.fixture
def pgwf(own_database: str) -> Iterator[Leasing]:
    """A leasing core of the test's own: these tests add and drop partitions."""
    with psycopg.connect(own_database, autocommit=True) as conn:
        leasing = Leasing(conn)
        yield leasing
        assert leasing.broken() == []


@pytest.fixture
def clock(own_database: str) -> Iterator[Clock]:
    with psycopg.connect(own_database, autocommit=True) as conn:
        yield Clock(conn)


def finish(pgwf: Leasing, *ids: str) -> None:
    for job_id in ids:
        pgwf.submit(job_id, "fleeting")
        pgwf.complete(pgwf.take("fleeting"))


def partitions(pgwf: Leasing, table: str) -> list[str]:
    return [row["name"] for row in pgwf.rows("select name from pgwf._partitions(%s) order by name", table)]


CALLS = ["pgwf.retain('0')", "pgwf.add_partitions()", "pgwf_sdk.retain('0')", "pgwf_sdk.add_partitions()"]
TABLES = ["pgwf.archive", "pgwf.archive_default", "pgwf.trace_default", "pgwf_journal.entry", "pgwf_journal.entry_rest"]


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("table", TABLES)
def test_what_somebody_has_locked_whole_is_left_for_the_next_call(pgwf: Leasing, call: str, table: str) -> None:
    finish(pgwf, "old")
    pgwf.conn.execute("select setval('pgwf.pos', 33000000)")
    with psycopg.connect(pgwf.conn.info.dsn) as other:
        other.execute(f"lock table only {table} in access exclusive mode")

        pgwf.conn.execute(f"select {call}")

    pgwf.conn.execute(f"select {call}")
    assert "archive_30000000" in partitions(pgwf, "archive")


@pytest.mark.parametrize(
    "setting", ["enable_nestloop = off", "random_page_cost = 1000", "standard_conforming_strings = off"]
)
def test_partitions_are_looked_after_whatever_plans_and_literals_a_session_prefers(
    pgwf: Leasing, clock: Clock, setting: str
) -> None:
    finish(pgwf, "old")
    clock.advance(days=2)
    pgwf.conn.execute(f"set {setting}")

    for call in CALLS:
        pgwf.conn.execute(f"select {call}")

    assert pgwf.status("old") is None
    assert f"trace_{clock.now() + DAY:%Y%m%d}" in partitions(pgwf, "trace")


def test_a_partition_is_kept_whose_job_commits_while_retain_waits_to_drop_it(pgwf: Leasing, own_database: str) -> None:
    pgwf.conn.execute("alter function pgwf.retain set lock_timeout = '20s'")
    with (
        Session(own_database) as reader,
        Session(own_database) as submitter,
        Session(own_database) as retention,
    ):
        submitter.run("begin")
        submitter.run("select pgwf.submit_job('late', 'w', 'late')")
        pgwf.conn.execute("select setval('pgwf.pos', 33000000)")
        pgwf.value("add_partitions")
        reader.run("begin")
        reader.run("select count(*) from only pgwf.archive")
        retained = retention.start("select pgwf.retain('1 day')")
        retention.wait_blocked()

        submitter.run("commit")
        reader.run("commit")
        retained.result(timeout=20)

    assert "archive_0" in partitions(pgwf, "archive")


def test_retain_forgets_jobs_that_finished_long_enough_ago(clock: Clock, pgwf: Leasing) -> None:
    finish(pgwf, "old")
    pgwf.submit("live")
    clock.advance(days=2)
    finish(pgwf, "new")

    pgwf.value("retain", keep=DAY)

    assert [pgwf.status(x) for x in ("old", "new", "live")] == [None, "completed", "READY"]
    assert {row["job_id"] for row in pgwf.rows("select job_id from pgwf.jobs_trace")} == {"new"}


def test_an_id_may_be_used_again_once_it_is_forgotten(clock: Clock, pgwf: Leasing) -> None:
    finish(pgwf, "a")
    clock.advance(days=2)
    pgwf.value("retain", keep=DAY)

    pgwf.submit("a")

    assert pgwf.status("a") == "READY"


def test_retain_forgets_a_bounded_number_at_a_time(clock: Clock, pgwf: Leasing) -> None:
    pgwf.conn.execute("select pgwf.set_trace(false)")
    finish(pgwf, *"abcde")
    clock.advance(days=2)

    assert [pgwf.value("retain", keep=DAY, limit=2) for _ in range(4)] == [2, 2, 1, 0]


def test_retain_makes_partitions_ahead_of_jobs_and_days(clock: Clock, pgwf: Leasing) -> None:
    pgwf.conn.execute("select setval('pgwf.pos', 12000000)")

    pgwf.value("retain", keep=DAY)

    assert {"archive_10000000", "archive_15000000"} <= set(partitions(pgwf, "archive"))
    assert {"trace_20300101", "trace_20300102", "trace_20300103"} <= set(partitions(pgwf, "trace"))
    finish(pgwf, "a")
    assert pgwf.rows("select job_id from pgwf.archive_10000000") == [{"job_id": "a"}]
    assert len(pgwf.rows("select from pgwf.trace_20300101")) == 3


def test_retain_leaves_a_range_alone_whose_rows_are_in_the_default_partition(clock: Clock, pgwf: Leasing) -> None:
    pgwf.conn.execute("select setval('pgwf.pos', 12000000)")
    finish(pgwf, "a")

    pgwf.value("retain", keep=DAY)

    assert "archive_10000000" not in partitions(pgwf, "archive")
    assert "archive_15000000" in partitions(pgwf, "archive")
    assert pgwf.status("a") == "completed"


def test_retain_drops_partitions_that_are_empty_and_of_the_past(clock: Clock, pgwf: Leasing) -> None:
    finish(pgwf, "a")
    pgwf.submit("pinned")
    pgwf.conn.execute("select setval('pgwf.pos', 12000000)")
    clock.advance(days=2)

    pgwf.value("retain", keep=DAY)
    assert "archive_0" in partitions(pgwf, "archive"), "a live job has its number in that range"
    pgwf.complete(pgwf.take())
    clock.advance(days=2)
    pgwf.value("retain", keep=DAY)
    pgwf.value("retain", keep=DAY)

    assert {"archive_0", "archive_5000000"} & set(partitions(pgwf, "archive")) == set()
    assert all(name >= "trace_20300104" for name in partitions(pgwf, "trace"))


def test_retain_does_not_wait_for_a_reader_and_nobody_waits_behind_it(
    clock: Clock, pgwf: Leasing, own_database: str
) -> None:
    finish(pgwf, "a")
    pgwf.conn.execute("select setval('pgwf.pos', 12000000)")
    clock.advance(days=2)
    with Session(own_database) as reader:
        reader.run("begin")
        reader.run("select count(*) from pgwf.archive")

        pgwf.value("retain", keep=DAY)

        assert "archive_0" in partitions(pgwf, "archive")
        finish(pgwf, "b")
        reader.run("commit")
    pgwf.value("retain", keep=DAY)
    assert "archive_0" not in partitions(pgwf, "archive")


def test_a_row_on_its_way_while_its_partition_is_made_goes_there(
    clock: Clock, pgwf: Leasing, own_database: str
) -> None:
    with Session(own_database) as maker, Session(own_database) as writer:
        maker.run("begin")
        maker.run("select pgwf.add_partitions()")
        submitted = writer.start_blocked("select pgwf.submit_job('a', 'client', 'python')")
        maker.run("commit")

        submitted.result()

    assert pgwf.rows("select event_type from pgwf.trace_20300101") == [{"event_type": "submit_job"}]


def test_a_partition_is_not_made_while_a_row_is_on_its_way_to_the_default_one(
    clock: Clock, pgwf: Leasing, own_database: str
) -> None:
    with Session(own_database) as writer:
        writer.run("begin")
        writer.run("select pgwf.submit_job('a', 'client', 'python')")

        pgwf.value("add_partitions")

        assert "trace_20300102" not in partitions(pgwf, "trace")
        writer.run("commit")
    pgwf.value("add_partitions")
    assert "trace_20300101" not in partitions(pgwf, "trace"), "the row is in the default one"
    assert "trace_20300102" in partitions(pgwf, "trace")


@pytest.fixture
def lease(clock: Clock, pgwf: Leasing) -> dict[str, Any]:
    """A lease, in a core with a job `old` that retain forgets, and one `live` that it does not."""
    pgwf.value("retain", keep=timedelta(days=365))
    finish(pgwf, "old")
    pgwf.submit("live", "other")
    clock.advance(days=2)
    pgwf.value("add_partitions")
    pgwf.submit("a")
    return pgwf.take(seconds=600)


OLD_AND_LIVE = {"old": "READY", "live": "PENDING_JOBS"}


@pytest.mark.parametrize(("child", "status"), OLD_AND_LIVE.items())
def test_retain_forgets_what_a_job_is_about_to_wait_for_without_waiting(
    pgwf: Leasing, own_database: str, lease: dict[str, Any], child: str, status: str
) -> None:
    with Session(own_database) as holder:
        holder.run("begin")
        holder.run(RESCHEDULE, held(lease) | {"wait_for": [child]})

        assert pgwf.value("retain", keep=DAY) > 0
        holder.run("commit")

    assert (pgwf.status("a"), pgwf.status("old")) == (status, None)
    assert pgwf.job("a")["wait_for"] == ([child] if child == "live" else [])


@pytest.mark.parametrize(("child", "status"), OLD_AND_LIVE.items())
@pytest.mark.parametrize("drops", [True, False], ids=["drops a partition", "drops none"])
@pytest.mark.parametrize("end", ["commit", "rollback"])
def test_a_job_waits_for_what_is_being_forgotten_as_for_what_is_finished(
    pgwf: Leasing, own_database: str, lease: dict[str, Any], child: str, status: str, drops: bool, end: Any
) -> None:
    """Only a partition of the trace that is being dropped is waited for."""
    with Session(own_database) as retaining, Session(own_database) as holder:
        retaining.run("begin")
        assert retaining.run("select pgwf.retain(%s)", ["24 hours" if drops else "40 hours"])[0][0] > 0

        rescheduling = holder.start(RESCHEDULE, held(lease) | {"wait_for": [child]})
        if drops:
            holder.wait_blocked()
        else:
            rescheduling.result(timeout=20)
        retaining.run(end)
        rescheduling.result(timeout=20)

    assert (pgwf.status("a"), pgwf.status("old")) == (status, None if end == "commit" else "completed")


@pytest.mark.parametrize("end", ["commit", "rollback"])
def test_of_two_that_forget_at_once_the_second_leaves_it_to_the_first(
    clock: Clock, pgwf: Leasing, own_database: str, end: Any
) -> None:
    finish(pgwf, "a")
    clock.advance(days=2)
    with Session(own_database) as other:
        other.run("begin")
        assert other.run("select pgwf.retain('1 day') > 0") == [(True,)]

        assert pgwf.value("retain", keep=DAY) == 0
        other.run(end)

    assert (pgwf.value("retain", keep=DAY) > 0) == (end == "rollback")


def test_of_two_that_make_a_partition_at_once_the_second_makes_none(clock: Clock, own_database: str) -> None:
    make: Any = "select pgwf._add_partition('archive', 'archive_90000000', '90000000', '95000000')"
    with Session(own_database) as first, Session(own_database) as second:
        first.run("begin")
        first.run("lock table pgwf.archive in share row exclusive mode")
        making = second.start_blocked(make)

        assert first.run(make) == [(1,)]
        first.run("commit")

        assert making.result(timeout=20) == [(0,)]


def test_a_job_cannot_wait_for_what_is_forgotten(pgwf: Leasing, lease: dict[str, Any]) -> None:
    pgwf.value("retain", keep=DAY)

    with refused("WF011", "wait_for references unknown jobs: {old}"):
        pgwf.reschedule(lease, wait_for=["old"])
    assert pgwf.status("a") == "ACTIVE"


@pytest.mark.parametrize(
    ("arguments", "sqlstate", "message"),
    [
        ({"keep": None}, "23502", "keep cannot be null"),
        ({"keep": -DAY}, "WF001", "keep must be 0 to 1000 years, not -1 days"),
        ({"keep": DAY, "limit": 0}, "WF001", "limit must be positive, not 0"),
        ({"keep": DAY, "limit": None}, "WF001", "limit must be positive, not NULL"),
    ],
)
def test_retain_refuses_arguments_out_of_range(
    pgwf: Leasing, arguments: dict[str, Any], sqlstate: str, message: str
) -> None:
    with refused(sqlstate, message):
        pgwf.call("retain", **arguments)
