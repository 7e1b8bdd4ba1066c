"""Lists as people read them: what stands out in them, and what gives way where there is little room."""

from __future__ import annotations

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
