"""A page of a list reads about as many rows as it shows, however many runs and tasks there are that it does not."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from pgwf_sdk import ops
from pgwf_sdk.ops._statements import runs_statement, tasks_statement
from pgwf_sql import query
from tests.sdk.sql.hand import Hand, entry, start, task

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pgwf_sql.database import Statement
    from tests.support import Databases

Conn = psycopg.Connection[Any]

PAGE = 10
ROWS_MAX = 14 * PAGE  # What is shown is looked up again, with the run's parent, root and attributes.
MANY_ROWS = {"run", "archive_0", "attribute", "task", "seat"}
MANY = """
    set session_replication_role = replica;
    insert into pgwf_sdk.run (n, run_id, workflow, need, seed, root, status, created_at, finished_at)
    select 100000 + g, 'old-' || g, 'refund', 'python', g, 100000 + g,
      case when g between 1000 and 1200 and g % 10 <= 5 then
        (array['failed', 'cancelled', 'terminated', 'continued', 'paused', 'blocked'])[1 + g % 10]
      else 'completed' end,
      pgwf._now(), case when not (g between 1000 and 1200 and g % 10 in (4, 5)) then pgwf._now() end
    from generate_series(1, 20000) g;
    insert into pgwf.archive (n, job_id, outcome, need, priority, available_at, lapses, created_at, archived_at)
    select n, run_id, case when status = 'terminated' then 'cancelled' else 'completed' end,
      need, 3, created_at, 0, created_at, created_at
    from pgwf_sdk.run where finished_at is not null;
    insert into pgwf.job (n, job_id, need, priority, available_at, created_at)
    select n, run_id, need, 3, 'infinity', created_at from pgwf_sdk.run where finished_at is null and n > 100000;
    insert into pgwf_sdk.task (n, key, task_id, name, need, encoding, decision_schema, state, due_at, created_at)
    select 100000 + g, '/human:review#1', 'old-' || g || '/human:review#1', 'review', 'human.' || g % 7, 1, '{}',
      case when g % 500 = 0 then 'open' else 'decided' end, pgwf._now() + g * interval '1 second', pgwf._now()
    from generate_series(1, 20000) g;
    insert into pgwf_sdk.attribute (n, name, value)
    select n, 'customer', to_jsonb(n % 2000) from pgwf_sdk.run
    union all
    select n, 'shop', '"main"' from pgwf_sdk.run;
    insert into pgwf_sdk.seat (seat, n, key) select 200000 + n, n, key from pgwf_sdk.task;
    set session_replication_role = origin;
    analyze;
"""


@pytest.fixture(scope="module")
def old_database(databases: Databases) -> Iterator[Conn]:
    """Five runs that are leased, one that waits, one that may be what kills its workers, and 20,000 old ones."""
    with databases.fresh() as dsn, psycopg.connect(dsn, autocommit=True) as conn:
        for index in range(5):
            start(conn, f"leased-{index}")
        start(conn, "waits")
        hand = Hand(conn, "worker-1", ["python"])
        *_, last = hand.claim(6)
        assert hand.say(last.item("park", entry())) == ["ok"]
        start(conn, "harmful")
        conn.execute("update pgwf.job set shelved = true where job_id = 'harmful'")
        conn.execute("delete from pgwf.ready")
        conn.execute(MANY)
        yield conn


def rows_read(conn: Conn, statement: Statement[Any]) -> tuple[int, int]:
    """How many rows a statement returns, and how many it reads from large tables, those it throws away included."""
    explain = f"explain (analyze, timing off, format json) {query(statement.query)}".encode()
    row = conn.execute(explain, statement.parameters).fetchone()
    assert row is not None
    plan = json.loads(row[0]) if isinstance(row[0], str) else row[0]
    total = 0
    nodes = [plan[0]["Plan"]]
    while nodes:
        node = nodes.pop()
        nodes += node.get("Plans", [])
        if node.get("Relation Name") in MANY_ROWS:
            total += (node["Actual Rows"] + node.get("Rows Removed by Filter", 0)) * node["Actual Loops"]
    return plan[0]["Plan"]["Actual Rows"], int(total)


@pytest.mark.parametrize(
    "words",
    [
        "", "status:completed", "status:failed", "status:cancelled", "status:terminated", "status:continued",
        "status:paused", "status:blocked", "status:running", "status:crash_concern", "status:waiting",
        "attr:customer=17", "attr:shop=main",
        "attr:customer=17 attr:shop=main status:completed", "status:failed,blocked", "status:failed workflow:refund",
    ],
)  # fmt: skip
def test_a_page_of_runs_reads_about_as_many_rows_as_it_shows(old_database: Conn, words: str) -> None:
    statement = runs_statement(ops.parse_filter(words.split()), before=None, limit=PAGE)

    shown, read = rows_read(old_database, statement)

    assert shown >= 1
    assert read <= ROWS_MAX, words


@pytest.mark.parametrize("need", [None, "human.3"])
def test_a_page_of_open_tasks_reads_no_decided_ones(old_database: Conn, need: str | None) -> None:
    statement = tasks_statement(
        states=("open", "claimed"), need=need, holder=None, is_overdue=False, run_n=None, limit=PAGE
    )

    shown, read = rows_read(old_database, statement)

    assert shown >= 1
    assert read <= ROWS_MAX


@pytest.mark.parametrize(
    ("status", "found"),
    [
        ("running", [f"leased-{index}" for index in (4, 3, 2, 1, 0)]),
        ("crash_concern", ["harmful"]),
        ("crash_concern,running", ["harmful", *[f"leased-{index}" for index in (4, 3, 2, 1, 0)]]),
        ("crash_concern,waiting,running", ["harmful", "waits", *[f"leased-{index}" for index in (4, 3, 2, 1, 0)]]),
    ],
)
def test_a_run_is_listed_once_whichever_way_it_is_found(old_database: Conn, status: str, found: list[str]) -> None:
    page = ops.list_runs(old_database, ops.parse_filter([f"status:{status}"]), limit=50)

    assert [run.run_id for run in page.runs] == found


@pytest.mark.parametrize("status", ["failed", "cancelled", "terminated", "continued", "paused", "blocked"])
def test_each_stored_status_lists_all_its_runs_newest_first(old_database: Conn, status: str) -> None:
    page = ops.list_runs(old_database, ops.parse_filter([f"status:{status}"]), limit=50)

    numbers = [run.n for run in page.runs]
    assert {run.status for run in page.runs} == {status}
    assert len(numbers) >= 20
    assert numbers == sorted(numbers, reverse=True)


def test_a_task_of_a_run_that_is_listed_is_asked_for_once(db: Conn) -> None:
    start(db)
    hand = Hand(db, "worker-1", ["python"])
    assert hand.say(hand.take().item("keep", entry(), tasks=[task("t-1")])) == ["ok"]

    assert [one.task_id for one in ops.list_tasks(db)] == ["t-1"]
    assert [one.task_id for one in ops.list_tasks(db, states=None)] == ["t-1"]
    assert ops.list_tasks(db, states=["decided"]) == ()
