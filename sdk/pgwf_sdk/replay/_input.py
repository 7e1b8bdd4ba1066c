"""The arguments of a run, from the first entry of its journal."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from pgwf_journal import Entry, Kind, NewEntry, Phase
from pgwf_sdk import _failure
from pgwf_sdk._errors import HistoryError, UndecodableError
from pgwf_sdk._sealing import SEALED, unopened
from pgwf_sdk.replay import _mismatch
from pgwf_sdk.replay._commands import Blocked, Cancelled

if TYPE_CHECKING:
    from pgwf_sdk._definition import Workflow
    from pgwf_sdk.replay._machine import Machine

__all__ = ["cancelled_unbegun", "decode_input"]


_CANCELLED_UNBEGUN: Final = [(Kind.CANCEL, Phase.COMPLETED), (Kind.RUN, Phase.CANCELLED)]


def cancelled_unbegun(run_id: str, request: Entry | NewEntry) -> Cancelled:
    """How a run ends that is asked to cancel before any of its code has run."""
    return Cancelled(_failure.describe(_mismatch.cancel_error(run_id, request)))


def decode_input(
    workflow: Workflow[..., Any], machine: Machine
) -> tuple[tuple[Any, ...], dict[str, Any]] | Blocked | Cancelled:
    """Return (args, kwargs), or how the run ends without any of its code: its input does not fit the workflow, or it
    was cancelled before it began. HistoryError: the journal has no first entry."""
    entries = machine.history.entries
    if not entries or entries[0].seq != 1 or entries[0].kind != Kind.RUN:
        raise HistoryError(
            f"run {machine.run.run_id}: its journal begins with {entries[0].key if entries else 'nothing'};"
            " expected the entry that opened the run, at seq 1",
            expected_seq=1,
            found_seq=entries[0].seq if entries else 0,
        )
    if [(entry.kind, entry.phase) for entry in entries[1:]] == _CANCELLED_UNBEGUN:
        return cancelled_unbegun(machine.run.run_id, entries[1])
    try:
        if entries[0].encoding == SEALED:
            raise unopened(entries[0].payload or b"", "the input cannot be read")
        return workflow.decode_call(entries[0].payload or b"{}")
    except UndecodableError as error:
        return Blocked(_mismatch.undecodable(machine, entries[0], error))
