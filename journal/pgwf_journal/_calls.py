"""What the journal asks of the database, as values: no I/O, shared by the sync and the async client."""

from collections.abc import Sequence

from pgwf_journal._entry import Entry, Kind, NewEntry, Phase
from pgwf_journal._errors import InvalidEntryError
from pgwf_sql.database import BITS_OF_BIGINT, BITS_OF_INT, Row, Statement, read_value, whole_numbers

READ_COUNT_MAX = 10_000
"""Entries one `read` gives at most, unless told otherwise."""


def open_journal(journal_id: str) -> Statement[int]:
    """Open a journal; opening it again changes nothing."""
    return Statement("journal_open", {"journal_id": journal_id}, read_value, is_repeatable=True)


def append(journal_id: str, entries: Sequence[NewEntry], *, expected_seq: int | None) -> Statement[int]:
    """Append entries, all or nothing. A repetition after a lost answer would only meet a conflict, so there is none."""
    for entry in entries:
        _ints(call=entry.call, occurrence=entry.occurrence, encoding=entry.encoding, code=entry.code)
    parameters = {
        "journal_id": journal_id,
        **_seq(expected_seq=expected_seq),
        "calls": [entry.call for entry in entries],
        "kinds": [int(entry.kind) for entry in entries],
        "phases": [int(entry.phase) for entry in entries],
        "scopes": [entry.scope for entry in entries],
        "names": [entry.name for entry in entries],
        "occurrences": [entry.occurrence for entry in entries],
        "payloads": [entry.payload for entry in entries],
        "encodings": [entry.encoding for entry in entries],
        "codes": [entry.code for entry in entries],
    }
    return Statement("journal_append", parameters, read_value)


def read(journal_id: str, *, after_seq: int, limit: int) -> Statement[tuple[Entry, ...]]:
    """Entries of a journal, in order."""
    if limit < 1:
        raise ValueError(f"limit is {limit}, expected 1 or more entries")
    parameters = {"journal_id": journal_id, **_seq(after_seq=after_seq), **_ints(limit=limit)}
    return Statement("journal_read", parameters, read_entries, is_repeatable=True)


def head(journal_id: str) -> Statement[int]:
    """The number of the last entry."""
    return Statement("journal_head", {"journal_id": journal_id}, read_value, is_repeatable=True)


def read_entries(rows: Sequence[Row]) -> tuple[Entry, ...]:
    """Entries from rows whose columns bear the names of the fields."""
    return tuple(_read_entry(row) for row in rows)


def _ints(**numbers: int | None) -> dict[str, object]:
    return whole_numbers(numbers, bits=BITS_OF_INT, refusal=InvalidEntryError)


def _seq(**numbers: int | None) -> dict[str, object]:
    return whole_numbers(numbers, bits=BITS_OF_BIGINT, refusal=InvalidEntryError)


def _read_entry(row: Row) -> Entry:
    values: Row = {**row, "kind": Kind(row["kind"]), "phase": Phase(row["phase"])}
    return Entry(**values)
