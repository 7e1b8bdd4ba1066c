"""What the laws compare of a journal."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, TypeAlias

from pgwf_journal import Kind, Phase

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pgwf_journal import Entry

Scopes: TypeAlias = dict[str, list[tuple[int, str, int, bytes | None]]]


def by_scope(journal: Sequence[Entry]) -> Scopes:
    """What each scope did: its entries in the order of its calls. Opened entries are bookkeeping of waiting.

    So is the end of a timer or a wait for a signal that was given up: it is told when the run parks, if it does.
    What is undone at the end is undone in the order in which it was done over all scopes: only what it was is compared.
    """
    scopes: dict[str, list[tuple[int, str, int, bytes | None]]] = defaultdict(list)
    for entry in journal:
        is_given_up = entry.phase == Phase.CANCELLED and entry.kind in (Kind.TIMER, Kind.SIGNAL)
        if entry.call and entry.phase != Phase.OPENED and not is_given_up:
            is_undo = entry.kind == Kind.COMPENSATION
            call, key = (0, entry.name) if is_undo else (entry.call, entry.key)
            scopes["undone" if is_undo else entry.scope].append(
                (call, key, entry.phase, without_traceback(entry.payload))
            )
    return {scope: sorted(entries, key=repr) for scope, entries in scopes.items()}


def without_traceback(payload: bytes | None) -> bytes | None:
    """Tracebacks tell apart the two ways to write a workflow, and one activation from the next."""
    return payload and payload.partition(b'"traceback"')[0]


def booked(journal: Sequence[Entry]) -> int:
    """How many steps were done that have an undo."""
    return sum(entry.name == "book" and entry.phase == Phase.COMPLETED for entry in journal)


def taken_back(journal: Sequence[Entry]) -> int:
    """How many of them were undone, or could not be."""
    undone = [entry for entry in journal if entry.kind == Kind.COMPENSATION and entry.name == "take_back"]
    return sum(entry.phase != Phase.OPENED for entry in undone)
