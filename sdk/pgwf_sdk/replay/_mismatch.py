"""Reports on journals that the present code cannot follow: what differs, and where. Their words stand in `_report`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec

from pgwf_journal import Kind, key_of
from pgwf_sdk import _failure
from pgwf_sdk._errors import RunCancelled, SealedError
from pgwf_sdk._serial import codec_for
from pgwf_sdk.replay._places import line_of_error, line_of_function
from pgwf_sdk.replay._report import DOCS, finished, fixes_for

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pgwf_journal import Entry, NewEntry
    from pgwf_sdk.replay._calls import PendingCall
    from pgwf_sdk.replay._machine import Machine
    from pgwf_sdk.replay._places import Line

MATCHED_SHOWN: Final = 5
NEXT_SHOWN: Final = 3
WAITING_SHOWN: Final = 5

no_codec: Final = codec_for(None)

_SAID: Final = {
    "inserted_or_renamed": "the code makes a call here that the journal does not have anywhere",
    "inserted": "the code makes a call here that the journal does not have, and the recorded ones after it",
    "out_of_order": "the journal has this call of the code only later on: a call was inserted here, or a recorded one"
    " was removed or moved",
    "kind_changed": "the same name is now called in another way",
    "not_reached": "the journal goes on with a call that the code has not made when it can get no further",
    "returned_early": "the code has returned, and the journal goes on",
    "raised_early": "the code has raised an error, and the journal goes on",
    "undecodable": "what is stored does not fit the type that the code has for it",
    "sealed": "what is stored is sealed, and was not opened for the code",
    "stalled": "the code waits for something that no call of the context will ever bring about",
}


def different_call(machine: Machine, call: PendingCall, recorded: Entry) -> dict[str, Any]:
    """The code makes another call at this position than the journal has, and perhaps more calls by now."""
    scope = call.scope
    later = sorted(ordinal for ordinal in scope.recorded if ordinal > call.ordinal)
    again = next((ordinal for ordinal in later if _is_of(scope.recorded[ordinal], call)), None)
    if again is not None:
        made = [scope.open.get(ordinal + 1) for ordinal in range(call.ordinal, again + 1)]
        was = [scope.recorded.get(ordinal) for ordinal in range(call.ordinal, again + 1)]
        is_moved = all(one and entry and _is_of(entry, one) for one, entry in zip(made, was, strict=True))
        found = "inserted" if is_moved else "out_of_order"
    elif recorded.name == call.name and recorded.kind != call.kind:
        found = "kind_changed"
    else:
        found = "inserted_or_renamed"
    return _report(machine, found, scope=scope.path, position=call.ordinal, expected=recorded, actual=_call(call))


def _is_of(entry: Entry, call: PendingCall) -> bool:
    return (entry.kind, entry.name) == (call.kind, call.name)


def call_not_made(machine: Machine, entry: Entry, waiting: Sequence[PendingCall]) -> dict[str, Any]:
    """The next entry is of a call that the code has not made, and no code can run."""
    shown = sorted(waiting, key=lambda call: (call.scope.path, call.ordinal))[:WAITING_SHOWN]
    stands_at = sorted({_place(line) for line in machine.stands_at()})[:WAITING_SHOWN]
    actual = _call(shown[0]) if shown else None
    if actual is not None and actual["source"] is None and len(stands_at) == 1:
        actual["source"] = stands_at[0]
    return _report(
        machine,
        "not_reached",
        scope=entry.scope,
        position=entry.call,
        expected=entry,
        actual=actual,
        waiting=[call.id.key for call in shown],
        stands_at=stands_at,
    )


def ended_early(machine: Machine, entry: Entry, error: BaseException | None) -> dict[str, Any]:
    """The workflow returned or raised although the journal has further calls."""
    line = line_of_function(machine.fn) if error is None else line_of_error(error)
    return _report(
        machine,
        "returned_early" if error is None else "raised_early",
        scope=entry.scope,
        position=entry.call,
        expected=entry,
        actual=None,
        ended_at=None if line is None else _place(line),
        detail="" if error is None else _failure.line_of(error),
    )


def undecodable(machine: Machine, entry: Entry, error: Exception, call: PendingCall | None = None) -> dict[str, Any]:
    """A payload does not fit the annotation it is decoded by, or nobody has opened it."""
    found = "sealed" if isinstance(error, SealedError) else "undecodable"
    # What passed the token of a promise on must run again: nobody knows the token of the fork.
    opened = call.opened if call is not None and call.kind == Kind.AWAKEABLE else None
    actual = None if call is None else _call(call)
    lines = [] if call is None else [_place(line) for line in machine.stands_at()]
    if actual is not None and len(lines) == 1:
        actual["source"] = lines[0]
    return _report(
        machine,
        found,
        scope=entry.scope,
        position=entry.call,
        expected=entry,
        actual=actual,
        detail=str(error),
        fork_before=None if opened is None else str(opened.seq),
    )


def stalled(machine: Machine) -> dict[str, Any]:
    """The workflow waits for a future or lock of its own that nothing will ever set."""
    return _report(
        machine,
        "stalled",
        scope="",
        position=machine.root.calls,
        expected=None,
        actual=None,
        stands_at=sorted({_place(line) for line in machine.stands_at()})[:WAITING_SHOWN],
    )


def cancel_error(run_id: str, entry: Entry | NewEntry) -> RunCancelled:
    """Return what a cancel request raises in the workflow."""
    try:
        asked = _cancels.decode(entry.payload or b"{}")
    except msgspec.MsgspecError:
        asked = _Cancel()
    by = f" by {asked.by}" if asked.by else ""
    reason = f": {asked.reason}" if asked.reason else ""
    return RunCancelled(f"run {run_id} was cancelled{by}{reason}", by=asked.by, reason=asked.reason)


class _Cancel(msgspec.Struct):
    by: str | None = None
    reason: str | None = None


_cancels = msgspec.json.Decoder(_Cancel)


def _report(
    machine: Machine,
    found: str,
    *,
    scope: str,
    position: int,
    expected: Entry | None,
    actual: dict[str, Any] | None,
    waiting: Sequence[str] = (),
    stands_at: Sequence[str] = (),
    ended_at: str | None = None,
    detail: str = "",
    fork_before: str | None = None,
) -> dict[str, Any]:
    recorded = sorted(machine.history.calls_in(scope).items())
    before = [entry for ordinal, entry in recorded if ordinal < position]
    after = [entry for ordinal, entry in recorded if ordinal > position]
    run = machine.run
    shown = None if expected is None else _entry(expected)
    return finished(
        {
            "class": found,
            "run_id": run.run_id,
            "workflow": run.workflow,
            "build": None,
            "scope": scope or "/",
            "position": position,
            "expected": shown,
            "actual": actual,
            "waiting": list(waiting),
            "stands_at": list(stands_at),
            "ended_at": ended_at,
            "last_matched": [_entry(entry) for entry in before[-MATCHED_SHOWN:]],
            "next_recorded": [_entry(entry) for entry in after[:NEXT_SHOWN]],
            "hint": _SAID[found],
            "detail": detail,
            "fixes": fixes_for(
                found,
                shown,
                actual,
                run_id=run.run_id,
                is_awaited=machine.is_awaited,
                before=fork_before or (expected.key if expected else None),
            ),
            "docs": DOCS,
        }
    )


def _entry(entry: Entry) -> dict[str, Any]:
    return {
        "seq": entry.seq,
        "call": entry.call,
        "key": entry.key,
        "kind": entry.kind.label,
        "name": entry.name,
        "recorded_at": entry.recorded_at.isoformat(timespec="seconds"),
        "lease_no": entry.lease_no,
        "source": None,
        "build": None,
    }


def _call(call: PendingCall) -> dict[str, Any]:
    return {
        "key": key_of(call.scope.path, call.kind, call.name, call.occurrence),
        "call": call.ordinal,
        "kind": call.kind.label,
        "name": call.name,
        "source": None if call.code is None else _place(call.code),
    }


def _place(line: Line) -> str:
    return f"{line[0]}:{line[1]}"
