"""How soon a run goes on when its worker is killed, or is told to end, and another one is up."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from bench.engine_cells import asked, wait_for
from bench.engines._engine import Order, noted
from bench.processes import WorkerProcess
from bench.rounds import Metric

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from bench.engine_cells import EngineBench
    from bench.engines._engine import EngineSystem
    from bench.rounds import Cell, Sample
    from bench.server import Server

SECONDS = Metric("s", more_is_better=False)
LEASE_SECONDS = 5
STANDBY_SECONDS = 1.0


def resuming(server: Server, systems: Sequence[EngineSystem], *, rounds_max: int) -> Iterator[Cell]:
    """With a lease of five seconds, for those who have one."""
    durable = [system for system in systems if "stop" in system.shapes]
    killed = f"a run goes on after kill -9 of its worker, lease {LEASE_SECONDS} s, another worker up"
    yield from asked(server, durable, killed, lambda bench: _resume(bench, WorkerProcess.kill), rounds_max=rounds_max)
    draining = [system for system in durable if system.name.startswith("pgwf")]
    told = "a run goes on after SIGTERM to its worker, another worker up"
    yield from asked(
        server, draining, told, lambda bench: _resume(bench, WorkerProcess.terminate), rounds_max=rounds_max
    )


def _resume(bench: EngineBench, end: Callable[[WorkerProcess], None]) -> Sample:
    notes = bench.notes()
    made: list[WorkerProcess] = []
    try:
        for number in range(2):
            worker = WorkerProcess(bench.system, bench.dsn, log=bench.log, concurrency=4, lease_seconds=LEASE_SECONDS)
            made.append(worker)
            worker.wait_ready()
            worker.go()
            if number == 0:
                bench.engine.start(1, Order("stop", 1, str(notes)))
                wait_for(lambda: len(noted(notes)), 1, "runs in the step")
        time.sleep(STANDBY_SECONDS)
        ended_at = time.monotonic()
        end(made[0])
        wait_for(lambda: len(noted(notes)), 2, "steps after the end of the worker")
        bench.wait_finished(1)
    finally:
        for worker in made:
            worker.close()
    return {SECONDS: noted(notes)[1][0] - ended_at}
