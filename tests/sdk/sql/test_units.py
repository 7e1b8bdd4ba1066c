"""What one job, one step and one heartbeat cost: commits, row writes, WAL. Counted on a server that does nothing else.

The figures are in docs/performance.md, section "Cost per unit".
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from pgwf_sdk.worker._advance import entry_parameters
from pgwf_sql import query
from tests.pgwf.leasing import Leasing
from tests.sdk.sql.hand import Hand, Held, entry, start, value

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.support import Connect

Conn = psycopg.Connection[Any]

pytestmark = pytest.mark.own_session  # Counters are a session's.

APPEND = query("sdk_append")
PAGE = Path(__file__).parents[3] / "docs" / "performance.md"
BATCH = 100
TURNS = 20
# Versions of PostgreSQL write a little more or less; what matters is a row, an index or a page image too many.
TOLERANCE = 0.25


Cost = tuple[float, float, float, float]


def read(conn: Conn) -> Cost:
    """Commits, row writes, WAL records and WAL bytes until now; `conn` is the only session that does anything."""
    conn.execute("select pg_stat_force_next_flush()")
    conn.execute("select pg_stat_clear_snapshot()")
    row = conn.execute(
        """
        select d.xact_commit,
          (select sum(t.n_tup_ins + t.n_tup_upd + t.n_tup_del) from pg_stat_user_tables as t),
          w.wal_records, pg_current_wal_insert_lsn() - '0/0'
        from pg_stat_wal as w, pg_stat_database as d
        where d.datname = current_database()
        """
    ).fetchone()
    assert row is not None
    commits, rows, records, size = row
    return float(commits), float(rows), float(records), float(size)


def cost(conn: Conn, act: Callable[[], int]) -> Cost:
    """What one unit costs; `act` does some and says how many. What reading costs itself is taken off."""
    act()  # Plans, and pages that are touched for the first time.
    before = read(conn)
    empty = read(conn)
    units = act()
    after = read(conn)
    commits, rows, records, size = (
        (end - start - (start - first)) / units for first, start, end in zip(before, empty, after, strict=True)
    )
    return commits, rows, records, size


class Units:
    """Jobs, runs and steps, done in one session."""

    def __init__(self, conn: Conn) -> None:
        self.conn = conn
        self.leasing = Leasing(conn)
        self.hand = Hand(conn, "w", ["python"])
        self.turn = 0
        self.held: list[Held] = []

    def name(self) -> str:
        self.turn += 1
        return f"unit-{self.turn}"

    def lone_jobs(self) -> int:
        for _ in range(TURNS):
            self.leasing.submit(self.name(), "solder")
            self.leasing.complete(self.leasing.take("solder"))
        return TURNS

    def many_jobs(self) -> int:
        names = [self.name() for _ in range(BATCH)]
        self.leasing.call("submit_jobs", worker_id="w", job_ids=names, next_needs=["solder"] * BATCH)
        leases = self.leasing.get_work("solder", limit=BATCH)
        ids = {"job_ids": [one["job_id"] for one in leases], "lease_ids": [one["lease_id"] for one in leases]}
        self.leasing.call("complete_jobs", worker_id="w", **ids)
        return BATCH

    def lone_runs(self) -> int:
        for _ in range(TURNS):
            start(self.conn, self.name())
            self.hand.say(self.hand.take().end())
        return TURNS

    def lone_steps(self) -> int:
        (held,) = self.held = self.held or self.hand.claim(1)
        for call in range(1, TURNS + 1):
            said = self.conn.execute(APPEND, entry_parameters(held.item("keep", entry("charge", call))))
            assert (said.fetchone() or (None,))[0] is not None
            held.head += 1
        return TURNS

    def many_steps(self) -> int:
        self.held = self.held or self.hand.claim(BATCH)
        for call in range(1, 4):
            self.hand.say(*(one.item("keep", entry("charge", call)) for one in self.held))
        return 3 * BATCH

    def heartbeats(self) -> int:
        leases = self.leasing.get_work("solder", limit=BATCH)
        ids = {"job_ids": [one["job_id"] for one in leases], "lease_ids": [one["lease_id"] for one in leases]}
        for _ in range(5):
            self.leasing.call("extend_leases", worker_id="w", additional_seconds=3600 * self.turn, **ids)
            self.turn += 1
        for lease in leases:
            self.leasing.call("release_job", job_id=lease["job_id"], lease_id=lease["lease_id"], worker_id="w")
        return 5 * BATCH


@pytest.fixture
def units(connect: Connect) -> Units:
    conn = connect()
    conn.execute("select pgwf.set_trace(false)")
    return Units(conn)


def documented() -> dict[str, Cost]:
    """The table of the page: a unit, and its commits, row writes, WAL records and WAL bytes."""
    _, _, section = PAGE.read_text(encoding="utf-8").partition("## Cost per unit")
    found = re.findall(r"(?m)^\| (an? [^|]+?) \| ([\d.]+) \| ([\d.]+) \| ([\d.]+) \| ([\d,]+) \|$", section)
    return {
        unit: (float(commits), float(rows), float(records), float(size.replace(",", "")))
        for unit, commits, rows, records, size in found
    }


UNITS: dict[str, Callable[[Units], int]] = {
    "a job, by itself": Units.lone_jobs,
    "a job, of 100 together": Units.many_jobs,
    "a run without steps, by itself": Units.lone_runs,
    "a step, by itself": Units.lone_steps,
    "a step, of 100 together": Units.many_steps,
}


@pytest.mark.parametrize("unit", UNITS)
def test_a_unit_costs_what_the_page_says(units: Units, unit: str) -> None:
    if "step" in unit:
        for _ in range(BATCH if "together" in unit else 1):
            start(units.conn, units.name())

    found = cost(units.conn, lambda: UNITS[unit](units))

    assert found == pytest.approx(documented()[unit], rel=TOLERANCE, abs=0.2)


def test_heartbeats_are_hot_updates(units: Units) -> None:
    for _ in range(BATCH):
        units.leasing.submit(units.name(), "solder")

    units.heartbeats()
    units.heartbeats()

    units.conn.execute("select pg_stat_force_next_flush()")
    updates = value(units.conn, "select n_tup_upd from pg_stat_user_tables where relname = 'lease'")
    hot = value(units.conn, "select n_tup_hot_upd from pg_stat_user_tables where relname = 'lease'")
    assert updates == 2 * 5 * BATCH
    assert hot / updates >= 0.95
