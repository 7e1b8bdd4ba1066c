"""Views runs, tasks and entries: what people see of each state."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

import psycopg
from msgspec.structs import replace

from pgwf_journal import Kind, Phase
from tests.sdk.sql.hand import Hand, entry, rows, start, status, value

if TYPE_CHECKING:
    from tests.support import Clock

Conn = psycopg.Connection[Any]


def test_the_status_of_a_run_follows_its_job_and_lease_until_it_is_over(db: Conn, clock: Clock, hand: Hand) -> None:
    start(db)
    assert status(db) == "ready"
    held = hand.take()
    assert status(db) == "running"
    hand.say(held.item("park", delay=timedelta(hours=1)))
    assert status(db) == "waiting"
    clock.advance(hours=1)
    assert status(db) == "ready"
    db.execute("select pgwf.sweep('sweeper')")
    assert status(db) == "ready"
    hand.take()
    clock.advance(hours=1)
    assert status(db) == "ready"
    db.execute("select pgwf.sweep('sweeper')")
    held = hand.take()
    hand.say(held.end())

    assert status(db) == "completed"


def test_a_run_whose_leases_lapse_too_often_is_of_crash_concern_swept_or_not(
    db: Conn, clock: Clock, hand: Hand
) -> None:
    db.execute("select pgwf.set_crash_concern_threshold(1)")
    start(db)
    hand.take()
    clock.advance(hours=1)
    db.execute("select pgwf.sweep('sweeper')")
    hand.take()
    assert status(db) == "running"
    clock.advance(hours=1)

    assert status(db) == "crash_concern"
    assert rows(db, "select lapses, streak from pgwf_sdk.runs") == [(2, 2)]
    db.execute("select pgwf.sweep('sweeper')")
    assert rows(db, "select status, lapses, streak from pgwf_sdk.runs") == [("crash_concern", 2, 2)]
    db.execute("select pgwf.clear_crash_concern('order-1', 'ann')")
    assert status(db) == "ready"


def test_a_stored_status_wins_over_what_the_job_says(db: Conn, hand: Hand) -> None:
    start(db)
    held = hand.take()
    db.execute("select pgwf_sdk.pause_run('order-1', 'ann')")

    assert rows(db, "select status, worker_id, note from pgwf_sdk.runs") == [("paused", "worker-1", "paused by ann")]

    hand.say(held.item("park"))
    assert rows(db, "select status, worker_id from pgwf_sdk.runs") == [("paused", None)]


def test_runs_show_the_lease_only_while_it_lasts(db: Conn, clock: Clock, hand: Hand) -> None:
    start(db)
    hand.take()
    assert rows(db, "select worker_id, lease_until from pgwf_sdk.runs") == [
        ("worker-1", clock.START + timedelta(minutes=1))
    ]

    clock.advance(minutes=2)

    assert rows(db, "select worker_id, lease_until from pgwf_sdk.runs") == [(None, None)]


def test_runs_keep_priority_and_lapses_after_the_end(db: Conn, clock: Clock, hand: Hand) -> None:
    start(db, priority=2)
    hand.take()
    clock.advance(hours=1)
    db.execute("select pgwf.sweep('sweeper')")
    hand.say(hand.take().end())

    assert rows(db, "select priority, lapses, streak, available_at from pgwf_sdk.runs") == [(2, 1, 0, None)]


def test_runs_count_entries_and_failed_attempts(db: Conn, hand: Hand) -> None:
    start(db)
    held = hand.take()
    notes: list[Any] = [
        {"key": f"/step:{name}#1", "no": number, "next_seconds": 1.0, "error": None}
        for name, number in [("a", 2), ("b", 3)]
    ]
    hand.say(held.item("keep", entry("x", 1), entry("y", 2), attempts=notes))

    assert rows(db, "select entry_count, attempts from pgwf_sdk.runs") == [(3, 5)]


def test_entries_show_keys_words_and_text(db: Conn, clock: Clock, hand: Hand) -> None:
    n, _, _ = start(db)
    code = value(db, "select code from pgwf_journal.code_numbers('b7', array['shop.py'], array[12])")
    held = hand.take()
    step = replace(entry("charge", 3, scope="/branch:parallel#1[0]", payload='{"café": 1}'.encode()), code=code)
    hand.say(held.item("keep", step, entry("t", 4, kind=Kind.TIMER, phase=Phase.OPENED, payload=None)))

    assert rows(db, "select * from pgwf_journal.entries where seq = 2") == [
        (
            "order-1",
            n,
            2,
            "/branch:parallel#1[0]/step:charge#1",
            "step",
            "completed",
            "/branch:parallel#1[0]",
            "charge",
            1,
            3,
            '{"café": 1}',
            1,
            clock.START,
            held.claim.lease_no,
            "shop.py",
            12,
        )
    ]
    assert rows(db, "select key, phase, payload, encoding from pgwf_journal.entries where seq = 3") == [
        ("/timer:t#1", "opened", None, 0)
    ]


def test_the_clock_is_read_once_for_all_rows_of_a_view(db: Conn, hand: Hand) -> None:
    for index in range(3):
        start(db, f"order-{index}")
    hand.claim(3)
    db.execute("create sequence ticks")
    db.execute(
        """
        create or replace function pgwf_sdk._now() returns timestamptz language sql volatile
        as $$ select '2030-01-01'::timestamptz + pg_catalog.nextval('public.ticks') * interval '1 s' $$
        """
    )

    for view in ("runs", "tasks"):
        db.execute("select setval('ticks', 1)")
        db.execute(f"select * from pgwf_sdk.{view}".encode())
        assert value(db, "select last_value from ticks") <= 2, view
