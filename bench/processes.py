"""Worker processes of the engines: started, told to go, ended. As a module, one such process."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
import threading
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from pgwf_sdk.cli._memory import settle_collector

if TYPE_CHECKING:
    from collections.abc import Generator

    from bench.engines._engine import Engine, EngineSystem

ROOT = Path(__file__).resolve().parents[1]
READY = "ready"
GO = "go"
END_SECONDS_MAX = 3.0
LEASE_SECONDS = 15


class WorkerProcess:
    """A process that works for an engine; it takes nothing before `go`."""

    def __init__(
        self, system: EngineSystem, dsn: str, *, log: Path, concurrency: int, lease_seconds: int = LEASE_SECONDS
    ) -> None:
        self._name = system.name
        with log.open("ab") as file:
            self._process = subprocess.Popen(
                [sys.executable, "-m", __name__, system.module, system.name, dsn, str(concurrency), str(lease_seconds)],
                cwd=ROOT,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=file,
                text=True,
            )
        self._log = log

    def wait_ready(self) -> None:
        """Return once it could begin. RuntimeError: it ended instead."""
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.strip() == READY:
                return
        raise RuntimeError(f"a worker of {self._name} ended with code {self._process.wait()}; see {self._log}")

    def go(self) -> None:
        """Let it take work."""
        assert self._process.stdin is not None
        self._process.stdin.write(GO + "\n")
        self._process.stdin.flush()

    def terminate(self) -> None:
        """Ask it to end."""
        self._process.terminate()

    def kill(self) -> None:
        """End it at once."""
        self._process.kill()
        self._process.wait()

    def close(self) -> None:
        """End it: friendly at first."""
        self.terminate()
        try:
            self._process.wait(END_SECONDS_MAX)
        except subprocess.TimeoutExpired:
            self.kill()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()


@contextmanager
def workers(system: EngineSystem, dsn: str, *, log: Path, count: int) -> Generator[list[WorkerProcess]]:
    """`count` worker processes that are ready, and have not been told to go; ended afterwards."""
    made = [WorkerProcess(system, dsn, log=log, concurrency=system.concurrency) for _ in range(count)]
    try:
        for worker in made:
            worker.wait_ready()
        yield made
    finally:
        for worker in made:
            worker.close()


def open_engine(system: EngineSystem, dsn: str) -> Engine:
    """The engine of a system, in this process."""
    return _open(system.module, system.name, dsn)


def _open(module: str, name: str, dsn: str) -> Engine:
    found: Any = importlib.import_module(module)
    return cast("Engine", found.open_engine(name, dsn))


def _ready() -> None:
    print(READY, flush=True)
    _wait_line()
    threading.Thread(target=_wait_line, daemon=True).start()


def _wait_line() -> None:
    """Return when the benchmark says something; end with it when it is no more."""
    if not sys.stdin.readline():
        os._exit(1)


def main() -> None:
    module, name, dsn, concurrency, lease_seconds = sys.argv[1:]
    engine = _open(module, name, dsn)
    settle_collector()  # As `pgwf worker` does; the workers of all systems alike.
    engine.work(concurrency=int(concurrency), lease_seconds=int(lease_seconds), ready=_ready)


if __name__ == "__main__":
    main()
