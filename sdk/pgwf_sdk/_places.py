"""Where a sealed value stands: what it is bound to, as far as its writer and its reader both know it.

A run's copies (its retry, its fork) take entries over as they are, so the run itself is no part of it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from pgwf_journal import Entry, Kind, Phase
from pgwf_sdk._sealing import SEALED

if TYPE_CHECKING:
    from pgwf_sdk._sealing import Sealing


def opened_entry(sealing: Sealing, entry: Entry) -> Entry:
    """An entry with its payload in clear. SealedError: it cannot be opened."""
    if entry.encoding != SEALED:
        return entry
    place = entry_place(entry.kind, entry.phase, entry.name, entry.key)
    payload, encoding = sealing.open(entry.payload, entry.encoding, place)
    return msgspec.structs.replace(entry, payload=payload, encoding=encoding)


def entry_place(kind: int, phase: int, name: str, key: str) -> str:
    """Of an entry of a journal."""
    if kind != Kind.RUN:
        return f"entry {key}"
    return input_place(name) if phase in (Phase.OPENED, Phase.CONTINUED) else end_place()


def input_place(workflow: str) -> str:
    """Of what a run is started with."""
    return f"input of {workflow}"


def end_place() -> str:
    """Of what a run returns, or of its error: in its own journal, and on its way to the run that waits for it."""
    return "end of a run"


def signal_place(name: str) -> str:
    """Of a signal."""
    return f"signal {name}"


def awakeable_place() -> str:
    """Of what an awakeable is settled with: who has its token does not know which call it is."""
    return "awakeable"


def subject_place(task_id: str) -> str:
    """Of what a person looks at."""
    return f"subject of task {task_id}"


def prefill_place(task_id: str) -> str:
    """Of a proposed decision."""
    return f"prefill of task {task_id}"


def decision_place(task_id: str) -> str:
    """Of what a person decided."""
    return f"decision of task {task_id}"


def attempt_place(key: str) -> str:
    """Of why an attempt of a step failed, and of what it reported last."""
    return f"attempt of {key}"
