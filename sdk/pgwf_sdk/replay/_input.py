"""The arguments of a run, from the first entry of its journal."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pgwf_journal import Kind
from pgwf_sdk._errors import HistoryError, UndecodableError
from pgwf_sdk.replay import _mismatch
from pgwf_sdk.replay._commands import Blocked

if TYPE_CHECKING:
    from pgwf_sdk._definition import Workflow
    from pgwf_sdk.replay._machine import Machine

__all__ = ["decode_input"]


def decode_input(workflow: Workflow[..., Any], machine: Machine) -> tuple[tuple[Any, ...], dict[str, Any]] | Blocked:
    """Return (args, kwargs), or why they do not fit the workflow. HistoryError: the journal has no first entry."""
    entries = machine.history.entries
    if not entries or entries[0].seq != 1 or entries[0].kind != Kind.RUN:
        raise HistoryError(
            f"run {machine.run.run_id}: its journal begins with {entries[0].key if entries else 'nothing'};"
            " expected the entry that opened the run, at seq 1",
            expected_seq=1,
            found_seq=entries[0].seq if entries else 0,
        )
    try:
        return workflow.decode_call(entries[0].payload or b"{}")
    except UndecodableError as error:
        return Blocked(_mismatch.undecodable(machine, entries[0], error))
