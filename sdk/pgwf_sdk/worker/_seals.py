"""Seals what a worker says to the database, and opens what it hears."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

from pgwf_journal import Entry, Kind, NewEntry, Phase
from pgwf_sdk import _places
from pgwf_sdk._errors import SealedError
from pgwf_sdk._sealing import SEALED, Sealing
from pgwf_sdk.worker._openings import task_id_of

if TYPE_CHECKING:
    from pgwf_sdk.worker._advance import AttemptNote, Claim, InboxRow, Item, TaskClosing, TaskOpening
    from pgwf_sdk.worker._driver import Driver

_WITHOUT_KEYS = Sealing(compress_bytes_min=None)
"""What a worker without sealing opens with: it says which key is missing."""

_CLEAR_KINDS = frozenset((Kind.ATTRIBUTE, Kind.CANCEL, Kind.PATCH, Kind.HOP))  # Lists search for attributes.


def sealed(sealing: Sealing, item: Item) -> Item:
    """The item as it is sent; the one that the driver knows stays clear."""
    return msgspec.structs.replace(
        item,
        entries=[_sealed_entry(sealing, entry) for entry in item.entries],
        children=[
            child._replace(payload=payload, encoding=encoding)
            for child in item.children
            for payload, encoding in [sealing.seal(child.payload, child.encoding, _places.input_place(child.workflow))]
            if payload is not None
        ],
        tasks=[_sealed_task(sealing, task) for task in item.tasks],
        attempts=[_sealed_note(sealing, note) for note in item.attempts],
    )


def opened_claim(sealing: Sealing | None, claim: Claim) -> Claim:
    """The claim with its journal, inbox and attempts in clear. SealedError: something of it cannot be opened."""
    if not (claim.attempts or claim.inbox) and SEALED not in [entry.encoding for entry in claim.history]:
        return claim
    key_ring = sealing or _WITHOUT_KEYS
    attempts = {
        key: attempt._replace(heartbeat=key_ring.open_text(attempt.heartbeat, _places.attempt_place(key)))
        for key, attempt in claim.attempts.items()
    }
    return msgspec.structs.replace(
        claim,
        history=opened_entries(sealing, claim.history),
        inbox=_opened_inbox(key_ring, claim.run_id, claim.inbox),
        attempts=attempts,
    )


def opened_entries(sealing: Sealing | None, entries: Sequence[Entry]) -> list[Entry]:
    """Entries in clear. SealedError: one cannot be opened."""
    return [_places.opened_entry(sealing or _WITHOUT_KEYS, entry) for entry in entries]


def opened_for(sealing: Sealing | None, driver: Driver, rows: list[InboxRow]) -> list[InboxRow]:
    """Inbox rows in clear for the run of a driver, which gives it back if one cannot be opened."""
    try:
        return _opened_inbox(sealing or _WITHOUT_KEYS, driver.claim.run_id, rows)
    except SealedError as error:
        driver.broke(error)
        return []


def _opened_inbox(sealing: Sealing, run_id: str, rows: Sequence[InboxRow]) -> list[InboxRow]:
    """Inbox rows in clear. SealedError: one cannot be opened."""
    return [row if row.encoding != SEALED else _opened_row(sealing, run_id, row) for row in rows]


def _sealed_entry(sealing: Sealing, entry: NewEntry) -> NewEntry:
    if entry.payload is None or entry.kind in _CLEAR_KINDS:
        return entry
    if entry.phase is Phase.OPENED and entry.kind is not Kind.RUN:
        return entry  # When a wait ends, and nothing of the user's.
    place = _places.entry_place(entry.kind, entry.phase, entry.name, entry.key)
    payload, encoding = sealing.seal(entry.payload, entry.encoding, place)
    return msgspec.structs.replace(entry, payload=payload, encoding=encoding)


def _sealed_task(sealing: Sealing, task: TaskOpening | TaskClosing) -> TaskOpening | TaskClosing:
    if "close" in task:
        return task
    opening = task
    subject, encoding = sealing.seal(
        opening["subject"].encode(), opening["encoding"], _places.subject_place(opening["task_id"])
    )
    return {
        **opening,
        "subject": (subject or b"null").decode(),
        "encoding": encoding,
        "prefill": sealing.seal_text(opening["prefill"], _places.prefill_place(opening["task_id"])),
    }


def _sealed_note(sealing: Sealing, note: AttemptNote) -> AttemptNote:
    place = _places.attempt_place(note["key"])
    return {
        **note,
        "error": sealing.seal_text(note["error"], place),
        "heartbeat": sealing.seal_text(note["heartbeat"], place),
    }


def _opened_row(sealing: Sealing, run_id: str, row: InboxRow) -> InboxRow:
    match row.kind:
        case Kind.HUMAN:
            place = _places.decision_place(task_id_of(run_id, row.name))
            payload, encoding = sealing.open_decision(row.payload, row.encoding, place)
        case Kind.AWAKEABLE:
            payload, encoding = sealing.open(row.payload, row.encoding, _places.awakeable_place())
        case Kind.CHILD | Kind.ATTACH:
            payload, encoding = sealing.open(row.payload, row.encoding, _places.end_place())
        case _:
            payload, encoding = sealing.open(row.payload, row.encoding, _places.signal_place(row.name))
    return row._replace(payload=payload, encoding=encoding)
