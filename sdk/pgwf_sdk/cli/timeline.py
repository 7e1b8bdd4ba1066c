"""Draws a run's timeline as text: one row per call, idle gaps folded, plain ASCII where that is all there is."""

from collections.abc import Iterable, Sequence
from datetime import datetime
from itertools import groupby
from types import MappingProxyType

from msgspec import Struct

from pgwf_sdk.cli._text import cells_of, fitted, printable, to_ascii
from pgwf_sdk.ops import (
    Look,
    RowState,
    Segment,
    Timeline,
    TimelineRow,
    count_words,
    duration_words,
    scale_of,
    short_duration_words,
)

WIDTH_MIN = 40
"""Narrower terminals get lines of this width all the same: less would show nothing."""
ROWS_MAX = 300
"""A drawing of more rows tells nobody anything; the journal has them all."""

_BAR_CELLS_MIN = 16
_BAR_CELLS_WANTED = 28
"""Notes longer than their share take what the bar can do without, up to `_NOTE_CELLS_WANTED`."""
_NOTE_CELLS_WANTED = 48
_LABEL_CELLS_MAX = 36
_FOLD_CELLS = 6.0


class _Glyphs(Struct, frozen=True, kw_only=True):
    looks: MappingProxyType[Look, str]
    levels: str  # from none to all of the rows that were folded into one
    edge: str
    fold: str


_UNICODE = _Glyphs(
    looks=MappingProxyType(
        {
            Look.SPAN: "─",
            Look.LEASE: "━",
            Look.REPLAY: "▚",
            Look.RUN: "█",
            Look.FAILED: "▒",
            Look.CANCELLED: "▧",
            Look.QUEUED: "·",
            Look.SLEEP: "░",
            Look.WAIT: "·",
            Look.HUMAN: "▓",
            Look.CHILD: "▄",
            Look.MANY: "▄",
        }
    ),
    levels=" ▁▂▃▄▅▆▇█",
    edge="│",
    fold="≈",
)
_ASCII = _Glyphs(
    looks=MappingProxyType(
        {
            Look.SPAN: "-",
            Look.LEASE: "=",
            Look.REPLAY: "/",
            Look.RUN: "#",
            Look.FAILED: "x",
            Look.CANCELLED: "%",
            Look.QUEUED: ".",
            Look.SLEEP: "~",
            Look.WAIT: ".",
            Look.HUMAN: "@",
            Look.CHILD: "o",
            Look.MANY: "*",
        }
    ),
    levels=" .:-=+*%#",
    edge="|",
    fold="^",
)
_COLOURS = MappingProxyType(
    {
        Look.LEASE: "34",
        Look.REPLAY: "35",
        Look.RUN: "32",
        Look.FAILED: "31",
        Look.CANCELLED: "33",
        Look.QUEUED: "2",
        Look.SLEEP: "2",
        Look.WAIT: "33",
        Look.HUMAN: "36",
        Look.CHILD: "32",
        Look.MANY: "32",
    }
)
_WORDS = MappingProxyType(
    {
        Look.LEASE: "leased",
        Look.REPLAY: "taken over, replayed",
        Look.RUN: "step",
        Look.FAILED: "failed",
        Look.CANCELLED: "cancelled",
        Look.QUEUED: "waiting",
        Look.SLEEP: "timer",
        Look.WAIT: "waiting",
        Look.HUMAN: "person",
        Look.CHILD: "child run",
        Look.MANY: "several at once",
    }
)
# What a fold mark may cover: looks during which nothing is computed.
_FOLDED_OVER = frozenset(
    {None, Look.SPAN, Look.LEASE, Look.QUEUED, Look.SLEEP, Look.WAIT, Look.HUMAN, Look.CHILD, Look.MANY}
)


class _Cell(Struct, frozen=True):
    glyph: str
    look: Look | None


def render_timeline(timeline: Timeline, *, width: int, ascii_only: bool = False, colour: bool = False) -> str:
    """The timeline as lines of at most `width` cells (at least 40), joined by line ends, without one at the
    end.
    """
    return _Drawing(timeline, max(width, WIDTH_MIN), _ASCII if ascii_only else _UNICODE, colour=colour).text()


class _Drawing:
    def __init__(self, timeline: Timeline, width: int, glyphs: _Glyphs, *, colour: bool) -> None:
        self._timeline = timeline
        self._width = width
        self._glyphs = glyphs
        self._colour = colour
        self._rows = timeline.rows[:ROWS_MAX]
        self._labels = [self._clean("  " * row.depth + row.label) for row in self._rows]
        self._notes = [self._clean(row.note) for row in self._rows]
        self._label_cells = min(max(map(cells_of, self._labels)), _LABEL_CELLS_MAX, width * 3 // 10)
        room = width - self._label_cells - 3
        share = max(room * 4 // 10, min(room - 1 - _BAR_CELLS_WANTED, _NOTE_CELLS_WANTED))
        self._note_cells = max(0, min(max(map(cells_of, self._notes)), share, room - _BAR_CELLS_MIN))
        self._bar_cells = room - self._note_cells - (1 if self._note_cells else 0)
        self._scale = scale_of(timeline, width=float(self._bar_cells), fold_width=_FOLD_CELLS)

    def text(self) -> str:
        lines = [self._ruler()]
        lines += [self._line(*parts) for parts in zip(self._rows, self._labels, self._notes, strict=True)]
        lines += self._footnotes()
        return "\n".join(line.rstrip() for line in lines)

    def _clean(self, text: str) -> str:
        cleaned = printable(text)
        return to_ascii(cleaned) if self._glyphs is _ASCII else cleaned

    def _line(self, row: TimelineRow, label: str, note: str) -> str:
        cells = self._many_cells(row) if row.count > 1 else self._bar(row.segments)
        label_text = fitted(label, self._label_cells, ascii_only=self._glyphs is _ASCII)
        note_text = fitted(note, self._note_cells, ascii_only=self._glyphs is _ASCII) if self._note_cells else ""
        if row.state in {RowState.FAILED, RowState.TIMED_OUT}:
            note_text = self._painted(note_text, "31")
        edge = self._glyphs.edge
        return f"{label_text} {edge}{self._painted_bar(self._with_folds(cells))}{edge} {note_text}"

    def _bar(self, segments: Iterable[Segment]) -> list[_Cell]:
        cells = [_Cell(" ", None)] * self._bar_cells
        for segment in segments:
            for place in self._places(segment):
                cells[place] = _Cell(self._glyphs.looks[segment.look], segment.look)
        return cells

    def _many_cells(self, row: TimelineRow) -> list[_Cell]:
        """Rows folded into one: the fuller a cell, the more of them were open at that time."""
        counts = [0] * self._bar_cells
        for segment in row.segments:
            for place in self._places(segment):
                counts[place] += 1
        highest = max(counts)
        top = len(self._glyphs.levels) - 1
        return [
            _Cell(self._glyphs.levels[-(-count * top // highest)], Look.MANY) if count else _Cell(" ", None)
            for count in counts
        ]

    def _places(self, segment: Segment) -> range:
        first = min(int(self._scale.place(segment.start)), self._bar_cells - 1)
        last = max(first + 1, round(self._scale.place(segment.end)))
        return range(first, min(last, self._bar_cells))

    def _with_folds(self, cells: list[_Cell]) -> list[_Cell]:
        marked = list(cells)
        for fold in self._scale.folds:
            place = self._fold_place(fold.start, fold.end)
            if marked[place].look in _FOLDED_OVER:
                marked[place] = _Cell(self._glyphs.fold, None)
        return marked

    def _ruler(self) -> str:
        """Where time starts, how much each fold hides, and how long what is drawn took: a retry or a fork begins with
        calls that are older than it is."""
        instants = self._scale.instants or (self._timeline.started_at,)
        took = duration_words((instants[-1] - instants[0]).total_seconds())
        cells = [" "] * self._bar_cells
        taken = [False] * self._bar_cells
        _write(cells, taken, "0", 0)
        _write(cells, taken, took, self._bar_cells - len(took))
        for fold in sorted(self._scale.folds, key=lambda fold: fold.seconds, reverse=True):
            place, words = self._fold_place(fold.start, fold.end), short_duration_words(fold.seconds)
            if not _write(cells, taken, f"{self._glyphs.fold}{words}", place):
                _write(cells, taken, f"{words}{self._glyphs.fold}", place - len(words))
        return " " * (self._label_cells + 2) + "".join(cells)

    def _fold_place(self, start: datetime, end: datetime) -> int:
        return min(int((self._scale.place(start) + self._scale.place(end)) / 2), self._bar_cells - 1)

    def _footnotes(self) -> list[str]:
        lines: list[str] = []
        if hidden := len(self._timeline.rows) - len(self._rows):
            lines.append(f"{count_words(hidden, 'more row')} not drawn; --journal shows every entry")
        if self._timeline.entries_shown < self._timeline.entry_count:
            lines.append(
                f"drawn from the first {self._timeline.entries_shown} of "
                f"{count_words(self._timeline.entry_count, 'entry')}; --journal shows the rest"
            )
        return [*lines, *self._key()]

    def _key(self) -> list[str]:
        """What the marks mean, those that were used, in lines that fit."""
        used = {segment.look for row in self._rows for segment in row.segments}
        glyph_of: dict[str, str] = {}
        for look, meaning in _WORDS.items():
            if look in used:
                glyph_of.setdefault(meaning, self._glyphs.looks[look])
        parts = [f"{glyph} {meaning}" for meaning, glyph in glyph_of.items()]
        if self._scale.folds:
            hidden = duration_words(sum(fold.seconds for fold in self._scale.folds))
            parts.append(f"{self._glyphs.fold} {count_words(len(self._scale.folds), 'idle gap')} folded ({hidden})")
        lines = [""]
        for part in parts:
            joined = f"{lines[-1]}  {part}" if lines[-1] else part
            if cells_of(joined) <= self._width:
                lines[-1] = joined
            else:
                lines.append(part)
        return lines

    def _painted_bar(self, cells: Sequence[_Cell]) -> str:
        return "".join(
            self._painted("".join(cell.glyph for cell in group), _COLOURS.get(look) if look else None)
            for look, group in groupby(cells, key=lambda cell: cell.look)
        )

    def _painted(self, text: str, colour: str | None) -> str:
        return f"\x1b[{colour}m{text}\x1b[0m" if self._colour and colour and text.strip() else text


def _write(cells: list[str], taken: list[bool], words: str, place: int) -> bool:
    """Write `words` at `place` unless something stands there or right beside it."""
    end = place + len(words)
    if place < 0 or end > len(cells) or any(taken[max(place - 1, 0) : end + 1]):
        return False
    cells[place:end] = words
    taken[place:end] = [True] * len(words)
    return True
