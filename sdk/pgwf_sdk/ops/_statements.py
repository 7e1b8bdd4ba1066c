"""The questions of the query layer as values, without I/O: a synchronous caller and an asynchronous one share
them.
"""

from collections.abc import Sequence
from datetime import UTC, datetime

from pgwf_journal import Entry, Kind, Phase
from pgwf_sdk._kinds import check_kind, check_text
from pgwf_sdk.ops._filters import RunFilter
from pgwf_sdk.ops._rows import (
    Activation,
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
from pgwf_sdk.ops._source import read_all, read_first
from pgwf_sdk.ops._why import COUNT_MAX, Circumstances
from pgwf_sdk.replay import Source
from pgwf_sql.database import BITS_OF_BIGINT, Row, Statement, read_value, whole_numbers

PAGE_ROWS_MAX = 1000
"""Rows one answer has at most; ask again with the last one's position."""

WORKER_LIVE_SECONDS = 30.0
"""A worker whose heartbeat is older counts as gone."""


def run_statement(run_id: str, *, is_chain: bool = False) -> Statement[RunSummary | None]:
    """The run with exactly this id; with `is_chain` the live end of the chain it belongs to. TypeError: no text."""
    check_text(run_id, used="run_id", such_as="order-17")
    return Statement("ops_run", {"run_id": run_id, "is_chain": is_chain}, read_first(RunSummary), is_repeatable=True)


def ending_statement(run_id: str) -> Statement[Ending | None]:
    """How far a run is, and what it returned if it is over. TypeError: `run_id` is no text."""
    check_text(run_id, used="run_id", such_as="order-17")
    return Statement("ops_ending", {"run_id": run_id}, read_first(Ending), is_repeatable=True)


def run_ids_statement(prefix: str, *, limit: int) -> Statement[tuple[str, ...]]:
    """Ids of runs that begin with `prefix`, in order."""

    def read(rows: Sequence[Row]) -> tuple[str, ...]:
        return tuple(row["run_id"] for row in rows)

    return Statement("ops_run_ids", {"prefix": prefix, "limit": _limit(limit)}, read, is_repeatable=True)


def runs_statement(filter_: RunFilter, *, before: int | None, limit: int) -> Statement[RunPage]:
    """Runs that pass the filter, newest first; one more than asked for is read to know whether there is a
    next page.
    """

    def read(rows: Sequence[Row]) -> RunPage:
        runs = read_all(RunSummary)(rows[:limit])
        return RunPage(runs=runs, next_before=runs[-1].n if len(rows) > limit else None)

    # Completed runs are found among all runs, and what is asked for with them too; the rest has sources of its own.
    # So has an attribute: the first one leads, the others and the statuses are looked at in what it finds.
    is_led = bool(filter_.attributes)
    are_all = not is_led and (not filter_.statuses or "completed" in filter_.statuses)
    parameters = {
        **whole_numbers({"before": before}, bits=BITS_OF_BIGINT, refusal=ValueError),
        "limit": _limit(limit) + 1,
        "statuses": list(filter_.statuses) or None,
        "are_all": are_all,
        "rare": [] if are_all or is_led else list(filter_.statuses),
        "is_live": not (are_all or is_led) and not {"ready", "waiting"}.isdisjoint(filter_.statuses),
        "attribute_names": [name for name, _ in filter_.attributes] or None,
        "attribute_values": [value for _, value in filter_.attributes] or None,
        "not_statuses": list(filter_.not_statuses) or None,
        "workflows": list(filter_.workflows) or None,
        "not_workflows": list(filter_.not_workflows) or None,
        "needs": list(filter_.needs) or None,
        "not_needs": list(filter_.not_needs) or None,
        "workers": list(filter_.workers) or None,
        "builds": list(filter_.builds) or None,
        "id_prefix": filter_.id_prefix,
        "is_root": filter_.parent == "none" or (filter_.parent is None and filter_.root is None),
        "parent": None if filter_.parent in {None, "any", "none"} else filter_.parent,
        "root": filter_.root,
        "younger_than": filter_.younger_than,
        "older_than": filter_.older_than,
        "longer_than": filter_.longer_than,
        "shorter_than": filter_.shorter_than,
    }
    return Statement("ops_runs", parameters, read, is_repeatable=True)


def children_statement(
    n: int, *, parent_keys: Sequence[str] | None = None, limit: int
) -> Statement[tuple[RunSummary, ...]]:
    """The children of run number `n`, oldest first; with `parent_keys` only those that these calls started, at
    most `limit`, rather such as are not over."""
    parameters = {
        "n": n,
        "parent_keys": None if parent_keys is None else list(parent_keys),
        "limit": _limit(limit),
    }
    return Statement("ops_children", parameters, read_all(RunSummary), is_repeatable=True)


def journal_statement(n: int, *, after_seq: int, limit: int) -> Statement[tuple[JournalEntry, ...]]:
    """Entries of run number `n` after `after_seq`, in order."""
    parameters = {"n": n, "after_seq": after_seq, "limit": limit}
    return Statement("ops_journal", parameters, read_all(JournalEntry), is_repeatable=True)


def activations_statement(n: int) -> Statement[tuple[Activation, ...]]:
    """The leases of run number `n`, in order."""
    return Statement("ops_activations", {"n": n}, read_all(Activation), is_repeatable=True)


def attempts_statement(n: int) -> Statement[tuple[Attempt, ...]]:
    """Failed attempts of steps of run number `n` that are to be tried again."""
    return Statement("ops_attempts", {"n": n}, read_all(Attempt), is_repeatable=True)


def open_calls_statement(n: int, *, limit: int) -> Statement[tuple[OpenCall, ...]]:
    """Calls of run number `n` that were opened and have no outcome."""
    return Statement("ops_open_calls", {"n": n, "limit": _limit(limit)}, read_all(OpenCall), is_repeatable=True)


def circumstances_statement(n: int) -> Statement[Circumstances | None]:
    """What surrounds run number `n`."""
    parameters = {"n": n, "live_seconds": WORKER_LIVE_SECONDS, "count_max": COUNT_MAX}
    return Statement("ops_why", parameters, read_first(Circumstances), is_repeatable=True)


def tasks_statement(
    *,
    states: Sequence[str] | None,
    need: str | None,
    holder: str | None,
    is_overdue: bool,
    run_n: int | None,
    limit: int,
) -> Statement[tuple[TaskSummary, ...]]:
    """Human tasks, the one due first on top. None does not narrow."""
    parameters = {
        "states": None if states is None else list(states),
        "is_undecided": states is not None and {*states} <= {"open", "claimed"},
        "need": need,
        "holder": holder,
        "is_overdue": is_overdue,
        "run_n": run_n,
        "limit": _limit(limit),
    }
    return Statement("ops_tasks", parameters, read_all(TaskSummary), is_repeatable=True)


def tasks_by_prefix_statement(prefix: str) -> Statement[tuple[TaskSummary, ...]]:
    """Human tasks whose id begins with `prefix`, two at most: whether one is meant is then known."""
    return Statement("ops_task", {"prefix": prefix}, read_all(TaskSummary), is_repeatable=True)


def needs_statement(*, limit: int) -> Statement[tuple[NeedSummary, ...]]:
    """Needs that anybody asks for or offers, by name."""
    parameters = {"limit": _limit(limit), "live_seconds": WORKER_LIVE_SECONDS, "count_max": COUNT_MAX}
    return Statement("ops_needs", parameters, read_all(NeedSummary), is_repeatable=True)


def keys_statement(*, limit: int) -> Statement[tuple[KeySummary, ...]]:
    """Singleton keys that anybody holds, waits for or limited, by name."""
    return Statement(
        "ops_keys", {"limit": _limit(limit), "count_max": COUNT_MAX}, read_all(KeySummary), is_repeatable=True
    )


def workers_statement(*, only_live: bool, limit: int) -> Statement[tuple[WorkerSummary, ...]]:
    """Workers, the one heard of last on top."""
    parameters = {"only_live": only_live, "limit": _limit(limit), "live_seconds": WORKER_LIVE_SECONDS}
    return Statement("ops_workers", parameters, read_all(WorkerSummary), is_repeatable=True)


def history_statement(run_id: str, *, after_seq: int, limit: int) -> Statement[list[Entry]]:
    """Entries of a run after `after_seq`, in order, as a replay takes them."""

    def entry(row: Row) -> Entry:
        kind, phase = Kind(row.pop("kind")), Phase(row.pop("phase"))
        return Entry(kind=kind, phase=phase, **row)

    parameters = {"run_id": run_id, "after_seq": after_seq, "limit": limit}
    return Statement("sdk_history", parameters, lambda rows: [entry(row) for row in rows], is_repeatable=True)


def sources_statement(n: int, seqs: Sequence[int]) -> Statement[dict[int, Source]]:
    """Where in the code entries of run number `n` were recorded, by their numbers; without those not known."""

    def read(rows: Sequence[Row]) -> dict[int, Source]:
        return {row["seq"]: Source(row["build"], row["file"], row["line"]) for row in rows}

    return Statement("journal_sources", {"n": n, "seqs": list(seqs)}, read, is_repeatable=True)


def now_statement() -> Statement[datetime]:
    """The database's clock, the only one that counts."""

    def read(rows: Sequence[Row]) -> datetime:
        now: datetime = read_value(rows)
        return now.astimezone(UTC)

    return Statement("ops_now", {}, read, is_repeatable=True)


def _limit(limit: int) -> int:
    check_kind(limit, int, used="limit", expected=f"1 to {PAGE_ROWS_MAX}")
    if not 1 <= limit <= PAGE_ROWS_MAX:
        more = "; ask for the next page instead" if limit > PAGE_ROWS_MAX else ""
        raise ValueError(f"limit is {limit}, expected 1 to {PAGE_ROWS_MAX}{more}")
    return limit
