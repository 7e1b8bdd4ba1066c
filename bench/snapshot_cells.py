"""A snapshot that somebody holds open: dead rows stay, and pile up in front of what is to be claimed."""

from __future__ import annotations

import time
from contextlib import ExitStack
from typing import TYPE_CHECKING

import psycopg

from bench.queue_cells import benches
from bench.rounds import Cell, say

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from bench.queue_cells import Bench
    from bench.queues._queue import QueueSystem
    from bench.rounds import Sample
    from bench.server import Server

BATCH = 10
CHURN_SECONDS = 1.0


def held_snapshot(
    server: Server, systems: Sequence[QueueSystem], *, seconds: float, hold_seconds: float
) -> Iterator[Cell]:
    """The same work before a snapshot is opened, and after it was held while each system worked for that long."""
    with benches(server, systems) as made, ExitStack() as holders:
        takes = {bench.system.name: _take(bench, seconds) for bench in made}
        yield Cell(f"claim and complete, batch {BATCH}, no snapshot held", takes)
        for bench in made:
            holder = holders.enter_context(psycopg.connect(bench.connection.info.dsn))
            holder.execute("set transaction isolation level repeatable read")
            holder.execute("select 1")
        say(f"  snapshots are held, {hold_seconds:.0f} s of work for each system")
        until = time.monotonic() + hold_seconds * len(made)
        while time.monotonic() < until:
            for bench in made:
                bench.take_for(CHURN_SECONDS, BATCH)
        yield Cell(f"claim and complete, batch {BATCH}, after {hold_seconds:.0f} s of work with a snapshot held", takes)


def _take(bench: Bench, seconds: float) -> Callable[[], Sample]:
    return lambda: bench.take_for(seconds, BATCH)
