import asyncio
import inspect
import json
from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest

from pgwf_journal import (
    ENCODING_JSON,
    ENCODING_NONE,
    AsyncJournal,
    EntryImmutableError,
    InvalidEntryError,
    Journal,
    JournalConflictError,
    JournalNotFoundError,
    JournalOwnedError,
    Kind,
    NewEntry,
    Phase,
    key_of,
)
from pgwf_journal._errors import ERROR_BY_SQLSTATE, translate
from pgwf_sql import script


@pytest.fixture
def journal(dsn: str) -> Iterator[Journal]:
    with Journal(dsn) as journal:
        yield journal


def step(name: str, payload: bytes | None = b'{"paid": true}', *, call: int = 1, occurrence: int = 1) -> NewEntry:
    return NewEntry(
        call=call,
        kind=Kind.STEP,
        phase=Phase.COMPLETED,
        scope="",
        name=name,
        occurrence=occurrence,
        payload=payload,
        encoding=ENCODING_NONE if payload is None else ENCODING_JSON,
    )


def test_the_key_of_a_call_is_its_scope_kind_name_and_occurrence() -> None:
    assert key_of("", Kind.STEP, "charge", 1) == "/step:charge#1"
    assert key_of("/branch:parallel#1[0]", Kind.STEP, "charge", 2) == "/branch:parallel#1[0]/step:charge#2"
    assert step("charge").key == "/step:charge#1"


def test_kinds_and_phases_are_those_of_the_schema(db: psycopg.Connection[Any]) -> None:
    kinds = db.execute("select kind, label from pgwf_journal.kind order by kind").fetchall()
    phases = db.execute("select phase, label from pgwf_journal.phase order by phase").fetchall()

    assert kinds == [(kind.value, kind.label) for kind in Kind]
    assert phases == [(phase.value, phase.label) for phase in Phase]


def test_each_sqlstate_the_schema_lists_has_a_class_and_no_other() -> None:
    listed = {line.split()[1] for line in script().splitlines() if line.startswith("--   WJ")}

    assert set(ERROR_BY_SQLSTATE) - {"22003", "22021"} == listed, "those are PostgreSQL's own: what it cannot hold"


def test_entries_are_read_back_in_order_as_they_were_appended(journal: Journal) -> None:
    journal.open("order-17")

    head = journal.append("order-17", [step("charge"), step("ship", call=2)], expected_seq=0)

    entries = journal.read("order-17")
    assert head == journal.head("order-17") == 2
    assert [(entry.seq, entry.key, entry.kind, entry.phase, entry.payload) for entry in entries] == [
        (1, "/step:charge#1", Kind.STEP, Phase.COMPLETED, b'{"paid": true}'),
        (2, "/step:ship#1", Kind.STEP, Phase.COMPLETED, b'{"paid": true}'),
    ]
    assert all(entry.recorded_at.tzinfo is not None for entry in entries)


@pytest.mark.parametrize("payload", [None, b"", b"\x00\xff", b'{"a":1,"a":2}', b"9223372036854775808", b"NaN"])
def test_payload_bytes_come_back_exactly(journal: Journal, payload: bytes | None) -> None:
    journal.open("order-17")

    journal.append("order-17", [step("charge", payload)], expected_seq=0)

    assert journal.read("order-17")[0].payload == payload


def test_reading_goes_on_after_the_last_entry_seen(journal: Journal) -> None:
    journal.open("order-17")
    journal.append("order-17", [step("poll", occurrence=i) for i in range(1, 6)], expected_seq=0)

    assert [entry.seq for entry in journal.read("order-17", limit=2)] == [1, 2]
    assert [entry.seq for entry in journal.read("order-17", after_seq=2, limit=2)] == [3, 4]
    assert journal.read("order-17", after_seq=5) == ()


def test_opening_twice_gives_the_same_journal(journal: Journal) -> None:
    assert journal.open("order-17") == journal.open("order-17")
    assert journal.head("order-17") == 0


def test_a_writer_that_is_behind_appends_nothing_and_learns_where_the_journal_is(journal: Journal) -> None:
    journal.open("order-17")
    journal.append("order-17", [step("charge")], expected_seq=0)

    with pytest.raises(JournalConflictError) as conflict:
        journal.append("order-17", [step("charge"), step("ship", call=2)], expected_seq=0)

    assert (conflict.value.expected_seq, conflict.value.actual_seq) == (0, 1)
    assert journal.head("order-17") == 1


def test_without_an_expectation_entries_go_after_whatever_is_last(journal: Journal) -> None:
    journal.open("order-17")
    journal.append("order-17", [step("charge")], expected_seq=0)

    assert journal.append("order-17", [step("ship", call=2)], expected_seq=None) == 2


def test_a_journal_that_was_never_opened_is_an_error_with_the_next_step(journal: Journal) -> None:
    with pytest.raises(JournalNotFoundError, match="open it first"):
        journal.append("order-17", [step("charge")], expected_seq=0)
    with pytest.raises(JournalNotFoundError, match="order-17"):
        journal.head("order-17")


def test_a_run_s_journal_is_not_appended_to_from_outside(journal: Journal, db: psycopg.Connection[Any]) -> None:
    db.execute("select pgwf_journal.open('order-17', 4711)")

    with pytest.raises(JournalOwnedError, match="4711"):
        journal.append("order-17", [step("charge")], expected_seq=0)


@pytest.mark.parametrize("journal_id", ["", "x" * 513])
def test_an_id_that_is_empty_or_too_long_is_refused(journal: Journal, journal_id: str) -> None:
    with pytest.raises(InvalidEntryError, match="1 to 512"):
        journal.open(journal_id)


@pytest.mark.parametrize(
    "statement",
    ["update pgwf_journal.entry set name = 'x'", "delete from pgwf_journal.entry", "truncate pgwf_journal.entry"],
)
def test_entries_cannot_be_changed_or_removed(journal: Journal, db: psycopg.Connection[Any], statement: str) -> None:
    journal.open("order-17")
    journal.append("order-17", [step("charge")], expected_seq=0)

    with pytest.raises(psycopg.Error) as refused:
        db.execute(statement.encode())

    assert isinstance(translate(refused.value), EntryImmutableError)
    assert journal.head("order-17") == 1


def test_an_append_on_a_connection_of_the_caller_is_undone_with_its_transaction(
    journal: Journal, db: psycopg.Connection[Any]
) -> None:
    journal.open("order-17")

    with db.transaction(force_rollback=True):
        assert journal.append("order-17", [step("charge")], expected_seq=0, connection=db) == 1
        assert journal.head("order-17") == 0

    assert journal.head("order-17") == 0


def test_the_view_shows_keys_labels_and_payload_as_text(journal: Journal, db: psycopg.Connection[Any]) -> None:
    journal.open("order-17")
    journal.append("order-17", [step("charge")], expected_seq=0)

    row = db.execute(
        "select key, kind, phase, payload from pgwf_journal.entries where journal_id = 'order-17'"
    ).fetchone()

    assert row is not None
    assert row[:3] == ("/step:charge#1", "step", "completed")
    assert json.loads(row[3]) == {"paid": True}


def test_the_async_journal_does_the_same(dsn: str) -> None:
    async def keep() -> None:
        async with AsyncJournal(dsn) as journal:
            await journal.open("order-17")
            assert await journal.append("order-17", [step("charge")], expected_seq=0) == 1
            assert [entry.key for entry in await journal.read("order-17")] == ["/step:charge#1"]
            assert await journal.head("order-17") == 1
            with pytest.raises(JournalConflictError):
                await journal.append("order-17", [step("charge")], expected_seq=0)

    asyncio.run(keep())


def test_both_journals_have_the_same_calls() -> None:
    for name, method in vars(Journal).items():
        if not name.startswith("_"):
            ours, theirs = inspect.signature(method), inspect.signature(getattr(AsyncJournal, name))
            assert list(ours.parameters) == list(theirs.parameters), name
            assert {p.name: p.default for p in ours.parameters.values()} == {
                p.name: p.default for p in theirs.parameters.values()
            }, name


@pytest.mark.parametrize(("kind", "finish"), [(Journal, lambda answer: answer), (AsyncJournal, asyncio.run)])
def test_each_call_is_made_on_the_connection_it_is_given(kind: Any, finish: Callable[[Any], object], dsn: str) -> None:
    """What is no connection is refused; a call that left it out would be made on another."""
    journal = kind(dsn)

    for call, arguments in {
        journal.open: {},
        journal.append: {"entries": [step("charge")], "expected_seq": 0},
        journal.read: {},
        journal.head: {},
    }.items():
        with pytest.raises(TypeError, match="connection=…: found an object of str"):
            finish(call("order-17", **arguments, connection="mine"))
