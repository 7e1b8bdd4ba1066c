"""Lists as people read them: what stands out in them, and what gives way where there is little room."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pgwf_journal import Kind, Phase
from pgwf_sdk import ops
from tests.sdk.sql.hand import Hand, entry, start, task
from tests.sdk.test_cli_commands import Pgwf, pgwf

if TYPE_CHECKING:
    import psycopg

    from tests.support import Clock

    Conn = psycopg.Connection[Any]

__all__ = ["pgwf"]


def test_what_people_answer_lacks_no_workers(pgwf: Pgwf, db: Conn) -> None:
    start(db, "order-1", need="trucks")
    hand = Hand(db, "w-1", ["python"])
    start(db, "order-2")
    asked = entry("review", kind=Kind.HUMAN, phase=Phase.OPENED, payload=None)
    hand.say(hand.take().item("park", asked, tasks=[task("order-2/human:review#1")]))

    workers = {line.split()[0]: line.rpartition("  ")[2] for line in pgwf("needs").out.splitlines()[1:]}

    assert workers["trucks"].strip() == "none!"
    assert workers["human.review"].strip() == "people"


def test_an_overdue_task_is_marked_in_lists(pgwf: Pgwf, db: Conn, clock: Clock) -> None:
    hand = Hand(db, "w-1", ["python"])
    for run_id, due_seconds in (("order-1", 60.0), ("order-2", 3600.0)):
        start(db, run_id)
        asked = entry("review", kind=Kind.HUMAN, phase=Phase.OPENED, payload=None)
        hand.say(hand.take().item("park", asked, tasks=[task(f"{run_id}/human:review#1", due_seconds=due_seconds)]))
    clock.advance(minutes=2)

    _, late, early = pgwf("human", "list").out.splitlines()

    (due_at, _) = (found.due_at for found in ops.list_tasks(db))
    assert "open, overdue" in late
    assert f"{due_at:%Y-%m-%d %H:%M:%S}" in late
    assert "overdue" not in early
    assert [found["is_overdue"] for found in pgwf("human", "list", "-o", "json").json] == [True, False]
    assert "state   open, overdue\n" in pgwf("human", "show", "order-1/").out


def on_terminal(dsn: str, columns: int, *arguments: str) -> list[str]:
    """The lines a command writes to a terminal so wide."""
    primary, secondary = pty.openpty()
    try:
        environment = {**os.environ, "COLUMNS": str(columns), "LINES": "24", "NO_COLOR": "1", "PYTHONUTF8": "1"}
        with os.fdopen(secondary, "wb") as stdout:
            subprocess.run(
                [sys.executable, "-m", "pgwf_sdk.cli", "--dsn", dsn, *arguments],
                stdout=stdout,
                env=environment,
                cwd=Path(__file__).parents[2],
                check=True,
                timeout=60,
            )
            stdout.flush()
            written = os.read(primary, 65_536)
    finally:
        os.close(primary)
    return written.decode().replace("\r\n", "\n").splitlines()


def test_ids_are_whole_in_lists_and_what_is_empty_takes_no_room(dsn: str, db: Conn) -> None:
    run_ids = [f"2f1c9a1e-7d0b-4c1e-9a55-{number:012}" for number in range(2)]
    hand = Hand(db, "w-1", ["python"])
    for run_id in run_ids:
        start(db, run_id)
        asked = entry("review", kind=Kind.HUMAN, phase=Phase.OPENED, payload=None)
        question = task(f"{run_id}/human:review#1", title="Is this refund for the parcel that was lost all right?")
        hand.say(hand.take().item("park", asked, tasks=[question]))

    heading, *tasks = on_terminal(dsn, 80, "human", "list")
    runs = on_terminal(dsn, 80, "list")

    assert sorted(line.split("  ")[0] for line in tasks) == [f"{run_id}/human:review#1" for run_id in run_ids]
    assert sorted(line.split("  ")[0] for line in runs[1:]) == run_ids
    assert max(map(len, [heading, *tasks, *runs])) <= 80
    assert "HOLDER" not in heading
    assert "WORKER" not in runs[0]
    assert all("open" in line for line in tasks)
    assert all("waiting" in line for line in runs[1:])


def test_a_list_with_room_shows_its_times_whole(dsn: str, db: Conn) -> None:
    start(db, "order-1")

    heading, line = on_terminal(dsn, 80, "list")

    (run,) = ops.list_runs(db).runs
    assert heading.split() == ["RUN", "WORKFLOW", "STATUS", "NEED", "ENTRIES", "CREATED"]
    assert line.endswith(f"{run.created_at:%Y-%m-%d %H:%M:%S}")
    assert "…" not in line


def test_an_id_that_is_wider_than_the_terminal_is_whole(dsn: str, db: Conn) -> None:
    start(db, "order-" + "x" * 90)

    _, line = on_terminal(dsn, 80, "list")

    assert line.split() == ["order-" + "x" * 90, "ready"]


def test_a_filter_that_negates_stands_among_the_others(pgwf: Pgwf, db: Conn) -> None:
    start(db, "order-1", need="trucks")
    start(db, "order-2", need="gpu")
    start(db, "order-3", need="gpu")

    assert pgwf("list", "-need:gpu", "-o", "ids").out.split() == ["order-1"]
    assert pgwf("list", "-o", "ids", "--", "-need:trucks", "id:order-3").out.split() == ["order-3"]
    assert pgwf("list", "-n", "1", "-need:trucks", "-status:failed", "-o", "ids").out.split() == ["order-3"]
    assert "parent cannot be negated" in pgwf("list", "-parent:any").err


def test_the_next_page_is_offered_as_a_shell_takes_it(pgwf: Pgwf, db: Conn) -> None:
    for number in range(2):
        start(db, f"order-{number}")

    page = pgwf("list", "-n", "1", "age:<1d", "-status:failed")

    assert "list --before" in page.err
    assert page.err.strip().endswith(" 'age:<1d' -status:failed")
