"""What the hot functions read: sessions plan on empty tables and keep these plans while the tables grow to any size."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from psycopg import sql

from tests.pgwf.leasing import Leasing, held

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.support import Databases

pytestmark = pytest.mark.own_session  # Plans are a session's.
BIG = {"job", "name", "ready", "lease", "timer", "edge", "held", "parked", "archive", "trace"}
# What the sweep is there for, and what next_wakeup asks: when does the first lease end?
WHOLE_BY_DESIGN = {("Seq Scan", "lease")}
PARTIAL = {"job_cancelled"}  # holds only what the sweep looks for
JOBS = 3000
AN_ARRAY_IS_SEARCHED = re.compile(r"(= ANY|<> ALL) \((\$|\(InitPlan)")
WARM_UP = 8  # more calls than PostgreSQL plans anew before it keeps a generic plan


class Plans:
    """The plans of all statements that a session runs, nested ones included."""

    def __init__(self, conn: psycopg.Connection[Any], *, verbose: bool = False) -> None:
        self.nodes: list[dict[str, Any]] = []
        conn.execute("load 'auto_explain'")
        conn.execute("set auto_explain.log_format = json")
        conn.execute("set auto_explain.log_nested_statements = on")
        conn.execute("set auto_explain.log_analyze = on")
        conn.execute("set auto_explain.log_timing = off")
        conn.execute(f"set auto_explain.log_verbose = {verbose}".encode())
        conn.execute("set auto_explain.log_min_duration = 0")
        conn.execute("set client_min_messages = log")
        conn.add_notice_handler(self._collect)

    def _collect(self, diagnostic: Any) -> None:
        _, _, text = (diagnostic.message_primary or "").partition("plan:\n")
        if text:
            self._walk(json.loads(text)["Plan"])

    def _walk(self, node: dict[str, Any]) -> None:
        self.nodes.append(node)
        for child in node.get("Plans", []):
            self._walk(child)

    def whole(self) -> list[tuple[str, str]]:
        """Scans of big tables that no condition bounds."""
        found = set()
        for node in self.nodes:
            table = node.get("Relation Name", "")
            bounded = "Index Cond" in node or "TID Cond" in node or node.get("Index Name") in PARTIAL
            bounded |= "Index" in node["Node Type"] and node["Actual Rows"] <= 1  # the first or last entry
            if table.split("_")[0] in BIG and node["Node Type"].endswith("Scan") and not bounded:
                found.add((node["Node Type"], table))
        return sorted(found - WHOLE_BY_DESIGN)

    def rows_read(self) -> float:
        """The most rows any one node read, counting what it threw away."""
        counts: list[float] = [
            (node["Actual Rows"] + node.get("Rows Removed by Filter", 0) + node.get("Rows Removed by Join Filter", 0))
            * node["Actual Loops"]
            for node in self.nodes
            if ("Relation Name" in node or "Join" in node["Node Type"] or "Loop" in node["Node Type"])
            and (node["Node Type"], node.get("Relation Name")) not in WHOLE_BY_DESIGN
        ]
        return max(counts)

    def rows_passed(self) -> float:
        """The most rows that went through any node, counting what it threw away."""
        return max(_rows(node) * float(node["Actual Loops"]) for node in self.nodes)

    def rows_passed_in_all(self) -> float:
        """The rows that went through all nodes together."""
        return sum(_rows(node) * float(node["Actual Loops"]) for node in self.nodes)

    def arrays_searched(self, times_max: int) -> list[str]:
        """Conditions that go through an array more often than that. Needs verbose plans.

        An index is asked for an array at once, but anew for each row of a loop; other nodes go through it for each row.
        """
        return [
            f"{node['Node Type']} {node.get('Relation Name')} {name}: {condition}"
            for node in self.nodes
            for name, condition in node.items()
            if name != "Plans"
            and AN_ARRAY_IS_SEARCHED.search(str(condition))
            and node["Actual Loops"] * (1 if name in ("Index Cond", "TID Cond") else _rows(node)) > times_max
        ]


def _rows(node: dict[str, Any]) -> float:
    rows: float = node["Actual Rows"]
    return rows + float(node.get("Rows Removed by Filter", 0)) + float(node.get("Rows Removed by Join Filter", 0))


@pytest.fixture(scope="module")
def session_planned_on_empty_tables(databases: Databases) -> Iterator[Leasing]:
    """A session that has planned every hot call on empty tables, which then were filled by somebody else."""
    with databases.fresh() as dsn, psycopg.connect(dsn, autocommit=True) as conn:
        conn.execute("select pgwf.set_trace(false)")
        worker = Leasing(conn)
        for i in range(WARM_UP):
            one_of_everything(worker, f"warm-{i}")
        with psycopg.connect(dsn, autocommit=True) as filler:
            fill(Leasing(filler))
        yield worker


@pytest.fixture
def worker(session_planned_on_empty_tables: Leasing) -> Iterator[Leasing]:
    """That session, in a transaction that is rolled back."""
    with session_planned_on_empty_tables.conn.transaction(force_rollback=True):
        yield session_planned_on_empty_tables


def fill(pgwf: Leasing) -> None:
    names = [f"j{i}" for i in range(JOBS)]
    pgwf.call("submit_jobs", worker_id="w", job_ids=names, next_needs=["filler"] * JOBS)
    pgwf.get_work("filler", limit=JOBS // 2, seconds=10**6)
    for kind, array, value in (
        ("wait_for", "jsonb", json.dumps([["j0"]] * JOBS)),
        ("available_at", "timestamptz[]", ["2090-01-01"] * JOBS),
    ):
        pgwf.conn.execute(
            sql.SQL("select from pgwf.submit_jobs('w', %s::text[], %s::text[], {} => %s::{})").format(
                sql.Identifier(f"p_{kind}"), sql.SQL(array)
            ),
            [[f"{kind}-{i}" for i in range(JOBS)], [kind] * JOBS, value],
        )


def one_of_everything(worker: Leasing, tag: str) -> None:
    worker.submit(f"{tag}-child", "child")
    worker.submit(f"{tag}-parent", "parent", wait_for=[f"{tag}-child"])
    lease = worker.take("child")
    worker.extend(lease)
    worker.reschedule(lease, "child", singleton_key=tag)
    worker.complete(worker.take("child"))
    worker.call("release_job", **held(worker.take("parent")))
    lease = worker.take("parent")
    worker.call("complete_jobs", worker_id="w", job_ids=[lease["job_id"]], lease_ids=[lease["lease_id"]])
    worker.submit(f"{tag}-idle", "idle")
    worker.call(
        "reschedule_unheld_job", job_id=f"{tag}-idle", worker_id="w", next_need="idle2", available_at="2090-01-01"
    )
    worker.call("wake_jobs", worker_id="w", job_ids=[f"{tag}-idle"])
    worker.call("set_priority", job_id=f"{tag}-idle", worker_id="w", priority=1)
    worker.cancel(f"{tag}-idle")
    worker.call("archive_cancelled_jobs", worker_id="w")
    worker.submit(f"{tag}-unheld", "idle")
    worker.call("complete_unheld_job", job_id=f"{tag}-unheld", worker_id="w")
    worker.sweep()


CALLS: dict[str, Callable[[Leasing], object]] = {
    "submit_job": lambda w: w.submit("new", "new", singleton_key="K"),
    "submit_job that waits": lambda w: w.submit("new", "new", wait_for=["j1", "available_at-1"]),
    "submit_jobs": lambda w: w.call(
        "submit_jobs", worker_id="w", job_ids=[f"n{i}" for i in range(50)], next_needs=["new"] * 50
    ),
    "get_work": lambda w: w.get_work("filler", limit=10),
    "extend_lease": lambda w: w.extend(leased(w)),
    "reschedule_job": lambda w: w.reschedule(leased(w), "new", wait_for=["j2"]),
    "release_job": lambda w: w.call("release_job", **held(leased(w))),
    "complete_job": lambda w: w.complete(leased(w)),
    "complete_unheld_job": lambda w: w.call("complete_unheld_job", job_id=f"j{JOBS - 1}", worker_id="w"),
    "cancel_job": lambda w: w.cancel(f"j{JOBS - 2}"),
    "wake_jobs": lambda w: w.call("wake_jobs", worker_id="w", job_ids=["available_at-7"]),
    "set_priority": lambda w: w.call("set_priority", job_id=f"j{JOBS - 3}", worker_id="w", priority=1),
    "next_wakeup": lambda w: w.value("next_wakeup", worker_caps=["filler"]),
}


def leased(worker: Leasing) -> dict[str, Any]:
    """A leased job, found without a plan of ours."""
    (row,) = worker.rows(
        "select 'j9' as job_id, l.lease_id::text as lease_id from pgwf.lease as l"
        " where l.n = (select n from pgwf.name where job_id = 'j9')"
    )
    return row


@pytest.mark.parametrize("name", CALLS)
def test_a_hot_call_planned_on_empty_tables_reads_only_what_it_needs(worker: Leasing, name: str) -> None:
    plans = Plans(worker.conn)

    CALLS[name](worker)

    assert plans.nodes != []
    assert plans.whole() == []
    assert plans.rows_read() <= 600


def test_a_sweep_that_finds_little_reads_little_but_leases(worker: Leasing) -> None:
    plans = Plans(worker.conn)

    worker.sweep()

    assert plans.whole() == []


def test_completing_what_thousands_wait_for_places_each_once(worker: Leasing) -> None:
    plans = Plans(worker.conn)
    (row,) = worker.rows(
        "select l.lease_id::text as lease_id from pgwf.lease as l"
        " where l.n = (select n from pgwf.name where job_id = 'j0')"
    )

    worker.complete({"job_id": "j0", **row})

    assert worker.rows("select count(*) as count from pgwf.ready where need = 'wait_for'") == [{"count": JOBS}]
    assert plans.rows_read() <= 10 * JOBS, "each waiter is looked at a few times, not once per other waiter"
