"""The leasing core against a model of it: any sequence of calls on a few jobs leaves both in the same state.

The model is what the contract says, without tables and locks. It knows one thing about time that the status does not
show: a lease past its time is its holder's, and a timer that is due is not leasable, until a sweep.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from tests.pgwf.leasing import Leasing
from tests.pgwf.machines import play
from tests.support import Clock

if TYPE_CHECKING:
    from datetime import datetime

NEEDS = ["a", "b"]
LIMITABLE = ["K", "L"]
KEYS = [None, None, *LIMITABLE]
JOBS_MAX = 9
CLAIM_MIN = 3
THRESHOLD = 2

needs = st.sampled_from(NEEDS)
keys = st.sampled_from(KEYS)
delays = st.sampled_from([None, None, None, 0, 5, 40])
choice = st.integers(0, 10**6)
offers = st.sets(needs, min_size=1)


@dataclass
class Lease:
    lease_id: str
    until: datetime
    counted: bool


@dataclass
class Job:
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


class LeasingMachine(RuleBasedStateMachine):
    """One client. Each rule calls the core and does the same to the model."""

    dsn: str

    def __init__(self) -> None:
        super().__init__()
        self.conn = psycopg.connect(self.dsn, autocommit=True)
        self.pgwf = Leasing(self.conn)
        self.jobs: dict[str, Job] = {}
        self.finished: dict[str, str] = {}
        self.lost: list[tuple[str, str]] = []
        self.limits: dict[str, int] = {}
        self.count = 0

    @initialize()
    def start(self) -> None:
        self.conn.execute(self.reset)
        self.clock = Clock(self.conn)
        self.swept_at: datetime | None = None
        self.pgwf.value("set_crash_concern_threshold", threshold=THRESHOLD)

    reset: str

    def teardown(self) -> None:
        self.conn.close()

    # What the contract says of a job

    @property
    def now(self) -> datetime:
        return self.clock.now()

    def status(self, job: Job) -> str:
        lapsed = job.lease is not None and job.lease.until <= self.now and job.lease.counted
        if job.lease is not None and job.lease.until > self.now:
            return "ACTIVE"
        if job.cancelled:
            return "CANCELLED"
        if job.available_at > self.now:
            return "AWAITING_FUTURE"
        if job.waits:
            return "PENDING_JOBS"
        if job.shelved or (lapsed and job.streak + 1 > THRESHOLD):
            return "CRASH_CONCERN"
        return "EXPIRED" if self.expired(job) else "READY"

    def expired(self, job: Job) -> bool:
        return job.expires_at is not None and job.expires_at <= self.now

    def place(self, job: Job) -> None:
        """The job stands nowhere and nobody holds it: it gets a timer, or is ready from now."""
        job.timed, job.ready_at = False, None
        if job.cancelled or job.waits or job.shelved or self.expired(job):
            return
        job.timed = job.available_at > self.now
        if not job.timed:
            job.ready_at = self.now

    def over(self, name: str, outcome: str) -> None:
        del self.jobs[name]
        self.finished[name] = outcome
        self.release(name)

    def release(self, name: str) -> None:
        for job in self.jobs.values():
            if name in job.waits:
                job.waits.discard(name)
                if not job.waits and job.lease is None:
                    self.place(job)

    def lapse(self, name: str) -> None:
        job = self.jobs[name]
        assert job.lease is not None
        if job.lease.counted:
            job.streak += 1
            job.lapses += 1
            job.shelved = job.streak > THRESHOLD
        self.lost.append((name, job.lease.lease_id))
        job.lease = None
        self.place(job)

    def lapse_if_late(self, name: str) -> None:
        lease = self.jobs[name].lease
        if lease is not None and lease.until <= self.now:
            self.lapse(name)

    def model_sweep(self) -> None:
        self.swept_at = self.now
        for name in list(self.jobs):
            self.lapse_if_late(name)
        for job in self.jobs.values():
            if job.timed and job.available_at <= self.now:
                self.place(job)
        for name, job in list(self.jobs.items()):
            if job.cancelled and job.lease is None:
                self.over(name, "cancelled")
        for name, job in list(self.jobs.items()):
            if self.status(job) == "EXPIRED" and any(name in other.waits for other in self.jobs.values()):
                self.over(name, "expired")

    def sweep_is_due(self) -> bool:
        return self.swept_at is None or self.now - self.swept_at > timedelta(seconds=1)

    def live_dependencies(self, names: list[str]) -> set[str]:
        return {
            name
            for name in names
            if name in self.jobs and not (self.jobs[name].cancelled and self.jobs[name].lease is None)
        }

    def reaches(self, start: str, target: str) -> bool:
        return start == target or any(
            self.reaches(child, target) for child in (self.jobs[start].waits if start in self.jobs else set())
        )

    def pick(self, number: int, names: list[str]) -> str:
        return names[number % len(names)]

    def leased(self) -> list[str]:
        return [name for name, job in self.jobs.items() if job.lease is not None]

    def later(self, seconds: int | None) -> datetime | None:
        return None if seconds is None else self.now + timedelta(seconds=seconds)

    def held(self, name: str) -> dict[str, str]:
        lease = self.jobs[name].lease
        assert lease is not None
        return {"job_id": name, "lease_id": lease.lease_id, "worker_id": "w"}

    def known(self) -> list[str]:
        return [*self.jobs, *self.finished]

    def refused(self, sqlstate: str, function: str, **arguments: Any) -> None:
        with pytest.raises(psycopg.Error) as caught:
            self.pgwf.call(function, **arguments)
        assert caught.value.sqlstate == sqlstate, str(caught.value)

    # Calls

    @precondition(lambda self: len(self.jobs) < JOBS_MAX)
    @rule(
        need=needs, key=keys, priority=st.integers(1, 4), waits=st.lists(choice, max_size=3), delay=delays, life=delays
    )
    def submit(
        self, need: str, key: str | None, priority: int, waits: list[int], delay: int | None, life: int | None
    ) -> None:
        name = f"j{self.count}"
        self.count += 1
        dependencies = [self.pick(number, self.known()) for number in waits] if self.known() else []
        available_at, expires_at = self.later(delay), self.later(life)
        self.pgwf.submit(
            name, need, wait_for=dependencies, singleton_key=key, available_at=available_at, expires_at=expires_at,
            priority=priority,
        )  # fmt: skip
        job = Job(
            need, priority, key, self.live_dependencies(dependencies), available_at or self.now, expires_at,
            seen=list(dict.fromkeys(dependencies)),
        )  # fmt: skip
        self.jobs[name] = job
        self.place(job)

    @rule(number=choice)
    def submit_again(self, number: int) -> None:
        if not self.known():
            return
        name = self.pick(number, self.known())
        self.refused("23505" if name in self.jobs else "WF010", "submit_job", job_id=name, worker_id="w", next_need="a")

    @rule(offered=offers, limit=st.sampled_from([CLAIM_MIN, 6, JOBS_MAX]), seconds=st.sampled_from([1, 1, 30]))
    def get_work(self, offered: set[str], limit: int, seconds: int) -> None:
        rows = self.pgwf.get_work(*offered, limit=limit, seconds=seconds)
        taken = self.claim(rows, offered, limit, seconds)
        if taken < limit or self.sweep_is_due():
            self.model_sweep()
            taken += self.claim(rows[taken:], offered, limit - taken, seconds)
        assert taken == len(rows)

    def claim(self, rows: list[dict[str, Any]], offered: set[str], limit: int, seconds: int) -> int:
        """Take from `rows` what one claim may hand out, and check that it is what it must hand out."""
        candidates = {
            name: job for name, job in self.jobs.items()
            if job.ready_at is not None and job.lease is None and job.need in offered and not self.expired(job)
        }  # fmt: skip
        rooms = {key: max(0, self.limits.get(key, 1) - len(self.holders(key))) for key in LIMITABLE}
        unkeyed = [name for name, job in candidates.items() if job.key is None]
        keyed = Counter(job.key for job in candidates.values())
        expected = min(limit, len(unkeyed) + sum(min(keyed[key], room) for key, room in rooms.items()))
        if limit < len(candidates):  # Such a claim ends after four turns, be there something behind keys without room.
            expected = min(expected, len(rows))
        taken = rows[:expected]
        names = [row["job_id"] for row in taken]
        assert (len(names), set(names) <= set(candidates)) == (expected, True), (names, unkeyed, keyed, rooms)
        assert Counter(self.jobs[name].key for name in names if self.jobs[name].key) <= Counter(rooms)
        urgency = {name: self.urgency(candidates[name]) for name in unkeyed}
        left = [urgency[name] for name in unkeyed if name not in names]
        assert all(urgency[name] <= least for name in names if name in urgency for least in left)
        for row in taken:
            job = self.jobs[row["job_id"]]
            job.lease = Lease(row["lease_id"], self.now + timedelta(seconds=seconds), counted=True)
            job.ready_at = None
        return expected

    def holders(self, key: str) -> list[str]:
        return [name for name, job in self.jobs.items() if job.lease and job.key == key]

    def urgency(self, job: Job) -> datetime:
        assert job.ready_at is not None
        return job.ready_at + timedelta(seconds=60) * (job.priority - 1)

    @precondition(lambda self: self.leased())
    @rule(number=choice, seconds=st.sampled_from([1, 30]))
    def extend(self, number: int, seconds: int) -> None:
        job = self.jobs[name := self.pick(number, self.leased())]
        if job.cancelled:
            self.refused("WF003", "extend_lease", **self.held(name), additional_seconds=seconds)
            return
        assert job.lease is not None
        job.lease.until = max(job.lease.until, self.now + timedelta(seconds=seconds))
        assert self.pgwf.value("extend_lease", **self.held(name), additional_seconds=seconds) == job.lease.until

    @precondition(lambda self: self.leased())
    @rule(number=choice)
    def complete(self, number: int) -> None:
        name = self.pick(number, self.leased())
        held = self.held(name)
        assert self.pgwf.value("complete_job", **held) is True
        self.over(name, "completed")
        self.lost.append((name, held["lease_id"]))

    @precondition(lambda self: self.lost)
    @rule(number=choice, function=st.sampled_from(["complete_job", "extend_lease", "release_job"]))
    def call_with_a_lost_lease(self, number: int, function: str) -> None:
        name, lease_id = self.lost[number % len(self.lost)]
        self.refused("WF002", function, job_id=name, lease_id=lease_id, worker_id="w")

    @precondition(lambda self: self.leased())
    @rule(
        number=choice,
        need=needs,
        key=st.sampled_from([None, "", "K"]),
        waits=st.lists(choice, max_size=2),
        delay=delays,
    )
    def reschedule(self, number: int, need: str, key: str | None, waits: list[int], delay: int | None) -> None:
        name = self.pick(number, self.leased())
        job, held = self.jobs[name], self.held(name)
        dependencies = [self.pick(n, self.known()) for n in waits]
        available_at = self.later(delay)
        arguments: dict[str, Any] = {
            **held, "next_need": need, "wait_for": dependencies, "singleton_key": key, "available_at": available_at,
        }  # fmt: skip
        live = self.live_dependencies(dependencies)
        if job.cancelled:
            self.refused("WF003", "reschedule_job", **arguments)
        elif name in dependencies or any(self.reaches(child, name) for child in live):
            self.refused("WF012", "reschedule_job", **arguments)
        else:
            self.pgwf.call("reschedule_job", **arguments)
            job.need, job.waits, job.available_at = need, live, available_at or self.now
            job.seen = list(dict.fromkeys(dependencies))
            job.key = job.key if key is None else key or None
            job.lease, job.streak, job.shelved = None, 0, False
            self.lost.append((name, held["lease_id"]))
            self.place(job)

    @precondition(lambda self: self.leased())
    @rule(number=choice, delay=st.sampled_from([0, 7]))
    def release_lease(self, number: int, delay: int) -> None:
        name = self.pick(number, self.leased())
        job, held = self.jobs[name], self.held(name)
        self.pgwf.call("release_job", **held, delay_seconds=delay)
        self.lost.append((name, held["lease_id"]))
        job.lease = None
        if job.cancelled:
            self.over(name, "cancelled")
            return
        job.available_at, job.streak = self.now + timedelta(seconds=delay), 0
        self.place(job)

    @rule(number=choice)
    def cancel(self, number: int) -> None:
        if not self.known():
            return
        name = self.pick(number, self.known())
        if name in self.finished:
            self.refused("WF010", "cancel_job", job_id=name, worker_id="w")
            return
        self.pgwf.call("cancel_job", job_id=name, worker_id="w")
        self.lapse_if_late(name)
        job = self.jobs[name]
        if not job.cancelled:
            job.cancelled = True
            job.timed, job.ready_at = False, None
            if job.lease is None:
                self.release(name)

    @precondition(lambda self: self.jobs)
    @rule(number=choice, complete=st.booleans(), need=needs)
    def change_unheld(self, number: int, complete: bool, need: str) -> None:
        name = self.pick(number, list(self.jobs))
        function = "complete_unheld_job" if complete else "reschedule_unheld_job"
        arguments = {"job_id": name, "worker_id": "w"} | ({} if complete else {"next_need": need})
        status = self.status(self.jobs[name])
        if self.jobs[name].cancelled:
            self.refused("WF003", function, **arguments)
        elif status in ("ACTIVE", "AWAITING_FUTURE", "PENDING_JOBS"):
            self.refused("WF005", function, **arguments)
        else:
            self.pgwf.call(function, **arguments)
            self.lapse_if_late(name)
            job = self.jobs[name]
            if complete:
                self.over(name, "completed")
            else:
                job.need, job.available_at, job.streak, job.shelved, job.seen = need, self.now, 0, False, []
                self.place(job)

    @precondition(lambda self: self.jobs)
    @rule(number=choice)
    def lease_one(self, number: int) -> None:
        name = self.pick(number, list(self.jobs))
        arguments: dict[str, Any] = {"job_id": name, "worker_id": "jim", "lease_seconds": 20}
        job = self.jobs[name]
        status = self.status(job)
        others = [other for other in self.holders(job.key or "") if other != name]
        taken = len(others) >= self.limits.get(job.key or "", 1)
        if status == "READY" and not taken:
            (row,) = self.pgwf.call("lease_job", **arguments)
            self.lapse_if_late(name)
            job.timed, job.ready_at = False, None
            job.lease = Lease(row["lease_id"], self.now + timedelta(seconds=20), counted=False)
        elif status == "READY":
            self.refused("WF006", "lease_job", **arguments)
        else:
            self.refused("WF003" if job.cancelled else "WF005", "lease_job", **arguments)

    @precondition(lambda self: self.jobs)
    @rule(number=choice)
    def wake(self, number: int) -> None:
        name = self.pick(number, list(self.jobs))
        job = self.jobs[name]
        asleep = job.available_at > self.now and not job.cancelled and job.lease is None
        (row,) = self.pgwf.call("wake_jobs", worker_id="w", job_ids=[name])
        assert row["status"] == ("woken" if asleep else "unchanged")
        if asleep:
            job.available_at = self.now
            self.place(job)

    @precondition(lambda self: self.jobs)
    @rule(number=choice)
    def clear(self, number: int) -> None:
        name = self.pick(number, list(self.jobs))
        arguments = {"job_id": name, "worker_id": "w"}
        if self.jobs[name].cancelled:
            self.refused("WF003", "clear_crash_concern", **arguments)
            return
        self.pgwf.call("clear_crash_concern", **arguments)
        self.lapse_if_late(name)
        job = self.jobs[name]
        shelved, job.shelved, job.streak = job.shelved, False, 0
        if shelved:
            self.place(job)

    @rule(key=st.sampled_from(LIMITABLE), max_active=st.sampled_from([None, 1, 2, 3]))
    def limit(self, key: str, max_active: int | None) -> None:
        self.pgwf.call("limit_key", key=key, worker_id="w", max_active=max_active)
        self.limits[key] = max_active or 1

    @rule(seconds=st.sampled_from([0.5, 1, 5, 40]))
    def time_passes(self, seconds: float) -> None:
        self.clock.advance(seconds=seconds)

    @rule(offered=offers)
    def leases_lapse_and_work_is_handed_out_again(self, offered: set[str]) -> None:
        self.clock.advance(seconds=1)
        self.get_work(offered, limit=CLAIM_MIN, seconds=1)

    @rule()
    def sweep(self) -> None:
        self.pgwf.sweep()
        self.model_sweep()
        assert self.pgwf.rows("select * from pgwf.overdue()") == []

    # What must be the same after every call

    @invariant()
    def every_job_is_as_the_model_says(self) -> None:
        if not hasattr(self, "clock"):
            return
        live = self.pgwf.rows(
            "select job_id, status, next_need, singleton_key, wait_for, lease_expiration_count as lapses,"
            " consecutive_expirations as streak, lease_id from pgwf.jobs_with_status"
        )
        assert {row["job_id"]: row for row in live} == {name: self.shown(name, job) for name, job in self.jobs.items()}
        archived = self.pgwf.rows("select job_id, outcome from pgwf.jobs_archive")
        assert {row["job_id"]: row["outcome"] for row in archived} == self.finished

    def shown(self, name: str, job: Job) -> dict[str, Any]:
        lapsed = int(job.lease is not None and job.lease.until <= self.now and job.lease.counted)
        return {
            "job_id": name,
            "status": self.status(job),
            "next_need": job.need,
            "singleton_key": job.key,
            "wait_for": [child for child in job.seen if child in job.waits],
            "lapses": job.lapses + lapsed,
            "streak": job.streak + lapsed,
            "lease_id": job.lease.lease_id if job.lease else None,
        }

    @invariant()
    def no_invariant_is_broken(self) -> None:
        if hasattr(self, "clock"):
            assert self.pgwf.broken() == []


def test_any_sequence_of_calls_does_what_the_model_does(database: str, reset: str) -> None:
    play(LeasingMachine, dsn=database, reset=reset)
