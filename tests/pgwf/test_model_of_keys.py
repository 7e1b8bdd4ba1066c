"""How many jobs of a singleton key are handed out, against a model: limits that change, tokens that come with time."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from hypothesis import strategies as st
from hypothesis.stateful import initialize, precondition, rule

from tests.pgwf.leasing import refused
from tests.pgwf.machines import CoreMachine, pick, play
from tests.pgwf.modelled import Bucket

if TYPE_CHECKING:
    pass

NEEDS = ["a", "b"]
KEYS = ["K", "L"]
JOBS_MAX = 9
FOR_LONG = 10**6

choice = st.integers(0, 10**6)
new_jobs = st.lists(
    st.tuples(st.sampled_from(NEEDS), st.sampled_from(["K", "K", "K", "L", None]), st.integers(1, 4)),
    min_size=1,
    max_size=JOBS_MAX,
)
max_actives = st.sampled_from([None, 1, 2, 3])
rates = st.sampled_from([None, 0.25, 1.0])
bursts = st.integers(1, 3)


@dataclass
class Job:
    need: str
    key: str | None
    lease_id: str | None = None


@dataclass
class Limit:
    max_active: int = 1
    bucket: Bucket = field(default_factory=Bucket)


class KeysMachine(CoreMachine):
    """Each rule calls the core and does the same to the model. No lease lapses: who is leased stays so."""

    def __init__(self) -> None:
        super().__init__()
        self.jobs: dict[str, Job] = {}
        self.limits = {key: Limit() for key in KEYS}

    @initialize(jobs=new_jobs, max_active=max_actives, rate=rates, burst=bursts)
    def start(
        self, jobs: list[tuple[str, str | None, int]], max_active: int | None, rate: float | None, burst: int
    ) -> None:
        self.limit("K", max_active, rate, burst)
        self.submit(jobs)

    # What the contract says

    def places(self, key: str) -> int:
        leased = sum(job.lease_id is not None and job.key == key for job in self.jobs.values())
        return self.limits[key].max_active - leased

    def room(self, key: str) -> int:
        return self.limits[key].bucket.starts(self.now, at_most=max(0, self.places(key)))

    def waiting(self, *needs: str) -> list[str]:
        return [name for name, job in self.jobs.items() if job.lease_id is None and job.need in needs]

    def leased(self) -> list[str]:
        return [name for name, job in self.jobs.items() if job.lease_id is not None]

    # Calls

    @rule(jobs=new_jobs)
    def submit(self, jobs: list[tuple[str, str | None, int]]) -> None:
        for need, key, priority in jobs[: JOBS_MAX - len(self.jobs)]:
            name = f"j{self.count}"
            self.count += 1
            self.pgwf.submit(name, need, singleton_key=key, priority=priority)
            self.jobs[name] = Job(need, key)

    @rule(
        needs=st.sampled_from([["a"], NEEDS, NEEDS]),
        limit=st.sampled_from([1, 3, 6, JOBS_MAX]),
        later=st.sampled_from([0, 0, 0.5, 3]),
    )
    def claim(self, needs: list[str], limit: int, later: float = 0) -> None:
        self.clock.advance(seconds=later)
        keyed = Counter(self.jobs[name].key for name in self.waiting(*needs))
        free = keyed.pop(None, 0)
        may = {key: min(count, self.room(key)) for key, count in keyed.items() if key is not None}

        rows = self.pgwf.get_work(*needs, limit=limit, seconds=FOR_LONG)

        taken = Counter(self.jobs[row["job_id"]].key for row in rows)
        taken.pop(None, None)
        assert {row["job_id"] for row in rows} <= set(self.waiting(*needs))
        assert taken <= Counter(may), (rows, may)
        assert len(rows) <= min(limit, free + sum(may.values())), (rows, free, may)
        if limit >= len(self.waiting(*needs)):  # A smaller one ends after four turns, be there something behind them.
            assert len(rows) == free + sum(may.values()), (rows, free, may)
        for row in rows:
            self.jobs[row["job_id"]].lease_id = row["lease_id"]
        for key, count in taken.items():
            self.limits[str(key)].bucket.spend(count, self.now)

    @precondition(lambda self: self.leased())
    @rule(number=choice, outcome=st.sampled_from(["complete", "release", "other key"]))
    def give_back(self, number: int, outcome: str) -> None:
        job = self.jobs[name := pick(number, self.leased())]
        held = {"job_id": name, "lease_id": job.lease_id, "worker_id": "worker"}
        job.lease_id = None
        match outcome:
            case "complete":
                self.pgwf.call("complete_job", **held)
                del self.jobs[name]
            case "release":
                self.pgwf.call("release_job", **held)
            case _:
                job.key = "K" if job.key == "L" else "L"
                self.pgwf.call("reschedule_job", **held, next_need=job.need, singleton_key=job.key)

    @precondition(lambda self: self.waiting(*NEEDS))
    @rule(number=choice)
    def cancel(self, number: int) -> None:
        self.pgwf.cancel(name := pick(number, self.waiting(*NEEDS)))
        del self.jobs[name]

    @precondition(lambda self: self.waiting(*NEEDS))
    @rule(number=choice)
    def a_person_takes_a_place_and_no_token(self, number: int) -> None:
        job = self.jobs[name := pick(number, self.waiting(*NEEDS))]
        arguments: dict[str, Any] = {"job_id": name, "worker_id": "ann", "lease_seconds": FOR_LONG}
        if job.key is not None and self.places(job.key) <= 0:
            with refused("WF006"):
                self.pgwf.call("lease_job", **arguments)
        else:
            (row,) = self.pgwf.call("lease_job", **arguments)
            job.lease_id = row["lease_id"]

    @rule(key=st.sampled_from(KEYS), max_active=max_actives, rate=rates, burst=bursts)
    def limit(self, key: str, max_active: int | None, rate: float | None, burst: int) -> None:
        given = {"max_active": max_active, "rate": rate, "burst": None if rate is None else burst}
        self.pgwf.call("limit_key", key=key, worker_id="w", **given)
        if max_active is None and rate is None:
            self.limits[key].bucket = Bucket()
        self.limits[key].max_active = max_active or 1
        self.limits[key].bucket.rate, self.limits[key].bucket.burst = rate, burst

    @rule(number=choice)
    def who_is_told_when_to_look_again_misses_no_token(self, number: int) -> None:
        """A worker that has just found nothing for itself is told of the next token of a key, if that is what lacks."""
        need = NEEDS[number % len(NEEDS)]
        self.claim([need], JOBS_MAX)
        self.claim([need], JOBS_MAX)
        key = KEYS[number % len(KEYS)]
        limit, level = self.limits[key], self.limits[key].bucket.level(self.now)
        is_left = any(self.jobs[name].key == key for name in self.waiting(need))
        if not is_left or limit.bucket.rate is None or self.room(key) > 0 or self.places(key) <= 0:
            return
        next_token_at = self.now + timedelta(seconds=(1 - level) / limit.bucket.rate)
        next_wakeup: Any = self.pgwf.value("next_wakeup", worker_caps=[need])
        assert next_wakeup is not None
        assert next_wakeup <= next_token_at


def test_any_sequence_of_claims_and_limits_hands_out_what_the_model_says(database: str, reset: str) -> None:
    play(KeysMachine, dsn=database, reset=reset)
