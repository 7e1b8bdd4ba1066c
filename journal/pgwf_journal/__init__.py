"""The journal: what happened, in order, for ever. It stores payloads and knows nothing of scheduling."""

from pgwf_journal._entry import (
    ENCODING_JSON,
    ENCODING_NONE,
    ENCODING_TAGGED_JSON,
    Entry,
    Kind,
    NewEntry,
    Phase,
    key_of,
)
from pgwf_journal._errors import (
    EntryImmutableError,
    InvalidEntryError,
    JournalConflictError,
    JournalError,
    JournalNotFoundError,
    JournalOwnedError,
)
from pgwf_journal._journal import AsyncJournal, Journal

__all__ = [
    "ENCODING_JSON",
    "ENCODING_NONE",
    "ENCODING_TAGGED_JSON",
    "AsyncJournal",
    "Entry",
    "EntryImmutableError",
    "InvalidEntryError",
    "Journal",
    "JournalConflictError",
    "JournalError",
    "JournalNotFoundError",
    "JournalOwnedError",
    "Kind",
    "NewEntry",
    "Phase",
    "key_of",
]
