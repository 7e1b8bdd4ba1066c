"""Steps whose own SQL commits together with the record of their result: exactly once, on the run's database.

The function runs in an open transaction. When it has returned, the attempt waits for its turn at the journal (nothing
else of the run is on its way then), appends its entry in that same transaction and commits. If anything fails before
that, both roll back.
"""

from collections.abc import Awaitable, Callable, Mapping
from datetime import timedelta
from typing import Any

import psycopg
from psycopg import AsyncConnection, Connection
from psycopg.rows import dict_row

from pgwf_sdk._definition import Step
from pgwf_sdk.worker._advance import Item, ItemAnswer, answers, parameters
from pgwf_sql import query
from pgwf_sql.database import AsyncDatabase, Database

Settled = tuple[Item, ItemAnswer]


class _RefusedError(Exception):
    """The run has gone on without this attempt: its transaction rolls back."""

    def __init__(self, settled: Settled) -> None:
        super().__init__()
        self.settled = settled


class Transactions:
    """Runs such steps on connections of its own, a few at a time."""

    def __init__(self, database: Database, async_database: AsyncDatabase, *, worker_id: str, lease: timedelta) -> None:
        self._database = database
        self._async_database = async_database
        self._worker_id = worker_id
        self._lease = lease

    async def run_async(
        self,
        step: Step[..., Any],
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        turn: Callable[[bytes | None, int], Awaitable[Item]],
    ) -> Settled:
        """Run an async step and commit; `turn` gives the item to append once nothing else is on its way."""
        settled: Settled | None = None
        try:
            async with self._async_database.connection() as connection, connection.transaction():
                value = await step.fn(connection, *args, **kwargs)
                item = await turn(*step.codec.encode(value, subject="result"))
                settled = item, await self._append_async(connection, item)
                _require_ok(settled)
        except _RefusedError as refused:
            return refused.settled
        except psycopg.OperationalError:
            if settled is None:
                raise
            return _unknown(settled)
        return settled

    def run_on_thread(
        self,
        step: Step[..., Any],
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        turn: Callable[[bytes | None, int], Item],
    ) -> Settled:
        """Run a plain step and commit."""
        settled: Settled | None = None
        try:
            with self._database.connection() as connection, connection.transaction():
                value = step.fn(connection, *args, **kwargs)
                item = turn(*step.codec.encode(value, subject="result"))
                settled = item, self._append(connection, item)
                _require_ok(settled)
        except _RefusedError as refused:
            return refused.settled
        except psycopg.OperationalError:
            if settled is None:
                raise
            return _unknown(settled)
        return settled

    def close(self) -> None:
        """Close the connections for plain steps; those for async ones are the session's."""
        self._database.close()

    async def _append_async(self, connection: AsyncConnection[Any], item: Item) -> ItemAnswer:
        async with connection.cursor(row_factory=dict_row) as cursor:
            await cursor.execute(query("sdk_advance").encode(), self._parameters(item))
            ((answer,), _) = answers(await cursor.fetchall())
        return answer

    def _append(self, connection: Connection[Any], item: Item) -> ItemAnswer:
        with connection.cursor(row_factory=dict_row) as cursor:
            cursor.execute(query("sdk_advance").encode(), self._parameters(item))
            ((answer,), _) = answers(cursor.fetchall())
        return answer

    def _parameters(self, item: Item) -> dict[str, Any]:
        return parameters(self._worker_id, [item], capabilities=(), slots=0, lease=self._lease)


def _require_ok(settled: Settled) -> None:
    if settled[1].status != "ok":
        raise _RefusedError(settled)


def _unknown(settled: Settled) -> Settled:
    """The connection broke at the commit: only the journal knows, so the run is replayed from it."""
    item, answer = settled
    return item, answer._replace(status="conflict")
