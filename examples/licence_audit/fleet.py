"""The demo's worker processes: started, killed, stopped, and never left behind."""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Generator
    from types import TracebackType
    from typing import Self

ROOT = Path(__file__).resolve().parents[2]
STOP_SECONDS_MAX = 10.0


class WorkerProcess:
    """One process that runs examples.licence_audit.worker; its log goes to `<logs>/<name>.log`."""

    def __init__(self, capability: str, dsn: str, logs: Path) -> None:
        # Unique, because the logs of an interrupted audit are kept and counted when it goes on.
        self.name = f"{capability}-{secrets.token_hex(3)}"
        self.capability = capability
        self.log = logs / f"{self.name}.log"
        logs.mkdir(parents=True, exist_ok=True)
        with open(self.log, "ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "examples.licence_audit.worker", self.name, capability],
                cwd=ROOT,
                env=os.environ | {"DATABASE_URL": dsn},
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=subprocess.STDOUT,
                # Ctrl-C is for the demo alone, which then stops its workers in order.
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def is_alive(self) -> bool:
        return self._process.poll() is None

    @contextlib.contextmanager
    def frozen(self) -> Generator[None]:
        """Hold the process still (SIGSTOP), so that what it has committed does not change while one looks."""
        self._process.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            if self.is_alive:
                self._process.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        """End the process at once, without a chance to hand anything back."""
        self._process.kill()
        self._process.wait()

    def stop(self) -> None:
        """Ask the process to drain, by closing the pipe it watches; `wait` sees it off."""
        if self._process.stdin is not None:
            self._process.stdin.close()

    def wait(self) -> None:
        try:
            self._process.wait(STOP_SECONDS_MAX)
        except subprocess.TimeoutExpired:
            self.kill()


class Fleet:
    """The workers of one demo. Leaving the block stops them all, in whatever way it is left."""

    def __init__(self, dsn: str, logs: Path) -> None:
        self._dsn = dsn
        self._logs = logs
        self.workers: list[WorkerProcess] = []

    def add(self, capability: str) -> WorkerProcess:
        worker = WorkerProcess(capability, self._dsn, self._logs)
        self.workers.append(worker)
        return worker

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, _type: type[BaseException] | None, _error: BaseException | None, _traceback: TracebackType | None
    ) -> None:
        for worker in self.workers:
            worker.stop()
        for worker in self.workers:
            worker.wait()
