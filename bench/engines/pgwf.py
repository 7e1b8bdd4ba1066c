"""pgwf's workflows: the same ones as plain functions and as coroutines."""

from __future__ import annotations

import time
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import psycopg

import pgwf_sql
from bench.engines._engine import Books, EngineSystem, Order, hang_once, noop, note
from pgwf_sdk import AsyncContext, Client, Context, Worker, current_step, step, workflow

if TYPE_CHECKING:
    from collections.abc import Callable

SIGNAL = "go"
# What the client calls for each run, for many in one statement.
_START = """
select count(*)
from generate_series(1, %s) as i
cross join lateral pgwf_sdk.start_run(gen_random_uuid()::text || '-' || i, %s, %s, %s, 1) as s
"""
SHAPES = frozenset({"steps", "stop", "signals", "children"})


@step
def nothing() -> int:
    """A step that does nothing."""
    return noop()


@step
async def nothing_async() -> int:
    """The same on the event loop."""
    return noop()


@step
def stop_here(notes: str) -> int:
    """Hang until killed, the first time; a worker that drains makes it end."""
    return hang_once(notes, is_draining=lambda: current_step().draining)


@step
def after(notes: str) -> int:
    """Note that the run has gone on."""
    note(notes, time.monotonic())
    return 1


@workflow
def plain(ctx: Context, order: Order) -> int:
    """Do what the order says."""
    times = [order.sent_at, time.monotonic()]
    if order.shape == "children":
        return sum(ctx.map(child, range(order.count)))
    if order.shape == "signals":
        for number in range(order.count):
            ctx.wait_signal(SIGNAL, int)
            note(order.notes, number, time.monotonic())
        return order.count
    if order.shape == "stop":
        ctx.step(nothing)
        ctx.step(stop_here, order.notes)
        return ctx.step(after, order.notes)
    for _ in range(order.count):
        ctx.step(nothing)
        times.append(time.monotonic())
    note(order.notes, *times)
    return order.count


@workflow
async def awaited(ctx: AsyncContext, order: Order) -> int:
    """Do what the order says."""
    times = [order.sent_at, time.monotonic()]
    if order.shape == "children":
        return sum(await ctx.map(child, range(order.count)))
    if order.shape == "signals":
        for number in range(order.count):
            await ctx.wait_signal(SIGNAL, int)
            note(order.notes, number, time.monotonic())
        return order.count
    if order.shape == "stop":
        await ctx.step(nothing_async)
        await ctx.step(stop_here, order.notes)
        return await ctx.step(after, order.notes)
    for _ in range(order.count):
        await ctx.step(nothing_async)
        times.append(time.monotonic())
    note(order.notes, *times)
    return order.count


@workflow
async def child(ctx: AsyncContext, number: int) -> int:
    """One of many."""
    return await ctx.step(nothing_async) + number * 0


class PgwfEngine:
    """A client, or a worker, of pgwf_sdk."""

    def __init__(self, dsn: str, definition: Any) -> None:
        self._dsn = dsn
        self._definition = definition
        self._client = Client(dsn)
        self._books = Books(dsn)
        self._mark = 0
        self._last = ""

    def install(self) -> None:
        with psycopg.connect(self._dsn) as connection:
            pgwf_sql.install(connection)

    def start(self, runs: int, order: Order) -> None:
        self._mark = self._books.count("select last_value - (not is_called)::int from pgwf.pos")
        if runs == 1:
            self._last = self._client.start(self._definition(order)).run_id
            return
        call = self._definition(order)
        with psycopg.connect(self._dsn, autocommit=True) as connection:
            connection.execute(_START, [runs, call.workflow.name, call.workflow.home, call.encode()])

    def finished(self) -> int:
        # A run's job goes to the archive in the commit that ends it; children are counted as well.
        return self._books.count("select count(*) from pgwf.archive where n > %s", self._mark)

    def send(self, order: Order) -> None:
        self._client.signal(self._last, SIGNAL, 1)

    def work(self, *, concurrency: int, lease_seconds: int, ready: Callable[[], None]) -> None:
        worker = Worker(
            self._client,
            workflows=[plain, awaited, child],
            concurrency=concurrency,
            lease=timedelta(seconds=lease_seconds),
        )
        ready()
        worker.run()

    def close(self) -> None:
        self._client.close()
        self._books.close()


DEFINITIONS = {"pgwf": awaited, "pgwf, def": plain}


def systems() -> list[EngineSystem]:
    """pgwf with `async def` workflows, which is what its other figures are compared with, and with plain ones."""
    return [EngineSystem(name, __name__, SHAPES, concurrency=100) for name in DEFINITIONS]


def open_engine(name: str, dsn: str) -> PgwfEngine:
    """A client or worker of one of `systems`."""
    return PgwfEngine(dsn, DEFINITIONS[name])
