"""Rows for the workers of a run: who held it when, where it changed hands, and how much was replayed each
time.
"""

from collections.abc import Sequence
from datetime import datetime

from pgwf_sdk._wording import count_words
from pgwf_sdk.ops._rows import Activation
from pgwf_sdk.ops._timeline_calls import Facts
from pgwf_sdk.ops._timeline_rows import Look, RowState, Segment, TimelineRow

WORKER_ROWS_MAX = 6
"""More workers than this share one row: who they were is in `pgwf show --journal`."""

_UNKNOWN_WORKER = "worker unknown"


def worker_rows(facts: Facts) -> list[TimelineRow]:
    """One row per worker in the order they first took the run; more than `WORKER_ROWS_MAX` are one row
    together.
    """
    by_worker: dict[str, list[Activation]] = {}
    for activation in sorted(facts.activations, key=lambda activation: activation.lease_no):
        by_worker.setdefault(activation.worker_id or _UNKNOWN_WORKER, []).append(activation)
    if len(by_worker) > WORKER_ROWS_MAX:
        everyone = [activation for activations in by_worker.values() for activation in activations]
        return [_row(count_words(len(by_worker), "worker"), everyone, facts)]
    return [_row(worker, activations, facts) for worker, activations in by_worker.items()]


def _row(label: str, activations: Sequence[Activation], facts: Facts) -> TimelineRow:
    segments = [segment for activation in activations for segment in _segments(activation, facts)]
    replayed = [_replayed_count(activation, facts) for activation in activations]
    replays = [count for count in replayed if count]
    lapsed = sum(activation.ended_by == "lease_lapsed" for activation in activations)
    notes: list[str] = []
    if lapsed:
        notes.append("lost its lease" if lapsed == 1 else f"lost its lease {lapsed} times")
    if len(activations) > 1:
        notes.append(count_words(len(activations), "lease"))
    if replays:
        notes.append(f"replayed {count_words(sum(replays), 'entry')}")
    if any(activation.ended_at is None for activation in activations):
        notes.append("holds it now")
    return TimelineRow(
        depth=1,
        kind="worker",
        name=label,
        title=label,
        label=label,
        state=RowState.FAILED if lapsed else RowState.COMPLETED,
        segments=tuple(segments),
        note=", ".join(notes),
    )


def _segments(activation: Activation, facts: Facts) -> list[Segment]:
    end: datetime = activation.ended_at or facts.ended_at
    lease = Segment(activation.started_at, max(end, activation.started_at), Look.LEASE)
    if not _replayed_count(activation, facts):
        return [lease]
    return [lease, Segment(activation.started_at, activation.started_at, Look.REPLAY)]


def _replayed_count(activation: Activation, facts: Facts) -> int:
    """How many entries were there, beyond the start of the run, when the lease began."""
    return sum(entry.recorded_at < activation.started_at for entry in facts.entries if entry.seq > 1)
