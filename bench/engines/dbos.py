"""DBOS: a queue that a worker process polls every 50 ms, where its default is a second; plain functions."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from dbos import DBOS, DBOSClient

from bench.engines._engine import Books, EngineSystem, Order, hang_once, noop, note

if TYPE_CHECKING:
    from collections.abc import Callable

QUEUE = "bench"
CHILDREN = "children"
POLL_SECONDS = 0.05
POOL_SIZE = 20
SIGNAL = "go"
SIGNAL_SECONDS_MAX = 60.0


class DbosEngine:
    """A client, or a worker."""

    def __init__(self, dsn: str) -> None:
        self._dsn = dsn
        self._books = Books(dsn)
        self._mark = 0
        self._last = ""
        self._client: Any = None

    def install(self) -> None:
        self._launch(executor="install")  # makes the tables
        DBOS.destroy()

    def start(self, runs: int, order: Order) -> None:
        self._mark = self._ended()
        for _ in range(runs):
            self._last = str(uuid4())
            options = {"queue_name": QUEUE, "workflow_name": "run", "workflow_id": self._last}
            self._connected().enqueue(options, order.as_dict())

    def finished(self) -> int:
        return self._ended() - self._mark

    def send(self, order: Order) -> None:
        self._connected().send(self._last, 1, SIGNAL)

    def work(self, *, concurrency: int, lease_seconds: int, ready: Callable[[], None]) -> None:
        self._launch(executor=f"worker-{os.getpid()}")
        ready()
        # Only now, so that nothing is taken before there is work.
        for name in (QUEUE, CHILDREN):
            DBOS.register_queue(
                name, worker_concurrency=concurrency, polling_interval_sec=POLL_SECONDS, on_conflict="always_update"
            )
        while True:
            time.sleep(60)

    def close(self) -> None:
        if self._client is not None:
            self._client.destroy()
        self._books.close()

    def _connected(self) -> Any:
        if self._client is None:
            self._client = DBOSClient(system_database_url=_url(self._dsn))
        return self._client

    def _launch(self, *, executor: str) -> None:
        DBOS(
            config={
                "name": "bench",
                "system_database_url": _url(self._dsn),
                "log_level": "ERROR",
                "run_admin_server": False,
                "executor_id": executor,
                "application_version": "1",
                "sys_db_pool_size": POOL_SIZE,
            }
        )
        if executor == "install":
            DBOS.listen_queues([])
        _define()
        DBOS.launch()

    def _ended(self) -> int:
        return self._books.count("select count(*) from dbos.workflow_status where status in ('SUCCESS', 'ERROR')")


def _define() -> None:
    nothing = DBOS.step(name="nothing")(noop)
    stop = DBOS.step(name="stop")(hang_once)

    def child(number: int) -> int:
        return int(nothing()) + number * 0

    child = DBOS.workflow(name="child")(child)

    def run(values: dict[str, Any]) -> int:
        order = Order(**values)
        times = [order.sent_at, time.monotonic()]
        if order.shape == "children":
            handles = [DBOS.enqueue_workflow(CHILDREN, child, number) for number in range(order.count)]
            return sum(handle.get_result() for handle in handles)
        if order.shape == "signals":
            for number in range(order.count):
                DBOS.recv(SIGNAL, timeout_seconds=SIGNAL_SECONDS_MAX)
                note(order.notes, number, time.monotonic())
            return order.count
        if order.shape == "stop":
            nothing()
            return int(stop(order.notes))
        for _ in range(order.count):
            nothing()
            times.append(time.monotonic())
        note(order.notes, *times)
        return order.count

    DBOS.workflow(name="run")(run)


def _url(dsn: str) -> str:
    """The connection string as SQLAlchemy reads it."""
    from psycopg.conninfo import conninfo_to_dict

    parts = conninfo_to_dict(dsn)
    return f"postgresql://{parts['user']}@/{parts['dbname']}?host={parts['host']}"


def systems() -> list[EngineSystem]:
    """It has no lease: without its Conductor, only a process with the same executor id recovers a dead one's work."""
    return [EngineSystem("DBOS", __name__, frozenset({"steps", "signals", "children"}))]


def open_engine(_name: str, dsn: str) -> DbosEngine:
    """A client or worker."""
    return DbosEngine(dsn)
