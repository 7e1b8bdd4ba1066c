"""A run as a timeline: its span, its workers, its calls."""

from pgwf_sdk._wording import duration_words
from pgwf_sdk.ops._folding import fold_equal_rows
from pgwf_sdk.ops._timeline_calls import Facts, call_rows
from pgwf_sdk.ops._timeline_rows import Look, RowState, Segment, Timeline, TimelineRow
from pgwf_sdk.ops._timeline_workers import worker_rows

_STATE_OF_STATUS = {
    "completed": RowState.COMPLETED,
    "continued": RowState.COMPLETED,
    "failed": RowState.FAILED,
}


def build_timeline(facts: Facts, *, fold: bool = True) -> Timeline:
    """The rows to draw for what is known about a run; with `fold`, large sets of equal rows become one row
    each.
    """
    calls = call_rows(facts)
    rows = [_run_row(facts), *worker_rows(facts), *(fold_equal_rows(calls) if fold else calls)]
    return Timeline(
        run=facts.run,
        started_at=facts.started_at,
        ended_at=facts.ended_at,
        rows=tuple(rows),
        entry_count=facts.run.entry_count,
        entries_shown=len(facts.entries),
    )


def _run_row(facts: Facts) -> TimelineRow:
    took = duration_words((facts.ended_at - facts.started_at).total_seconds())
    status = facts.run.status.replace("_", " ")
    return TimelineRow(
        depth=0,
        kind="run",
        name=facts.run.run_id,
        title=facts.run.run_id,
        label=facts.run.run_id,
        state=_STATE_OF_STATUS.get(facts.run.status, RowState.CANCELLED if facts.run.is_final else RowState.OPEN),
        segments=(Segment(facts.started_at, facts.ended_at, Look.SPAN),),
        note=f"{status} after {took}" if facts.run.is_final else f"{status}, since {took}",
    )
