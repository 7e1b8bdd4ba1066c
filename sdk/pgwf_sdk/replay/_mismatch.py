"""Reports on journals that the present code cannot follow: what differs, where, and what to do about it.

A report is a dict that can be stored as JSON. Its `text` is made from the other fields, so people and programs see the
same. Recorded source lines are numbers in the journal; whoever can look them up calls `with_sources`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec

from pgwf_journal import key_of
from pgwf_sdk._errors import RunCancelled
from pgwf_sdk._serial import codec_for

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pgwf_journal import Entry
    from pgwf_sdk.replay._calls import PendingCall
    from pgwf_sdk.replay._machine import Machine

__all__ = ["with_sources"]

MATCHED_SHOWN: Final = 5
NEXT_SHOWN: Final = 3
WAITING_SHOWN: Final = 5
DOCS: Final = "docs/sdk-guide.md#determinism"

no_codec: Final = codec_for(None)

_SAID: Final = {
    "inserted_or_renamed": "the code makes a call here that the journal does not have anywhere",
    "removed_or_reordered": "the journal has this call of the code later on, so a recorded call was removed or moved",
    "kind_changed": "the same name is now called in another way",
    "not_reached": "the journal goes on with a call that the code has not made when it can get no further",
    "ended_early": "the code has ended, and the journal goes on",
    "undecodable": "what is stored does not fit the type it is to become",
    "stalled": "the code waits for something that no call of the context will ever bring about",
}


def different_call(machine: Machine, call: PendingCall, recorded: Entry) -> dict[str, Any]:
    """The code makes another call at this position than the journal has."""
    scope = call.scope
    later = [entry for ordinal, entry in scope.recorded.items() if ordinal > call.ordinal]
    if any((entry.kind, entry.name) == (call.kind, call.name) for entry in later):
        found = "removed_or_reordered"
    elif recorded.name == call.name and recorded.kind != call.kind:
        found = "kind_changed"
    else:
        found = "inserted_or_renamed"
    return _report(
        machine,
        found,
        scope=scope.path,
        position=call.ordinal,
        expected=recorded,
        actual=call,
        fixes=_fixes(found, call.name, recorded.name),
    )


def call_not_made(machine: Machine, entry: Entry, waiting: Sequence[PendingCall]) -> dict[str, Any]:
    """The next entry is of a call that the code has not made, and no code can run."""
    shown = sorted(waiting, key=lambda call: (call.scope.path, call.ordinal))[:WAITING_SHOWN]
    return _report(
        machine,
        "not_reached",
        scope=entry.scope,
        position=entry.call,
        expected=entry,
        actual=shown[0] if shown else None,
        waiting=[call.id.key for call in shown],
        fixes=_fixes("not_reached", shown[0].name if shown else "", entry.name),
    )


def ended_early(machine: Machine, entry: Entry) -> dict[str, Any]:
    """The workflow returned or raised although the journal has further calls."""
    return _report(
        machine,
        "ended_early",
        scope=entry.scope,
        position=entry.call,
        expected=entry,
        actual=None,
        fixes=_fixes("ended_early", "", entry.name),
    )


def undecodable(machine: Machine, entry: Entry, error: Exception) -> dict[str, Any]:
    """A payload does not fit the annotation it is decoded by."""
    return _report(
        machine,
        "undecodable",
        scope=entry.scope,
        position=entry.call,
        expected=entry,
        actual=None,
        detail=str(error),
        fixes=["deploy a type that accepts the stored payload (new fields need defaults), then resume the run"],
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
        fixes=[
            "await only what a ctx call returned, or tasks that do; move other waiting (network, threads, queues) into"
            " a step, deploy, and resume the run"
        ],
    )


def cancel_error(run_id: str, entry: Entry) -> RunCancelled:
    """Return what a cancel request raises in the workflow."""
    try:
        asked = _cancels.decode(entry.payload or b"{}")
    except msgspec.MsgspecError:
        asked = _Cancel()
    by = f" by {asked.by}" if asked.by else ""
    reason = f": {asked.reason}" if asked.reason else ""
    return RunCancelled(f"run {run_id} was cancelled{by}{reason}", by=asked.by, reason=asked.reason)


def with_sources(report: dict[str, Any], sources: Mapping[int, tuple[str, int]]) -> dict[str, Any]:
    """Return the report with recorded source numbers looked up in `sources`, and its text made anew."""

    def located(entry: dict[str, Any]) -> dict[str, Any]:
        source = sources.get(entry.get("code") or 0)
        return {**entry, "source": f"{source[0]}:{source[1]}"} if source else entry

    filled = dict(report)
    for field in ("last_matched", "next_recorded"):
        filled[field] = [located(entry) for entry in report[field]]
    if report["expected"] is not None:
        filled["expected"] = located(report["expected"])
    filled["text"] = _text(filled)
    return filled


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
    actual: PendingCall | None,
    fixes: list[str],
    waiting: Sequence[str] = (),
    detail: str = "",
) -> dict[str, Any]:
    recorded = sorted(machine.history.calls_in(scope).items())
    before = [entry for ordinal, entry in recorded if ordinal < position]
    after = [entry for ordinal, entry in recorded if ordinal > position]
    report: dict[str, Any] = {
        "class": found,
        "run_id": machine.run.run_id,
        "workflow": machine.run.workflow,
        "scope": scope or "/",
        "position": position,
        "expected": None if expected is None else _entry(expected),
        "actual": None if actual is None else _call(actual),
        "waiting": list(waiting),
        "last_matched": [_entry(entry) for entry in before[-MATCHED_SHOWN:]],
        "next_recorded": [_entry(entry) for entry in after[:NEXT_SHOWN]],
        "hint": _SAID[found],
        "detail": detail,
        "fixes": fixes,
        "docs": DOCS,
    }
    report["text"] = _text(report)
    return report


def _entry(entry: Entry) -> dict[str, Any]:
    return {
        "seq": entry.seq,
        "call": entry.call,
        "key": entry.key,
        "kind": entry.kind.label,
        "name": entry.name,
        "recorded_at": entry.recorded_at.isoformat(timespec="seconds"),
        "lease_no": entry.lease_no,
        "code": entry.code,
        "source": None,
    }


def _call(call: PendingCall) -> dict[str, Any]:
    return {
        "key": key_of(call.scope.path, call.kind, call.name, call.occurrence),
        "call": call.ordinal,
        "kind": call.kind.label,
        "name": call.name,
        "source": None if call.code is None else f"{call.code[0]}:{call.code[1]}",
    }


def _fixes(found: str, name: str, recorded: str) -> list[str]:
    resume = "or deploy the code this run was started with, and resume the run"
    match found:
        case "inserted_or_renamed":
            return [
                f'if the call is new, guard it: if ctx.patched("add-{name}"): …',
                f'if it was renamed, keep the recorded name: .options(name="{recorded}")',
                resume,
            ]
        case "removed_or_reordered" | "not_reached" | "ended_early":
            return [
                f"keep the recorded call of {recorded!r} where it was for runs that made it: if not ctx.patched("
                f'"drop-{recorded}"): …',
                resume,
            ]
        case _:
            return [f'keep the recorded kind for runs that made it: if not ctx.patched("change-{recorded}"): …', resume]


def _text(report: dict[str, Any]) -> str:
    lines = [f"run {report['run_id']} (workflow {report['workflow']!r}) cannot go on with this code: {report['hint']}"]
    expected, actual = report["expected"], report["actual"]
    if expected is not None or actual is not None:
        lines.append(f"  scope {report['scope']}, position {report['position']}")
        width = max((len(entry["key"]) for entry in (*report["last_matched"], expected) if entry), default=0)
        lines += [_line(" ", entry, "=", width, entry["key"]) for entry in report["last_matched"]]
        has = "nothing" if actual is None else actual["key"]
        here = f"  {actual['source']}" if actual and actual["source"] else ""
        if expected is not None:
            lines.append(_line(">", expected, "≠", width, f"{has}{here}  <- first difference"))
        lines += [_line(" ", entry, " ", width, "") for entry in report["next_recorded"]]
    if report["waiting"]:
        lines.append(f"  the code waits for {', '.join(report['waiting'])}")
    if report["detail"]:
        lines.append(f"  {report['detail']}")
    lines += [f"  fix: {fix}" for fix in report["fixes"]]
    lines.append("  The run is untouched and blocked; `pgwf resume` tries it again.")
    return "\n".join(lines)


def _line(mark: str, entry: dict[str, Any], sign: str, width: int, code: str) -> str:
    source = f" ({entry['source']})" if entry["source"] else ""
    return f"  {mark} {entry['call']:>4}  {entry['key']:<{width}}{source}  {sign} {code}".rstrip()
