"""What the machine itself can do: the figures every other one is to be seen beside."""

from __future__ import annotations

import os
import statistics
import time
from typing import TYPE_CHECKING

from bench.queues._queue import open_connection

if TYPE_CHECKING:
    from pathlib import Path

    from bench.server import Server

PROBE_SECONDS = 0.3
PAGE_BYTES = 8192
TRIPS = 2000


class CommitProbe:
    """Single-row inserts, each a commit, over one connection: what a commit costs just now."""

    def __init__(self, server: Server) -> None:
        self._connection = open_connection(server.fresh("probe"))
        self._connection.execute(
            "create table event (id bigint generated always as identity primary key, payload jsonb not null)"
        )

    def commits_per_second(self) -> float:
        """Measured for a third of a second."""
        count, started = 0, time.perf_counter()
        while (seconds := time.perf_counter() - started) < PROBE_SECONDS:
            self._connection.execute("insert into event (payload) values (%s::jsonb)", ['{"a":1}'])
            count += 1
        return count / seconds

    def round_trip_seconds(self) -> float:
        """The median time of the smallest query."""
        times: list[float] = []
        for _ in range(TRIPS):
            started = time.perf_counter()
            self._connection.execute("select 1")
            times.append(time.perf_counter() - started)
        return statistics.median(times)

    def close(self) -> None:
        """End its connection."""
        self._connection.close()


def syncs_per_second(folder: Path) -> float:
    """How often a second a page can be written and forced to the disk that `folder` is on."""
    handle = os.open(folder / "sync-probe", os.O_CREAT | os.O_WRONLY, 0o600)
    try:
        os.write(handle, bytes(PAGE_BYTES))
        os.fsync(handle)
        flush = getattr(os, "fdatasync", os.fsync)
        count, started = 0, time.perf_counter()
        while (seconds := time.perf_counter() - started) < 1.0:
            os.pwrite(handle, bytes(PAGE_BYTES), 0)
            flush(handle)
            count += 1
        return count / seconds
    finally:
        os.close(handle)


def limits(server: Server, probe: CommitProbe) -> dict[str, float]:
    """The three limits, in the units their names say."""
    return {
        "page writes forced to disk a second": syncs_per_second(server.folder),
        "single-row insert commits a second, one connection": probe.commits_per_second(),
        "round trip, microseconds": probe.round_trip_seconds() * 1e6,
    }
