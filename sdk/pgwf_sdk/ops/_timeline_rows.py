"""Rows and segments: the vocabulary of a timeline, free of how it is drawn."""

from datetime import datetime
from enum import StrEnum

from msgspec import Struct

from pgwf_sdk.ops._rows import RunSummary


class Look(StrEnum):
    """What went on during a segment; whoever draws it picks the pattern."""

    SPAN = "span"  # the run as a whole, from its start to its end
    LEASE = "lease"  # a worker held the run
    REPLAY = "replay"  # a worker took the run over and read its journal again
    RUN = "run"  # a step was executed
    FAILED = "failed"  # a step was executed in vain
    CANCELLED = "cancelled"  # a step was stopped because nobody wanted its result any more, or a run was asked to stop
    QUEUED = "queued"  # ready, and nobody had it
    SLEEP = "sleep"  # a timer
    WAIT = "wait"  # for a signal, an awakeable or a person who has not taken the task
    HUMAN = "human"  # a person decides
    CHILD = "child"  # a child run
    MANY = "many"  # several equal rows at once: drawn by how many overlap


BUSY_LOOKS = frozenset({Look.RUN, Look.FAILED, Look.CANCELLED, Look.LEASE})
"""Somebody worked, perhaps on a step that was cut off: such time is never folded away. Runs that wait have no lease."""


class RowState(StrEnum):
    """How far the call of a row has come."""

    OPEN = "open"
    COMPLETED = "completed"
    FAILED = "failed"
    TIMED_OUT = "timed_out"
    CANCELLED = "cancelled"


class Segment(Struct, frozen=True):
    """A stretch of one row. `start == end` is a moment."""

    start: datetime
    end: datetime
    look: Look

    @property
    def seconds(self) -> float:
        """Its length."""
        return (self.end - self.start).total_seconds()


class TimelineRow(Struct, frozen=True, kw_only=True):
    """One line. `kind` is a journal kind, `run`, `worker` or `running`, which is what a worker does now and nothing is
    recorded of; rows folded into one have a `count` above 1.

    `title` says what the row is, `label` which one of its like.

    `group` is the key of the `parallel` or `map` call whose branches the row lies in, '' for the workflow's
    own body.
    """

    depth: int
    group: str = ""
    kind: str
    name: str
    title: str
    label: str
    state: RowState
    segments: tuple[Segment, ...]
    note: str
    count: int = 1

    @property
    def seconds(self) -> float:
        """From when somebody had it to its end, 0 for a row without segments."""
        worked = [segment for segment in self.segments if segment.look is not Look.QUEUED]
        if not worked:
            return 0.0
        return (max(s.end for s in worked) - min(s.start for s in worked)).total_seconds()


class Timeline(Struct, frozen=True, kw_only=True):
    """A run as rows, in the order to draw them: the run, its workers, then its calls as they were made.

    `ended_at` is the end of the run, or the database's time of asking while it is alive.
    """

    run: RunSummary
    started_at: datetime
    ended_at: datetime
    rows: tuple[TimelineRow, ...]
    entry_count: int
    entries_shown: int
