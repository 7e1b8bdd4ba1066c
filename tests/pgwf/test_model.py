"""The leasing core against a model of it: any sequence of calls on a few jobs leaves both in the same state."""

from __future__ import annotations

from collections import Counter
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import (
    initialize,
    invariant,
    precondition,
    rule,
)

from tests.pgwf.machines import CoreMachine, pick, play
from tests.pgwf.modelled_jobs import Job, Jobs, Lease

if TYPE_CHECKING:
    from datetime import datetime

NEEDS = ["a", "b"]
LIMITABLE = ["K", "L"]
KEYS = [None, None, *LIMITABLE]
JOBS_MAX = 9
CLAIM_MIN = 3

needs = st.sampled_from(NEEDS)
keys = st.sampled_from(KEYS)
delays = st.sampled_from([None, None, None, 0, 5, 40])
priorities = st.integers(1, 4)
choice = st.integers(0, 10**6)
choices = st.lists(choice, min_size=1, max_size=4)
offers = st.sets(needs, min_size=1)
lease_seconds = st.sampled_from([1, 1, 30])


class LeasingMachine(CoreMachine):
    """One client. Each rule calls the core and does the same to the model."""

    def __init__(self) -> None:
        super().__init__()
        self.model = Jobs(self.clock, threshold=1)

    @initialize(
        jobs=st.lists(st.tuples(needs, keys, priorities), min_size=3, max_size=6), seconds=lease_seconds, waits=choice
    )
    def start(self, jobs: list[tuple[str, str | None, int]], seconds: int, waits: int) -> None:
        """Some jobs, of which three are leased if their keys let them, and one that waits for one of these."""
        self.set_threshold(1)
        for need, key, priority in jobs:
            self.submit(need, key, priority, waits=[], delay=None, life=None)
        self.get_work(set(NEEDS), CLAIM_MIN, seconds)
        self.submit("a", None, 3, waits=[waits], delay=None, life=None)

    def later(self, seconds: int | None) -> datetime | None:
        return None if seconds is None else self.now + timedelta(seconds=seconds)

    def refused(self, sqlstate: str, function: str, **arguments: Any) -> None:
        with pytest.raises(psycopg.Error) as caught:
            self.pgwf.call(function, **arguments)
        assert caught.value.sqlstate == sqlstate, str(caught.value)

    # New jobs

    @precondition(lambda self: len(self.model.live) < JOBS_MAX)
    @rule(need=needs, key=keys, priority=priorities, waits=st.lists(choice, max_size=3), delay=delays, life=delays)
    def submit(
        self, need: str, key: str | None, priority: int, waits: list[int], delay: int | None, life: int | None
    ) -> None:
        name = f"j{self.count}"
        self.count += 1
        known = self.model.known()
        dependencies = [pick(number, list(self.model.live), known) for number in waits] if known else []
        available_at, expires_at = self.later(delay), self.later(life)
        self.pgwf.submit(
            name, need, wait_for=dependencies, singleton_key=key, available_at=available_at, expires_at=expires_at,
            priority=priority,
        )  # fmt: skip
        job = Job(
            name, need, priority, key, self.model.live_dependencies(dependencies), available_at or self.now, expires_at,
            seen=list(dict.fromkeys(dependencies)),
        )  # fmt: skip
        self.model.live[name] = job
        self.model.place(job)

    @precondition(lambda self: self.model.known())
    @rule(number=choice)
    def submit_again(self, number: int) -> None:
        name = pick(number, list(self.model.live), list(self.model.finished))
        sqlstate = "23505" if name in self.model.live else "WF010"
        self.refused(sqlstate, "submit_job", job_id=name, worker_id="w", next_need="a")

    # Leases

    @rule(offered=offers, limit=st.sampled_from([CLAIM_MIN, 6, JOBS_MAX]), seconds=lease_seconds)
    def get_work(self, offered: set[str], limit: int, seconds: int) -> None:
        rows = self.pgwf.get_work(*offered, limit=limit, seconds=seconds)
        taken = self.claim(rows, offered, limit, seconds)
        if taken < limit or self.model.sweep_is_due():
            self.model.sweep()
            taken += self.claim(rows[taken:], offered, limit - taken, seconds)
        assert taken == len(rows)

    def claim(self, rows: list[dict[str, Any]], offered: set[str], limit: int, seconds: int) -> int:
        """Take from `rows` what one claim may hand out, and check that it is what it must hand out."""
        candidates = self.model.candidates(offered)
        rooms = self.model.rooms(LIMITABLE)
        unkeyed = [name for name, job in candidates.items() if job.key is None]
        keyed = Counter(job.key for job in candidates.values())
        expected = min(limit, len(unkeyed) + sum(min(keyed[key], room) for key, room in rooms.items()))
        if limit < len(candidates):  # Such a claim ends after four turns, be there something behind keys without room.
            expected = min(expected, len(rows))
        taken = rows[:expected]
        names = [row["job_id"] for row in taken]
        assert (len(names), set(names) <= set(candidates)) == (expected, True), (names, unkeyed, keyed, rooms)
        assert Counter(self.model.live[name].key for name in names if self.model.live[name].key) <= Counter(rooms)
        urgency = {name: candidates[name].urgency for name in unkeyed}
        left = [urgency[name] for name in unkeyed if name not in names]
        assert all(urgency[name] <= least for name in names if name in urgency for least in left)
        for row in taken:
            self.hold(row, seconds)
        return expected

    def hold(self, row: dict[str, Any], seconds: int, *, counted: bool = True) -> None:
        until = self.now + timedelta(seconds=seconds)
        self.model.live[row["job_id"]].hold(Lease(row["lease_id"], until, counted))

    @precondition(lambda self: self.model.live)
    @rule(number=choice)
    def lease_one(self, number: int) -> None:
        name = pick(
            number,
            self.model.of_status("READY"),
            self.model.without_room(),
            self.model.cancelled(leased=False),
            list(self.model.live),
        )
        arguments: dict[str, Any] = {"job_id": name, "worker_id": "jim", "lease_seconds": 20}
        job = self.model.live[name]
        status = self.model.status(job)
        if status != "READY":
            self.refused("WF003" if job.cancelled else "WF005", "lease_job", **arguments)
        elif name in self.model.without_room():
            self.refused("WF006", "lease_job", **arguments)
        else:
            (row,) = self.pgwf.call("lease_job", **arguments)
            self.model.lapse_if_late(name)
            self.hold(row, 20, counted=False)

    @precondition(lambda self: self.model.leased())
    @rule(number=choice, seconds=st.sampled_from([1, 30]))
    def extend(self, number: int, seconds: int) -> None:
        job = self.model.live[pick(number, self.model.leased(), self.model.cancelled(leased=True))]
        held = job.held
        if job.cancelled:
            self.refused("WF003", "extend_lease", **held, additional_seconds=seconds)
            return
        assert job.lease is not None
        job.lease.until = max(job.lease.until, self.now + timedelta(seconds=seconds))
        assert self.pgwf.value("extend_lease", **held, additional_seconds=seconds) == job.lease.until

    @precondition(lambda self: self.model.leased())
    @rule(number=choice)
    def complete(self, number: int) -> None:
        name = pick(number, self.model.leased())
        assert self.pgwf.value("complete_job", **self.model.live[name].held) is True
        self.model.over(name, "completed")

    @precondition(lambda self: self.model.leased() or self.model.lost)
    @rule(numbers=choices, extend=st.booleans())
    def call_for_many(self, numbers: list[int], extend: bool) -> None:
        """With leases that are good, lost, or given twice."""
        held = [(name, self.model.live[name].held["lease_id"]) for name in self.model.leased()]
        cancelled = [item for item in held if self.model.live[item[0]].cancelled]
        items = [pick(number, held, self.model.lost, cancelled) for number in numbers]
        arguments = {"worker_id": "w", "job_ids": [item[0] for item in items], "lease_ids": [item[1] for item in items]}
        expected = []
        for place, item in enumerate(items):
            if item in items[:place]:
                expected.append("duplicate")
            elif item not in held:
                expected.append("lease_lost")
            else:
                expected.append("cancelled" if extend and self.model.live[item[0]].cancelled else "ok")
        rows = self.pgwf.call("extend_leases" if extend else "complete_jobs", **arguments)
        assert [row["status"] for row in rows] == expected
        for (name, _), status in zip(items, expected, strict=True):
            if status == "ok" and not extend:
                self.model.over(name, "completed")
            elif status == "ok" and (lease := self.model.live[name].lease):
                lease.until = max(lease.until, self.now + timedelta(seconds=60))

    @precondition(lambda self: self.model.lost)
    @rule(number=choice, function=st.sampled_from(["complete_job", "extend_lease", "release_job"]))
    def call_with_a_lost_lease(self, number: int, function: str) -> None:
        name, lease_id = pick(number, self.model.lost)
        self.refused("WF002", function, job_id=name, lease_id=lease_id, worker_id="w")

    @precondition(lambda self: self.model.leased())
    @rule(
        number=choice,
        need=needs,
        key=st.sampled_from([None, "", "K"]),
        waits=st.lists(choice, max_size=2),
        delay=delays,
    )
    def reschedule(self, number: int, need: str, key: str | None, waits: list[int], delay: int | None) -> None:
        name = pick(number, self.model.leased(), self.model.cancelled(leased=True))
        job = self.model.live[name]
        dependencies = [pick(n, list(self.model.live), self.model.waiters(name), self.model.known()) for n in waits]
        available_at = self.later(delay)
        arguments: dict[str, Any] = {
            **job.held, "next_need": need, "wait_for": dependencies, "singleton_key": key,
            "available_at": available_at,
        }  # fmt: skip
        live = self.model.live_dependencies(dependencies)
        if job.cancelled:
            self.refused("WF003", "reschedule_job", **arguments)
        elif name in dependencies or any(self.model.reaches(child, name) for child in live):
            self.refused("WF012", "reschedule_job", **arguments)
        else:
            self.pgwf.call("reschedule_job", **arguments)
            job.need, job.waits, job.seen = need, live, list(dict.fromkeys(dependencies))
            job.key = job.key if key is None else key or None
            self.model.give_back(name, available_at or self.now)

    @precondition(lambda self: self.model.leased())
    @rule(number=choice, delay=st.sampled_from([0, 7]))
    def release_lease(self, number: int, delay: int) -> None:
        name = pick(number, self.model.leased(), self.model.cancelled(leased=True))
        job = self.model.live[name]
        self.pgwf.call("release_job", **job.held, delay_seconds=delay)
        if job.cancelled:
            self.model.over(name, "cancelled")
        else:
            self.model.give_back(name, self.now + timedelta(seconds=delay))

    # Calls of operators

    @precondition(lambda self: self.model.live)
    @rule(number=choice)
    def cancel(self, number: int) -> None:
        name = pick(number, self.model.leased(), list(self.model.live))
        self.pgwf.cancel(name)
        self.model.cancel(name)

    @precondition(lambda self: self.model.finished)
    @rule(number=choice, function=st.sampled_from(["cancel_job", "complete_unheld_job", "clear_crash_concern"]))
    def call_for_a_finished_job(self, number: int, function: str) -> None:
        self.refused("WF010", function, job_id=pick(number, list(self.model.finished)), worker_id="w")

    @precondition(lambda self: self.model.live)
    @rule(number=choice, complete=st.booleans(), need=needs)
    def change_unheld(self, number: int, complete: bool, need: str) -> None:
        free, over = self.model.of_status("CRASH_CONCERN", "EXPIRED"), self.model.cancelled(leased=False)
        name = pick(number, self.model.of_status("READY"), free, over, list(self.model.live))
        function = "complete_unheld_job" if complete else "reschedule_unheld_job"
        arguments = {"job_id": name, "worker_id": "w"} | ({} if complete else {"next_need": need})
        job = self.model.live[name]
        if job.cancelled:
            self.refused("WF003", function, **arguments)
        elif self.model.status(job) in ("ACTIVE", "AWAITING_FUTURE", "PENDING_JOBS"):
            self.refused("WF005", function, **arguments)
        else:
            self.pgwf.call(function, **arguments)
            self.model.lapse_if_late(name)
            if complete:
                self.model.over(name, "completed")
            else:
                job.need, job.available_at, job.streak, job.shelved, job.seen = need, self.now, 0, False, []
                self.model.place(job)

    @precondition(lambda self: self.model.live)
    @rule(number=choice)
    def wake(self, number: int) -> None:
        name = pick(number, self.model.of_status("AWAITING_FUTURE"), list(self.model.live))
        job = self.model.live[name]
        asleep = job.available_at > self.now and not job.cancelled and job.lease is None
        (row,) = self.pgwf.call("wake_jobs", worker_id="w", job_ids=[name])
        assert row["status"] == ("woken" if asleep else "unchanged")
        if asleep:
            job.available_at = self.now
            self.model.place(job)

    @precondition(lambda self: self.model.live)
    @rule(number=choice)
    def clear(self, number: int) -> None:
        name = pick(
            number, self.model.of_status("CRASH_CONCERN"), self.model.cancelled(leased=False), list(self.model.live)
        )
        arguments = {"job_id": name, "worker_id": "w"}
        job = self.model.live[name]
        if job.cancelled:
            self.refused("WF003", "clear_crash_concern", **arguments)
            return
        self.pgwf.call("clear_crash_concern", **arguments)
        self.model.lapse_if_late(name)
        shelved, job.shelved, job.streak = job.shelved, False, 0
        if shelved:
            self.model.place(job)

    @precondition(lambda self: self.model.live)
    @rule(number=choice, priority=priorities)
    def set_priority(self, number: int, priority: int) -> None:
        name = pick(number, self.model.of_status("READY"), self.model.cancelled(leased=False), list(self.model.live))
        job = self.model.live[name]
        arguments = {"job_id": name, "worker_id": "w", "priority": priority}
        if job.cancelled:
            self.refused("WF003", "set_priority", **arguments)
            return
        self.pgwf.call("set_priority", **arguments)
        self.model.lapse_if_late(name)
        is_same, job.priority = job.priority == priority, priority
        if not is_same and job.lease is None:
            self.model.place(job)

    @rule(threshold=st.integers(1, 3))
    def set_threshold(self, threshold: int) -> None:
        self.pgwf.value("set_crash_concern_threshold", threshold=threshold)
        self.model.set_threshold(threshold)

    @rule(key=st.sampled_from(LIMITABLE), max_active=st.sampled_from([None, 1, 2, 3]))
    def limit(self, key: str, max_active: int | None) -> None:
        self.pgwf.call("limit_key", key=key, worker_id="w", max_active=max_active)
        self.model.limits[key] = max_active or 1

    # Time

    @rule(seconds=st.sampled_from([0.5, 1, 5, 40]))
    def time_passes(self, seconds: float) -> None:
        self.clock.advance(seconds=seconds)

    @rule(offered=offers, times=st.integers(1, 3))
    def all_leases_lapse_and_work_is_handed_out_again(self, offered: set[str], times: int) -> None:
        for _ in range(times):
            self.clock.advance(seconds=1)
            self.get_work(offered, limit=JOBS_MAX, seconds=1)

    @rule(seconds=st.sampled_from([0, 1, 5, 40]), cancelled_only=st.booleans())
    def sweep(self, seconds: float, cancelled_only: bool) -> None:
        self.clock.advance(seconds=seconds)
        if cancelled_only:
            assert self.pgwf.value("archive_cancelled_jobs", worker_id="w") == self.model.archive_cancelled()
        else:
            assert self.pgwf.sweep() == self.model.sweep()
            assert self.pgwf.rows("select * from pgwf.overdue()") == []

    # What must be the same after every call

    @invariant()
    def every_job_is_as_the_model_says(self) -> None:
        live = self.pgwf.rows(
            "select job_id, status, next_need, priority, singleton_key, wait_for, lease_expiration_count as lapses,"
            " consecutive_expirations as streak, lease_id from pgwf.jobs_with_status"
        )
        assert {row["job_id"]: row for row in live} == {
            name: job.shown(self.now, self.model.threshold) for name, job in self.model.live.items()
        }
        archived = self.pgwf.rows("select job_id, outcome from pgwf.jobs_archive")
        assert {row["job_id"]: row["outcome"] for row in archived} == self.model.finished


def test_any_sequence_of_calls_does_what_the_model_does(database: str, reset: str) -> None:
    play(LeasingMachine, dsn=database, reset=reset)
