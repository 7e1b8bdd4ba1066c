"""Large journals and inboxes come in parts, because a statement can carry only so much."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import psycopg
import pytest

from tests.sdk.sql.hand import Hand, Kind, Phase, child, entry, inbox, rows, signal, start, task, value

Conn = psycopg.Connection[Any]
MIB = 1 << 20
MOST = 128 * MIB
TOKEN = "awk_0123456789abcdefghijklmn"
TEXT = "convert_to(%s || repeat('x', %s) || %s, 'UTF8')"
"""A payload of so many bytes, made where it is needed."""
LARGE = b'"' + b"x" * (3 * MIB) + b'"'


def test_a_claim_brings_at_most_4_mib_of_a_journal_and_says_that_there_is_more(db: Conn, hand: Hand) -> None:
    start(db)
    held = hand.take()
    for call in (1, 2, 3):
        assert hand.say(held.item("keep", entry(call=call, occurrence=call, payload=LARGE))) == ["ok"]
    hand.say(held.item("release"))

    claim = hand.take().claim

    assert (claim.head, [one.seq for one in claim.history]) == (4, [1, 2])


def test_a_claim_of_many_brings_16_mib_of_their_journals_in_equal_shares(db: Conn, hand: Hand) -> None:
    """Until the whole answer is there, nobody keeps the leases alive that it brings."""
    for number in range(8):
        start(db, f"large-{number}", input_=LARGE)
    start(db, "small")

    held = hand.claim(9)

    assert [one.claim.head for one in held] == [1] * 9
    assert {one.run_id: len(one.claim.history) for one in held} == {
        "small": 1,
        **{f"large-{number}": 0 for number in range(8)},
    }


def test_a_claim_of_many_brings_16_mib_of_their_inboxes_but_a_row_of_each_and_so_does_what_they_park_with(
    db: Conn, hand: Hand
) -> None:
    for number in range(8):
        start(db, f"run-{number}")
        for _ in range(2):
            signal(db, run_id=f"run-{number}", payload=LARGE[: MIB + MIB // 2] + b'"')

    held = hand.claim(8)
    assert [len(one.claim.inbox) for one in held] == [1] * 8

    answers, _ = hand.call(*(one.item("park") for one in held))
    assert [len(answer.inbox) for answer in answers] == [1] * 8


def test_a_claim_brings_at_most_4_mib_of_an_inbox_and_parking_the_next(db: Conn, hand: Hand) -> None:
    start(db)
    for _ in range(3):
        signal(db, payload=LARGE)

    held = hand.take()
    first = [row.id for row in held.claim.inbox]
    second = [row.id for row in hand.answer(held.item("park", inbox_seen=first[-1])).inbox]
    third = [row.id for row in hand.answer(held.item("park", inbox_seen=second[-1])).inbox]

    assert [len(part) for part in (first, second, third)] == [1, 1, 1]
    assert first < second < third


def text(size: int, before: str = '"', after: str = '"') -> list[Any]:
    """What `TEXT` is filled with for a payload of `size` bytes."""
    return [before, size - len(before) - len(after), after]


def test_the_largest_signal_comes_with_a_claim_and_the_largest_input_is_read_after_it(db: Conn) -> None:
    arguments = text(MOST, '{"args":["', '"],"kwargs":{}}')
    db.execute(f"select pgwf_sdk.start_run('order-1', 'checkout', 'python', {TEXT}, 1)".encode(), arguments)
    db.execute(f"select pgwf_sdk.signal_run('order-1', 'delivered', {TEXT}, 1)".encode(), text(MOST))

    sizes = rows(
        db,
        """
        select head, cardinality(payloads), octet_length(decode(inbox -> 0 ->> 'payload', 'base64'))
        from pgwf_sdk.advance('worker-1', p_worker_caps => array['python'], p_slots => 1)
        """,
    )

    assert sizes == [(1, 0, MOST)]
    assert value(db, "select octet_length(payload) from pgwf_journal.read('order-1')") == MOST


@pytest.mark.parametrize(
    "call",
    [
        f"start_run('other', 'checkout', 'python', {TEXT}, 1)",
        f"signal_run('order-1', 'delivered', {TEXT}, 1)",
        f"settle_awakeable('{TOKEN}', {TEXT}, 1)",
        f"decide_task('task-1', 'ann', {TEXT}, 1)",
        f"cancel_run('order-1', 'ann', convert_from({TEXT}, 'UTF8'))",
    ],
    ids=lambda call: call.split("(")[0],
)
def test_what_would_be_too_large_for_a_claim_is_refused_where_it_is_sent(db: Conn, hand: Hand, call: str) -> None:
    """Taken in, it would take down each claim that finds the run, for all runs of its need."""
    start(db)
    held = hand.take()
    promise = json.dumps({"token_hash": hashlib.sha256(TOKEN.encode()).hexdigest()}).encode()
    waits = [
        entry("paid", 1, kind=Kind.AWAKEABLE, phase=Phase.OPENED, payload=promise),
        entry("review", 2, kind=Kind.HUMAN, phase=Phase.OPENED, payload=None),
    ]
    assert hand.say(held.item("park", *waits, tasks=[task("task-1")])) == ["ok"]

    said = r"has 1342177\d\d bytes, expected at most 134217728 \(128 MiB\)"
    with pytest.raises(psycopg.Error, match=said) as refused:
        db.execute(f"select pgwf_sdk.{call}".encode(), text(MOST + 1))

    assert refused.value.sqlstate == "WS004"
    assert inbox(db) == []
    assert rows(db, "select run_id from pgwf_sdk.runs") == [("order-1",)]
    assert value(db, "select state from pgwf_sdk.task") == value(db, "select state from pgwf_sdk.awakeable") == "open"


def test_a_child_is_terminated_for_a_very_long_reason_of_which_its_parent_hears_the_beginning(
    db: Conn, hand: Hand
) -> None:
    start(db)
    held = hand.take()
    waits = entry("ship", kind=Kind.CHILD, phase=Phase.OPENED, payload=None)
    assert hand.say(held.item("park", waits, children=[child("order-1/ship")])) == ["ok"]

    assert value(db, "select pgwf_sdk.terminate_run('order-1/ship', 'ann', repeat('x', %s))", MOST + 1) == "terminated"

    ((envelope,),) = rows(db, "select convert_from(payload, 'UTF8') from pgwf_sdk.inbox")
    assert json.loads(envelope)["message"] == f"terminated by ann: {'x' * 8000}"
