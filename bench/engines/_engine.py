"""What the cells ask of a system with workers, and what every workflow does in it."""

from __future__ import annotations

import json
import os
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import psycopg

if TYPE_CHECKING:
    from collections.abc import Callable

DRAIN_POLL_SECONDS = 0.01


@dataclass(frozen=True)
class Order:
    """What one workflow is to do: `shape` steps, stop, signals or children; plain jobs do nothing and note the time."""

    shape: str = "steps"
    count: int = 1
    """Steps to run, signals to wait for, or children to start."""
    notes: str = ""
    """The file in which it notes when it did what; empty: it notes nothing."""
    sent_at: float = 0.0

    def as_dict(self) -> dict[str, Any]:
        """As JSON can hold it."""
        return asdict(self)


class Engine(Protocol):
    """One system over one database: in the benchmark's own process, or in a worker's."""

    def install(self) -> None:
        """Make its tables in an empty database."""

    def start(self, runs: int, order: Order) -> None:
        """Start `runs` workflows that do what `order` says, as fast as its client can."""

    def finished(self) -> int:
        """How many workflows have ended, of those started since the last call of `start`."""
        ...

    def send(self, order: Order) -> None:
        """Send the next signal to the workflow that was started last."""

    def work(self, *, concurrency: int, lease_seconds: int, ready: Callable[[], None]) -> None:
        """In a worker process: get ready, call `ready`, which returns when there is work, and work for ever."""

    def close(self) -> None:
        """End its connections."""


@dataclass(frozen=True)
class EngineSystem:
    """An engine under test."""

    name: str
    module: str
    """Whose `open_engine(name, dsn)` makes it, here and in worker processes."""
    shapes: frozenset[str]
    """What its workflows can do; empty: it has plain jobs only."""
    concurrency: int = 20
    """Runs or jobs a worker works on at a time: the best of those tried, see docs/performance.md."""

    @property
    def is_durable(self) -> bool:
        """Whether it has workflows."""
        return bool(self.shapes)


def noop() -> int:
    """What a step does."""
    return 1


def note(notes: str, *values: float) -> None:
    """Append one line of numbers to the file, at once."""
    if not notes:
        return
    handle = os.open(notes, os.O_CREAT | os.O_APPEND | os.O_WRONLY, 0o666)
    try:
        os.write(handle, (json.dumps(values) + "\n").encode())
    finally:
        os.close(handle)


def noted(notes: Path) -> list[list[float]]:
    """All lines of numbers that were noted."""
    try:
        return [json.loads(line) for line in notes.read_text(encoding="ascii").splitlines()]
    except FileNotFoundError:
        return []


def first_times(notes: Path) -> list[float]:
    """By number, when it was first noted: a replay goes over the same lines of code again."""
    times: dict[int, float] = {}
    for number, at in noted(notes):
        times.setdefault(int(number), at)
    return [times[number] for number in sorted(times)]


def hang_once(notes: str, *, is_draining: Callable[[], bool] = lambda: False) -> int:
    """Note the time; the first time, hang then until killed, or until the worker drains."""
    is_first = not noted(Path(notes))
    note(notes, time.monotonic())
    while is_first and not is_draining():
        time.sleep(DRAIN_POLL_SECONDS)
    return 1


class Books:
    """Counts rows over a connection of its own."""

    def __init__(self, dsn: str) -> None:
        self._connection = psycopg.connect(dsn, autocommit=True)

    def count(self, statement: str, *parameters: object) -> int:
        """The one number a statement answers."""
        row = self._connection.execute(statement.encode(), parameters or None).fetchone()
        assert row is not None
        return int(row[0])

    def close(self) -> None:
        """End its connection."""
        self._connection.close()
