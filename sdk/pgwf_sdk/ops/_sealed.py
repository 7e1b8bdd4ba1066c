"""Statements whose values are sealed on their way in and opened on their way out."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

from pgwf_journal import Kind, Phase, key_of
from pgwf_sdk import _places
from pgwf_sdk._errors import SealedError

if TYPE_CHECKING:
    from pgwf_sdk._sealing import Sealing
    from pgwf_sql.database import Row, Statement

T = TypeVar("T")

_PlaceOf = Callable[[Mapping[str, Any]], str]

_WRITES: Final[Mapping[str, Mapping[tuple[str, str], _PlaceOf]]] = {
    "sdk_start_run": {("input", "encoding"): lambda given: _places.input_place(given["workflow"])},
    "sdk_signal_run": {("payload", "encoding"): lambda given: _places.signal_place(given["name"])},
    "sdk_signal_with_start_run": {
        ("input", "encoding"): lambda given: _places.input_place(given["workflow"]),
        ("payload", "payload_encoding"): lambda given: _places.signal_place(given["signal"]),
    },
    "sdk_settle_awakeable": {("payload", "encoding"): lambda _given: _places.awakeable_place()},
    "sdk_decide_task": {("payload", "encoding"): lambda given: _places.decision_place(given["task_id"])},
}
"""By query: the parameters with payloads, those with their encodings, and their places."""


def sealed_statement(statement: Statement[T], sealing: Sealing) -> Statement[T]:
    """The statement with its payloads sealed, and with what it reads opened where the keys are there."""
    if (writes := _WRITES.get(statement.query)) is not None:
        given: dict[str, Any] = dict(statement.parameters)
        for (name, encoding), place_of in writes.items():
            given[name], given[encoding] = sealing.seal(given[name], cast("int", given[encoding]), place_of(given))
        return replace(statement, parameters=given)
    if (opened := _READS.get(statement.query)) is None:
        return statement

    def read(rows: Sequence[Row]) -> T:
        return statement.read([opened(sealing, row) for row in rows])

    return replace(statement, read=read)


class SealedStatements:
    """The rewriting of a client's statements."""

    def __init__(self, sealing: Sealing) -> None:
        self._sealing = sealing

    def __call__(self, statement: Statement[T], /) -> Statement[T]:
        return sealed_statement(statement, self._sealing)


def _opened_result(sealing: Sealing, row: Row) -> Row:
    """A result somebody waits for: SealedError if it cannot be opened."""
    payload, encoding = sealing.open(row["payload"], row["encoding"], _places.end_place())
    return {**row, "payload": payload, "encoding": encoding}


def _opened_texts(places: Callable[[Row], Mapping[str, str]]) -> Callable[[Sealing, Row], Row]:
    """Texts that are shown: what cannot be opened stays sealed, and says so itself."""

    def opened(sealing: Sealing, row: Row) -> Row:
        changes: dict[str, Any] = {}
        for column, place in places(row).items():
            try:
                changes[column] = sealing.open_text(row[column], place)
            except SealedError:
                continue
        return {**row, **changes}

    return opened


def _journal_place(row: Row) -> str:
    kind, phase = Kind[row["kind"].upper()], Phase[row["phase"].upper()]
    return _places.entry_place(kind, phase, row["name"], row["key"])


def _task_places(row: Row) -> Mapping[str, str]:
    return {
        "subject": _places.subject_place(row["task_id"]),
        "prefill": _places.prefill_place(row["task_id"]),
        "decision": _places.decision_place(row["task_id"]),
    }


def _opened_entry(sealing: Sealing, row: Row) -> Row:
    """An entry for a replay: SealedError if it cannot be opened."""
    key = key_of(row["scope"], Kind(row["kind"]), row["name"], row["occurrence"])
    place = _places.entry_place(row["kind"], row["phase"], row["name"], key)
    payload, encoding = sealing.open(row["payload"], row["encoding"], place)
    return {**row, "payload": payload, "encoding": encoding}


_READS: Final[Mapping[str, Callable[[Sealing, Row], Row]]] = {
    "sdk_history": _opened_entry,
    "sdk_run_result": _opened_result,
    "ops_ending": _opened_texts(lambda _row: {"payload": _places.end_place()}),
    "ops_journal": _opened_texts(lambda row: {"payload": _journal_place(row)}),
    "ops_attempts": _opened_texts(lambda row: {"error": _places.attempt_place(row["key"])}),
    "ops_tasks": _opened_texts(_task_places),
    "ops_task": _opened_texts(_task_places),
}
