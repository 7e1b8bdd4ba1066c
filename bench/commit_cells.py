"""What a step is compared with: the same driver committing one row, after the hand-overs to threads that it needs."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any

import psycopg

from bench.engine_cells import EngineBench, engine_benches, percentiles
from bench.engines._engine import noop
from bench.rounds import Cell, Sample

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from bench.engines._engine import EngineSystem
    from bench.server import Server

PLAIN_HAND_OVERS = 2
"""A workflow that is a plain function has a thread, and so has its step."""

_INSERT = "insert into event (payload) values (%s::jsonb)"


def step_latency(server: Server, systems: Sequence[EngineSystem], *, runs: int, commits: int) -> Iterator[Cell]:
    """Steps of a lone run, and single-row inserts through psycopg's asynchronous connection, prepared like pgwf's."""
    dsn = server.fresh("single_rows")
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("create table event (id bigint generated always as identity primary key, payload jsonb)")
    with engine_benches(server, systems) as made:
        subjects: dict[str, Callable[[], Sample]] = {
            "one insert commit": lambda: asyncio.run(_inserts(dsn, commits)),
            "one insert commit after two calls in threads": lambda: asyncio.run(
                _inserts(dsn, commits, hand_overs=PLAIN_HAND_OVERS)
            ),
            **{bench.system.name: _steps(bench, runs) for bench in made},
        }
        yield Cell("a lone run of ten steps, one step to the next", subjects)
    server.drop("single_rows")


def _steps(bench: EngineBench, runs: int) -> Callable[[], Sample]:
    return lambda: bench.step_latency(runs)


async def _inserts(dsn: str, count: int, *, hand_overs: int = 0) -> Sample:
    loop = asyncio.get_running_loop()
    times: list[float] = []
    connection: psycopg.AsyncConnection[Any]
    async with await psycopg.AsyncConnection.connect(dsn, autocommit=True, prepare_threshold=0) as connection:
        for _ in range(count):
            started = time.monotonic()
            for _ in range(hand_overs):
                await loop.run_in_executor(None, noop)
            await connection.execute(_INSERT, ['{"a":1}'])
            times.append(time.monotonic() - started)
    return percentiles(times)
