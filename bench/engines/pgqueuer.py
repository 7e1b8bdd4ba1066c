"""PgQueuer: plain jobs over asyncpg, in batches as large as its concurrency; uvloop where there is one."""

from __future__ import annotations

import asyncio
import json
import time
from datetime import timedelta
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import asyncpg
from pgqueuer import PgQueuer
from pgqueuer.db import AsyncpgDriver
from pgqueuer.queries import Queries
from psycopg.conninfo import conninfo_to_dict

from bench.engines._engine import Books, EngineSystem, Order, note

if TYPE_CHECKING:
    from collections.abc import Callable

ENTRYPOINT = "run"
DEQUEUE_TIMEOUT = timedelta(seconds=1)


class PgQueuerEngine:
    """A client, or a worker."""

    def __init__(self, dsn: str) -> None:
        self._dsn = dsn
        self._books = Books(dsn)
        self._started = 0
        self._loop = asyncio.new_event_loop()
        self._queries: Any = None
        self._connection: Any = None

    def install(self) -> None:
        self._run(self._opened().install())

    def start(self, runs: int, order: Order) -> None:
        payload = json.dumps(order.as_dict()).encode()
        queries = self._opened()
        self._started = runs
        if runs == 1:
            self._run(queries.enqueue(ENTRYPOINT, payload))
        else:
            self._run(queries.enqueue([ENTRYPOINT] * runs, [payload] * runs, [0] * runs))

    def finished(self) -> int:
        return self._started - self._books.count("select count(*) from pgqueuer")

    def send(self, order: Order) -> None:
        raise RuntimeError(f"plain jobs take no signals: {order}")

    def work(self, *, concurrency: int, lease_seconds: int, ready: Callable[[], None]) -> None:
        async def run() -> None:
            queue = PgQueuer(AsyncpgDriver(await asyncpg.connect(_url(self._dsn))))
            queue.entrypoint(ENTRYPOINT)(_perform)
            ready()
            await queue.run(batch_size=concurrency, dequeue_timeout=DEQUEUE_TIMEOUT)

        try:
            import uvloop
        except ImportError:
            asyncio.run(run())
        else:
            uvloop.run(run())

    def close(self) -> None:
        if self._connection is not None:
            self._run(self._connection.close())
        self._loop.close()
        self._books.close()

    def _run(self, work: Any) -> Any:
        return self._loop.run_until_complete(work)

    def _opened(self) -> Any:
        if self._queries is None:
            self._connection = self._run(asyncpg.connect(_url(self._dsn)))
            self._queries = Queries(AsyncpgDriver(self._connection))
        return self._queries


async def _perform(job: Any) -> None:
    order = Order(**json.loads(job.payload))
    note(order.notes, order.sent_at, time.monotonic())


def _url(dsn: str) -> str:
    """The connection string as asyncpg reads it."""
    parts = conninfo_to_dict(dsn)
    return f"postgresql://{parts['user']}@/{parts['dbname']}?host={quote(str(parts['host']), safe='')}"


def systems() -> list[EngineSystem]:
    """Plain jobs only."""
    return [EngineSystem("PgQueuer (jobs)", __name__, frozenset(), concurrency=100)]


def open_engine(_name: str, dsn: str) -> PgQueuerEngine:
    """A client or worker."""
    return PgQueuerEngine(dsn)
