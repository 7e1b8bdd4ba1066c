"""The words of a report: the code that mends a difference, and the text that people read.

A report is a dict that can be stored as JSON. Its `text` is made from the other fields, so people and programs see the
same. The journal knows where and by which build an entry was recorded; whoever can read it calls `with_sources`.
"""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from pgwf_sdk._wording import instant_words, shell_word

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["Source", "finished", "fixes_for", "report_without_place", "seqs_of", "with_sources"]

DOCS: Final = "docs/sdk-guide.md#determinism"

_HOW_CALLED: Final = {
    "step": "ctx.step({name}, …)",
    "signal": 'ctx.wait_signal("{name}", …)',
    "awakeable": 'ctx.awakeable(…, name="{name}")',
    "child": "ctx.call({name}(…))",
    "attach": "ctx.attach(…, {name})",
    "human": 'ctx.human("{name}", …)',
    "value": "ctx.side_effect({name}, …)",
    "attribute": 'ctx.set_attribute("{name}", …)',
    "branch": "ctx.{name}(…)",
    "hop": 'ctx.hop("{name}")',
}
_SENT: Final = {
    "run": ("input", "start a run with the right one"),
    "signal": ("signal", "this makes a run that waits for it again"),
    "awakeable": (
        "value of this promise",
        "this makes a run that makes the promise anew and runs again what passed its token on",
    ),
    "human": ("decision", "this makes a run that asks again"),
}
"""What others say to a run: how it is called, and how they can say it again."""
_PERHAPS_NEW: Final = frozenset({"inserted", "inserted_or_renamed", "out_of_order"})
_OF_VALUES: Final = frozenset({"undecodable", "sealed"})
_NOT_AWAITED: Final = frozenset({"attribute", "awakeable"})


class Source(NamedTuple):
    """Where in the code an entry was recorded, and by which build ('' when its worker had none)."""

    build: str
    file: str
    line: int


def with_sources(report: dict[str, Any], sources: Mapping[int, Source], *, build: str | None = None) -> dict[str, Any]:
    """Return the report with the places of recorded entries, by their seq, and the build of the code that was tried."""

    def located(entry: dict[str, Any]) -> dict[str, Any]:
        source = sources.get(entry["seq"])
        if source is None:
            return entry
        return {**entry, "source": f"{source.file}:{source.line}", "build": source.build or None}

    filled = {**report, "build": build or report["build"]}
    for field in ("last_matched", "next_recorded"):
        filled[field] = [located(entry) for entry in report[field]]
    if report["expected"] is not None:
        filled["expected"] = located(report["expected"])
    return finished(filled)


def report_without_place(
    found: str, *, run_id: str, workflow: str, hint: str, detail: str, fixes: list[str]
) -> dict[str, Any]:
    """Return a report on a run as a whole."""
    return finished(
        {
            "class": found,
            "run_id": run_id,
            "workflow": workflow,
            "build": None,
            "scope": "/",
            "position": 0,
            "expected": None,
            "actual": None,
            "waiting": [],
            "stands_at": [],
            "ended_at": None,
            "last_matched": [],
            "next_recorded": [],
            "hint": hint,
            "detail": detail,
            "fixes": fixes,
            "docs": DOCS,
        }
    )


def seqs_of(report: dict[str, Any]) -> list[int]:
    """The numbers of the entries that a report shows."""
    shown = [*report["last_matched"], *report["next_recorded"]]
    return [entry["seq"] for entry in shown] + ([report["expected"]["seq"]] if report["expected"] else [])


def finished(report: dict[str, Any]) -> dict[str, Any]:
    """Return the report with its text made anew."""
    return {**report, "text": _text(report)}


def fixes_for(
    found: str,
    expected: dict[str, Any] | None,
    actual: dict[str, Any] | None,
    *,
    run_id: str,
    is_awaited: bool,
    before: str | None,
) -> list[str]:
    """What a person can do about a difference, the lines to write first. `before`: the entry to fork the run before."""
    if found == "undecodable":
        return _ways_out(expected, run_id, before)
    if found == "sealed":
        return [
            "give whoever reads it the key, with Sealing or PGWF_KEYS, and resume the run; the code is not at fault"
        ]
    if found == "stalled":
        return [
            "await only what a ctx call returned, or tasks that do; move other waiting (network, threads, queues) into"
            " a step, deploy, and resume the run"
        ]
    fixes = [] if expected is None else _guards(found, expected, actual, is_awaited=is_awaited)
    fixes.append("or deploy the code this run was started with, and resume the run")
    if expected is not None:
        fixes.append(_over_again(run_id, before))
    return fixes


def _over_again(run_id: str, before: str | None) -> str:
    return (
        "or do again what is recorded from there on, steps with new idempotency keys, in a new run (--price lists it):"
        f" pgwf fork {shell_word(run_id)} --before '{before}'. Then end this one: pgwf terminate {shell_word(run_id)}"
    )


def _ways_out(expected: dict[str, Any] | None, run_id: str, before: str | None) -> list[str]:
    """What helps a run that was given, or has recorded, what the code cannot read."""
    deploy = "deploy a type that accepts the stored payload (new fields need defaults), then resume the run"
    if expected is None:
        return [deploy]
    fork = f"pgwf fork {shell_word(run_id)} --before '{before}'"
    if expected["kind"] not in _SENT:
        return [deploy, _over_again(run_id, before)]
    what, again = _SENT[expected["kind"]]
    if expected["kind"] == "run":
        sent = f"if the {what} is wrong, end the run and {again}: pgwf terminate {shell_word(run_id)}"
    else:
        sent = f"if the {what} is wrong: {fork}; {again}. Then end this one: pgwf terminate {shell_word(run_id)}"
    return [sent, f"if the {what} is right: {deploy}"]


def _guards(found: str, expected: dict[str, Any], actual: dict[str, Any] | None, *, is_awaited: bool) -> list[str]:
    recorded = _called(expected, is_awaited=is_awaited)
    if found == "kind_changed" and actual is not None:
        return [
            "keep the recorded call for runs that made it:\n"
            f'if ctx.patched("change-{expected["name"]}"):\n    {_called(actual, is_awaited=is_awaited)}\n'
            f"else:\n    {recorded}"
        ]
    fixes: list[str] = []
    if found in _PERHAPS_NEW and actual is not None:
        new = _called(actual, is_awaited=is_awaited)
        fixes.append(f'if the call is new, guard it:\nif ctx.patched("add-{actual["name"]}"):\n    {new}')
    if found == "inserted":
        return fixes
    if found == "inserted_or_renamed" and actual is not None:
        if actual["kind"] == expected["kind"] == "step":
            fixes.append(f'if it was renamed, keep the recorded name: .options(name="{expected["name"]}")')
        elif actual["kind"] == expected["kind"]:
            fixes.append(f'if it was renamed, keep the recorded name: "{expected["name"]}"')
        return fixes
    unless = "if the recorded call was removed or moved, " if fixes else ""
    return [
        *fixes,
        f"{unless}keep the recorded call where it was for runs that made it:\n"
        f'if not ctx.patched("drop-{expected["name"]}"):\n    {recorded}',
    ]


def _called(call: dict[str, Any], *, is_awaited: bool) -> str:
    kind, name = call["kind"], call["name"]
    if kind == "timer":
        words = "asyncio.sleep(…)" if name == "asyncio" else "ctx.sleep(…)"
    elif kind in _HOW_CALLED:
        words = _HOW_CALLED[kind].format(name=name)
    else:
        return f"...  # what records {call['key']}"
    return f"await {words}" if is_awaited and kind not in _NOT_AWAITED else words


def _text(report: dict[str, Any]) -> str:
    expected, actual = report["expected"], report["actual"]
    with_build = f"build {report['build']}" if report["build"] else "this code"
    lines = [
        f"run {report['run_id']} (workflow {report['workflow']!r}) cannot go on with {with_build}: {report['hint']}"
    ]
    if expected is not None or actual is not None:
        lines.append(f"  {report['class']} at scope {report['scope']}, position {report['position']}")
        lines += _table(report)
        lines += _sides(expected, actual, report)
    if report["waiting"]:
        lines.append(f"  the code waits for {', '.join(report['waiting'])}")
    if report["stands_at"] and (actual is None or report["stands_at"] != [actual["source"]]):
        lines.append(f"  the code stands at {', '.join(report['stands_at'])}")
    if report["detail"]:
        lines.append(f"  {report['detail']}")
    for fix in report["fixes"]:
        first, *rest = fix.split("\n")
        lines += [f"  fix: {first}", *(f"         {line}" for line in rest)]
    lines.append("  The run is untouched and blocked; `pgwf resume` tries it again.")
    return "\n".join(lines)


def _table(report: dict[str, Any]) -> list[str]:
    expected, actual = report["expected"], report["actual"]
    width = max((len(entry["key"]) for entry in (*report["last_matched"], expected) if entry), default=0)
    lines = [_row(" ", entry, "=", width, entry["key"]) for entry in report["last_matched"]]
    if expected is not None:
        has = "nothing" if actual is None else actual["key"]
        here = f"  {actual['source']}" if actual and actual["source"] else ""
        if report["class"] in _OF_VALUES:
            lines.append(_row(">", expected, "", width, f"{here}  <- this value".strip()))
        else:
            lines.append(_row(">", expected, "≠", width, f"{has}{here}  <- first difference"))
    return lines + [_row(" ", entry, " ", width, "") for entry in report["next_recorded"]]


def _row(mark: str, entry: dict[str, Any], sign: str, width: int, code: str) -> str:
    source = f" ({entry['source']})" if entry["source"] else ""
    return f"  {mark} {entry['call']:>4}  {entry['key']:<{width}}{source}  {sign} {code}".rstrip()


def _sides(expected: dict[str, Any] | None, actual: dict[str, Any] | None, report: dict[str, Any]) -> list[str]:
    lines: list[str] = []
    if expected is not None:
        by = f" by build {expected['build']}" if expected["build"] else ""
        place = f" at {expected['source']}" if expected["source"] else ""
        when = instant_words(datetime.fromisoformat(expected["recorded_at"]))
        lines.append(f"  recorded:  {expected['key']}{place}{by}, {when}")
    if actual is not None and actual["source"]:
        lines.append(f"  this code: {actual['key']} at {actual['source']}")
    elif report["ended_at"]:
        lines.append(f"  this code: ended at {report['ended_at']}")
    return lines
