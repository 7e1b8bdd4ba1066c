"""What the queue cells ask of a system."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

import psycopg

if TYPE_CHECKING:
    from collections.abc import Callable

Connection = psycopg.Connection[Any]


class Queue(Protocol):
    """One connection that submits no-op jobs, and claims and completes them. Not shared between threads."""

    def submit(self, count: int) -> None:
        """Put `count` jobs into the queue, in one call and one commit."""

    def take(self, limit: int) -> int:
        """Claim up to `limit` jobs and complete them; returns how many were completed by this call."""
        ...

    def finish(self) -> int:
        """Complete what is claimed and not completed yet; returns how many."""
        ...

    def left(self) -> int:
        """How many jobs are in the queue, claimed ones included."""
        ...

    def fill(self, count: int) -> None:
        """Put very many jobs into the queue, as fast as it goes."""


class QueueSystem:
    """A queue under test: how it is installed into an empty database, and how it is used over a connection."""

    def __init__(
        self,
        name: str,
        *,
        install: Callable[[Connection], None],
        connect: Callable[[Connection], Queue],
        backlog_max: int | None = None,
    ) -> None:
        self.name = name
        self.install = install
        self.connect = connect
        self.backlog_max = backlog_max
        """Beyond this many standing jobs a single call takes longer than a benchmark can wait."""


def count(connection: Connection, statement: str) -> int:
    """The one number a statement answers."""
    row = connection.execute(statement.encode()).fetchone()
    assert row is not None
    return int(row[0])


def open_connection(dsn: str) -> Connection:
    """A connection in autocommit mode that prepares what it sends: the fastest way of this driver."""
    return psycopg.connect(dsn, autocommit=True, prepare_threshold=0)
