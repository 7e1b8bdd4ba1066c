"""Oban: plain jobs, coroutines, as many at a time as its queue's limit."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any

import psycopg
from oban import Oban, worker
from oban.schema import install_sql
from psycopg_pool import AsyncConnectionPool

from bench.engines._engine import Books, EngineSystem, Order, note

if TYPE_CHECKING:
    from collections.abc import Callable

QUEUE = "default"
CONNECTIONS_MAX = 10


@worker(queue=QUEUE)
class Run:
    """A job."""

    async def process(self, job: Any) -> None:
        """Do nothing, and note it."""
        order = Order(**job.args)
        note(order.notes, order.sent_at, time.monotonic())


class ObanEngine:
    """A client, or a worker."""

    def __init__(self, dsn: str) -> None:
        self._dsn = dsn
        self._books = Books(dsn)
        self._mark = 0
        self._loop = asyncio.new_event_loop()
        self._pool: Any = None
        self._oban: Any = None

    def install(self) -> None:
        with psycopg.connect(self._dsn, autocommit=True) as connection:
            connection.execute(install_sql().encode())

    def start(self, runs: int, order: Order) -> None:
        self._mark = self._ended()
        oban = self._opened()
        if runs == 1:
            self._run(oban.enqueue(Run.new(order.as_dict())))
        else:
            self._run(oban.enqueue_many(Run.new(order.as_dict()) for _ in range(runs)))

    def finished(self) -> int:
        return self._ended() - self._mark

    def send(self, order: Order) -> None:
        raise RuntimeError(f"plain jobs take no signals: {order}")

    def work(self, *, concurrency: int, lease_seconds: int, ready: Callable[[], None]) -> None:
        async def run() -> None:
            async with AsyncConnectionPool(self._dsn, min_size=2, max_size=CONNECTIONS_MAX, open=False) as pool:
                oban = Oban(pool=pool, queues={QUEUE: concurrency})
                ready()
                async with oban:
                    await asyncio.Event().wait()

        asyncio.run(run())

    def close(self) -> None:
        if self._pool is not None:
            self._run(self._oban.stop())
            self._run(self._pool.close())
        self._loop.close()
        self._books.close()

    def _run(self, work: Any) -> Any:
        return self._loop.run_until_complete(work)

    def _opened(self) -> Any:
        if self._oban is None:
            self._run(self._open())
        return self._oban

    async def _open(self) -> None:
        self._pool = AsyncConnectionPool(self._dsn, min_size=1, max_size=CONNECTIONS_MAX, open=False)
        await self._pool.open()
        self._oban = Oban(pool=self._pool)
        await self._oban.start()

    def _ended(self) -> int:
        return self._books.count("select count(*) from oban_jobs where state in ('completed', 'discarded')")


def systems() -> list[EngineSystem]:
    """Plain jobs only."""
    return [EngineSystem("Oban (jobs)", __name__, frozenset(), concurrency=100)]


def open_engine(_name: str, dsn: str) -> ObanEngine:
    """A client or worker."""
    return ObanEngine(dsn)
