"""The journal's tables keep their rules whoever writes to them."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest

from tests.sdk.sql.hand import Hand, entry, journal, rows, start, value

Conn = psycopg.Connection[Any]


def tables(db: Conn) -> list[str]:
    """The journal's table and its partitions."""
    return [
        name
        for (name,) in rows(db, "select relid::text from pg_partition_tree('pgwf_journal.entry') order by level, relid")
    ]


def test_entries_cannot_be_changed_removed_or_truncated_in_any_partition(db: Conn, hand: Hand) -> None:
    n, _, _ = start(db)
    hand.say(hand.take().item("keep", entry()))
    db.execute("select pgwf_journal.open('own')")
    db.execute("select pgwf_journal.append('own', 0, '[{\"name\": \"x\"}]')")
    before = rows(db, "select * from pgwf_journal.entry order by n, seq")
    statements = ["truncate {}", "truncate {} cascade"]
    changes = ["update {} set name = 'x'", "update {} set n = n + 1000000", "delete from {}"]

    assert len(tables(db)) == 5
    for table in tables(db):
        holds = bool(rows(db, f"select from {table} limit 1"))
        for statement in statements + (changes if holds else []):
            with pytest.raises(psycopg.Error, match="journal entries are immutable") as error:
                db.execute(statement.format(table).encode())
            assert error.value.sqlstate == "WJ004", (table, statement)

    assert rows(db, "select * from pgwf_journal.entry order by n, seq") == before
    assert value(db, "select count(*) from pgwf_journal.entry where n = %s", n) == 2


def test_entries_are_immutable_in_partitions_that_are_made_later(db: Conn) -> None:
    db.execute("select pgwf_journal._make_partition('entry_90', '90000000', '95000000')")
    db.execute("select pgwf_journal._make_partition('entry_90', '90000000', '95000000')")
    db.execute("select pgwf_journal.open('late', 90000001)")
    db.execute("insert into pgwf_journal.entry values (90000001, 1, 0, 1, 1, '', 'x', 1, null, 0, now(), null, null)")

    for statement in (
        "update pgwf_journal.entry_90 set seq = 2",
        "delete from pgwf_journal.entry_90",
        "truncate pgwf_journal.entry_90",
    ):
        with pytest.raises(psycopg.Error) as error:
            db.execute(statement.encode())
        assert error.value.sqlstate == "WJ004"


def test_two_entries_of_one_journal_cannot_have_one_number(db: Conn) -> None:
    n, _, _ = start(db)

    with pytest.raises(psycopg.errors.UniqueViolation):
        db.execute(
            "insert into pgwf_journal.entry values (%s, 1, 0, 1, 1, '', 'x', 1, null, 0, now(), null, null)", [n]
        )


def test_the_journal_of_a_run_takes_entries_only_from_who_holds_the_run(db: Conn) -> None:
    start(db)

    with pytest.raises(psycopg.Error, match="takes entries only through the owner's fenced call") as error:
        db.execute("select pgwf_journal.append('order-1', 1, '[{\"name\": \"x\"}]')")

    assert error.value.sqlstate == "WJ003"
    assert len(journal(db)) == 1


def test_the_journal_of_a_run_is_read_like_any_other(db: Conn, hand: Hand) -> None:
    start(db)
    held = hand.take()
    hand.say(held.item("keep", entry("a", 1), entry("b", 2)))

    assert rows(db, "select seq, name, lease_no from pgwf_journal.read('order-1', 1)") == [
        (2, "a", held.claim.lease_no),
        (3, "b", held.claim.lease_no),
    ]
    assert value(db, "select pgwf_journal.head('order-1')") == 3


def test_payload_bytes_of_entries_come_back_exactly(db: Conn, hand: Hand) -> None:
    start(db)
    payloads = [b"", b"\x00\xff", b'{"a":1,"a":2}', b"NaN", b"9223372036854775808", b"x" * 2_000_000]
    held = hand.take()
    hand.say(held.item("release", *(entry("a", call, payload=one) for call, one in enumerate(payloads, 1))))

    assert [one.payload for one in hand.take().claim.history[1:]] == payloads


def test_a_journal_number_beyond_all_partitions_still_has_a_place(db: Conn, hand: Hand) -> None:
    db.execute("select setval('pgwf.pos', 50000000)")
    start(db)

    assert hand.say(hand.take().end()) == ["ok"]

    assert len(journal(db)) == 2
