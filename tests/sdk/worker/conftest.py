"""A client and workers on the test's own database; the workers run on threads of the test's process."""

from __future__ import annotations

import threading
from contextlib import ExitStack
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Protocol

import pytest

from pgwf_sdk import Client
from pgwf_sdk.worker import Worker

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pgwf_sdk import Workflow

STOP_SECONDS_MAX = 30.0


class StartWorker(Protocol):
    """Starts a worker that is stopped at the end of the test."""

    def __call__(self, *workflows: Workflow[..., Any], **options: Any) -> Running: ...


class Running:
    """A worker at work."""

    def __init__(self, worker: Worker) -> None:
        self.worker = worker
        self.error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="test-worker", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self.worker.run()
        except BaseException as error:  # noqa: BLE001 - raised in the test when it ends
            self.error = error

    def stop(self) -> None:
        """Drain it and wait until it has ended; idempotent."""
        self.worker.stop()
        self.join()

    def join(self) -> None:
        """Wait until it has ended by itself."""
        self._thread.join(STOP_SECONDS_MAX)
        assert not self._thread.is_alive(), "the worker did not stop"
        if self.error is not None:
            raise self.error


@pytest.fixture
def client(dsn: str) -> Iterator[Client]:
    with Client(dsn) as client:
        yield client


@pytest.fixture
def start_worker(client: Client) -> Iterator[StartWorker]:
    with ExitStack() as running:

        def start(*workflows: Workflow[..., Any], **options: Any) -> Running:
            options.setdefault("poll", timedelta(seconds=1))
            worker = Running(Worker(client, workflows=workflows, **options))
            running.callback(worker.stop)
            return worker

        yield start
