"""Journals read whole, to be replayed by new code before it is deployed. Everything here only reads."""

import json
import re
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from msgspec import Struct

from pgwf_journal import Entry
from pgwf_sdk._definition import Workflow
from pgwf_sdk._errors import RunNotFoundError
from pgwf_sdk.ops._failures import failure_of
from pgwf_sdk.ops._source import Connection, Source, borrowed, unsealed
from pgwf_sdk.ops._statements import history_statement, sources_statement
from pgwf_sdk.replay import Blocked, Failed, RecordedRun, report_without_place, seqs_of, try_replay, with_sources
from pgwf_sdk.replay import Source as CodeSource
from pgwf_sql.database import Statement, execute, read_nothing

_PAGE_RUNS = 100
_PAGE_ENTRIES = 10_000
DIFFERENCES_MAX = 100
"""Differences that a check keeps; runs that differ otherwise are only counted."""
RUN_IDS_MAX = 100
"""Runs that one difference names."""
_BRANCH = re.compile(r"\[\d+\]")


class Difference(Struct, kw_only=True):
    """What new code does differently in `run_count` runs; `report` is that of the first, `run_ids` names some.

    `is_blocked_already`: the runs are blocked at that very place now, by the code that is deployed.
    """

    workflow: str
    report: dict[str, Any]
    run_ids: list[str]
    run_count: int
    is_blocked_already: bool = False


class Check(Struct, kw_only=True):
    """How new code gets on with recorded runs: how many there were, and the differences, those of most runs first.

    `differing_count` runs would be blocked or fail for the new code; `blocked_count` more are blocked already, and stay
    so where they are. The differences of these come last.
    """

    run_count: int = 0
    entry_count: int = 0
    differing_count: int = 0
    blocked_count: int = 0
    differences: list[Difference] = []

    def add(
        self, recorded: RecordedRun, report: dict[str, Any] | None, *, blocked_by: dict[str, Any] | None = None
    ) -> None:
        """Count a run, and what it differs in; `blocked_by` is the report that it is blocked with, if it is."""
        self.run_count += 1
        self.entry_count += len(recorded.entries)
        if report is None:
            return
        is_blocked_already = blocked_by is not None and _place(blocked_by) == _place(report)
        if is_blocked_already:
            self.blocked_count += 1
        else:
            self.differing_count += 1
        trait = (recorded.workflow, is_blocked_already, *_trait(report))
        for known in self.differences:
            if (known.workflow, known.is_blocked_already, *_trait(known.report)) == trait:
                known.run_count += 1
                if len(known.run_ids) < RUN_IDS_MAX:
                    known.run_ids.append(recorded.run_id)
                return
        if len(self.differences) < DIFFERENCES_MAX:
            self.differences.append(
                Difference(
                    workflow=recorded.workflow,
                    report=report,
                    run_ids=[recorded.run_id],
                    run_count=1,
                    is_blocked_already=is_blocked_already,
                )
            )


def recorded_run(source: Source, run_id: str) -> RecordedRun:
    """A run with its whole journal and where its entries were recorded. RunNotFoundError if there is none.

    Payloads that the source's client can open are in clear. SealedError: it lacks the key of one.
    """
    with _reading(source) as connection:
        found = execute(connection, _heads("ops_recorded_run", {"run_id": run_id}))
        if not found:
            raise RunNotFoundError(f"no run {run_id!r}; `pgwf list` shows which there are")
        entries = _entries(source, connection, run_id)
        sources = execute(connection, sources_statement(found[0].n, [entry.seq for entry in entries]))
        return _recorded(found[0], entries, sources)


def check_runs(
    source: Source, workflows: Iterable[Workflow[..., Any]], *, is_finished_too: bool = False, limit: int | None = None
) -> Check:
    """Replay the journals of the workflows' runs, the newest first, at most `limit`, by the code given here.

    Nothing is leased, written or executed; one journal is held at a time. Runs that are over are left out unless asked
    for. SealedError: a journal is sealed with a key that the source does not have.
    """
    check = Check()
    by_name = {workflow.name: workflow for workflow in workflows}
    for head, connection in _heads_of(source, list(by_name), is_finished_too=is_finished_too, limit=limit):
        recorded = _recorded(head, _entries(source, connection, head.run_id), {})
        if not recorded.entries:
            continue  # Retention has removed it just now.
        report = difference(by_name[head.workflow], recorded)
        if report is not None:
            report = with_sources(report, execute(connection, sources_statement(head.n, seqs_of(report))))
        blocked_by = json.loads(head.blocked_report or "null")
        check.add(recorded, report, blocked_by=blocked_by)
    check.differences.sort(key=lambda found: (found.is_blocked_already, -found.run_count))
    return check


def difference(workflow: Workflow[..., Any], recorded: RecordedRun) -> dict[str, Any] | None:
    """The report on the first difference between the code and a journal, or on an error that would end an open run.

    None when the code follows the journal to its end. SealedError: the journal was read without its key.
    """
    recorded.check_readable()
    match try_replay(workflow, recorded.info, recorded.entries).outcome:
        case Blocked(report=report):
            return with_sources(report, recorded.sources)
        case Failed(payload=payload) if recorded.ending is None:
            failure = failure_of(payload.decode())
            return report_without_place(
                "would_fail",
                run_id=recorded.run_id,
                workflow=recorded.workflow,
                hint="the code raises an error where the journal ends, so the run would fail",
                detail="" if failure is None else f"{failure.line()}\n{failure.traceback}".rstrip(),
                fixes=["mend the code, unless these runs are to fail"],
            )
        case _:
            return None


class _Head(Struct, frozen=True):
    n: int
    run_id: str
    workflow: str
    seed: int
    blocked_report: str | None = None


def _heads_of(
    source: Source, workflows: Sequence[str], *, is_finished_too: bool, limit: int | None
) -> Iterator[tuple[_Head, Connection]]:
    query = "ops_recorded_runs" if is_finished_too else "ops_open_runs"
    before: int | None = None
    left = limit
    while left is None or left > 0:
        rows = _PAGE_RUNS if left is None else min(left, _PAGE_RUNS)
        with _reading(source) as connection:
            page = execute(connection, _heads(query, {"workflows": workflows, "before": before, "limit": rows}))
        for head in page:
            with _reading(source) as connection:
                yield head, connection
        if len(page) < rows:
            return
        before = page[-1].n
        left = None if left is None else left - rows


@contextmanager
def _reading(source: Source) -> Generator[Connection]:
    """A transaction in which PostgreSQL itself refuses to write."""
    with borrowed(source) as connection, connection.transaction():
        execute(connection, Statement("ops_only_reads", {}, read_nothing))
        yield connection


def _heads(query: str, parameters: dict[str, object]) -> Statement[list[_Head]]:
    return Statement(query, parameters, lambda rows: [_Head(**row) for row in rows])


def _entries(source: Source, connection: Connection, run_id: str) -> list[Entry]:
    entries: list[Entry] = []
    while True:
        statement = history_statement(run_id, after_seq=len(entries), limit=_PAGE_ENTRIES)
        page = execute(connection, unsealed(source, statement))
        entries += page
        if len(page) < _PAGE_ENTRIES:
            return entries


def _recorded(head: _Head, entries: Sequence[Entry], sources: dict[int, CodeSource]) -> RecordedRun:
    return RecordedRun(
        run_id=head.run_id,
        workflow=head.workflow,
        seed=head.seed,
        entries=tuple(entries),
        sources=sources,
    )


def _trait(report: dict[str, Any]) -> tuple[Any, ...]:
    expected, actual = report["expected"], report["actual"]
    keys = [_BRANCH.sub("[…]", side["key"]) if side else None for side in (expected, actual)]
    return report["class"], *keys, actual and actual["source"]


def _place(report: dict[str, Any]) -> tuple[Any, ...]:
    """Where a report finds its run stopped: two that say it of one run agree in that, whatever they find there."""
    expected = report.get("expected")
    return (expected["seq"],) if expected else (report.get("class"), report.get("position"))
