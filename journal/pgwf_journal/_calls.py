"""What the journal asks of the database, as values: no I/O, shared by the sync and the async client."""

from collections.abc import Sequence

from pgwf_journal._entry import Entry, Kind, NewEntry, Phase
from pgwf_sql.database import Row, Statement, read_value

READ_COUNT_MAX = 10_000
"""Entries one `read` gives at most, unless told otherwise."""


def open_journal(journal_id: str) -> Statement[int]:
    """Open a journal; opening it again changes nothing."""
    return Statement("journal_open", {"journal_id": journal_id}, read_value, is_repeatable=True)


def append(journal_id: str, entries: Sequence[NewEntry], *, expected_seq: int | None) -> Statement[int]:
    """Append entries, all or nothing. A repetition after a lost answer would only meet a conflict, so there is none."""
    parameters = {
        "journal_id": journal_id,
        "expected_seq": expected_seq,
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
    parameters = {"journal_id": journal_id, "after_seq": after_seq, "limit": limit}
    return Statement("journal_read", parameters, read_entries, is_repeatable=True)


def head(journal_id: str) -> Statement[int]:
    """The number of the last entry."""
    return Statement("journal_head", {"journal_id": journal_id}, read_value, is_repeatable=True)


def read_entries(rows: Sequence[Row]) -> tuple[Entry, ...]:
    """Entries from rows whose columns bear the names of the fields."""
    return tuple(_read_entry(row) for row in rows)


def _read_entry(row: Row) -> Entry:
    values: Row = {**row, "kind": Kind(row["kind"]), "phase": Phase(row["phase"])}
    return Entry(**values)
