"""procrastinate: plain jobs, started by NOTIFY; one coroutine job at a time a slot."""

from __future__ import annotations

import asyncio
import logging
import time
from typing import TYPE_CHECKING, Any

import procrastinate

from bench.engines._engine import Books, EngineSystem, Order, note

if TYPE_CHECKING:
    from collections.abc import Callable

QUEUE = "bench"
CONNECTIONS_MAX = 20


class ProcrastinateEngine:
    """A client, or a worker."""

    def __init__(self, dsn: str) -> None:
        self._dsn = dsn
        self._books = Books(dsn)
        self._mark = 0
        self._loop = asyncio.new_event_loop()
        self._app: Any = None
        self._task: Any = None

    def install(self) -> None:
        self._run(self._opened().schema_manager.apply_schema_async())

    def start(self, runs: int, order: Order) -> None:
        self._mark = self._ended()
        self._opened()
        if runs == 1:
            self._run(self._task.defer_async(**order.as_dict()))
        else:
            self._run(self._task.batch_defer_async(*[order.as_dict()] * runs))

    def finished(self) -> int:
        return self._ended() - self._mark

    def send(self, order: Order) -> None:
        raise RuntimeError(f"plain jobs take no signals: {order}")

    def work(self, *, concurrency: int, lease_seconds: int, ready: Callable[[], None]) -> None:
        logging.disable(logging.INFO)

        async def run() -> None:
            app = self._make(min(concurrency + 2, CONNECTIONS_MAX))
            async with app.open_async():
                ready()
                await app.run_worker_async(queues=[QUEUE], concurrency=concurrency, install_signal_handlers=False)

        asyncio.run(run())

    def close(self) -> None:
        if self._app is not None:
            self._run(self._app.close_async())
        self._loop.close()
        self._books.close()

    def _run(self, work: Any) -> Any:
        return self._loop.run_until_complete(work)

    def _opened(self) -> Any:
        if self._app is None:
            self._app = self._make(4)
            self._run(self._app.open_async())
        return self._app

    def _make(self, connections_max: int) -> Any:
        connector = procrastinate.PsycopgConnector(conninfo=self._dsn, min_size=1, max_size=connections_max)
        app = procrastinate.App(connector=connector)
        self._task = app.task(name="run", queue=QUEUE)(_perform)
        return app

    def _ended(self) -> int:
        return self._books.count("select count(*) from procrastinate_jobs where status in ('succeeded', 'failed')")


async def _perform(**values: Any) -> None:
    order = Order(**values)
    note(order.notes, order.sent_at, time.monotonic())


def systems() -> list[EngineSystem]:
    """Plain jobs only."""
    return [EngineSystem("procrastinate (jobs)", __name__, frozenset(), concurrency=20)]


def open_engine(_name: str, dsn: str) -> ProcrastinateEngine:
    """A client or worker."""
    return ProcrastinateEngine(dsn)
