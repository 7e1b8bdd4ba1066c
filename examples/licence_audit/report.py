"""Write the audit's result as Markdown for people and as JSON for programs."""

from __future__ import annotations

import os
import re
import tempfile
from collections import Counter
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from examples.licence_audit import review
from examples.licence_audit.catalogue import Category
from examples.licence_audit.verdict import Finding, Severity, Status, Verdict

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

SCHEMA = "pgwf.licence-audit/1"
NAMED_PER_ACTION_MAX = 40

_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069]+")
_MARKDOWN = re.compile(r"([\\`*_\[\]<>|#~])")


class Review(msgspec.Struct, frozen=True):
    """Who decided what, when."""

    by: str
    at: datetime
    rulings: tuple[review.Ruled, ...]


class Counts(msgspec.Struct, frozen=True):
    distributions: int
    by_category: dict[Category, int]
    by_status: dict[Status, int]


class Report(msgspec.Struct, frozen=True):
    """The JSON document; a change that is no mere addition gets another schema name."""

    schema: str
    run_id: str
    folder: str
    audited_at: datetime
    counts: Counts
    review: Review | None  # None when nothing needed a decision.
    remarks: tuple[str, ...]
    distributions: tuple[Verdict, ...]


class Written(msgspec.Struct, frozen=True):
    markdown: str
    json: str


def build(
    *,
    run_id: str,
    folder: str,
    audited_at: datetime,
    verdicts: Iterable[Verdict],
    reviewed: Review | None,
    remarks: tuple[str, ...],
) -> Report:
    """Return the report in an order that depends on nothing but its content."""
    ordered = sorted(verdicts, key=lambda verdict: (verdict.name.lower(), verdict.version, verdict.path))
    categories = Counter(verdict.category for verdict in ordered)
    statuses = Counter(verdict.status for verdict in ordered)
    counts = Counts(
        distributions=len(ordered),
        by_category={category: categories[category] for category in Category if categories[category]},
        by_status={status: statuses[status] for status in Status if statuses[status]},
    )
    return Report(SCHEMA, run_id, folder, audited_at, counts, reviewed, remarks, tuple(ordered))


def write(report: Report, folder: str) -> Written:
    """Write report.md and report.json into `folder` and return their paths; each file appears whole or not at all."""
    target = Path(folder)
    target.mkdir(parents=True, exist_ok=True)
    document = msgspec.json.format(msgspec.json.encode(report), indent=2) + b"\n"
    paths = {"report.json": document, "report.md": markdown(report).encode()}
    for name, content in paths.items():
        _replace(target / name, content)
    return Written(markdown=str(target / "report.md"), json=str(target / "report.json"))


def _replace(path: Path, content: bytes) -> None:
    """Put `content` in place of the file at once; on the disk before it bears the name, as a crash may follow."""
    for leftover in path.parent.glob(f".{path.name}.*.tmp"):  # Of a process that was killed while it wrote.
        leftover.unlink(missing_ok=True)
    descriptor, temporary = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".tmp", dir=path.parent)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, 0o644)
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
    if os.name == "posix":
        directory = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)


def markdown(report: Report) -> str:
    """Return the report for people: what to do first, then the decisions, then each distribution."""
    parts = [
        _summary(report),
        _what_to_do(report),
        _decisions(report),
        _distributions(report),
        _details(report),
        _method(),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _summary(report: Report) -> str:
    counts = report.counts
    lines = [
        "# Licence audit",
        "",
        f"Folder {_plain(report.folder)}, {counts.distributions} distributions, audited "
        f"{report.audited_at:%Y-%m-%d %H:%M} UTC, run {_plain(report.run_id)}.",
        "",
        "| licence asks | distributions |",
        "| --- | ---: |",
        *(f"| {category} | {count} |" for category, count in counts.by_category.items()),
        "",
        "| declaration and licence text | distributions |",
        "| --- | ---: |",
        *(f"| {status} | {count} |" for status, count in counts.by_status.items()),
    ]
    if report.remarks:
        lines += ["", "**This audit may be incomplete:**", "", *(f"- {_plain(remark)}" for remark in report.remarks)]
    return "\n".join(lines)


def _what_to_do(report: Report) -> str:
    lines = ["## What to do", ""]
    for heading, ruling in (("Rejected: replace or leave out", "reject"), ("Still to be decided", "later")):
        ruled = [ruled for ruled in _rulings(report) if ruled.ruling == ruling]
        if ruled:
            named = "; ".join(f"{_plain(each.distribution)} ({_plain(each.note)})" for each in ruled)
            lines.append(f"- **{heading}:** {named}")
    for finding, labels in _by_action(report):
        shown = ", ".join(_plain(name) for name in labels[:NAMED_PER_ACTION_MAX])
        more = f" and {len(labels) - NAMED_PER_ACTION_MAX} more" if len(labels) > NAMED_PER_ACTION_MAX else ""
        lines.append(f"- **{finding.severity}, {finding.code}:** {finding.action} ({shown}{more})")
    if len(lines) == 2:
        lines.append("Nothing: every distribution carries the text of the permissive licence it declares.")
    return "\n".join(lines)


def _by_action(report: Report) -> Iterator[tuple[Finding, list[str]]]:
    """Return the findings that ask for something, those with one severity and action together, worst first."""
    labels = _labels(report)
    grouped: dict[tuple[str, str], tuple[Finding, list[str]]] = {}
    for verdict, label in zip(report.distributions, labels, strict=True):
        for finding in verdict.findings:
            if finding.severity is Severity.INFO:
                continue
            _, names = grouped.setdefault((finding.severity, finding.action), (finding, []))
            if label not in names:
                names.append(label)
    order = list(Severity)
    yield from sorted(
        grouped.values(), key=lambda group: (order.index(group[0].severity), group[0].code, group[0].action)
    )


def _decisions(report: Report) -> str:
    if report.review is None:
        return "## Decisions\n\nNothing needed one."
    reviewed = report.review
    lines = [
        "## Decisions",
        "",
        f"By {_plain(reviewed.by)}, {reviewed.at:%Y-%m-%d %H:%M:%S} UTC.",
        "",
        "| distribution | decision | note |",
        "| --- | --- | --- |",
        *(f"| {_plain(each.distribution)} | {each.ruling} | {_plain(each.note)} |" for each in reviewed.rulings),
    ]
    return "\n".join(lines)


def _distributions(report: Report) -> str:
    ruled = {each.distribution: each.ruling for each in _rulings(report)}
    lines = [
        "## Distributions",
        "",
        "| distribution | licence | asks | declaration and text | worst finding | decision |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for verdict, label in zip(report.distributions, _labels(report), strict=True):
        worst = verdict.findings[0].severity if verdict.findings else ""
        cells = (label, verdict.licence, verdict.category, verdict.status, worst, ruled.get(label, ""))
        lines.append("| " + " | ".join(_plain(cell) for cell in cells) + " |")
    return "\n".join(lines)


def _details(report: Report) -> str:
    """Return the findings of each distribution that has any, with the licence files they rest on."""
    sections: list[str] = []
    for verdict, label in zip(report.distributions, _labels(report), strict=True):
        if not verdict.findings:
            continue
        declared = f"{verdict.declared} ({verdict.declared_in})" if verdict.declared_in else "nothing"
        lines = [f"### {_plain(label)}", "", f"In {_plain(verdict.path)}; declares {_plain(declared)}.", ""]
        lines += [
            f"- {finding.severity}, {finding.code}: {_plain(finding.message)}. {_plain(finding.action)}"
            for finding in verdict.findings
        ]
        for text in verdict.evidence:
            recognised = _plain(", ".join(text.licences) or "not recognised")
            lines.append(f"- text {_plain(text.path)}: {recognised} (SHA-256 {text.sha256[:12]}…)")
        sections.append("\n".join(lines))
    return "\n\n".join(["## Findings", *sections]) if sections else ""


def _method() -> str:
    return (
        "## How this was found\n\n"
        "Declarations come from METADATA or PKG-INFO; texts from licence files in the metadata directory and those "
        "RECORD lists. Texts were compared word by word with known licences, ignoring what the SPDX matching "
        "guidelines ignore. Categories are a rule of thumb, not legal advice; source files and what they say in "
        "their headers were not read."
    )


def _rulings(report: Report) -> tuple[review.Ruled, ...]:
    return report.review.rulings if report.review else ()


def _labels(report: Report) -> list[str]:
    copies = Counter(verdict.key for verdict in report.distributions)
    return [review.label(verdict, copies[verdict.key] > 1) for verdict in report.distributions]


def _plain(text: str) -> str:
    """Return text that Markdown shows as it is: metadata is somebody else's and may hold anything."""
    return _MARKDOWN.sub(r"\\\1", _CONTROL.sub(" ", text)).strip()
