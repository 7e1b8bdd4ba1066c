"""Work in worker processes: how much of it, how soon, and what it costs the server."""

from __future__ import annotations

import statistics
import time
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import uuid4

import psycopg

from bench.engines._engine import Order, first_times, noted
from bench.processes import open_engine, workers
from bench.rounds import Cell, Metric, Sample

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator, Sequence

    from bench.engines._engine import Engine, EngineSystem
    from bench.server import Server

RUNS = Metric("runs/s", more_is_better=True)
STARTS = Metric("starts/s", more_is_better=True)
P50 = Metric("ms p50", more_is_better=False)
P99 = Metric("ms p99", more_is_better=False)
COMMITS = Metric("commits a step", more_is_better=False)
WAL_RECORDS = Metric("WAL records a step", more_is_better=False)
WAL_BYTES = Metric("WAL bytes a step", more_is_better=False)
QUERIES = Metric("transactions/s", more_is_better=False)

WORKERS = 2
FIRST_RUNS = 20
GROWTH = 6
RUNS_MAX = 10_000
POLL_SECONDS = 0.02
RUN_SECONDS_MAX = 60.0
STEPS = 10
PAUSE_SECONDS = 0.05
REPORT_SECONDS = 10.5  # A session that goes on reports what it did after ten seconds, one that ends at once.
IDLE_SECONDS_MIN = 3.0
SETTLE_SECONDS = 0.5


@dataclass(frozen=True)
class Work:
    """Runs that were worked off; steady when the workers' own start is not in it."""

    runs: int
    seconds: float
    is_steady: bool

    @property
    def rate(self) -> float:
        """Runs a second."""
        return self.runs / self.seconds


class EngineBench:
    """One engine with a database of its own."""

    def __init__(self, system: EngineSystem, dsn: str, folder: Path, stack: ExitStack) -> None:
        self.system = system
        self.dsn = dsn
        self.log = folder / "workers.log"
        self.engine: Engine = open_engine(system, dsn)
        stack.callback(self.engine.close)
        self._folder = folder
        self._pace: dict[int, float] = {}

    def notes(self) -> Path:
        """A new file for workflows to note in."""
        return self._folder / f"notes-{uuid4()}"

    def wait_finished(self, runs: int) -> None:
        """Return once so many runs have ended. TimeoutError: they have not."""
        until = time.monotonic() + RUN_SECONDS_MAX
        while (done := self.engine.finished()) < runs:
            if time.monotonic() > until:
                raise TimeoutError(f"{done} of {runs} runs ended within {RUN_SECONDS_MAX:.0f} s")
            time.sleep(POLL_SECONDS)

    def runs_for(self, seconds: float, steps: int) -> Sample:
        """Work off about as many runs as take that long; from the first that is seen to have ended to the last."""
        runs, work = FIRST_RUNS, Work(FIRST_RUNS, 0.0, is_steady=False)
        if steps not in self._pace:
            while not (work.is_steady and work.seconds > seconds / 3) and runs <= RUNS_MAX:
                work = self._work_off(runs, steps)
                runs *= GROWTH
            self._pace[steps] = work.rate
        runs = int(min(max(self._pace[steps] * seconds, FIRST_RUNS), RUNS_MAX))
        self._pace[steps] = self._work_off(runs, steps).rate
        return {RUNS: self._pace[steps]}

    def _work_off(self, runs: int, steps: int) -> Work:
        with workers(self.system, self.dsn, log=self.log, count=WORKERS) as made:
            self.engine.start(runs, Order(count=steps))
            started = time.monotonic()
            for worker in made:
                worker.go()
            first: tuple[float, int] | None = None
            while (done := self.engine.finished()) < runs:
                if done and first is None:
                    first = (time.monotonic(), done)
                if time.monotonic() - started > RUN_SECONDS_MAX:
                    raise TimeoutError(f"{done} of {runs} runs ended within {RUN_SECONDS_MAX:.0f} s")
                time.sleep(POLL_SECONDS)
            ended = time.monotonic()
        assert done == runs, f"{done} of {runs} runs have ended"
        # The start of the workers is left out, if it is not most of what was seen: a count may come late.
        if first is not None and runs - first[1] > runs / 4 and ended - first[0] > (ended - started) / 4:
            return Work(runs - first[1], ended - first[0], is_steady=True)
        return Work(runs, ended - started, is_steady=False)

    def starts_for(self, seconds: float, batch: int) -> Sample:
        """Start runs, `batch` a call, with no worker about."""
        count, started = 0, time.perf_counter()
        while (elapsed := time.perf_counter() - started) < seconds:
            self.engine.start(batch, Order())
            count += batch
        return {STARTS: count / elapsed}

    def idle_latency(self, runs: int) -> Sample:
        """Start one run, wait until it is over, pause; from the call to the end of its only step, or of the job."""
        notes = self.notes()
        with workers(self.system, self.dsn, log=self.log, count=1) as made:
            made[0].go()
            for _ in range(runs + 1):  # the first one warms up
                self.engine.start(1, Order(count=1, notes=str(notes), sent_at=time.monotonic()))
                self.wait_finished(1)
                time.sleep(PAUSE_SECONDS)
        return percentiles([times[-1] - times[0] for times in noted(notes)[1:]])

    def step_latency(self, runs: int) -> Sample:
        """Lone runs of ten steps: from one step's end to the next one's."""
        notes = self.notes()
        with workers(self.system, self.dsn, log=self.log, count=1) as made:
            made[0].go()
            for _ in range(runs + 1):
                self.engine.start(1, Order(count=STEPS, notes=str(notes), sent_at=time.monotonic()))
                self.wait_finished(1)
        steps = [later - one for times in noted(notes)[1:] for one, later in pairwise(times[1:])]
        return percentiles(steps)

    def signals(self, count: int) -> Sample:
        """From sending a signal until the workflow has gone on; one after the other."""
        notes = self.notes()
        order = Order("signals", count, str(notes))
        sent: list[float] = []
        with workers(self.system, self.dsn, log=self.log, count=1) as made:
            made[0].go()
            self.engine.start(1, order)
            for number in range(count):
                time.sleep(PAUSE_SECONDS)
                sent.append(time.monotonic())
                self.engine.send(order)
                wait_for(lambda: len(first_times(notes)), number + 1, "signals received")
        return percentiles([received - one for one, received in zip(sent, first_times(notes), strict=True)])

    def fan_out(self, children: int) -> Sample:
        """A workflow starts children of one step each and waits for them all; children a second."""
        with workers(self.system, self.dsn, log=self.log, count=WORKERS) as made:
            for worker in made:
                worker.go()
            started = time.monotonic()
            self.engine.start(1, Order("children", children))
            self.wait_finished(children + 1)
            return {RUNS: children / (time.monotonic() - started)}

    def cost(self, runs: int) -> Sample:
        """What the server writes while a worker works off runs of ten steps, its own start and end included."""
        self.engine.start(runs, Order(count=STEPS))
        with (
            written(self.dsn, steps=runs * STEPS) as sample,
            workers(self.system, self.dsn, log=self.log, count=1) as made,
        ):
            made[0].go()
            self.wait_finished(runs)
        return sample

    def idle(self, seconds: float) -> Sample:
        """Transactions of one worker that has nothing to do: those of a long life less those of a short one."""
        time.sleep(REPORT_SECONDS)
        short, long = (self._transactions(alive) for alive in (IDLE_SECONDS_MIN, IDLE_SECONDS_MIN + seconds))
        return {QUERIES: (long - short) / seconds}

    def _transactions(self, seconds: float) -> int:
        with written(self.dsn, steps=1) as sample, workers(self.system, self.dsn, log=self.log, count=1) as made:
            made[0].go()
            time.sleep(seconds)
        return round(sample[COMMITS])


def percentiles(seconds: list[float]) -> Sample:
    """Median and 99th percentile in milliseconds; of fewer than a hundred, the latter is the greatest."""
    ordered = sorted(seconds)
    return {
        P50: statistics.median(ordered) * 1000,
        P99: ordered[min(len(ordered) - 1, int(len(ordered) * 0.99))] * 1000,
    }


def wait_for(count: Callable[[], int], wanted: int, what: str) -> None:
    """Return once the count is reached. TimeoutError: it is not."""
    until = time.monotonic() + RUN_SECONDS_MAX
    while (found := count()) < wanted:
        if time.monotonic() > until:
            raise TimeoutError(f"{found} of {wanted} {what} within {RUN_SECONDS_MAX:.0f} s")
        time.sleep(POLL_SECONDS / 10)


@contextmanager
def written(dsn: str, *, steps: int) -> Generator[Sample]:
    """What the whole server writes within the block, by sessions that end in it; nobody else may use the server.

    Full-page images are left out.
    """
    sample: Sample = {}
    with psycopg.connect(dsn, autocommit=True) as observer:
        before = _written(observer)
        yield sample
        after = _written(observer)
    for metric, one, other in zip((COMMITS, WAL_RECORDS, WAL_BYTES), before, after, strict=True):
        sample[metric] = (other - one) / steps


def _written(observer: psycopg.Connection[tuple[int, int, int]]) -> tuple[int, int, int]:
    time.sleep(SETTLE_SECONDS)
    row = observer.execute(
        """
        select d.xact_commit + d.xact_rollback, w.wal_records, w.wal_bytes - 8192 * w.wal_fpi
        from pg_stat_wal as w
        join pg_stat_database as d on d.datname = current_database()
        """
    ).fetchone()
    assert row is not None
    return row


@contextmanager
def engine_benches(server: Server, systems: Sequence[EngineSystem]) -> Generator[list[EngineBench]]:
    """Each system, installed afresh; dropped at the end."""
    with ExitStack() as stack:
        made: list[EngineBench] = []
        for number, system in enumerate(systems):
            name = f"engine_{number}"
            dsn = server.fresh(name)
            stack.callback(server.drop, name)
            made.append(bench := EngineBench(system, dsn, server.folder, stack))
            bench.engine.install()
        server.checkpoint()
        yield made


def asked(
    server: Server,
    systems: Sequence[EngineSystem],
    title: str,
    question: Callable[[EngineBench], Sample],
    *,
    rounds_max: int | None = None,
) -> Iterator[Cell]:
    """The same question to each system, in databases of their own."""
    with engine_benches(server, systems) as made:
        yield Cell(title, {bench.system.name: _ask(question, bench) for bench in made}, rounds_max)


def _ask(question: Callable[[EngineBench], Sample], bench: EngineBench) -> Callable[[], Sample]:
    return lambda: question(bench)
