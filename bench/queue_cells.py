"""Submitting, and claiming with completing, at the level of SQL calls."""

from __future__ import annotations

import time
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import psycopg

from bench.queues._queue import open_connection
from bench.rounds import JOBS, SERVER_CPU, Cell, Sample, say

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator, Sequence

    from bench.queues._queue import Connection, Queue, QueueSystem
    from bench.server import Server

SUBMIT_BATCH = 100
WINDOW_JOBS_MIN = 50
WINDOW_JOBS_MAX = 50_000
CLAIM_BATCHES = (1, 100)


class Bench:
    """One system in a database of its own, with the connection it is used over."""

    def __init__(self, system: QueueSystem, connection: Connection) -> None:
        self.system = system
        self.connection = connection
        self.queue: Queue = system.connect(connection)
        self._standing = 0
        self._pace: dict[int, float] = {}

    def stand(self, count: int) -> None:
        """Have `count` jobs in the queue that stay there: each window adds as many as it takes."""
        self.queue.fill(count - self._standing)
        self._standing = count
        self.connection.execute("analyze")

    def submit_for(self, seconds: float, batch: int) -> Sample:
        """Submit in calls of `batch` jobs."""
        count, meter = 0, Meter(self.connection)
        while meter.seconds() < seconds:
            self.queue.submit(batch)
            count += batch
        sample = meter.sample(count)
        self._standing += count
        return sample

    def take_for(self, seconds: float, batch: int) -> Sample:
        """Claim and complete, `batch` at a time, about as many jobs as take that long; they are submitted before."""
        if batch not in self._pace:
            self._pace[batch] = self._take(max(2 * batch, WINDOW_JOBS_MIN), batch)[JOBS]
        wanted = self._pace[batch] * seconds
        jobs = int(min(max(wanted, WINDOW_JOBS_MIN, 2 * batch), WINDOW_JOBS_MAX)) // batch * batch
        sample = self._take(jobs, batch)
        self._pace[batch] = sample[JOBS]
        return sample

    def _take(self, jobs: int, batch: int) -> Sample:
        for start in range(0, jobs, SUBMIT_BATCH):
            self.queue.submit(min(SUBMIT_BATCH, jobs - start))
        done, meter = 0, Meter(self.connection)
        # What is submitted only has to last: with a standing queue it is older jobs that are taken.
        while done < jobs:
            done += self.queue.take(batch)
            if jobs - done <= batch:
                done += self.queue.finish()
        sample = meter.sample(done)
        self._standing += jobs - done
        left = self.queue.left()
        assert left == self._standing, f"{self.system.name}: {left} jobs left, expected {self._standing}"
        return sample


class Meter:
    """Time, and the CPU time of the connection's server process."""

    def __init__(self, connection: Connection) -> None:
        self._path = Path(f"/proc/{connection.info.backend_pid}/schedstat")
        self._cpu_ns = self._read()
        self._started = time.perf_counter()

    def seconds(self) -> float:
        """Since it was made."""
        return time.perf_counter() - self._started

    def sample(self, jobs: int) -> Sample:
        """What `jobs` jobs have cost since it was made."""
        sample = {JOBS: jobs / self.seconds()}
        if self._cpu_ns is not None:
            sample[SERVER_CPU] = ((self._read() or 0) - self._cpu_ns) / 1000 / jobs
        return sample

    def _read(self) -> int | None:
        try:
            return int(self._path.read_text(encoding="ascii").split()[0])
        except FileNotFoundError:  # no Linux
            return None


@contextmanager
def benches(server: Server, systems: Sequence[QueueSystem], *, backlog: int = 0) -> Generator[list[Bench]]:
    """Each system that can bear it, installed afresh, with `backlog` jobs; dropped at the end."""
    with ExitStack() as stack:
        made: list[Bench] = []
        for number, system in enumerate(systems):
            if system.backlog_max is not None and backlog > system.backlog_max:
                say(f"  {system.name}: left out at {backlog:,} standing jobs")
                continue
            name = f"queue_{number}"
            dsn = server.fresh(name)
            stack.callback(server.drop, name)
            with psycopg.connect(dsn, autocommit=True) as connection:
                system.install(connection)
            bench = Bench(system, stack.enter_context(open_connection(dsn)))
            if backlog:
                bench.stand(backlog)
            made.append(bench)
        server.checkpoint()
        yield made


def submitting(server: Server, systems: Sequence[QueueSystem], *, seconds: float) -> Iterator[Cell]:
    """Submit one job a call, and a hundred."""
    with benches(server, systems) as made:
        for batch in (1, SUBMIT_BATCH):
            title = f"enqueue, {'one job' if batch == 1 else f'{batch} jobs'} a call"
            yield Cell(title, {bench.system.name: _submit(bench, seconds, batch) for bench in made})


def taking(
    server: Server, systems: Sequence[QueueSystem], *, seconds: float, backlogs: Sequence[int]
) -> Iterator[Cell]:
    """Claim and complete, one job or a hundred at a time, with ever more jobs standing in the queue."""
    for backlog in backlogs:
        with benches(server, systems, backlog=backlog) as made:
            for batch in CLAIM_BATCHES:
                title = f"claim and complete, batch {batch}, {backlog:,} jobs waiting"
                yield Cell(title, {bench.system.name: _take(bench, seconds, batch) for bench in made})


def _submit(bench: Bench, seconds: float, batch: int) -> Callable[[], Sample]:
    return lambda: bench.submit_for(seconds, batch)


def _take(bench: Bench, seconds: float, batch: int) -> Callable[[], Sample]:
    return lambda: bench.take_for(seconds, batch)
