"""check() and overdue() find what is broken or late, and the cost of check() grows no faster than the tables."""

from __future__ import annotations

import json
import re
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from tests.pgwf.leasing import Leasing
from tests.pgwf.test_plans import Plans

if TYPE_CHECKING:
    from tests.support import Clock, Databases

JOBS = 3000
CRASH_CONCERN = "crash concern follows from the threshold"  # kept by calls, not by sweeps
LEASE = (
    "insert into pgwf.lease (n, lease_id, lease_no, until, worker_id, leased_at, need, singleton_key)"
    " select n, '00000000-0000-0000-0000-000000000000', 1, 'infinity', 'w', now(), 'python', {key} from pgwf.job;"
)
ARCHIVE = (
    "insert into pgwf.archive"
    " (n, job_id, outcome, need, priority, available_at, lapses, lease_id, lease_no, created_at, archived_at)"
    " select {n}, job_id, 'completed', 'python', 3, now(), 0, '00000000-0000-0000-0000-000000000000', 1, now(), now()"
    " from pgwf.job;"
)
# A statement that breaks the rule for a ready job `a`.
BREAKS = {
    "a job stands in one place at most": "insert into pgwf.timer (due, n) select available_at, n from pgwf.job",
    "whatever stands somewhere is a job": "delete from pgwf.job",
    "a job that can run some day stands somewhere": "delete from pgwf.ready",
    "a cancelled job stands nowhere unless it is leased": "update pgwf.job set cancel_at = created_at",
    "a job that waits for jobs stands nowhere": "update pgwf.job set pending = 1",
    "pending counts the edges of the waiter": "update pgwf.job set pending = 1",
    "a job that is parked for ever stands nowhere unless it is leased": "update pgwf.job set available_at = 'infinity'",
    "a shelved job stands nowhere": "update pgwf.job set shelved = true",
    "a timer is due when its job is available": "insert into pgwf.timer (due, n) select '-infinity', n from pgwf.job",
    "a place says what the job says": "update pgwf.job set need = 'gpu'",
    "an edge joins two live jobs": "insert into pgwf.edge (child, waiter) select n, -1 from pgwf.job",
    "a key is held by the lease that has it": "insert into pgwf.held (singleton_key, n) values ('K', 1)",
    "a lease with a key holds it": LEASE.format(key="'K'"),
    "a lease is given out once": LEASE.format(key="null") + ARCHIVE.format(n="n"),
    "a lease number is given out once": LEASE.format(key="null") + ARCHIVE.format(n="n"),
    "a job is live or finished, not both": ARCHIVE.format(n="n"),
    "an id is live or finished, not both": ARCHIVE.format(n="-1"),
    "who is parked on a key has somebody to wait for": (
        "insert into pgwf.key_setting (singleton_key, max_active) values ('K', 2);"
        "insert into pgwf.held (singleton_key, n) values ('K', 1);"
        "insert into pgwf.parked (singleton_key, need, priority, pos, n, ready_at) values ('K', 'a', 1, 1, 1, now())"
    ),
    "a live job has its name": "delete from pgwf.name",
    "a name belongs to a live or finished job": "insert into pgwf.name (job_id, n) values ('b', -1)",
}


@pytest.mark.parametrize("rule", BREAKS)
def test_check_finds_what_is_broken(own_database: str, rule: str) -> None:
    with psycopg.connect(own_database, autocommit=True) as conn:
        pgwf = Leasing(conn)
        pgwf.submit("a")
        assert pgwf.broken() == []

        conn.execute(BREAKS[rule])

        assert rule in {broken for broken, _ in pgwf.broken()}


def rules_of(pgwf: Leasing, function: str) -> set[str]:
    (row,) = pgwf.rows("select prosrc from pg_proc where oid = %s::regproc", [f"pgwf.{function}"])
    return set(re.findall(r"select '([^']+)',", row["prosrc"]))


def test_each_rule_is_broken_by_some_test(pgwf: Leasing) -> None:
    """But for one that only another view could break, and the one on cycles, below."""
    assert rules_of(pgwf, "check") == {*BREAKS, "a job has one status", "no job waits for itself"}


def test_overdue_finds_what_the_next_sweep_does_and_nothing_is_left_behind_it(pgwf: Leasing, clock: Clock) -> None:
    soon = clock.now() + timedelta(seconds=1)
    pgwf.limit_key(max_active=9, rate=1, burst=1)
    for name in ("started", "parked"):
        pgwf.submit(name, "keyed", singleton_key="K")
    assert len(pgwf.get_work("keyed", limit=2, seconds=60)) == 1
    pgwf.submit("leased")
    pgwf.take(seconds=1)
    pgwf.submit("timed", available_at=soon)
    pgwf.submit("expired", "other", expires_at=soon)
    pgwf.submit("waiter", "other", wait_for=["expired"])
    pgwf.submit("cancelled")
    assert pgwf.rows("select * from pgwf.overdue()") == []

    pgwf.cancel("cancelled")
    clock.advance(seconds=1)
    found = {row["rule"] for row in pgwf.rows("select rule from pgwf.overdue()")}
    pgwf.sweep()

    assert found == rules_of(pgwf, "overdue") - {CRASH_CONCERN}
    assert pgwf.rows("select * from pgwf.overdue()") == []
    pgwf.conn.execute("update pgwf.job set streak = 9 where job_id = 'waiter'")
    assert pgwf.rows("select * from pgwf.overdue()") == [{"rule": CRASH_CONCERN, "subject": "waiter"}]


@pytest.mark.parametrize("length", [1, 2, 5])
def test_check_finds_a_cycle_of_any_length_from_wherever_it_turns(own_database: str, length: int) -> None:
    with psycopg.connect(own_database, autocommit=True) as conn:
        pgwf = Leasing(conn)
        pgwf.submit("apart")
        for i in range(length):
            pgwf.submit(f"j{i}", wait_for=[f"j{i - 1}"] if i else ["apart"])

        conn.execute(
            "insert into pgwf.edge (child, waiter)"
            " select max(n) filter (where job_id = %s), max(n) filter (where job_id = 'j0') from pgwf.job",
            [f"j{length - 1}"],
        )

        assert "no job waits for itself" in {rule for rule, _ in pgwf.broken()}


def test_check_reads_in_proportion_to_tables_that_nobody_analysed(databases: Databases) -> None:
    with databases.fresh() as dsn, psycopg.connect(dsn, autocommit=True) as conn:
        pgwf = Leasing(conn)
        conn.execute("select pgwf.set_trace(false)")
        pgwf.broken()
        for tag, extra in (
            ("plain", {}),
            ("chain", {"wait_for": json.dumps([None, *([f"chain-{i - 1}"] for i in range(1, JOBS))])}),
            ("keyed", {"singleton_keys": ["K"] * JOBS}),
        ):
            arguments: dict[str, Any] = {"job_ids": [f"{tag}-{i}" for i in range(JOBS)], "next_needs": [tag] * JOBS}
            pgwf.call("submit_jobs", worker_id="w", **arguments, **extra)
        leases = pgwf.get_work("plain", limit=JOBS // 2)
        pgwf.call(
            "complete_jobs",
            worker_id="w",
            job_ids=[lease["job_id"] for lease in leases],
            lease_ids=[lease["lease_id"] for lease in leases],
        )
        pgwf.get_work("plain", "keyed", limit=JOBS)
        plans = Plans(conn)

        assert pgwf.broken() == []

        assert plans.rows_read() <= 10 * JOBS
