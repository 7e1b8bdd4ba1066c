"""How the query layer reaches the database: on the caller's connection, or on one that a client lends."""

from collections.abc import Callable, Generator, Sequence
from contextlib import AbstractContextManager, contextmanager
from datetime import UTC, datetime
from typing import Any, Protocol, TypeAlias, TypeVar, cast

import msgspec
import psycopg
from msgspec import Struct

from pgwf_sdk._kinds import kind_of
from pgwf_sdk._sealing import Sealing
from pgwf_sdk.ops._sealed import sealed_statement
from pgwf_sql.database import Row, Statement, execute

T = TypeVar("T")
S = TypeVar("S", bound=Struct)
Connection: TypeAlias = psycopg.Connection[Any]


class LendsConnection(Protocol):
    """A client or a pool: it lends a connection for the time of a `with` block."""

    def connection(self) -> AbstractContextManager[Connection]:
        """A connection, until the block ends."""
        ...


Source: TypeAlias = Connection | LendsConnection


@contextmanager
def borrowed(source: Source) -> Generator[Connection]:
    """A connection for a few reads: the caller's own, inside whatever transaction he has open, or a lent one.

    TypeError: there is none to be had, as from an AsyncClient.
    """
    if isinstance(source, psycopg.Connection):
        yield source
        return
    lend = getattr(source, "connection", None)
    lent: Any = lend() if callable(lend) else None
    if not hasattr(lent, "__enter__"):
        raise TypeError(f"pgwf_sdk.ops: found {kind_of(source)}; expected a Client or a psycopg.Connection")
    with cast("AbstractContextManager[Connection]", lent) as connection:
        yield connection


def run(source: Source, statement: Statement[T]) -> T:
    """What `statement` answers."""
    with borrowed(source) as connection:
        return execute(connection, unsealed(source, statement))


def unsealed(source: Source, statement: Statement[T]) -> Statement[T]:
    """The statement as the source's client would run it: sealing what it carries, opening what it reads."""
    sealing: Sealing | None = getattr(source, "sealing", None)
    return statement if sealing is None else sealed_statement(statement, sealing)


def read_all(row_type: type[S]) -> Callable[[Sequence[Row]], tuple[S, ...]]:
    """Reads each row as a `row_type`, whose fields are the statement's columns."""
    return lambda rows: tuple(_as(row_type, row) for row in rows)


def read_first(row_type: type[S]) -> Callable[[Sequence[Row]], S | None]:
    """Reads the only row as a `row_type`; None when there is none."""
    return lambda rows: _as(row_type, rows[0]) if rows else None


def _as(row_type: type[S], row: Row) -> S:
    in_utc = {name: value.astimezone(UTC) if isinstance(value, datetime) else value for name, value in row.items()}
    return msgspec.convert(in_utc, row_type)
