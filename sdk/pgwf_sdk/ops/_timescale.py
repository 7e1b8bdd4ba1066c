"""A time axis on which long idle gaps take no more room than their label.

Runs that wait for people or timers are idle 99.9 % of the time; at true scale their work is invisible. So where
a run was idle more than four times as long as somebody worked, its idle gaps are folded, longest first, until that
is no longer so. Gaps of less than ten seconds, or of less than a fiftieth of the run, are drawn as they are.
"""

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from datetime import datetime
from itertools import pairwise

from msgspec import Struct

from pgwf_sdk.ops._timeline_rows import BUSY_LOOKS, Look, Segment, Timeline

FOLD_SHARE_MAX = 0.5  # Folds take at most half of the axis, however many there are.
FOLDS_MAX = 8  # More would be a picture of folds.
_IDLE_RATIO_MAX = 4.0  # Work that takes a fifth of the axis can be seen.
_GAP_SECONDS_MIN = 10.0  # A run of seconds is looked at for its seconds.
_GAP_SHARE_MIN = 0.02  # Folding a smaller part of the whole would gain less than its mark takes.
_CHILD_WORK_SECONDS_MAX = 60.0  # A child that took longer probably waited itself; its parent's journal cannot tell.


class Fold(Struct, frozen=True):
    """An idle gap that is drawn short."""

    start: datetime
    end: datetime

    @property
    def seconds(self) -> float:
        """How long nothing happened."""
        return (self.end - self.start).total_seconds()


class TimeScale(Struct, frozen=True):
    """Places instants on an axis of `width` units. Made by `time_scale`."""

    width: float
    folds: tuple[Fold, ...]
    instants: tuple[datetime, ...]
    places: tuple[float, ...]

    def place(self, instant: datetime) -> float:
        """Where `instant` is, 0 to `width`; instants outside the axis are put at its nearer end."""
        right = bisect_right(self.instants, instant)
        if right == 0:
            return 0.0
        if right == len(self.instants):
            return self.places[-1]
        start, end = self.instants[right - 1], self.instants[right]
        share = (instant - start) / (end - start)
        return self.places[right - 1] + share * (self.places[right] - self.places[right - 1])


def time_scale(
    instants: Iterable[datetime],
    busy: Iterable[tuple[datetime, datetime]],
    *,
    width: float,
    fold_width: float,
) -> TimeScale:
    """The axis from the first to the last of `instants`, `width` units long.

    `busy` are the spans in which somebody worked: they are never folded. A fold takes `fold_width` units,
    less when there are so many that they would fill more than half of the axis.
    """
    points = sorted(set(instants))
    gaps = list(pairwise(points))
    folded = _gaps_to_fold(gaps, _merged(busy))
    if not gaps:
        return TimeScale(width, (), tuple(points), tuple(0.0 for _ in points))
    drawn_seconds = sum((b - a).total_seconds() for gap, (a, b) in enumerate(gaps) if gap not in folded)
    room_for_folds = width * (FOLD_SHARE_MAX if drawn_seconds else 1.0)
    fold_units = min(fold_width, room_for_folds / len(folded)) if drawn_seconds and folded else 0.0
    if folded and not drawn_seconds:
        fold_units = width / len(folded)
    units_per_second = (width - fold_units * len(folded)) / drawn_seconds if drawn_seconds else 0.0
    places = [0.0]
    for gap, (a, b) in enumerate(gaps):
        step = fold_units if gap in folded else (b - a).total_seconds() * units_per_second
        places.append(places[-1] + step)
    return TimeScale(width, tuple(Fold(*gaps[gap]) for gap in sorted(folded)), tuple(points), tuple(places))


def scale_of(timeline: Timeline, *, width: float, fold_width: float) -> TimeScale:
    """The axis for a timeline: from the start of the run to its end, or to now."""
    segments = [segment for row in timeline.rows for segment in row.segments]
    instants = [timeline.started_at, timeline.ended_at]
    instants += [instant for segment in segments for instant in (segment.start, segment.end)]
    busy = [(segment.start, segment.end) for segment in segments if _is_work(segment)]
    return time_scale(instants, busy, width=width, fold_width=fold_width)


def _is_work(segment: Segment) -> bool:
    if segment.look in {Look.CHILD, Look.MANY}:
        return segment.seconds <= _CHILD_WORK_SECONDS_MAX
    return segment.look in BUSY_LOOKS


def _gaps_to_fold(gaps: Sequence[tuple[datetime, datetime]], busy: Sequence[tuple[datetime, datetime]]) -> set[int]:
    busy_seconds = sum((end - start).total_seconds() for start, end in busy)
    idle = {
        gap: (end - start).total_seconds() for gap, (start, end) in enumerate(gaps) if not _overlaps(start, end, busy)
    }
    idle_seconds = sum(idle.values())
    folded: set[int] = set()
    run_seconds = sum((end - start).total_seconds() for start, end in gaps)
    gap_seconds_min = max(_GAP_SECONDS_MIN, _GAP_SHARE_MIN * run_seconds)
    for gap in sorted(idle, key=idle.__getitem__, reverse=True)[:FOLDS_MAX]:
        if idle_seconds <= _IDLE_RATIO_MAX * busy_seconds or idle[gap] < gap_seconds_min:
            break
        folded.add(gap)
        idle_seconds -= idle[gap]
    return folded


def _merged(spans: Iterable[tuple[datetime, datetime]]) -> list[tuple[datetime, datetime]]:
    merged: list[tuple[datetime, datetime]] = []
    for start, end in sorted(spans):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        elif end > start:
            merged.append((start, end))
    return merged


def _overlaps(start: datetime, end: datetime, busy: Sequence[tuple[datetime, datetime]]) -> bool:
    following = bisect_right(busy, start, key=lambda span: span[0])
    if following and busy[following - 1][1] > start:
        return True
    return following < len(busy) and busy[following][0] < end
