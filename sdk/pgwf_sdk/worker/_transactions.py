"""Steps whose own SQL commits together with the record of their result: exactly once, on the run's database.

The function runs in an open transaction. When it has returned, the attempt waits for its turn at the journal (nothing
else of the run is on its way then), appends its entry in that same transaction and commits. If anything fails before
that, both roll back. That no connection can be had, or that it breaks, is no failure of the step: it begins anew.

An attempt that is given up ends at once, whatever its statement waits for, and leaves nothing behind: the statement is
cancelled on the server. Psycopg does so where a task is cancelled; an attempt on a thread is cut from its connection.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, Final, NoReturn

import psycopg
from psycopg import AsyncConnection, Connection
from psycopg.pq import TransactionStatus
from psycopg.rows import tuple_row

from pgwf_sdk._definition import Step
from pgwf_sdk._errors import ContextError
from pgwf_sdk.worker._advance import Item, ItemAnswer, answers, parameters
from pgwf_sdk.worker._tender import Held, Kept, keepalive
from pgwf_sdk.worker._tether import Tether
from pgwf_sql import query
from pgwf_sql.database import AsyncDatabase, Database, Statement, execute, execute_async

log = logging.getLogger("pgwf_sdk.worker")

_AGAIN_SECONDS: Final = 1.0
_CLOSE_SECONDS_MAX: Final = 5.0
_BREAKS_MAX: Final = 3
"""A connection that broke so often while an attempt ran was broken by it: that is its failure, as any other."""

Settled = tuple[Item, ItemAnswer]


_NO_TIME = datetime.min.replace(tzinfo=UTC)  # Nothing was written that it could stamp.


class _RefusedError(Exception):
    """The run has gone on without this attempt: its transaction rolls back."""

    def __init__(self, settled: Settled) -> None:
        super().__init__()
        self.settled = settled


class _LostError(Exception):
    """There was no connection, or it broke before the attempt had its turn: nothing has happened."""

    def __init__(self, error: Exception, *, is_begun: bool) -> None:
        super().__init__(str(error))
        self.error = error
        self.is_begun = is_begun


class Transactions:
    """Runs such steps on connections of its own, a few at a time."""

    def __init__(
        self,
        database: Database,
        async_database: AsyncDatabase,
        *,
        worker_id: str,
        lease: timedelta,
        seal: Callable[[Item], Item] | None,
    ) -> None:
        self._seal = seal
        self._database = database
        self._async_database = async_database
        self._worker_id = worker_id
        self._lease = lease
        self._tasks: set[asyncio.Task[Any]] = set()

    async def run_async(
        self,
        step: Step[..., Any],
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        turn: Callable[[bytes | None, int], Awaitable[Item]],
    ) -> Settled:
        """Run an async step and commit; `turn` gives the item to append once nothing else is on its way."""
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        breaks_count = 0
        try:
            while True:
                try:
                    return await self._try_async(step, args, kwargs, turn)
                except _LostError as lost:
                    breaks_count += lost.is_begun
                    if breaks_count >= _BREAKS_MAX:
                        raise lost.error from None
                    log.warning("step %r begins anew: %s", step.name, lost)
                    await asyncio.sleep(_AGAIN_SECONDS)
        finally:
            self._tasks.discard(task)

    async def _try_async(
        self,
        step: Step[..., Any],
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        turn: Callable[[bytes | None, int], Awaitable[Item]],
    ) -> Settled:
        item: Item | None = None
        settled: Settled | None = None
        is_begun = is_connected = False
        try:
            async with self._async_database.connection() as connection:
                try:
                    async with connection.transaction():
                        is_begun = True
                        value = await step.fn(connection, *args, **kwargs)
                        _require_open(connection, step)
                        item = await turn(*step.codec.encode(value, subject="result"))
                        settled = item, await self._append_async(connection, item)
                        _require_ok(settled)
                except psycopg.errors.ReadOnlySqlTransaction as error:
                    if item is None and _only_reads(connection):
                        await connection.close()
                        raise _LostError(error, is_begun=False) from error
                    raise
                finally:
                    is_connected = not connection.broken
                    connection.row_factory = tuple_row  # For the next step on it.
        except _RefusedError as refused:
            return refused.settled
        except psycopg.OperationalError as error:
            if item is not None and (settled is not None or not is_connected):
                return _unknown(item)
            _raise(error, is_begun=is_begun, is_connected=is_connected)
        return _recorded(settled, step)

    def run_on_thread(
        self,
        step: Step[..., Any],
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        turn: Callable[[bytes | None, int], Item],
        tether: Tether,
    ) -> Settled:
        """Run a plain step and commit; `tether` is for who gives the attempt up. GivenUpError: somebody did."""
        breaks_count = 0
        while True:
            try:
                return self._try_on_thread(step, args, kwargs, turn, tether)
            except _LostError as lost:
                breaks_count += lost.is_begun
                tether.require_uncut()
                if breaks_count >= _BREAKS_MAX:
                    raise lost.error from None
                log.warning("step %r begins anew: %s", step.name, lost)
                time.sleep(_AGAIN_SECONDS)

    def _try_on_thread(
        self,
        step: Step[..., Any],
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        turn: Callable[[bytes | None, int], Item],
        tether: Tether,
    ) -> Settled:
        item: Item | None = None
        settled: Settled | None = None
        is_begun = is_connected = False
        try:
            with self._database.connection() as connection:
                try:
                    with tether.on(connection), connection.transaction():
                        is_begun = True
                        value = step.fn(connection, *args, **kwargs)
                        _require_open(connection, step)
                        item = turn(*step.codec.encode(value, subject="result"))
                        settled = item, self._append(connection, item)
                        _require_ok(settled)
                        tether.require_uncut()
                except psycopg.errors.ReadOnlySqlTransaction as error:
                    if item is None and _only_reads(connection):
                        connection.close()
                        raise _LostError(error, is_begun=False) from error
                    raise
                finally:
                    is_connected = not connection.broken
                    connection.row_factory = tuple_row  # For the next step on it.
        except _RefusedError as refused:
            return refused.settled
        except psycopg.OperationalError as error:
            if item is not None and (settled is not None or not is_connected):
                return _unknown(item)
            _raise(error, is_begun=is_begun, is_connected=is_connected)
        return _recorded(settled, step)

    async def close(self) -> None:
        """Close the connections. Who uses one was cancelled, and is waited for as long as that may take."""
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=_CLOSE_SECONDS_MAX)
        await asyncio.to_thread(self._database.close)
        await self._async_database.close()

    async def _append_async(self, connection: AsyncConnection[Any], item: Item) -> ItemAnswer:
        await execute_async(connection, self._hold(item))
        async with connection.cursor(row_factory=tuple_row) as cursor:
            await cursor.execute(query("sdk_advance").encode(), self._parameters(item))
            ((answer,), _) = answers(await cursor.fetchall())
        return answer

    def _append(self, connection: Connection[Any], item: Item) -> ItemAnswer:
        execute(connection, self._hold(item))
        with connection.cursor(row_factory=tuple_row) as cursor:
            cursor.execute(query("sdk_advance").encode(), self._parameters(item))
            ((answer,), _) = answers(cursor.fetchall())
        return answer

    def _hold(self, item: Item) -> Statement[list[Kept]]:
        # `advance` soon gives up waiting for a row, which would undo what the step has done. This waits, and holds it.
        return keepalive(self._worker_id, [Held(item.n, item.lease_id, item.inbox_seen)], self._lease)

    def _parameters(self, item: Item) -> dict[str, Any]:
        sent = item if self._seal is None else self._seal(item)
        return parameters(self._worker_id, [sent], capabilities=(), slots=0, lease=self._lease)


def _require_ok(settled: Settled) -> None:
    if settled[1].status != "ok":
        raise _RefusedError(settled)


def _unknown(item: Item) -> Settled:
    """The connection broke at the append or the commit: only the journal knows what became of it."""
    return item, ItemAnswer("conflict", _NO_TIME, [], [])


def _require_open(connection: Connection[Any] | AsyncConnection[Any], step: Step[..., Any]) -> None:
    """The function has returned: its result can be recorded only in the transaction that it was given."""
    if connection.broken:
        raise psycopg.OperationalError("the connection broke")
    if connection.closed:
        raise _misused(step, "closed its connection")
    if connection.info.transaction_status == TransactionStatus.IDLE:
        raise _misused(step, "ended its transaction")


def _only_reads(connection: Connection[Any] | AsyncConnection[Any]) -> bool:
    """Whether the server takes no writes, as opposed to a transaction that was told so."""
    told = connection.info.parameter_status
    return "on" in (told("in_hot_standby"), told("default_transaction_read_only"))


def _recorded(settled: Settled | None, step: Step[..., Any]) -> Settled:
    if settled is None:  # The transaction swallows psycopg.Rollback.
        raise _misused(step, "rolled its transaction back")
    return settled


def _misused(step: Step[..., Any], how: str) -> ContextError:
    return ContextError(
        f"step {step.name!r}: the function {how}, in which its result was to be recorded; expected that it returns, or"
        " raises an error for all to be rolled back"
    )


def _raise(error: psycopg.OperationalError, *, is_begun: bool, is_connected: bool) -> NoReturn:
    if is_connected:
        raise error
    raise _LostError(error, is_begun=is_begun) from error
