"""What a call writes and reads: rows in proportion to what it says, found by index however the tables grew."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from pgwf_journal import Kind, Phase
from tests.sdk.sql.hand import Hand, Held, child, entry, rows, signal, start, task, value

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.sdk.sql.conftest import MakeHand
    from tests.support import Connect

Conn = psycopg.Connection[Any]
pytestmark = pytest.mark.own_session  # Counters and plans are a session's.

MANY = 20_000
ROWS_OF_A_DAY_MAX = 1_000  # Read by some 30 calls, each about a run or two.
# Whole tables of one row, and those that hold only what somebody configured.
SMALL = {"setting", "need_setting", "sleeper", "bucket"}


def written(conn: Conn) -> dict[str, list[int]]:
    """Rows this transaction inserted, updated and deleted, by table (entry_0 is entry)."""
    found = rows(
        conn,
        """
        select relname, n_tup_ins, n_tup_upd, n_tup_del from pg_stat_xact_user_tables
        where n_tup_ins + n_tup_upd + n_tup_del > 0
        """,
    )
    return {name.rpartition("_")[0] or name: counts for name, *counts in found}


@pytest.fixture
def lone(db: Conn, make_hand: MakeHand, connect: Connect) -> Iterator[tuple[Hand, Conn, list[Held]]]:
    """Five leased runs, and a worker's connection that has done nothing yet, in a transaction."""
    for index in range(5):
        start(db, f"order-{index}")
    held = make_hand().claim(5)
    conn = connect()
    with conn.transaction():
        yield Hand(conn, "worker-1", ["python"]), conn, held


def test_items_of_one_entry_each_write_one_row_each_and_touch_no_job(lone: tuple[Hand, Conn, list[Held]]) -> None:
    hand, conn, held = lone

    assert hand.say(*(one.item("keep", entry()) for one in held)) == ["ok"] * 5

    assert written(conn) == {"entry": [5, 0, 0]}


def test_items_without_entries_write_nothing(lone: tuple[Hand, Conn, list[Held]]) -> None:
    hand, conn, held = lone

    assert hand.say(*(one.item("keep", decides=True) for one in held)) == ["ok"] * 5

    assert written(conn) == {}


def test_a_park_deletes_the_lease_and_updates_the_job(db: Conn, lone: tuple[Hand, Conn, list[Held]]) -> None:
    db.execute("select pgwf.set_trace(false)")
    hand, conn, held = lone

    assert hand.say(held[0].item("park", entry(), delay=timedelta(hours=1))) == ["ok"]

    assert written(conn) == {"entry": [1, 0, 0], "lease": [0, 0, 1], "job": [0, 1, 0], "timer": [1, 0, 0]}


def test_the_end_of_a_run_moves_its_job_to_the_archive(db: Conn, lone: tuple[Hand, Conn, list[Held]]) -> None:
    db.execute("select pgwf.set_trace(false)")
    hand, conn, held = lone

    assert hand.say(held[0].end()) == ["ok"]

    assert written(conn) == {
        "entry": [1, 0, 0],
        "run": [0, 1, 0],
        "lease": [0, 0, 1],
        "job": [0, 0, 1],
        "archive": [1, 0, 0],
    }


def load(db: Conn, count: int) -> None:
    """Start many runs at once that nobody claims."""
    db.execute(
        """
        do $$
        declare
          v_count int := %s;
          v_ids text[] := array(select 'load-' || i from generate_series(1, v_count) i order by i);
          v_loads text[] := array_fill('load'::text, array[v_count]);
          v_texts text[] := array_fill(null::text, array[v_count]);
          v_times timestamptz[] := array_fill(null::timestamptz, array[v_count]);
          v_ones smallint[] := array_fill(1::smallint, array[v_count]);
          v_inputs bytea[] := array_fill('{}'::bytea, array[v_count]);
          v_nobody bigint[] := array_fill(null::bigint, array[v_count]);
          v_n bigint[];
        begin
          v_n := array(
            select s.n
            from pgwf._submit(v_ids, v_loads, v_ones, v_texts, v_times, v_times, 'loader', now()) s
            order by s.ord);
          perform pgwf_sdk._open_journals(v_n, v_ids);
          perform pgwf_sdk._create_runs(
            v_n, v_ids, v_loads, v_loads, v_inputs, v_ones, v_times, v_texts, v_texts, v_nobody, v_texts, 'loader',
            now());
        end
        $$
        """.replace("%s", str(count)).encode()
    )


class Day:
    """One of everything a worker, a client and a person do, each time with runs of its own."""

    def __init__(self, conn: Conn) -> None:
        self.conn = conn
        self.hand = Hand(conn, "worker-1", ["python"])
        self.turn = 0

    def take(self, run_id: str) -> Held:
        start(self.conn, run_id)
        return self.hand.take()

    def live(self) -> None:
        self.turn += 1
        name = f"run-{self.turn}"
        parent = self.take(f"{name}-parent")
        call = entry("ship", kind=Kind.CHILD, phase=Phase.OPENED, payload=None)
        note: Any = {"key": "/step:charge#1", "no": 1, "next_seconds": 1.0, "error": None}
        say = self.hand.say
        say(parent.item("keep", call, children=[child(f"{name}/c")], tasks=[task(f"{name}/t")], attempts=[note]))
        kid = self.hand.take()
        say(parent.item("park", entry("x", 2), delay=timedelta(days=1), wake_after=2))
        signal(self.conn, run_id=f"{name}-parent", dedup_id="d")
        self.call("claim_task", f"{name}/t", "ann")
        self.call("decide_task", f"{name}/t", "ann", "true", 1)
        parent = self.hand.take()
        say(kid.item("hop", need="gpu"))
        self.call("terminate_run", f"{name}/c", "ann")
        say(parent.item("keep", consumed=[row.id for row in parent.claim.inbox], decides=True, inbox_seen=10**9))
        self.conn.execute(
            "select pgwf_sdk.keepalive('worker-1', array[%s::bigint], array[%s], '{0}')", [parent.n, parent.lease_id]
        )
        say(parent.end("fail", b"{}"))
        self.call("retry_run", f"{name}-parent", "ann")
        self.call("run_result", f"{name}-parent")
        again = self.hand.take()
        say(again.item("release"))
        self.call("pause_run", again.run_id, "ann")
        self.call("resume_run", again.run_id, "ann")
        self.call("cancel_run", again.run_id, "ann")
        say(self.hand.take().item("block", note="{}"))
        self.call("terminate_run", again.run_id, "ann")
        assert self.hand.claim(1) == []

    def call(self, function: str, *arguments: Any) -> None:
        marks = ", ".join(["%s"] * len(arguments))
        self.conn.execute(f"select pgwf_sdk.{function}({marks})".encode(), arguments)


def reads(conn: Conn) -> dict[str, tuple[int, int]]:
    """Whole scans, and rows read in whatever way, by table."""
    found = rows(
        conn,
        """
        select relname, seq_scan, seq_tup_read + coalesce(idx_tup_fetch, 0) from pg_stat_xact_user_tables
        where schemaname in ('pgwf', 'pgwf_journal', 'pgwf_sdk')
        """,
    )
    return {name: (scans, count) for name, scans, count in found if name not in SMALL}


@pytest.mark.parametrize("planned", ["on empty tables", "on full tables"])
def test_no_call_reads_a_whole_table_however_the_tables_grew(db: Conn, connect: Connect, planned: str) -> None:
    conn = connect()
    day = Day(conn)
    if planned == "on empty tables":
        for _ in range(8):  # Five executions with the parameters' own plans, then the cached one.
            day.live()
    load(db, MANY)
    if planned == "on full tables":
        db.execute("analyze")

    with conn.transaction():
        before = reads(conn)
        day.live()
        after = reads(conn)

    grown = {
        name: (scans - before.get(name, (0, 0))[0], count - before.get(name, (0, 0))[1])
        for name, (scans, count) in after.items()
    }
    assert {name: found for name, found in grown.items() if found[0] > 0 or found[1] > ROWS_OF_A_DAY_MAX} == {}


def test_a_page_of_runs_reads_a_page(db: Conn) -> None:
    load(db, MANY)
    db.execute("analyze")

    (plan,) = rows(
        db,
        "explain (analyze, buffers, format json) select * from pgwf_sdk.runs order by n desc limit 50",
    )[0]

    top = plan[0]["Plan"]
    assert top["Shared Hit Blocks"] + top["Shared Read Blocks"] < 5_000
    assert value(db, "select count(*) from pgwf_sdk.run") == MANY
