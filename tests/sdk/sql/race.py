"""Two calls at once, in a forced order: the second waits for a lock of the first, which then commits or rolls back."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, LiteralString

import pytest

from tests.sdk.sql.hand import ADVANCE, STATUS_COLUMN
from tests.support import outcome

if TYPE_CHECKING:
    from tests.sdk.sql.hand import Hand, Item
    from tests.support import Session

both_orders = pytest.mark.parametrize("order", [1, -1], ids=["as named", "the other way round"])


@dataclass(frozen=True, slots=True)
class Call:
    """A statement and what of its rows is its answer."""

    statement: LiteralString
    parameters: Any = None
    column: int = 0

    def answer(self, rows: list[tuple[Any, ...]]) -> list[Any]:
        return [row[self.column] for row in rows]


def advance(hand: Hand, *items: Item, slots: int = 0) -> Call:
    """What `hand` would say; answered by statuses."""
    return Call(ADVANCE, hand.parameters(*items, slots=slots), STATUS_COLUMN)


def act(function: LiteralString, *arguments: Any) -> Call:
    """A call of a function of pgwf_sdk; answered by its value."""
    marks = ", ".join(["%s"] * len(arguments))
    return Call(f"select pgwf_sdk.{function}({marks})", arguments)


def race(
    sessions: tuple[Session, Session], first: Call, second: Call, *, end: LiteralString = "commit"
) -> tuple[Any, Any]:
    """Let `second` wait for `first` until that has ended. The answers of both; an error's SQLSTATE in place of one."""
    one, two = sessions
    one.run("begin")
    answer = first.answer(one.run(first.statement, first.parameters))
    waiting = two.start_blocked(second.statement, second.parameters)
    one.run(end)
    other = outcome(waiting)
    return answer, other if isinstance(other, str) else second.answer(other)
