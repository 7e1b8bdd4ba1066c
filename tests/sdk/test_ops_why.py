"""Why a run waits: when that ends by itself, and what ends it sooner."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

import psycopg

from pgwf_journal import Kind, Phase
from pgwf_sdk import ops
from tests.sdk.sql.hand import Hand, child, entry, start, task

if TYPE_CHECKING:
    from tests.support import Clock

Conn = psycopg.Connection[Any]


def test_why_a_run_waits_says_when_each_wait_ends_and_who_ends_it(db: Conn, clock: Clock) -> None:
    hand = Hand(db, "w-1", ["python"])
    ends = (
        (Kind.TIMER, 60, "a timer set 10.0 s ago, fires in 50.0 s"),
        (Kind.SIGNAL, 90, "signal 'x', since 10.0 s (`pgwf signal order-1 x`), times out in 1m 20s"),
        (
            Kind.AWAKEABLE,
            120,
            "awakeable 'x', since 10.0 s (who has its token completes it: `client.complete_awakeable(token, value)`,"
            " or in SQL `select pgwf_sdk.complete_awakeable('TOKEN', 'JSON')`), times out in 1m 50s",
        ),
    )
    for number, (kind, seconds, words) in enumerate(ends, 1):
        start(db, f"order-{number}")
        payload = f'{{"microseconds":{seconds}000000,"token_hash":"{"0" * 64}"}}'.encode()
        opened = entry("x", kind=kind, phase=Phase.OPENED, payload=payload)
        hand.say(hand.take().item("park", opened, until=clock.now() + timedelta(seconds=seconds)))
        clock.advance(seconds=10)

        why = ops.why_not_running(db, f"order-{number}")

        assert why == f"It waits for {words.replace('order-1', f'order-{number}')}."


def test_why_a_run_waits_says_when_a_question_expires(db: Conn, clock: Clock) -> None:
    hand = Hand(db, "w-1", ["python"])
    start(db)
    asked = entry("review", kind=Kind.HUMAN, phase=Phase.OPENED, payload=b'{"microseconds":300000000}')
    question = task("order-1/human:review#1", expires_seconds=300.0)
    hand.say(hand.take().item("park", asked, until=clock.now() + timedelta(seconds=300), tasks=[question]))
    clock.advance(seconds=23)

    why = ops.why_not_running(db, "order-1")

    assert why.endswith("(`pgwf human claim order-1/human:review#1`), expires in 4m 37s.")


def test_why_a_run_that_is_to_start_later_says_when(db: Conn, clock: Clock) -> None:
    db.execute(
        "select pgwf_sdk.start('checkout', p_run_id => 'order-1', p_start_at => %s)", [clock.now() + timedelta(hours=2)]
    )
    clock.advance(seconds=20)

    assert ops.why_not_running(db, "order-1") == "It is to start in 1h 59m."


def test_why_a_run_failed_names_its_error_in_one_line(db: Conn, clock: Clock) -> None:
    hand = Hand(db, "w-1", ["python"])
    start(db)
    hand.say(hand.take().end("fail", b'{"type":"shop:CardDeclined","message":"no\\nrun order-9 is fine"}'))
    clock.advance(seconds=5)

    assert ops.why_not_running(db, "order-1") == (
        "It is over: failed 5.0 s ago with CardDeclined: no run order-9 is fine. `pgwf result order-1` shows where,"
        " `pgwf retry order-1` tries again."
    )


def test_why_a_parent_waits_names_the_children_that_are_not_over(db: Conn) -> None:
    hand = Hand(db, "w-1", ["python"])
    start(db)
    numbers = range(1, 6)
    opened = [
        entry("ship", number, kind=Kind.CHILD, phase=Phase.OPENED, occurrence=number, payload=None)
        for number in numbers
    ]
    children = [child(f"order-1/{number}", f"/child:ship#{number}") for number in numbers]
    hand.say(hand.take().item("park", *opened, children=children, wake_after=5))
    for _ in range(4):
        hand.say(hand.take().end())

    why = ops.why_not_running(db, "order-1")

    assert why.startswith("It waits for child run 'order-1/5', since ")
    assert why.count("which is completed") == 2
    assert why.endswith("and 2 more calls.")


def test_commands_that_are_proposed_take_any_id(db: Conn) -> None:
    """Ids of children in branches have brackets, which zsh takes for a pattern that matches no file."""
    hand = Hand(db, "w-1", ["python"])
    for run_id, proposed in (
        ("order-17~2/ship#1", "`pgwf signal order-17~2/ship#1 go`"),
        ("order-2/branch:map#1[0]/ship#1", "`pgwf signal 'order-2/branch:map#1[0]/ship#1' go`"),
        ("Ann's order; ls", """`pgwf signal 'Ann'"'"'s order; ls' go`"""),
    ):
        start(db, run_id)
        hand.say(hand.take().item("park", entry("go", kind=Kind.SIGNAL, phase=Phase.OPENED, payload=None)))

        assert proposed in ops.why_not_running(db, run_id)
