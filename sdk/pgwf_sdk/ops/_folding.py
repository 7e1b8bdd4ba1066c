"""Many equal rows as one: `audit_one x 57, p50 0.1 s` says more than 57 lines."""

from collections.abc import Sequence

from pgwf_sdk._wording import duration_words
from pgwf_sdk.ops._timeline_rows import Look, RowState, Segment, TimelineRow

FOLD_ROWS_MIN = 6
"""Fewer equal rows than this are drawn one by one."""
OUTLIERS_MAX = 3
"""So many of the slowest rows are drawn on their own when they took far longer than the rest."""
_OUTLIER_FACTOR = 5.0

_Set = tuple[str, str, str, RowState]


def fold_equal_rows(rows: Sequence[TimelineRow]) -> list[TimelineRow]:
    """The rows with every large set of equal ones (same group, kind, name and state) folded into its first
    place.

    The slowest few stay on their own when they took more than five times the median: they are why the set
    took long.
    """
    members: dict[_Set, list[TimelineRow]] = {}
    for row in rows:
        members.setdefault(_set_of(row), []).append(row)
    apart = {id(row) for found in members.values() if len(found) >= FOLD_ROWS_MIN for row in _outliers(found)}
    folded: list[TimelineRow] = []
    done: set[_Set] = set()
    for row in rows:
        found = members[_set_of(row)]
        if len(found) < FOLD_ROWS_MIN or id(row) in apart:
            folded.append(row)
        elif _set_of(row) not in done:
            done.add(_set_of(row))
            folded.append(_one_row([member for member in found if id(member) not in apart]))
    return folded


def _set_of(row: TimelineRow) -> _Set:
    return (row.group, row.kind, row.name, row.state)


def _outliers(rows: Sequence[TimelineRow]) -> list[TimelineRow]:
    limit = _OUTLIER_FACTOR * _quantile(rows, 0.5)
    slow = sorted((row for row in rows if row.seconds > limit), key=lambda row: row.seconds, reverse=True)
    return slow[:OUTLIERS_MAX] if limit > 0 else []


def _one_row(rows: Sequence[TimelineRow]) -> TimelineRow:
    first = rows[0]
    median, slowest = _quantile(rows, 0.5), max(row.seconds for row in rows)
    note = f"p50 {duration_words(median)}, max {duration_words(slowest)}"
    if first.state is not RowState.COMPLETED:
        note = f"{first.state.value.replace('_', ' ')}, {note}"
    return TimelineRow(
        depth=first.depth,
        group=first.group,
        kind=first.kind,
        name=first.name,
        label=f"{first.title} \N{MULTIPLICATION SIGN} {len(rows)}",
        title=first.title,
        state=first.state,
        segments=tuple(Segment(segment.start, segment.end, Look.MANY) for row in rows for segment in row.segments),
        note=note,
        count=len(rows),
    )


def _quantile(rows: Sequence[TimelineRow], share: float) -> float:
    seconds = sorted(row.seconds for row in rows)
    return seconds[min(len(seconds) - 1, int(share * len(seconds)))]
