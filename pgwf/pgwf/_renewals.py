"""When to extend which leases, and when to tell their holders that a lease is lost. No I/O and no clock of its own.

Every lease is extended three times in its length, so two extensions may fail before anybody else can take the job. Only
the database's clock ends a lease. This clock measures one thing: for how long no extension has got through. After a
whole length of that, somebody else may hold the job, and its holder is told to stop.
"""

from dataclasses import dataclass
from threading import Lock
from typing import Generic, Protocol, TypeVar

from pgwf._errors import InvalidArgumentError
from pgwf._job import HeldJob, JobOutcome
from pgwf_sql.database import shown_number

_LENGTH_SECONDS_MAX = 1e10  # As extend_leases has it.
_EXTENSIONS_PER_LENGTH = 3
_RETRY_SECONDS_MAX = 1.0
_RETRIES_PER_LENGTH = 10
_PATIENCE_SECONDS_MIN = 1.0
LEASES_MAX = 1000
"""Leases one statement extends at most."""


class Flag(Protocol):
    """An event, of whatever kind the holder waits for."""

    def set(self) -> None: ...


class Holder(Protocol):
    """Who is told about a lease that is kept alive: `lost`, stop; `cancelled`, it cannot be extended any more."""

    @property
    def job_id(self) -> str: ...
    @property
    def lease_id(self) -> str: ...
    @property
    def worker_id(self) -> str: ...
    @property
    def lost(self) -> Flag: ...
    @property
    def cancelled(self) -> Flag: ...


H = TypeVar("H", bound=Holder)


@dataclass(slots=True)
class _Renewal(Generic[H]):
    holder: H
    length_seconds: float
    due_at: float
    lost_at: float


class Renewals(Generic[H]):
    """The leases that are kept alive; safe to share between threads. All instants are of one monotonic clock."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._kept: dict[str, _Renewal[H]] = {}

    def add(self, holder: H, *, length_seconds: float, now: float) -> None:
        """Keep a lease alive from now on; it was taken, or extended for `length_seconds`, no later than now.

        InvalidArgumentError: no lease can be extended by that.
        """
        if not 0 < length_seconds <= _LENGTH_SECONDS_MAX:
            found = shown_number(length_seconds)
            raise InvalidArgumentError(f"lease_seconds is {found}, expected more than 0 and at most 1e10")
        due_at = now + length_seconds / _EXTENSIONS_PER_LENGTH
        with self._lock:
            self._kept[holder.lease_id] = _Renewal(holder, length_seconds, due_at, now + length_seconds)

    def remove(self, holder: H) -> None:
        """Let a lease run out by itself; idempotent."""
        with self._lock:
            self._kept.pop(holder.lease_id, None)

    def clear(self) -> None:
        """Let all leases run out by themselves."""
        with self._lock:
            self._kept.clear()

    def pause_seconds(self, now: float) -> float | None:
        """How long nothing is due; None when nothing is kept alive."""
        with self._lock:
            if not self._kept:
                return None
            return max(0.0, min(renewal.due_at for renewal in self._kept.values()) - now)

    def patience_seconds(self, now: float) -> float:
        """How long an extension may wait for its answer: until a holder has to be told that its lease is lost."""
        with self._lock:
            lost_at = min((renewal.lost_at for renewal in self._kept.values()), default=now)
        return max(_PATIENCE_SECONDS_MIN, lost_at - now)

    def due(self, now: float) -> "tuple[str, float, list[HeldJob]] | None":
        """The next leases to extend in one statement: worker, length, leases. None when nothing is due."""
        with self._lock:
            ready = [renewal for renewal in self._kept.values() if renewal.due_at <= now]
            if not ready:
                return None
            first = ready[0]
            same = [
                HeldJob(job_id=renewal.holder.job_id, lease_id=renewal.holder.lease_id)
                for renewal in ready
                if renewal.holder.worker_id == first.holder.worker_id and renewal.length_seconds == first.length_seconds
            ]
            return first.holder.worker_id, first.length_seconds, same[:LEASES_MAX]

    def answered(self, leases: list[HeldJob], outcomes: tuple[JobOutcome, ...], *, sent_at: float, now: float) -> None:
        """What became of an attempt to extend `leases` that was sent at `sent_at`."""
        for lease, outcome in zip(leases, outcomes, strict=True):
            if outcome.status == "ok":
                self._extended(lease, sent_at)
            elif outcome.status == "busy":
                self._postponed(lease, now)
            elif (holder := self._dropped(lease)) is not None:
                (holder.cancelled if outcome.status == "cancelled" else holder.lost).set()

    def failed(self, leases: list[HeldJob], *, now: float) -> None:
        """The database could not be asked about `leases`."""
        for lease in leases:
            self._postponed(lease, now)

    def _extended(self, lease: HeldJob, sent_at: float) -> None:
        with self._lock:
            renewal = self._kept.get(lease.lease_id)
            if renewal is not None:
                renewal.due_at = sent_at + renewal.length_seconds / _EXTENSIONS_PER_LENGTH
                renewal.lost_at = sent_at + renewal.length_seconds

    def _postponed(self, lease: HeldJob, now: float) -> None:
        with self._lock:
            renewal = self._kept.get(lease.lease_id)
            if renewal is None:
                return
            if now < renewal.lost_at:
                retry_seconds = min(_RETRY_SECONDS_MAX, renewal.length_seconds / _RETRIES_PER_LENGTH)
                renewal.due_at = min(now + retry_seconds, renewal.lost_at)
                return
            del self._kept[lease.lease_id]
        renewal.holder.lost.set()

    def _dropped(self, lease: HeldJob) -> H | None:
        with self._lock:
            renewal = self._kept.pop(lease.lease_id, None)
        return None if renewal is None else renewal.holder
