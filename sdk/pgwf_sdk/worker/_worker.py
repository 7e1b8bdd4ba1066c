"""The worker: takes runs whose needs it offers, runs their code, and records what they do."""

import asyncio
import logging
import os
import socket
import threading
from collections.abc import Callable, Iterable, Mapping
from datetime import timedelta
from typing import Any
from uuid import uuid4

from pgwf_sdk._client import AsyncClient, Client
from pgwf_sdk._definition import Workflow
from pgwf_sdk._kinds import check_kind, check_texts
from pgwf_sdk.worker._health import Health, HealthState
from pgwf_sdk.worker._session import Session
from pgwf_sdk.worker._settings import (
    CONCURRENCY,
    GRACE,
    JOURNAL_LIMITS,
    LEASE,
    POLL,
    STEP_PROCESSES,
    STEP_THREADS,
    JournalLimits,
    Settings,
    by_name,
    offered,
)

log = logging.getLogger("pgwf_sdk.worker")


class Worker:
    """Works on runs until it is told to stop; one process may have several.

    It knows `workflows`, and offers their names and `capabilities`: it is handed runs that need one of these, and steps
    with such a `need`. `concurrency` bounds the runs it works on at a time (runs that wait are in no worker), `limits`
    what it does for a capability (`{"gpu": 1}`: one step with that need at a time; the next goes to another worker, or
    waits for this one without holding any place), `step_threads` the plain steps, and `step_processes` those that are
    isolated. A run whose worker is silent for `lease` is taken over by another. Work that nobody tells it of is found
    within `poll`; a worker that is told to stop waits up to `grace` for its steps. `build` names this version of the
    code; runs pinned to a build only go to workers of it. `journal_limits` bounds how long the journal of one run may
    become. `detect` is for development: where a workflow's code reads a clock, draws at random, or uses files and
    sockets, a DeterminismWarning stands at its line; that code is slower. `worker_id` is the name it holds leases by
    (default: host, process and a random part). DefinitionError: names that clash, a capability that belongs to people,
    or a bound that makes no sense.
    """

    def __init__(
        self,
        client: Client,
        *,
        workflows: Iterable[Workflow[..., Any]],
        capabilities: Iterable[str] = (),
        concurrency: int = CONCURRENCY,
        limits: Mapping[str, int] | None = None,
        step_threads: int = STEP_THREADS,
        step_processes: int = STEP_PROCESSES,
        lease: timedelta = LEASE,
        poll: timedelta = POLL,
        grace: timedelta = GRACE,
        build: str = "",
        detect: bool = False,
        journal_limits: JournalLimits = JOURNAL_LIMITS,
        worker_id: str | None = None,
    ) -> None:
        expected = "a client: Worker(Client(dsn), workflows=[checkout])"
        check_kind(client, (Client, AsyncClient), used="Worker(client)", expected=expected)
        check_kind(limits or {}, Mapping, used="Worker(limits=…)", expected="counts by capability, such as {'gpu': 1}")
        check_kind(journal_limits, JournalLimits, used="Worker(journal_limits=…)", expected="JournalLimits(…)")
        check_texts("Worker", worker_id=worker_id)
        known = by_name(workflows)
        self._settings = Settings(
            dsn=client.dsn,
            listen_dsn=client.listen_dsn,
            worker_id=worker_id or f"{socket.gethostname()}:{os.getpid()}:{uuid4().hex[:6]}",
            workflows=known,
            capabilities=offered(known, capabilities, build),
            concurrency=concurrency,
            limits=dict(limits or {}),
            step_threads=step_threads,
            step_processes=step_processes,
            lease=lease,
            poll=poll,
            grace=grace,
            build=build,
            detects=detect,
            sealing=client.sealing,
            journal_limits=journal_limits,
        )
        self._telemetry = client.telemetry
        self._stopping = threading.Event()
        self._session: Session | None = None
        self._is_over = False
        self._lock = threading.Lock()

    @property
    def worker_id(self) -> str:
        """The name under which this worker holds leases."""
        return self._settings.worker_id

    @property
    def capabilities(self) -> tuple[str, ...]:
        """Everything this worker offers, sorted."""
        return self._settings.capabilities

    def health(self) -> Health:
        """How the worker is. Safe from any thread, before, while and after it runs."""
        with self._lock:
            session = self._session
        state: HealthState = "stopped" if self._is_over else "starting"
        if session is not None and not self._is_over:
            return session.checkup.health()
        return Health(self.worker_id, state, slots=self._settings.concurrency)

    def run(self, *, loop_factory: Callable[[], asyncio.AbstractEventLoop] | None = None) -> None:
        """Work until `stop`, SIGTERM or SIGINT (when called in the main thread), then drain and return.

        Draining: no new runs; steps that are running end and are recorded; runs are handed back at once. A second
        signal, or the end of the grace period, hands them back without waiting. `loop_factory` makes the event loop
        (default: asyncio's).
        """
        with asyncio.Runner(loop_factory=loop_factory) as runner:
            loop = runner.get_loop()
            running = loop.create_task(self.run_async())
            while True:
                try:
                    return loop.run_until_complete(running)
                except BaseException as error:
                    # A task that a step began may exit, or stop the loop. That is no reason to leave everybody's runs.
                    if running.done() or self._session is None:
                        raise
                    log.error("worker %s: its event loop was stopped; it goes on", self.worker_id, exc_info=error)

    async def run_async(self) -> None:
        """`run`, inside a running event loop; signals are handled only if this is the main thread."""
        session = Session(self._settings, self._telemetry)
        with self._lock:
            self._session = session
        if self._stopping.is_set():
            session.stop()
        try:
            with session.signals():
                await session.run()
        finally:
            self._is_over = True

    def stop(self) -> None:
        """Begin to drain; `run` returns when that is done. Safe from any thread, also before `run`."""
        self._stopping.set()
        with self._lock:
            if self._session is not None:
                self._session.stop_threadsafe()
