"""Absurd: asynchronous worker, one connection; polls every 10 ms where its default is 250 ms."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any

import absurdctl
import psycopg
from absurd_sdk import Absurd, AsyncAbsurd

from bench.engines._engine import Books, EngineSystem, Order, hang_once, noop, note

if TYPE_CHECKING:
    from collections.abc import Callable

QUEUE = "bench"
TASK = "run"
POLL_SECONDS = 0.01


class AbsurdEngine:
    """A client, or a worker, of absurd_sdk."""

    def __init__(self, dsn: str) -> None:
        self._dsn = dsn
        self._books = Books(dsn)
        self._mark = 0
        self._sent = 0
        self._client: Any = None

    def install(self) -> None:
        with psycopg.connect(self._dsn, autocommit=True) as connection:
            connection.execute(absurdctl.BUNDLED_SCHEMA_SQL)
        self._connected().create_queue(QUEUE)

    def start(self, runs: int, order: Order) -> None:
        self._mark = self._ended()
        self._sent = 0
        client = self._connected()
        if runs == 1:
            client.spawn(TASK, order.as_dict())
            return
        with psycopg.connect(self._dsn) as connection:
            together = self._registered(Absurd(connection, queue_name=QUEUE))
            for _ in range(runs):
                together.spawn(TASK, order.as_dict())

    def finished(self) -> int:
        return self._ended() - self._mark

    def send(self, order: Order) -> None:
        self._connected().emit_event(_event(order.notes, self._sent), 1)
        self._sent += 1

    def work(self, *, concurrency: int, lease_seconds: int, ready: Callable[[], None]) -> None:
        async def run() -> None:
            app = AsyncAbsurd(self._dsn, queue_name=QUEUE)
            app.register_task(TASK)(_perform)
            ready()
            await app.start_worker(
                concurrency=concurrency, batch_size=concurrency, claim_timeout=lease_seconds, poll_interval=POLL_SECONDS
            )

        asyncio.run(run())

    def close(self) -> None:
        if self._client is not None:
            self._client.close()
        self._books.close()

    def _connected(self) -> Any:
        if self._client is None:
            self._client = self._registered(Absurd(self._dsn, queue_name=QUEUE))
        return self._client

    def _registered(self, client: Any) -> Any:
        client.register_task(TASK)(lambda parameters, context: None)
        return client

    def _ended(self) -> int:
        return self._books.count(f"select count(*) from absurd.t_{QUEUE} where state in ('completed', 'failed')")


async def _perform(parameters: dict[str, Any], context: Any) -> int:
    order = Order(**parameters)
    times = [order.sent_at, time.monotonic()]

    async def nothing() -> int:
        return noop()

    async def stop() -> int:
        return await asyncio.to_thread(hang_once, order.notes)

    if order.shape == "signals":
        for number in range(order.count):
            await context.await_event(_event(order.notes, number))
            note(order.notes, number, time.monotonic())
        return order.count
    if order.shape == "stop":
        await context.step("first", nothing)
        return int(await context.step("stop", stop))
    for number in range(order.count):
        await context.step(f"step-{number}", nothing)
        times.append(time.monotonic())
    note(order.notes, *times)
    return order.count


def _event(notes: str, number: int) -> str:
    # An event's name is known once in the whole queue, so each wait has a name of its own.
    return f"{notes}:{number}"


def systems() -> list[EngineSystem]:
    """Its workers claim at most as many tasks at a time as they run."""
    return [EngineSystem("Absurd", __name__, frozenset({"steps", "stop", "signals"}))]


def open_engine(_name: str, dsn: str) -> AbsurdEngine:
    """A client or worker."""
    return AbsurdEngine(dsn)
