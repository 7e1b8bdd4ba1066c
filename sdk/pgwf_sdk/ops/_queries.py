"""The questions of the query layer, asked: over a client's connection, or inside the caller's transaction."""

from collections.abc import Iterator, Sequence
from datetime import datetime

from pgwf_sdk._errors import InvalidArgumentError, RunNotFoundError, TaskNotFoundError
from pgwf_sdk.ops import _statements
from pgwf_sdk.ops._filters import RunFilter
from pgwf_sdk.ops._rows import (
    Attempt,
    Ending,
    JournalEntry,
    KeySummary,
    NeedSummary,
    OpenCall,
    RunPage,
    RunSummary,
    TaskSummary,
    WorkerSummary,
)
from pgwf_sdk.ops._source import Connection, Source, borrowed, run, unsealed
from pgwf_sdk.ops._timeline import build_timeline
from pgwf_sdk.ops._timeline_calls import Facts
from pgwf_sdk.ops._timeline_rows import Timeline
from pgwf_sdk.ops._why import NAMED_CALLS_MAX, ChildOutlook, Situation, why_sentence
from pgwf_sql.database import execute

ID_PREFIX_CHARACTERS_MIN = 6
"""A shorter beginning of an id is not taken for the id: what is unique today may not be tomorrow."""

OPEN_TASK_STATES = ("open", "claimed")
"""States of a human task that nobody has decided."""

TIMELINE_ENTRIES_MAX = 5000
"""A timeline is drawn from the first so many entries."""

_JOURNAL_PAGE_ROWS = 1000
_CHILDREN_MAX = 1000
_OPEN_CALLS_MAX = 1000


def get_run(source: Source, run_id: str) -> RunSummary:
    """The run with this id, or the only one whose id begins with it (6 characters at least). RunNotFoundError
    if none.
    """
    with borrowed(source) as connection:
        return _run(connection, run_id)


def get_ending(source: Source, run_id: str) -> Ending:
    """How far the live end of the chain that the run with exactly this id belongs to is, and the JSON of its result or
    error once it is over.
    """
    with borrowed(source) as connection:
        _run(connection, run_id)
        ending = execute(connection, unsealed(source, _statements.ending_statement(run_id)))
        if ending is None:
            raise RunNotFoundError(f"run {run_id!r} was removed by retention just now")
        return ending


def list_runs(
    source: Source, filter_: RunFilter | None = None, /, *, before: int | None = None, limit: int = 50
) -> RunPage:
    """Runs that pass the filter, newest first, at most `limit` (up to 1000); `before` is a page's
    `next_before`.
    """
    return run(source, _statements.runs_statement(filter_ or RunFilter(), before=before, limit=limit))


def list_children(source: Source, run_id: str, *, limit: int = 100) -> tuple[RunSummary, ...]:
    """The runs that this run started, oldest first."""
    with borrowed(source) as connection:
        parent = _run(connection, run_id)
        return execute(connection, _statements.children_statement(parent.n, limit=limit))


def read_journal(
    source: Source, run_id: str, *, after_seq: int = 0, limit: int | None = None
) -> Iterator[JournalEntry]:
    """The journal of a run from `after_seq` on, in order, at most `limit` entries; read page by page as it is
    consumed.
    """
    with borrowed(source) as connection:
        n = _run(connection, run_id).n
        yield from _journal(connection, n, after_seq=after_seq, limit=limit, source=source)


def timeline(source: Source, run_id: str, *, fold: bool = True) -> Timeline:
    """What to draw for a run; with `fold`, six or more equal calls become one row."""
    with borrowed(source) as connection:
        summary = _run(connection, run_id)
        facts = Facts(
            run=summary,
            entries=tuple(_journal(connection, summary.n, after_seq=0, limit=TIMELINE_ENTRIES_MAX)),
            activations=execute(connection, _statements.activations_statement(summary.n)),
            children=execute(connection, _statements.children_statement(summary.n, limit=_CHILDREN_MAX)),
            tasks=_tasks_of_run(connection, summary.n, None),
            attempts=_attempts(source, connection, summary),
            asked_at=execute(connection, _statements.now_statement()),
        )
    return build_timeline(facts, fold=fold)


def why_not_running(source: Source, run_id: str) -> str:
    """A sentence or two: what the run waits for, since when, who could take it, and what to do about it."""
    with borrowed(source) as connection:
        summary = _run(connection, run_id)
        around = execute(connection, _statements.circumstances_statement(summary.n))
        if around is None:
            raise RunNotFoundError(f"run {run_id!r} was removed by retention just now")
        open_calls = execute(connection, _statements.open_calls_statement(summary.n, limit=_OPEN_CALLS_MAX))
        return why_sentence(
            Situation(
                run=summary,
                around=around,
                open_calls=open_calls,
                open_tasks=_tasks_of_run(connection, summary.n, OPEN_TASK_STATES),
                children=_children_of_calls(connection, summary.n, open_calls),
                attempts=_attempts(source, connection, summary) if summary.attempts else (),
                error=_error(source, connection, summary) if summary.status == "failed" else None,
            )
        )


def _error(source: Source, connection: Connection, summary: RunSummary) -> str | None:
    ending = execute(connection, unsealed(source, _statements.ending_statement(summary.run_id)))
    return None if ending is None or ending.status != "failed" else ending.payload


def _attempts(source: Source, connection: Connection, summary: RunSummary) -> tuple[Attempt, ...]:
    return execute(connection, unsealed(source, _statements.attempts_statement(summary.n)))


def unoffered_need(source: Source, run_id: str) -> str | None:
    """What the run is ready for and no live worker offers; None when a worker will come, or none is needed now."""
    with borrowed(source) as connection:
        summary = _run(connection, run_id)
        if summary.status != "ready":
            return None
        around = execute(connection, _statements.circumstances_statement(summary.n))
    return (summary.current_need or summary.need) if around is not None and around.live_workers == 0 else None


def list_tasks(
    source: Source,
    *,
    states: Sequence[str] | None = OPEN_TASK_STATES,
    need: str | None = None,
    holder: str | None = None,
    is_overdue: bool = False,
    limit: int = 50,
) -> tuple[TaskSummary, ...]:
    """Human tasks, the one due first on top; by default those nobody has decided. `states` None means all."""
    statement = _statements.tasks_statement(
        states=states, need=need, holder=holder, is_overdue=is_overdue, run_n=None, limit=limit
    )
    return run(source, statement)


def get_task(source: Source, task_id: str) -> TaskSummary:
    """The human task with this id, or the only one whose id begins with it. TaskNotFoundError if there is
    none.
    """
    found = run(source, _statements.tasks_by_prefix_statement(task_id))
    exact = [task for task in found if task.task_id == task_id]
    if exact:
        return exact[0]
    if len(found) == 1 and len(task_id) >= ID_PREFIX_CHARACTERS_MIN:
        return found[0]
    if len(found) > 1:
        raise _ambiguous("task", task_id, [task.task_id for task in found])
    raise TaskNotFoundError(f"no human task {task_id!r}; `pgwf human list` shows the open ones")


def list_needs(source: Source, *, limit: int = 200) -> tuple[NeedSummary, ...]:
    """What is asked for and offered now, by name."""
    return run(source, _statements.needs_statement(limit=limit))


def list_keys(source: Source, *, limit: int = 200) -> tuple[KeySummary, ...]:
    """Singleton keys that are held, waited for or limited, by name."""
    return run(source, _statements.keys_statement(limit=limit))


def list_workers(source: Source, *, only_live: bool = False, limit: int = 200) -> tuple[WorkerSummary, ...]:
    """Workers that sent a heartbeat, the latest first; those of yesterday have been forgotten."""
    return run(source, _statements.workers_statement(only_live=only_live, limit=limit))


def now(source: Source) -> datetime:
    """The database's time, which deadlines and pauses count in."""
    return run(source, _statements.now_statement())


def _run(connection: Connection, run_id: str) -> RunSummary:
    found = execute(connection, _statements.run_statement(run_id))
    if found is None and len(run_id) >= ID_PREFIX_CHARACTERS_MIN:
        ids = execute(connection, _statements.run_ids_statement(run_id, limit=2))
        if len(ids) > 1:
            raise _ambiguous("run", run_id, ids)
        found = execute(connection, _statements.run_statement(ids[0])) if ids else None
    if found is None:
        raise RunNotFoundError(f"no run {run_id!r}; `pgwf list id:{run_id[:4]}*` shows those that begin alike")
    return found


def _children_of_calls(connection: Connection, n: int, calls: Sequence[OpenCall]) -> dict[str, ChildOutlook]:
    """Child runs of the calls, as many as a sentence has room for, by the call's key."""
    keys = [call.key for call in calls if call.kind == "child"]
    if not keys:
        return {}
    found: dict[str, ChildOutlook] = {}
    for child in execute(connection, _statements.children_statement(n, parent_keys=keys, limit=NAMED_CALLS_MAX)):
        around = execute(connection, _statements.circumstances_statement(child.n)) if child.status == "ready" else None
        live_workers = None if around is None else around.live_workers
        found[child.parent_key or ""] = ChildOutlook(run=child, live_workers=live_workers)
    return found


def _journal(
    connection: Connection, n: int, *, after_seq: int, limit: int | None, source: Source | None = None
) -> Iterator[JournalEntry]:
    left = limit
    while left is None or left > 0:
        rows = _JOURNAL_PAGE_ROWS if left is None else min(left, _JOURNAL_PAGE_ROWS)
        statement = _statements.journal_statement(n, after_seq=after_seq, limit=rows)
        page = execute(connection, statement if source is None else unsealed(source, statement))
        yield from page
        if len(page) < rows:
            return
        after_seq = page[-1].seq
        left = None if left is None else left - rows


def _tasks_of_run(connection: Connection, n: int, states: Sequence[str] | None) -> tuple[TaskSummary, ...]:
    statement = _statements.tasks_statement(
        states=states, need=None, holder=None, is_overdue=False, run_n=n, limit=_OPEN_CALLS_MAX
    )
    return execute(connection, statement)


def _ambiguous(noun: str, prefix: str, ids: Sequence[str]) -> InvalidArgumentError:
    return InvalidArgumentError(
        f"{prefix!r} is the beginning of more than one {noun} id, such as {ids[0]!r} and {ids[1]!r}; give more of it"
    )
