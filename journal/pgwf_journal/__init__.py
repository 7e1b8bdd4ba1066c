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

__all__ = [
    "ENCODING_JSON",
    "ENCODING_NONE",
    "ENCODING_TAGGED_JSON",
    "Entry",
    "Kind",
    "NewEntry",
    "Phase",
    "key_of",
]
