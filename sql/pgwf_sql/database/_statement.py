"""A statement as a value: which query, with which parameters, and what its rows mean."""

from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Generic, Protocol, TypeVar

import psycopg
from psycopg import AsyncConnection, Connection
from psycopg.rows import dict_row

from pgwf_sql import query
from pgwf_sql.database._timestamps import adapt_never

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)

Row = dict[str, Any]
"""One row, by column name."""


@dataclass(frozen=True, slots=True)
class Statement(Generic[T_co]):
    """What to run and how to read the answer; it does no I/O, so that sync and async clients share it.

    `query` names a file of `queries/`. `is_repeatable` claims that running it twice has the effect of running it
    once: only then is it sent again after the connection was lost, when nobody can know whether it took effect.
    `when_busy` are parameters to change for a second attempt when others hold what it needs (None: there is none).
    """

    query: str
    parameters: Mapping[str, object]
    read: Callable[[Sequence[Row]], T_co]
    is_repeatable: bool = False
    when_busy: Mapping[str, object] | None = None

    def for_busy(self) -> "Statement[T_co]":
        """The statement of the second attempt."""
        return replace(self, parameters={**self.parameters, **(self.when_busy or {})}, when_busy=None)


class Rewrite(Protocol):
    """Makes of each statement what is run instead: what it carries and what it reads may be stored in another form."""

    def __call__(self, statement: "Statement[T]", /) -> "Statement[T]":
        """The statement to run instead."""
        ...


def execute(connection: Connection[Any], statement: Statement[T]) -> T:
    """Run `statement` on `connection` and read its rows; the connection's transaction is neither begun nor ended."""
    with connection.cursor(row_factory=dict_row) as cursor:
        adapt_never(cursor)
        with _refused_as_text():
            cursor.execute(query(statement.query).encode(), statement.parameters)
        rows = cursor.fetchall() if cursor.description else []
    return statement.read(rows)


async def execute_async(connection: AsyncConnection[Any], statement: Statement[T]) -> T:
    """Like `execute`, on an asynchronous connection."""
    async with connection.cursor(row_factory=dict_row) as cursor:
        adapt_never(cursor)
        with _refused_as_text():
            await cursor.execute(query(statement.query).encode(), statement.parameters)
        rows = await cursor.fetchall() if cursor.description else []
    return statement.read(rows)


@contextmanager
def _refused_as_text() -> Generator[None]:
    """What cannot even be sent (NUL, a lone surrogate) is the error it would be on the server, with its SQLSTATE."""
    try:
        yield
    except UnicodeEncodeError as error:
        raise psycopg.errors.CharacterNotInRepertoire(f"an argument is no valid Unicode text: {error}") from error
    except psycopg.DataError as error:
        if error.sqlstate is not None:
            raise
        raise psycopg.errors.CharacterNotInRepertoire(f"an argument cannot be sent: {error}") from error


def read_nothing(rows: Sequence[Row]) -> None:
    """For statements whose rows say nothing."""


def read_value(rows: Sequence[Row]) -> Any:
    """The single column of the single row."""
    (row,) = rows
    (value,) = row.values()
    return value
