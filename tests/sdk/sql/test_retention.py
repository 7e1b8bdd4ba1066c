"""Partitions are made ahead, and what ended long ago goes whole, with everything that belongs to it."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from pgwf_journal import Kind, Phase
from pgwf_sdk import Client, Run, RunExpiredError
from tests.sdk.sql.hand import Hand, child, entry, rows, signal, start, status, task, value
from tests.sdk.sql.race import advance
from tests.support import Session

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.sdk.sql.conftest import MakeHand
    from tests.support import Clock

Conn = psycopg.Connection[Any]

KEEP = timedelta(days=30)
SECOND = 5_000_001  # a number of the second partition


def partitions(db: Conn) -> list[str]:
    return [name for (name,) in rows(db, "select name from pgwf_journal._partitions()")]


def retain(db: Conn, keep: timedelta = KEEP, limit: int = 10_000) -> int:
    return int(value(db, "select pgwf_sdk.retain(%s, %s)", keep, limit))


def go_to(db: Conn, n: int) -> None:
    """The next job has number `n`."""
    db.execute("select setval('pgwf.pos', %s, false)", [n])


def finish(db: Conn, hand: Hand, *run_ids: str) -> None:
    for run_id in run_ids:
        start(db, run_id)
        hand.say(hand.take().end())


def left(db: Conn) -> set[str]:
    """The tables that still have a row of a run."""
    tables = rows(
        db,
        """
        select c.oid::regclass::text, a.attname::text
        from pg_class c
        join pg_attribute a on a.attrelid = c.oid and a.attname = 'n' and not a.attisdropped
        where c.relkind in ('r', 'p') and not c.relispartition
          and c.relnamespace::regnamespace::text in ('pgwf', 'pgwf_journal', 'pgwf_sdk')
        """,
    )
    return {table for table, _ in tables if rows(db, f"select from {table} where n > 0 limit 1")}


def everything(db: Conn, hand: Hand) -> None:
    """A run that leaves a row in every table that has any of a run that is over."""
    start(db, "parent")
    held = hand.take()
    note: Any = {"key": "/step:charge#1", "no": 1, "next_seconds": 1.0, "error": None}
    call = entry("ship", kind=Kind.CHILD, phase=Phase.OPENED, payload=None)
    hand.say(held.item("keep", call, children=[child("parent/c")], tasks=[task("parent/t")], attempts=[note]))
    signal(db, run_id="parent", dedup_id="d")
    db.execute("select pgwf_sdk.terminate_run('parent/c', 'ann')")
    db.execute("select pgwf_sdk.terminate_run('parent', 'ann')")


def test_partitions_are_made_ahead_of_the_numbers(db: Conn) -> None:
    assert partitions(db) == ["entry_0", "entry_5000000"]
    go_to(db, 7_000_000)

    added = [value(db, "select pgwf_sdk.add_partitions()") for _ in range(2)]

    assert added == [2, 0]

    assert partitions(db) == ["entry_0", "entry_5000000", "entry_10000000"]
    assert rows(db, "select name from pgwf._partitions('archive') order by 1") == [
        ("archive_0",),
        ("archive_10000000",),
        ("archive_5000000",),
    ]


def test_inserts_check_no_bounds_of_partitions(db: Conn) -> None:
    """A CHECK is read and compiled by every statement that inserts, and the bounds of a partition hold without one."""
    bounds = rows(
        db,
        """
        select i.inhrelid::regclass::text, c.conname
        from pg_inherits as i
        join pg_constraint as c on c.conrelid = i.inhrelid and c.contype = 'c' and c.coninhcount = 0
        where i.inhparent::regclass::text in ('pgwf.archive', 'pgwf.trace', 'pgwf_journal.entry')
        """,
    )

    assert bounds == []


def test_a_range_that_has_entries_already_is_left_to_the_default_partition(db: Conn, hand: Hand) -> None:
    go_to(db, 32_000_000)
    finish(db, hand, "early")

    db.execute("select pgwf_sdk.add_partitions()")

    assert "entry_30000000" not in partitions(db)
    assert "entry_35000000" in partitions(db)


def test_an_entry_on_its_way_while_its_partition_is_made_goes_there(
    db: Conn, two_sessions: tuple[Session, Session]
) -> None:
    maker, writer = two_sessions
    go_to(db, 12_000_000)
    maker.run("begin")
    maker.run("select pgwf_journal._make_partition('entry_10000000', '10000000', '15000000')")
    started = writer.start_blocked("select pgwf_sdk.start('checkout', p_run_id => 'order-1')")
    maker.run("commit")

    started.result()

    assert rows(db, "select count(*) from pgwf_journal.entry_10000000") == [(1,)]


def test_partitions_are_made_beside_an_open_append_and_an_open_reader(
    db: Conn, hand: Hand, two_sessions: tuple[Session, Session]
) -> None:
    holder, reader = two_sessions
    start(db)
    held = hand.take()
    append = advance(hand, held.item("keep", entry()))
    go_to(db, 7_000_000)
    holder.run("begin")
    holder.run(append.statement, append.parameters)
    reader.run("begin")
    reader.run("select count(*) from pgwf_journal.entry_0")

    added = value(db, "select pgwf_sdk.add_partitions()")
    finish(db, hand, "other")

    holder.run("commit")
    reader.run("commit")
    assert added + value(db, "select pgwf_sdk.add_partitions()") == 2, "at the latest when the default one is free"
    assert "entry_10000000" in partitions(db)


def test_a_partition_in_which_everything_is_old_is_dropped_with_all_that_belongs_to_it(
    db: Conn, clock: Clock, hand: Hand
) -> None:
    everything(db, hand)
    go_to(db, SECOND)
    clock.advance(KEEP)
    clock.advance(minutes=1)

    retain(db)

    assert partitions(db) == ["entry_5000000", "entry_10000000"]
    assert left(db) == set()
    assert retain(db) == 0


def test_a_partition_is_forgotten_in_bounded_steps_and_then_dropped(db: Conn, clock: Clock, hand: Hand) -> None:
    finish(db, hand, *"abcde")
    db.execute("delete from pgwf.trace")
    go_to(db, SECOND)
    clock.advance(KEEP)
    clock.advance(minutes=1)

    steps = [retain(db, limit=2) for _ in range(4)]

    assert steps == [2, 2, 1, 0]
    assert partitions(db)[0] == "entry_5000000"


def test_what_a_live_run_pins_is_emptied_run_by_run_after_the_grace(db: Conn, clock: Clock, hand: Hand) -> None:
    start(db, "live")
    held = hand.take(timedelta(days=365))
    finish(db, hand, "old")
    go_to(db, SECOND)
    clock.advance(KEEP)
    clock.advance(hours=12)

    retain(db)
    assert status(db, "old") == "completed"
    clock.advance(days=1)
    retain(db)

    assert rows(db, "select run_id from pgwf_sdk.runs") == [("live",)]
    assert rows(db, "select distinct n from pgwf_journal.entry") == [(held.n,)]
    assert hand.say(held.item("keep", entry())) == ["ok"]
    assert partitions(db)[0] == "entry_0"


def test_runs_younger_than_keep_are_kept(db: Conn, clock: Clock, hand: Hand) -> None:
    finish(db, hand, "old")
    go_to(db, SECOND)
    clock.advance(KEEP)

    assert retain(db) == 0

    assert status(db, "old") == "completed"
    assert partitions(db)[0] == "entry_0"


def test_runs_whose_jobs_were_forgotten_by_the_leasing_core_go_with_their_partition(
    db: Conn, clock: Clock, hand: Hand
) -> None:
    finish(db, hand, "old")
    clock.advance(KEEP)
    clock.advance(minutes=1)
    db.execute("select pgwf.retain(%s)", [KEEP])
    go_to(db, SECOND)

    retain(db)

    assert left(db) == set()
    assert partitions(db)[0] == "entry_5000000"


def test_an_open_reader_delays_the_drop_and_nobody_waits_behind_it(
    db: Conn, clock: Clock, hand: Hand, session: Callable[[], Session]
) -> None:
    finish(db, hand, "old")
    go_to(db, SECOND)
    start(db, "young")
    held = hand.take(timedelta(days=365))
    clock.advance(KEEP)
    clock.advance(minutes=1)
    reader = session()
    reader.run("begin")
    reader.run("select count(*) from pgwf_journal.entry")

    retain(db)

    assert partitions(db)[0] == "entry_0"
    assert hand.say(held.item("keep", entry())) == ["ok"]
    reader.run("commit")
    retain(db)
    assert partitions(db)[0] == "entry_5000000"


def test_a_start_that_took_its_number_long_ago_keeps_its_partition(
    db: Conn, clock: Clock, hand: Hand, session: Callable[[], Session]
) -> None:
    """The start's transaction is open while retention looks; the other order is a run that is live."""
    finish(db, hand, "old")
    late = session()
    late.run("begin")
    late.run("select pgwf_sdk.start('checkout', '[]', 'late', 'python')")
    go_to(db, SECOND)
    clock.advance(KEEP)
    clock.advance(minutes=1)

    retain(db)
    late.run("commit")
    retain(db)

    assert partitions(db)[0] == "entry_0"
    held = hand.take()
    assert (held.run_id, held.head) == ("late", 1)
    assert hand.say(held.end()) == ["ok"]


def test_an_append_and_an_end_in_flight_keep_their_partition(
    db: Conn, clock: Clock, hand: Hand, session: Callable[[], Session]
) -> None:
    start(db, "long")
    held = hand.take(timedelta(days=365))
    go_to(db, SECOND)
    clock.advance(KEEP)
    clock.advance(minutes=1)
    holder = session()
    holder.run("begin")
    end = advance(hand, held.end())
    holder.run(end.statement, end.parameters)

    retain(db)
    assert partitions(db)[0] == "entry_0"
    holder.run("commit")
    retain(db)

    assert partitions(db)[0] == "entry_0"
    assert status(db, "long") == "completed"


def test_result_says_that_the_run_has_expired(db: Conn, dsn: str, clock: Clock, make_hand: MakeHand) -> None:
    hand = make_hand()
    finish(db, hand, "order-1")
    with Client(dsn) as client:
        run: Run[Any] = client.get("order-1")
        assert run.result() == 42
        clock.advance(KEEP)
        clock.advance(days=2)
        retain(db)

        with pytest.raises(RunExpiredError, match="run order-1 is over, and retention has removed it"):
            run.result()
        start(db, "order-1")
        with pytest.raises(RunExpiredError, match="order-1"):
            run.status()


@pytest.mark.parametrize("whole", [True, False], ids=["a whole partition", "run by run"])
@pytest.mark.parametrize(
    "held", ["select from pgwf_sdk.run where run_id = 'old' for update", "select pgwf_sdk.retain('1 day')"]
)
def test_a_run_that_somebody_holds_or_forgets_is_left_for_the_next_call(
    db: Conn, hand: Hand, clock: Clock, two_sessions: tuple[Session, Session], whole: bool, held: Any
) -> None:
    go_to(db, 1)
    finish(db, hand, "old")
    if not whole:
        start(db, "pin")
    go_to(db, SECOND)
    clock.advance(days=3)
    holder, _ = two_sessions
    holder.run("begin")
    holder.run(held)

    assert retain(db, timedelta(days=1)) == 0
    holder.run("rollback")

    assert status(db, "old") == "completed"
    assert retain(db, timedelta(days=1)) > 0
    assert rows(db, "select from pgwf_sdk.run where run_id = 'old'") == []


@pytest.mark.parametrize(
    "arguments", ["null", "'-1 day'", "'1 day', 0", "'1 day', null", "'1 day', 1, null", "'1 day', 1, '-1 s'"]
)
def test_retain_refuses_arguments_out_of_range(db: Conn, arguments: str) -> None:
    with pytest.raises(psycopg.Error) as error:
        db.execute(f"select pgwf_sdk.retain({arguments})".encode())

    assert error.value.sqlstate == "WS004"
