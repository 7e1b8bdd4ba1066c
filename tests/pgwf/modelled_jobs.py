"""Jobs as the contract has them, without tables and locks: what a call makes of them, and what they look like then.

It knows one thing about time that the status does not show: a lease past its time is its holder's, and a timer that is
due is not leasable, until a sweep.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

    from tests.support import Clock


@dataclass
class Lease:
    lease_id: str
    until: datetime
    counted: bool


@dataclass
class Job:
    name: str
    need: str
    priority: int
    key: str | None
    waits: set[str]
    available_at: datetime
    expires_at: datetime | None
    lease: Lease | None = None
    streak: int = 0
    lapses: int = 0
    shelved: bool = False
    cancelled: bool = False
    timed: bool = False  # its timer has not been promoted yet
    ready_at: datetime | None = None
    seen: list[str] = field(default_factory=list)

    @property
    def is_over(self) -> bool:
        """Cancelled, and nobody holds it: nobody has to wait for it."""
        return self.cancelled and self.lease is None

    @property
    def urgency(self) -> datetime:
        assert self.ready_at is not None
        return self.ready_at + timedelta(seconds=60) * (self.priority - 1)

    @property
    def held(self) -> dict[str, str]:
        """The arguments that prove its lease."""
        assert self.lease is not None
        return {"job_id": self.name, "lease_id": self.lease.lease_id, "worker_id": "w"}

    def hold(self, lease: Lease) -> None:
        self.timed, self.ready_at, self.lease = False, None, lease

    def expired(self, now: datetime) -> bool:
        return self.expires_at is not None and self.expires_at <= now

    def lapsed(self, now: datetime) -> bool:
        """Its lease is past its time, which counts although nobody has ended it yet."""
        return self.lease is not None and self.lease.until <= now and self.lease.counted

    def status(self, now: datetime, threshold: int) -> str:
        if self.lease is not None and self.lease.until > now:
            return "ACTIVE"
        if self.cancelled:
            return "CANCELLED"
        if self.available_at > now:
            return "AWAITING_FUTURE"
        if self.waits:
            return "PENDING_JOBS"
        if self.shelved or (self.lapsed(now) and self.streak + 1 > threshold):
            return "CRASH_CONCERN"
        return "EXPIRED" if self.expired(now) else "READY"

    def shown(self, now: datetime, threshold: int) -> dict[str, Any]:
        """Its row in jobs_with_status."""
        return {
            "job_id": self.name,
            "status": self.status(now, threshold),
            "next_need": self.need,
            "priority": self.priority,
            "singleton_key": self.key,
            "wait_for": [child for child in self.seen if child in self.waits],
            "lapses": self.lapses + self.lapsed(now),
            "streak": self.streak + self.lapsed(now),
            "lease_id": self.lease.lease_id if self.lease else None,
        }


class Jobs:
    """All jobs there are and were. `lost` holds job and lease id of each lease that has ended."""

    def __init__(self, clock: Clock, threshold: int) -> None:
        self.clock = clock
        self.threshold = threshold
        self.live: dict[str, Job] = {}
        self.finished: dict[str, str] = {}
        self.lost: list[tuple[str, str]] = []
        self.limits: dict[str, int] = {}
        self.swept_at: datetime | None = None

    # What they look like

    @property
    def now(self) -> datetime:
        return self.clock.now()

    def known(self) -> list[str]:
        return [*self.live, *self.finished]

    def leased(self) -> list[str]:
        return [name for name, job in self.live.items() if job.lease is not None]

    def cancelled(self, *, leased: bool) -> list[str]:
        return [name for name, job in self.live.items() if job.cancelled and (job.lease is not None) == leased]

    def waiters(self, name: str) -> list[str]:
        return [other for other, job in self.live.items() if name in job.waits]

    def of_status(self, *statuses: str) -> list[str]:
        return [name for name, job in self.live.items() if self.status(job) in statuses]

    def status(self, job: Job) -> str:
        return job.status(self.now, self.threshold)

    def live_dependencies(self, names: list[str]) -> set[str]:
        return {name for name in names if name in self.live and not self.live[name].is_over}

    def reaches(self, start: str, target: str) -> bool:
        return start == target or any(
            self.reaches(child, target) for child in (self.live[start].waits if start in self.live else set())
        )

    def holders(self, key: str | None) -> set[str]:
        return {name for name, job in self.live.items() if key and job.lease and job.key == key}

    def without_room(self) -> list[str]:
        """Ready jobs whose key has no room."""
        return [
            name for name in self.of_status("READY")
            if (key := self.live[name].key) and len(self.holders(key) - {name}) >= self.limits.get(key, 1)
        ]  # fmt: skip

    def rooms(self, keys: Sequence[str]) -> dict[str, int]:
        """How many more jobs of each key may be leased."""
        return {key: max(0, self.limits.get(key, 1) - len(self.holders(key))) for key in keys}

    def candidates(self, needs: set[str]) -> dict[str, Job]:
        """What a claim may hand out, were it not for keys."""
        return {
            name: job for name, job in self.live.items()
            if job.ready_at is not None and job.lease is None and job.need in needs and not job.expired(self.now)
        }  # fmt: skip

    # What becomes of them

    def place(self, job: Job) -> None:
        """The job stands nowhere and nobody holds it: it gets a timer, or is ready from now."""
        job.timed, job.ready_at = False, None
        if job.cancelled or job.waits or job.shelved or job.expired(self.now):
            return
        job.timed = job.available_at > self.now
        if not job.timed:
            job.ready_at = self.now

    def lose(self, name: str) -> Job:
        """The job's lease ends, whoever ends it."""
        job = self.live[name]
        assert job.lease is not None
        self.lost.append((name, job.lease.lease_id))
        job.lease = None
        return job

    def give_back(self, name: str, available_at: datetime) -> None:
        job = self.lose(name)
        job.available_at, job.streak = available_at, 0
        self.place(job)

    def over(self, name: str, outcome: str) -> None:
        if self.live[name].lease is not None:
            self.lose(name)
        del self.live[name]
        self.finished[name] = outcome
        self.release(name)

    def release(self, name: str) -> None:
        """Nobody waits for this job any more."""
        for job in self.live.values():
            if name in job.waits:
                job.waits.discard(name)
                if not job.waits and job.lease is None:
                    self.place(job)

    def cancel(self, name: str) -> None:
        self.lapse_if_late(name)
        job = self.live[name]
        if not job.cancelled:
            job.cancelled = True
            job.timed, job.ready_at = False, None
            if job.lease is None:
                self.release(name)

    def lapse_if_late(self, name: str) -> bool:
        lease = self.live[name].lease
        if lease is None or lease.until > self.now:
            return False
        job = self.lose(name)
        if lease.counted:
            job.streak += 1
            job.lapses += 1
            job.shelved = job.streak > self.threshold
        self.place(job)
        return True

    def set_threshold(self, threshold: int) -> None:
        self.threshold = threshold
        for job in self.live.values():
            shelved = job.streak > threshold
            if job.lease is None and job.streak > 0 and job.shelved != shelved:
                job.shelved = shelved
                self.place(job)

    def archive_cancelled(self) -> int:
        for name, job in list(self.live.items()):
            if job.cancelled:
                self.lapse_if_late(name)
        names = [name for name, job in self.live.items() if job.is_over]
        for name in names:
            self.over(name, "cancelled")
        return len(names)

    def sweep(self) -> int:
        self.swept_at = self.now
        moved = sum([self.lapse_if_late(name) for name in list(self.live)])
        for job in self.live.values():
            if job.timed and job.available_at <= self.now:
                self.place(job)
                moved += 1
        moved += self.archive_cancelled()
        while names := [
            name for name in self.of_status("EXPIRED") if any(name in other.waits for other in self.live.values())
        ]:
            for name in names:
                self.over(name, "expired")
            moved += len(names)
        return moved

    def sweep_is_due(self) -> bool:
        return self.swept_at is None or self.now - self.swept_at > timedelta(seconds=1)
