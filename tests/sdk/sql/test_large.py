"""Large journals and inboxes come in parts, because a statement can carry only so much."""

from __future__ import annotations

from typing import Any

import psycopg

from tests.sdk.sql.hand import Hand, entry, signal, start

Conn = psycopg.Connection[Any]
MIB = 1 << 20
LARGE = b'"' + b"x" * (3 * MIB) + b'"'


def test_a_claim_brings_at_most_4_mib_of_a_journal_and_says_that_there_is_more(db: Conn, hand: Hand) -> None:
    start(db)
    held = hand.take()
    for call in (1, 2, 3):
        assert hand.say(held.item("keep", entry(call=call, occurrence=call, payload=LARGE))) == ["ok"]
    hand.say(held.item("release"))

    claim = hand.take().claim

    assert (claim.head, [one.seq for one in claim.history]) == (4, [1, 2])


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
