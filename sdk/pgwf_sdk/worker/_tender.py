"""The worker's second heart: a thread with a connection of its own that keeps leases alive whatever the loop is doing.

It also sweeps (ended leases, due timers, human tasks that are due), makes partitions ahead and reports the worker's
state. A step that computes for minutes, or a workflow that blocks the loop, therefore loses no lease. A round comes
each third of a lease, when something falls due, and when there is word of news of a run in hand.

A limited need brings work with each token. If every worker that offers it swept then, a token would cost a round of all
of them. So only who has just looked for work watches for the next one: who found some sweeps at that very instant, who
found none a little later, when as a rule there is nobody left to be told. If all these are gone, the rounds that come
anyway find the token.
"""

import logging
import math
import random
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final
from uuid import UUID

import psycopg

from pgwf_sdk.worker._outage import Outage
from pgwf_sql.database import Database, Row, Statement, execute, read_nothing, read_value, shut_down

log = logging.getLogger("pgwf_sdk.worker")

SWEEP_SECONDS_MIN: Final = 0.05
WATCH_SECONDS_MAX: Final = 0.25
"""How much later than a token they come who found none before it: whoever is woken at once has asked by then."""
SWEEP_MAX: Final = 2000
"""Timers and ended leases that one sweep moves at most; if there are more, the next one follows at once."""
ESCALATIONS_MAX: Final = 500
"""Human tasks that are due and that one sweep hands on at most; likewise."""
_RECONNECT_SECONDS: Final = 1.0
_ANSWER_SECONDS_MAX: Final = 5.0  # A worker that is told to stop does not wait longer for a database that is gone.
_PARTITIONS_SECONDS: Final = 60.0  # Those made ahead are for ten million runs.


@dataclass(frozen=True, slots=True)
class Held:
    """A lease to keep alive, and how far its holder has read the run's inbox."""

    n: int
    lease_id: UUID
    inbox_seen: int


@dataclass(frozen=True, slots=True)
class Kept:
    """What a holder should know of its lease."""

    n: int
    lease_id: UUID
    lost: bool
    unread: bool
    cancel: bool
    paused: bool


def keepalive(worker_id: str, held: Sequence[Held], lease: timedelta) -> Statement[list[Kept]]:
    """Prolong leases, waiting for whoever holds their rows, and hear what became of each."""
    parameters = {
        "worker_id": worker_id,
        "n": [one.n for one in held],
        "lease_ids": [one.lease_id for one in held],
        "inbox_seen": [one.inbox_seen for one in held],
        "lease_seconds": lease.total_seconds(),
    }
    lease_ids = {one.n: one.lease_id for one in held}

    def read(rows: Sequence[Row]) -> list[Kept]:
        return [Kept(lease_id=lease_ids[row["n"]], **row) for row in rows]

    return Statement("sdk_keepalive", parameters, read, is_repeatable=True)


@dataclass(frozen=True, slots=True)
class Tending:
    """What a round of tending found: seconds until something is due (None: nothing is), the same with the next tokens
    of its needs if it watches for these, whether there is more to sweep already, whether to drain, and which of the
    worker's needs are paused or limited."""

    due_seconds: float | None
    token_seconds: float | None
    has_more: bool
    is_draining: bool
    limited_needs: frozenset[str]


def _tend(
    worker_id: str, capabilities: Sequence[str], build: str, slots: int, used: int, *, watches_tokens: bool
) -> Statement[Tending]:
    def read(rows: Sequence[Row]) -> Tending:
        (row,) = rows
        has_more = row["moved"] >= SWEEP_MAX or row["escalated"] >= ESCALATIONS_MAX
        return Tending(
            row["due_seconds"],
            row["token_seconds"],
            has_more,
            row["is_draining"],
            frozenset(row["limited_needs"]),
        )

    parameters = {
        "worker_id": worker_id,
        "capabilities": list(capabilities),
        "build": build,
        "slots": slots,
        "slots_used": used,
        "watches_tokens": watches_tokens,
        "sweep_max": SWEEP_MAX,
        "escalations_max": ESCALATIONS_MAX,
    }
    return Statement("sdk_tend", parameters, read, is_repeatable=True)


def _goodbye(worker_id: str) -> Statement[None]:
    return Statement("sdk_goodbye", {"worker_id": worker_id}, read_nothing, is_repeatable=True)


def _add_partitions() -> Statement[int]:
    return Statement("sdk_add_partitions", {}, read_value, is_repeatable=True)


class Tender(threading.Thread):
    """Tends until stopped; faults of the database are waited out."""

    def __init__(
        self,
        database: Database,
        *,
        worker_id: str,
        capabilities: Sequence[str],
        build: str,
        slots: int,
        lease: timedelta,
        held: Callable[[], Sequence[Held]],
        kept: Callable[[Sequence[Kept]], None],
        drain: Callable[[], None],
        limited: Callable[[frozenset[str]], None],
    ) -> None:
        super().__init__(name="pgwf-tender", daemon=True)
        self._database = database
        self._worker_id = worker_id
        self._capabilities = capabilities
        self._build = build
        self._slots = slots
        self._lease = lease
        self._held = held
        self._kept = kept
        self._drain = drain
        self._limited = limited
        self._interval_seconds = lease.total_seconds() / 3
        self._began_time = -math.inf  # Of the last round, on the monotonic clock, as the next two.
        self._due_time = math.inf  # Of the next round, if something asked for one.
        self._lag: float | None = None  # Of this worker after the next token, if it watches for that.
        self._token_time = math.inf  # When it sweeps for that token, as far as this is known.
        self._asked_lag: float | None = None  # The same for who asked since the last round began.
        self._partitions_at = 0.0  # When to look after partitions next.
        self._roused = threading.Condition()
        self._is_stopped = False
        self._is_draining = False
        self._is_new = True
        self._outage = Outage(worker_id, "keep its leases alive")
        self._connection: psycopg.Connection[Any] | None = None
        self.contact_time: float | None = None
        """When the database last answered, on the monotonic clock; None: never."""

    def due_in(self, seconds: float) -> None:
        """Something falls due in `seconds`: sweep by then. Safe from any thread."""
        self._round_by(time.monotonic() + max(seconds, SWEEP_SECONDS_MIN))

    def rouse(self) -> None:
        """There is news of a run in hand, or of this worker: ask at once. Safe from any thread."""
        self._round_by(self._began_time + SWEEP_SECONDS_MIN)

    def watch(self, *, has_found: bool) -> None:
        """Work may have been left for want of a token: sweep when the next one is there. Safe from any thread."""
        with self._roused:
            self._asked_lag = 0.0 if has_found else random.uniform(0, WATCH_SECONDS_MAX)
        self.rouse()

    def stop(self) -> None:
        """End the thread and wait for it; not for long, if the database does not answer."""
        with self._roused:
            self._is_stopped = True
            self._roused.notify_all()
        self.join(_ANSWER_SECONDS_MAX)
        if self.is_alive() and self._connection is not None:
            shut_down(self._connection.pgconn)

    def run(self) -> None:
        while not self._is_stopped:
            try:
                with self._database.connect() as connection:
                    self._connection = connection
                    if self._is_new:
                        # Who had this name before may have been asked to drain and was killed; this worker was not.
                        execute(connection, _goodbye(self._worker_id))
                        self._is_new = False
                    self._tend(connection)
                    execute(connection, _goodbye(self._worker_id))
            except psycopg.Error as error:
                self._outage.failed(error)
                self._wait(_RECONNECT_SECONDS)

    def _tend(self, connection: psycopg.Connection[Any]) -> None:
        while not self._is_stopped:
            held = self._held()
            if held:
                self._kept(execute(connection, keepalive(self._worker_id, held, self._lease)))
            statement = _tend(
                self._worker_id,
                self._capabilities,
                self._build,
                self._slots,
                len(held),
                watches_tokens=self._lag is not None,
            )
            found = execute(connection, statement)
            self.contact_time = time.monotonic()
            self._outage.is_over()
            self._limited(found.limited_needs)
            if found.is_draining and not self._is_draining:
                self._is_draining = True  # Once: whoever hears of it twice is to stop at once.
                self._drain()
            self._add_partitions(connection)
            due = min(self._interval_seconds if found.due_seconds is None else found.due_seconds, self._token_in(found))
            self._wait(0 if found.has_more else min(max(due, SWEEP_SECONDS_MIN), self._interval_seconds))

    def _token_in(self, found: Tending) -> float:
        """Seconds until this worker sweeps for a token; infinite if it does not, or something else comes before."""
        self._token_time = math.inf
        if self._lag is None or found.token_seconds is None:
            self._lag = None
            return math.inf
        if found.due_seconds is not None and found.due_seconds <= found.token_seconds:
            return math.inf
        if found.token_seconds <= 0:  # This round has told somebody of it.
            self._lag = None
            return math.inf
        seconds = found.token_seconds + self._lag
        self._token_time = time.monotonic() + seconds
        return seconds

    def _add_partitions(self, connection: psycopg.Connection[Any]) -> None:
        if time.monotonic() < self._partitions_at:
            return
        self._partitions_at = time.monotonic() + _PARTITIONS_SECONDS
        try:
            execute(connection, _add_partitions())
        except psycopg.errors.InsufficientPrivilege:
            self._partitions_at = math.inf
            log.info(
                "worker %s: has no right to make partitions ahead; let the owner of the schemas call"
                " `select pgwf_sdk.add_partitions()` every few minutes",
                self._worker_id,
            )

    def _round_by(self, due_time: float) -> None:
        with self._roused:
            if due_time < self._due_time:
                self._due_time = due_time
                self._roused.notify_all()

    def _wait(self, seconds: float) -> None:
        """Wait so long, or less when `due_in` or `rouse` says so, be it during the round before."""
        with self._roused:
            self._due_time = min(self._due_time, time.monotonic() + seconds)
            while not self._is_stopped and (left := self._due_time - time.monotonic()) > 0:
                self._roused.wait(left)
            self._began_time, self._due_time = time.monotonic(), math.inf
            if self._asked_lag is not None or self._began_time >= self._token_time:
                self._lag, self._asked_lag = self._asked_lag, None
