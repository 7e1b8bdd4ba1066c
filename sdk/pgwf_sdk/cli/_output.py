"""Data on stdout, as a table for people, JSON for programs or ids for pipes; talk goes to stderr."""

import shutil
import sys
import textwrap
from collections.abc import Callable, Mapping, Sequence, Set
from typing import TypeVar

import click
import msgspec
from msgspec import Raw, Struct

from pgwf_sdk.cli._session import session
from pgwf_sdk.cli._text import cells_of, fitted, printable, to_ascii

S = TypeVar("S", bound=Struct)

_JSON_TEXT_FIELDS = frozenset({"payload", "subject", "decision_schema", "prefill", "decision"})
_COLUMN_GAP = "  "
_COLUMN_CELLS_MIN = 7
_DIGITS = ("", *"0123456789")
_COLOUR_OF_STATUS = {
    "running": "blue",
    "completed": "green",
    "decided": "green",
    "failed": "red",
    "blocked": "red",
    "crash_concern": "red",
    "expired": "red",
    "overdue": "red",
    "cancelled": "yellow",
    "terminated": "yellow",
    "paused": "yellow",
    "claimed": "blue",
}

Columns = Mapping[str, Callable[[S], str]]
"""The columns of a table: heading, and the text of a cell."""


def talk(text: str) -> None:
    """Say something to the person at the terminal; never mixed with data."""
    click.echo(printable(text, keep_layout=True), err=True)


def write_lines(text: str) -> None:
    """Write text that is ready for the terminal."""
    click.echo(text, color=True)


def write_sentence(text: str) -> None:
    """Write prose, in lines that fit the terminal if there is one."""
    cleaned = printable(text)
    if sys.stdout.isatty():
        cleaned = textwrap.fill(
            cleaned, shutil.get_terminal_size().columns, break_long_words=False, break_on_hyphens=False
        )
    click.echo(cleaned)


def write_explanation(text: str) -> None:
    """Write prose, and below its first line a report or traceback in lines as they are."""
    prose, _, report = text.partition("\n")
    write_sentence(prose)
    if report:
        click.echo(printable(report, keep_layout=True))


def write_rows(schema: str, rows: Sequence[S], *, columns: Columns[S], id_of: Callable[[S], str], empty: str) -> None:
    """Write rows in the form asked for. `empty` is what a person is told when there is none; programs get `[]`."""
    form = session().form
    if form == "json":
        write_json([json_object(schema, row) for row in rows])
    elif form == "ids":
        for row in rows:
            click.echo(printable(id_of(row)))
    elif rows:
        _write_table(rows, columns)
    else:
        talk(empty)


def write_object(schema: str, value: Mapping[str, object] | Struct, *, text: str, id_: str | None = None) -> None:
    """Write one thing in the form asked for: `text` for people, the id alone for pipes."""
    form = session().form
    if form == "json":
        write_json(json_object(schema, value))
    else:
        click.echo(printable(id_) if form == "ids" and id_ is not None else text, color=True)


def json_object(schema: str, value: Mapping[str, object] | Struct) -> dict[str, object]:
    """The fields of a value under the name of their schema; recorded JSON is embedded exactly as it was recorded."""
    fields: dict[str, object] = (
        {name: getattr(value, name) for name in value.__struct_fields__} if isinstance(value, Struct) else dict(value)
    )
    embedded = {
        name: Raw(text.encode()) if name in _JSON_TEXT_FIELDS and isinstance(text, str) else text
        for name, text in fields.items()
    }
    return {"schema": schema, **embedded}


def write_json(value: object) -> None:
    """Write a value as JSON, indented for people who look at it."""
    encoded = msgspec.json.encode(value)
    click.echo(msgspec.json.format(encoded, indent=2).decode())


def _write_table(rows: Sequence[S], columns: Columns[S]) -> None:
    now = session()
    clean: Callable[[str], str] = (lambda text: to_ascii(printable(text))) if now.is_ascii else printable
    cells = [[clean(cell(row)) for cell in columns.values()] for row in rows]
    headings = [heading.upper() for heading in columns]
    widths = [max(cells_of(line[column]) for line in [headings, *cells]) for column in range(len(headings))]
    status_column = headings.index("STATUS") if "STATUS" in headings else None
    shown = dict(enumerate(widths))
    if sys.stdout.isatty():
        used = {column: width for column, width in shown.items() if any(line[column] for line in cells)}
        figures = {column for column in used if all(line[column][:1] in _DIGITS for line in cells)}
        shown = _shrunk(used, shutil.get_terminal_size().columns, whole={0, status_column}, figures=figures)
    click.echo(_COLUMN_GAP.join(_fitted(headings, shown).values()).rstrip())
    for line in cells:
        texts = _fitted(line, shown)
        if now.is_coloured and status_column is not None:
            texts[status_column] = click.style(texts[status_column], fg=_colour_of(line[status_column]))
        click.echo(_COLUMN_GAP.join(texts.values()).rstrip(), color=now.is_coloured)


def _colour_of(status: str) -> str | None:
    """Of a status with a remark (`open, overdue`) the remark's, if it has one."""
    state, _, remark = status.partition(", ")
    return _COLOUR_OF_STATUS.get(remark) or _COLOUR_OF_STATUS.get(state)


def _fitted(cells: Sequence[str], widths: Mapping[int, int]) -> dict[int, str]:
    is_ascii = session().is_ascii
    return {column: fitted(cells[column], width, ascii_only=is_ascii) for column, width in widths.items()}


def _shrunk(widths: Mapping[int, int], room: int, *, whole: Set[int | None], figures: Set[int]) -> dict[int, int]:
    """The columns to show, and their widths. Texts are cut, the widest first, as long as they can be read; where that
    is not enough the last columns are left out. `whole` columns stay as they are, also where a line does not fit;
    `figures` are of no use when they are cut.
    """
    shown = dict(widths)
    while True:
        shrunk = dict(shown)
        excess = sum(shrunk.values()) + len(_COLUMN_GAP) * (len(shrunk) - 1) - room
        texts = [column for column in shrunk if column not in whole and column not in figures]
        excess -= _cut(shrunk, texts, excess)
        given_up = next((column for column in reversed(shown) if column not in whole), None)
        if excess <= 0 or given_up is None:
            return shrunk
        del shown[given_up]


def _cut(widths: dict[int, int], texts: Sequence[int], cells: int) -> int:
    """Take up to so many cells from the texts, always from the widest; how many were taken."""
    for taken in range(max(cells, 0)):
        widest = max(texts, key=widths.__getitem__, default=None)
        if widest is None or widths[widest] <= _COLUMN_CELLS_MIN:
            return taken
        widths[widest] -= 1
    return max(cells, 0)
