"""Errors of the journal, by the SQLSTATE that schema pgwf_journal gives them."""

import msgspec
import psycopg

from pgwf_sql.database import message_of

__all__ = [
    "ERROR_BY_SQLSTATE",
    "EntryImmutableError",
    "InvalidEntryError",
    "JournalConflictError",
    "JournalError",
    "JournalNotFoundError",
    "JournalOwnedError",
]


class JournalError(Exception):
    """Root of the errors of a journal."""


class JournalConflictError(JournalError):
    """Somebody else appended first: read the entries after `expected_seq` and decide again.

    `actual_seq` is the journal's last entry, None when the database did not say.
    """

    def __init__(self, message: str, *, expected_seq: int | None = None, actual_seq: int | None = None) -> None:
        super().__init__(message)
        self.expected_seq = expected_seq
        self.actual_seq = actual_seq


class JournalNotFoundError(JournalError):
    """No journal with that id was opened."""


class JournalOwnedError(JournalError):
    """The journal belongs to a run: only the SDK's fenced call appends to it."""


class EntryImmutableError(JournalError):
    """Entries are never changed or removed; only retention drops whole journals."""


class InvalidEntryError(JournalError):
    """An argument was refused; the message says which, what it was and what is accepted."""


ERROR_BY_SQLSTATE: dict[str, type[JournalError]] = {
    "22003": InvalidEntryError,
    "22021": InvalidEntryError,
    "WJ001": JournalConflictError,
    "WJ002": JournalNotFoundError,
    "WJ003": JournalOwnedError,
    "WJ004": EntryImmutableError,
    "WJ005": InvalidEntryError,
}
"""The class of each error the functions of schema pgwf_journal raise; their header lists the same codes."""


class _Heads(msgspec.Struct):
    expected_seq: int
    actual_seq: int


def translate(error: psycopg.Error) -> Exception:
    """The journal's error for its SQLSTATE; any other database error as it is."""
    kind = ERROR_BY_SQLSTATE.get(error.sqlstate or "")
    if kind is None:
        return error
    if kind is JournalConflictError and error.diag.message_detail:
        heads = msgspec.json.decode(error.diag.message_detail, type=_Heads)
        return JournalConflictError(message_of(error), expected_seq=heads.expected_seq, actual_seq=heads.actual_seq)
    return kind(message_of(error))
