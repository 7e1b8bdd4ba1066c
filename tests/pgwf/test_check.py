"""check(): it finds what is broken, and its cost grows with the tables, not with their square."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from tests.pgwf.leasing import Leasing
from tests.pgwf.test_plans import Plans

if TYPE_CHECKING:
    from tests.support import Databases

JOBS = 3000
BREAKS = {
    "a job stands in one place at most": "insert into pgwf.timer (due, n) select available_at, n from pgwf.job",
    "whatever stands somewhere is a job": "delete from pgwf.job",
    "a job that can run some day stands somewhere": "delete from pgwf.ready",
    "a cancelled job stands nowhere unless it is leased": "update pgwf.job set cancel_at = created_at",
    "a job that waits for jobs stands nowhere": "update pgwf.job set pending = 1",
    "pending counts the edges of the waiter": "update pgwf.job set pending = 1",
    "a shelved job stands nowhere": "update pgwf.job set shelved = true",
    "a timer is due when its job is available": "insert into pgwf.timer (due, n) select '-infinity', n from pgwf.job",
    "a place says what the job says": "update pgwf.job set need = 'gpu'",
    "an edge joins two live jobs": "insert into pgwf.edge (child, waiter) select n, -1 from pgwf.job",
    "a key is held by the lease that has it": "insert into pgwf.held (singleton_key, n) values ('K', 1)",
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
