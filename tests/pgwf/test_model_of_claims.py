"""Who is handed what: limits, pauses, priorities that age, lapses, and positions, against a model; several workers.

Calls come one after the other, so a claim that begins at its position must hand out exactly what one that looks from
the beginning does, however old the position is.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING

from hypothesis import strategies as st
from hypothesis.stateful import (
    initialize,
    precondition,
    rule,
)

from tests.pgwf.machines import CoreMachine, pick, play
from tests.pgwf.modelled import Bucket
from tests.pgwf.test_position import CAPS, Worker

if TYPE_CHECKING:
    from datetime import datetime

LEASE = timedelta(seconds=60)  # as Worker claims
THRESHOLD = 1
BURST = 3

needs = st.sampled_from(CAPS)
priorities = st.integers(1, 4)
choice = st.integers(0, 10**6)


@dataclass
class Job:
    need: str
    priority: int
    available_at: datetime
    ready_at: datetime | None = None
    leased_until: datetime | None = None
    streak: int = 0

    @property
    def shelved(self) -> bool:
        return self.streak > THRESHOLD


@dataclass
class Need:
    paused: bool = False
    max_active: int | None = None
    bucket: Bucket = field(default_factory=lambda: Bucket(burst=BURST))


class ClaimsMachine(CoreMachine):
    """Each rule calls the core and does the same to the model."""

    def __init__(self) -> None:
        super().__init__()
        self.jobs: dict[str, Job] = {}
        self.needs = {need: Need() for need in CAPS}
        self.aging = timedelta(seconds=60)

    @initialize(jobs=st.lists(st.tuples(needs, priorities), min_size=3, max_size=8))
    def start(self, jobs: list[tuple[str, int]]) -> None:
        self.pgwf.call("set_crash_concern_threshold", threshold=THRESHOLD)
        self.workers = [Worker(self.connect()) for _ in range(3)]
        for worker in self.workers[:2]:
            worker.begin_at(0)
        for need, priority in jobs:
            self.submit(need, priority, delay=None)
        self.claim(0, limit=3, whole=False)

    # What the contract says

    def room(self, name: str, limit: int) -> int:
        need = self.needs[name]
        if need.paused:
            return 0
        room = limit
        if need.max_active is not None:
            leased = sum(job.leased_until is not None and job.need == name for job in self.jobs.values())
            room = min(room, need.max_active - leased)
        return need.bucket.starts(self.now, at_most=max(room, 0))

    def urgency(self, name: str) -> datetime:
        job = self.jobs[name]
        assert job.ready_at is not None
        return job.ready_at + (job.priority - 1) * self.aging

    def place(self, job: Job) -> None:
        job.ready_at = None if job.shelved or job.available_at > self.now else self.now

    def some(self, *, leased: bool) -> list[str]:
        return [name for name, job in self.jobs.items() if (job.leased_until is not None) == leased]

    def shelved(self) -> list[str]:
        return [name for name in self.some(leased=False) if self.jobs[name].shelved]

    # Calls

    @rule(need=needs, priority=priorities, delay=st.sampled_from([None, None, None, 5]))
    def submit(self, need: str, priority: int, delay: int | None) -> None:
        name = f"j{self.count}"
        self.count += 1
        available_at = self.now + timedelta(seconds=delay or 0)
        self.pgwf.submit(name, need, priority=priority, available_at=available_at)
        self.jobs[name] = Job(need, priority, available_at)
        self.place(self.jobs[name])

    @rule(which=st.integers(0, 2), limit=st.integers(1, 5), whole=st.sampled_from([False, False, True]))
    def claim(self, which: int, limit: int, whole: bool) -> None:
        worker = self.workers[which]
        if whole and worker.position:
            worker.due()
        ready = [name for name, job in self.jobs.items() if job.ready_at is not None and job.leased_until is None]
        may = [
            urgency
            for need in CAPS
            for urgency in sorted(self.urgency(name) for name in ready if self.jobs[name].need == need)[
                : self.room(need, limit)
            ]
        ]

        names = worker.claim(limit)

        assert set(names) <= set(ready)
        assert [self.urgency(name) for name in names] == sorted(may)[:limit], names
        for need in self.needs.values():
            need.bucket.spend(sum(self.needs[self.jobs[name].need] is need for name in names), self.now)
        for name in names:
            self.jobs[name].leased_until, self.jobs[name].ready_at = self.now + LEASE, None

    @rule(which=st.integers(0, 2))
    def begin_at_any_position_that_was(self, which: int) -> None:
        """A worker that was busy for long comes back with what it had."""
        self.workers[which].begin_at(0)

    @precondition(lambda self: self.some(leased=True))
    @rule(number=choice, outcome=st.sampled_from(["complete", "release", "later", "move"]), need=needs)
    def give_back(self, number: int, outcome: str, need: str) -> None:
        job = self.jobs[name := pick(number, self.some(leased=True))]
        (row,) = self.pgwf.rows(
            "select l.lease_id::text from pgwf.lease as l join pgwf.job as j on j.n = l.n where j.job_id = %s", name
        )
        held = {"job_id": name, "lease_id": row["lease_id"], "worker_id": "worker"}
        job.leased_until, job.streak = None, 0
        match outcome:
            case "complete":
                self.pgwf.call("complete_job", **held)
                del self.jobs[name]
                return
            case "move":
                self.pgwf.call("reschedule_job", **held, next_need=need)
                job.need, job.available_at = need, self.now
            case _:
                delay = 5 if outcome == "later" else 0
                self.pgwf.call("release_job", **held, delay_seconds=delay)
                job.available_at = self.now + timedelta(seconds=delay)
        self.place(job)

    @precondition(lambda self: self.some(leased=False))
    @rule(number=choice)
    def cancel(self, number: int) -> None:
        self.pgwf.cancel(name := pick(number, self.some(leased=False), self.shelved()))
        del self.jobs[name]

    @precondition(lambda self: self.some(leased=False))
    @rule(number=choice, priority=priorities)
    def set_priority(self, number: int, priority: int) -> None:
        job = self.jobs[name := pick(number, self.some(leased=False), self.shelved())]
        self.pgwf.call("set_priority", job_id=name, worker_id="w", priority=priority)
        (row,) = self.pgwf.rows(
            "select (select r.ready_at from pgwf.ready as r where r.n = m.n) from pgwf.name as m where job_id = %s",
            name,
        )
        is_same, job.priority = job.priority == priority, priority
        if not is_same and not job.shelved:
            self.place(job)
        assert row["ready_at"] == job.ready_at

    @precondition(lambda self: self.some(leased=False))
    @rule(number=choice)
    def clear(self, number: int) -> None:
        job = self.jobs[name := pick(number, self.some(leased=False), self.shelved())]
        self.pgwf.call("clear_crash_concern", job_id=name, worker_id="w")
        shelved, job.streak = job.shelved, 0
        if shelved:
            self.place(job)

    @rule(need=needs, max_active=st.sampled_from([None, 0, 1, 3]), rate=st.sampled_from([None, 1.0, 2.0]))
    def limit(self, need: str, max_active: int | None, rate: float | None) -> None:
        burst = None if rate is None else BURST
        self.pgwf.call("limit_need", need=need, worker_id="w", max_active=max_active, rate=rate, burst=burst)
        self.needs[need].max_active, self.needs[need].bucket.rate = max_active, rate

    @rule(need=needs, pause=st.booleans())
    def pause(self, need: str, pause: bool) -> None:
        self.pgwf.call("pause_need" if pause else "resume_need", need=need, worker_id="w")
        self.needs[need].paused = pause

    @rule(seconds=st.sampled_from([0, 20, 60, 86_400]))
    def age(self, seconds: int) -> None:
        self.aging = timedelta(seconds=seconds)
        self.pgwf.call("set_priority_aging", aging=self.aging)

    @rule(seconds=st.sampled_from([0.5, 1, 5, 61]))
    def time_passes(self, seconds: float) -> None:
        self.clock.advance(seconds=seconds)

    @rule(which=st.integers(0, 2), times=st.integers(1, 2))
    def a_fleet_dies_and_another_takes_over(self, which: int, times: int) -> None:
        for _ in range(times):
            self.sweep(later=61)
            self.claim(which, len(self.jobs) or 1, whole=False)

    @rule(later=st.sampled_from([0, 5, 61]))
    def sweep(self, later: float = 0) -> None:
        self.clock.advance(seconds=later)
        self.pgwf.sweep()
        for job in self.jobs.values():
            if job.leased_until is not None and job.leased_until <= self.now:
                job.leased_until = None
                job.streak += 1
                self.place(job)
            elif job.ready_at is None and job.leased_until is None:
                self.place(job)

    @precondition(lambda self: self.jobs)
    @rule(which=st.integers(0, 2))
    def all_is_handed_out_in_the_end(self, which: int) -> None:
        for need in CAPS:
            self.limit(need, None, None)
            self.pause(need, pause=False)
        self.clock.advance(minutes=2)
        self.sweep()
        self.claim(which, len(self.jobs), whole=False)
        assert all(job.shelved or job.leased_until for job in self.jobs.values())


def test_any_worker_is_handed_what_the_model_says_wherever_it_begins(database: str, reset: str) -> None:
    play(ClaimsMachine, dsn=database, reset=reset)
