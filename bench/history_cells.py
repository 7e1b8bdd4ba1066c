"""pgwf with a past: the same work beside very many runs that are over, or that wait."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING

import psycopg

from bench.engine_cells import STEPS, EngineBench
from bench.history import write_finished, write_waiting
from bench.rounds import Cell, Sample, say

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from bench.engines._engine import EngineSystem
    from bench.server import Server


def with_a_past(server: Server, system: EngineSystem, *, runs: int, seconds: float) -> Iterator[Cell]:
    """An empty database is the reference, so its name is the system's."""
    subjects: dict[str, Callable[[], Sample]] = {}
    with ExitStack() as stack:
        for number, (name, write) in enumerate(
            (
                (system.name, None),
                (f"{runs:,} finished runs", write_finished),
                (f"{runs:,} waiting runs", write_waiting),
            )
        ):
            database = f"past_{number}"
            bench = EngineBench(system, server.fresh(database), server.folder, stack)
            stack.callback(server.drop, database)
            bench.engine.install()
            if write is not None:
                say(f"  writing {name}")
                with psycopg.connect(bench.dsn, autocommit=True) as connection:
                    write(connection, runs)
            subjects[name] = _work(bench, seconds)
        server.checkpoint()
        yield Cell(f"runs of {STEPS} steps, beside a past", subjects)


def _work(bench: EngineBench, seconds: float) -> Callable[[], Sample]:
    return lambda: bench.runs_for(seconds, STEPS)
