"""Many sessions do random things to a few jobs and keys; every invariant holds at every moment, and nothing is lost.

PGWF_STRESS_SECONDS makes it run longer than the few seconds of the test suite.
"""

from __future__ import annotations

import json
import os
import random
import threading
import time
from collections import Counter
from contextlib import nullcontext
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from tests.pgwf.leasing import Leasing

if TYPE_CHECKING:
    from collections.abc import Callable

SECONDS = float(os.environ.get("PGWF_STRESS_SECONDS", "6"))
STUCK_SECONDS = 60.0
SESSIONS = 8
NEEDS = ["a", "b", "c", "limited"]
APPLICATION = "pgwf stress"
KEYS = [f"k{i}" for i in range(6)]
LIMITED_KEYS = KEYS[:3]
# What a random caller may hear. A deadlock only when there are transactions of several calls, which can break the order
# of locks; it may then hit any of those in the circle.
REFUSALS = {"23505", "WF002", "WF003", "WF004", "WF005", "WF006", "WF010", "WF011", "WF012", "55P03"}
DEADLOCK = "40P01"


class Ids:
    """Ids of all jobs so far; the newest are the most interesting to collide on."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._ids: list[str] = []

    def new(self) -> str:
        with self._lock:
            self._ids.append(f"j{len(self._ids)}")
            return self._ids[-1]

    def some(self, chance: random.Random, count: int) -> list[str]:
        with self._lock:
            recent = self._ids[-50:]
        return chance.sample(recent, min(count, len(recent)))


class Caller:
    """One session that calls at random until the time is over."""

    def __init__(self, dsn: str, seed: int, ids: Ids, until: float, together: float) -> None:
        self.chance = random.Random(seed)
        self.ids = ids
        self.until = until
        self.together = together  # how often two calls share a transaction
        self.dsn = dsn
        self.heard: Counter[str] = Counter()
        self.failure: BaseException | None = None
        self.leases: list[tuple[str, str]] = []
        self.position: list[int] = []

    def call(self, conn: psycopg.Connection[Any]) -> None:
        calls: list[tuple[int, Callable[[], object]]] = [
            (24, self.submit), (6, self.submit_many), (12, self.claim), (12, self.claim_at_position),
            (16, self.complete), (6, self.reschedule),
            (4, self.reschedule_many), (3, self.extend), (3, self.release), (4, self.cancel), (2, self.unheld),
            (2, self.move_unheld), (2, self.wake), (2, self.lease_one), (1, self.prioritise), (1, self.operate),

            (4, lambda: self.pgwf.call("sweep", worker_id="w", limit=50)),
        ]  # fmt: skip
        weights, functions = zip(*calls, strict=True)
        conn.execute("set lock_timeout = '10s'")
        self.pgwf = Leasing(conn)
        while time.monotonic() < self.until:
            (function,) = self.chance.choices(functions, weights)
            together = self.chance.random() < self.together
            try:
                with conn.transaction() if together else nullcontext():
                    function()
                    if together:
                        self.chance.choices(functions, weights)[0]()
                        if self.chance.random() < 0.3:
                            raise psycopg.Rollback
            except psycopg.Error as error:
                sqlstate = error.sqlstate or ""
                self.heard[sqlstate] += 1
                if sqlstate not in REFUSALS and not (sqlstate == DEADLOCK and self.together):
                    raise

    def at(self, *, seconds: float) -> datetime:
        """That much from the database's now."""
        row = self.pgwf.conn.execute("select clock_timestamp()").fetchone()
        assert row is not None
        now: datetime = row[0]
        return now + timedelta(seconds=seconds)

    def soon(self) -> datetime | None:
        return None if self.chance.random() < 0.75 else self.at(seconds=self.chance.uniform(-0.1, 0.3))

    def key(self) -> str | None:
        return self.chance.choice([None, None, self.chance.choice(KEYS)])

    def waits(self) -> list[str]:
        return self.ids.some(self.chance, self.chance.randint(1, 3)) if self.chance.random() < 0.4 else []

    def submit(self) -> None:
        self.pgwf.submit(
            self.ids.new(),
            self.chance.choice(NEEDS),
            wait_for=self.waits(),
            singleton_key=self.key(),
            available_at=self.soon(),
            expires_at=self.at(seconds=self.chance.uniform(-0.05, 0.5)) if self.chance.random() < 0.1 else None,
            priority=self.chance.randint(1, 4),
        )

    def submit_many(self) -> None:
        ids = [self.ids.new() for _ in range(4)]
        waits = json.dumps([[], ids[:1], self.waits(), [*ids[1:3], "nobody"] if self.chance.random() < 0.2 else None])
        self.pgwf.conn.execute(
            "select from pgwf.submit_jobs('w', %s::text[], %s::text[], %s::jsonb, %s::text[])",
            [ids, self.chance.choices(NEEDS, k=4), waits, [self.key() for _ in range(4)]],
        )

    def claim(self) -> None:
        needs = self.chance.sample(NEEDS, self.chance.randint(1, 3))
        rows = self.pgwf.conn.execute(
            "select job_id, lease_id from pgwf.get_work('w', %s::text[], 1, %s)", [needs, self.chance.randint(1, 8)]
        ).fetchall()
        self.leases += rows
        self.heard["claimed"] += len(rows)

    def claim_at_position(self) -> None:
        ((n, lease_ids, position),) = self.pgwf.conn.execute(
            "select n, lease_ids, next_position from pgwf._claim('w', %s::text[], %s, 1, pgwf._now(), %s::bigint[])",
            [NEEDS, self.chance.randint(1, 8), self.position or self.chance.choice([[], beginning(self.chance)])],
        ).fetchall()
        self.position = position or []
        self.leases += self.pgwf.conn.execute(
            "select m.job_id, c.lease_id::text from unnest(%s::bigint[], %s::uuid[]) as c(n, lease_id)"
            " join pgwf.name as m on m.n = c.n",
            [n, lease_ids],
        ).fetchall()
        self.heard["claimed"] += len(n)

    def some_leases(self) -> dict[str, Any]:
        self.chance.shuffle(self.leases)
        taken, self.leases = self.leases[:4], self.leases[4:]
        return {"job_ids": [x[0] for x in taken], "lease_ids": [x[1] for x in taken]}

    def one_lease(self) -> dict[str, Any] | None:
        if not self.leases:
            return None
        job_id, lease_id = self.leases.pop(self.chance.randrange(len(self.leases)))
        return {"job_id": job_id, "lease_id": lease_id, "worker_id": "w"}

    def complete(self) -> None:
        rows = self.pgwf.call("complete_jobs", worker_id="w", **self.some_leases(), busy_ok=self.chance.random() < 0.3)
        self.heard.update(f"complete: {row['status']}" for row in rows)

    def reschedule(self) -> None:
        if lease := self.one_lease():
            self.pgwf.call(
                "reschedule_job",
                **lease,
                next_need=self.chance.choice(NEEDS),
                wait_for=self.waits(),
                singleton_key=self.chance.choice([None, "", self.key()]),
                available_at=self.soon(),
            )

    def reschedule_many(self) -> None:
        leases = self.some_leases()
        count = len(leases["job_ids"])
        self.pgwf.conn.execute(
            "select from pgwf.reschedule_jobs('w', %s::text[], %s::text[], %s::text[], %s::jsonb, p_busy_ok => %s)",
            [
                leases["job_ids"],
                leases["lease_ids"],
                self.chance.choices(NEEDS, k=count),
                json.dumps([self.waits() for _ in range(count)]),
                self.chance.random() < 0.5,
            ],
        )

    def extend(self) -> None:
        leases = self.leases[:4]
        self.pgwf.call(
            "extend_leases",
            worker_id="w",
            job_ids=[x[0] for x in leases],
            lease_ids=[x[1] for x in leases],
            additional_seconds=0.4,
        )

    def release(self) -> None:
        if lease := self.one_lease():
            self.pgwf.call("release_job", **lease, error="boom", delay_seconds=self.chance.choice([0, 0.1]))

    def one(self) -> dict[str, Any]:
        return {"job_id": (self.ids.some(self.chance, 1) or ["nobody"])[0], "worker_id": "w"}

    def cancel(self) -> None:
        self.pgwf.call("cancel_job", **self.one())

    def unheld(self) -> None:
        self.pgwf.call("complete_unheld_job", **self.one())

    def move_unheld(self) -> None:
        self.pgwf.call(
            "reschedule_unheld_job", **self.one(), next_need=self.chance.choice(NEEDS), wait_for=self.waits()
        )

    def wake(self) -> None:
        self.pgwf.call("wake_jobs", worker_id="w", job_ids=self.ids.some(self.chance, 5))

    def lease_one(self) -> None:
        (row,) = self.pgwf.call("lease_job", **self.one(), lease_seconds=1)
        self.leases.append((row["job_id"], row["lease_id"]))

    def prioritise(self) -> None:
        self.pgwf.call("set_priority", **self.one(), priority=self.chance.randint(1, 4))

    def operate(self) -> None:
        match self.chance.randrange(5):
            case 0:
                self.pgwf.call("set_crash_concern_threshold", threshold=self.chance.choice([1, 2, 1000]))
            case 1:
                self.pgwf.call("clear_crash_concern", **self.one())
            case 2:
                self.pgwf.call("limit_need", need="limited", worker_id="w", max_active=self.chance.choice([1, 3, None]))
            case 3:
                self.pgwf.call(self.chance.choice(["pause_need", "resume_need"]), need="c", worker_id="w")
            case 4:
                limits = {"max_active": self.chance.choice([1, 2, 3]), "rate": self.chance.choice([None, 20, 1000])}
                self.pgwf.call("limit_key", key=self.chance.choice(LIMITED_KEYS), worker_id="w", **limits)


def keep_calling(caller: Caller) -> None:
    """Call until the time is over, on a new connection whenever the last was cut."""
    try:
        while time.monotonic() < caller.until:
            caller.position, caller.leases = [], []
            with psycopg.connect(caller.dsn, autocommit=True, application_name=APPLICATION) as conn:
                try:
                    caller.call(conn)
                except (psycopg.OperationalError, psycopg.Rollback):
                    if not conn.closed:
                        raise
                    caller.heard["killed"] += 1
    except BaseException as error:  # noqa: BLE001  the test reports it
        caller.failure = error


def beginning(chance: random.Random) -> list[int]:
    """A position that passes nothing, as a slow look would give one."""
    return [int(time.time() * 1000) + chance.randint(50, 500), *[0] * (4 * len(NEEDS))]


def watch(dsn: str, until: float, seen: list[Any]) -> None:
    with psycopg.connect(dsn, autocommit=True) as conn:
        pgwf = Leasing(conn)
        looks = 0
        while time.monotonic() < until or looks == 0:
            seen += pgwf.broken()
            seen += pgwf.rows(
                "select singleton_key from pgwf.lease where singleton_key is not null group by 1"
                " having count(*) > case when singleton_key = any (%s) then 3 else 1 end",
                [LIMITED_KEYS],
            )
            looks += 1


def kill(dsn: str, until: float, chance: random.Random) -> None:
    """End a caller's session now and then, whatever it is doing."""
    with psycopg.connect(dsn, autocommit=True) as conn:
        while time.monotonic() < until:
            pids = conn.execute(
                "select pid from pg_stat_activity where application_name = %s and datname = current_database()",
                [APPLICATION],
            ).fetchall()
            if pids:
                conn.execute("select pg_terminate_backend(%s)", chance.choice(pids))
            conn.execute("select pg_sleep(0.1)")


def drain(pgwf: Leasing) -> None:
    """Complete what can be completed, however long that takes, until only what is expired is left."""
    pgwf.call("resume_need", need="c", worker_id="w")
    pgwf.call("limit_need", need="limited", worker_id="w")
    for key in LIMITED_KEYS:
        pgwf.call("limit_key", key=key, worker_id="w")
    pgwf.call("set_crash_concern_threshold", threshold=100_000)
    until = time.monotonic() + STUCK_SECONDS
    while time.monotonic() < until:
        pgwf.call("sweep", worker_id="w", limit=5000)
        rows = pgwf.get_work(*NEEDS, limit=200)
        done = pgwf.call(
            "complete_jobs",
            worker_id="w",
            job_ids=[row["job_id"] for row in rows],
            lease_ids=[row["lease_id"] for row in rows],
        )
        assert {row["status"] for row in done} <= {"ok"}
        if done:
            until = time.monotonic() + STUCK_SECONDS
            continue
        left = pgwf.rows("select status, count(*) as count from pgwf.jobs_with_status group by 1")
        if all(row["status"] == "EXPIRED" for row in left):
            return
    raise AssertionError(f"not drained: {left}")


@pytest.mark.parametrize(
    ("together", "killed"),
    [(0, False), (0.1, False), (0.1, True)],
    ids=["single calls", "some calls in one transaction", "sessions that are killed"],
)
def test_random_calls_from_many_sessions_break_nothing_and_lose_nothing(
    db: psycopg.Connection[Any], database: str, together: float, killed: bool
) -> None:
    pgwf, ids, broken = Leasing(db), Ids(), list[Any]()
    seed = random.randrange(10**6)
    deadlocks_before = deadlocks(db)
    until = time.monotonic() + SECONDS
    callers = [Caller(database, seed + i, ids, until, together) for i in range(SESSIONS)]
    threads = [threading.Thread(target=keep_calling, args=(caller,)) for caller in callers]
    threads.append(threading.Thread(target=watch, args=(database, until, broken)))
    if killed:
        threads.append(threading.Thread(target=kill, args=(database, until, random.Random(seed))))
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    heard: Counter[str] = sum((caller.heard for caller in callers), Counter())

    assert [caller.failure for caller in callers if caller.failure] == [], f"seed {seed}, {heard}"
    assert broken == [], f"seed {seed}"
    drain(pgwf)
    assert pgwf.broken() == []
    (counts,) = pgwf.rows(
        "select (select count(*) from pgwf.name) as named, (select count(*) from pgwf.job) as live,"
        " (select count(*) from pgwf.archive) as archived, (select count(distinct job_id) from pgwf.archive) as ids,"
        " (select count(*) from pgwf.edge) as edges, (select count(*) from pgwf.held) as held,"
        " (select count(*) from pgwf.parked) as parked"
    )
    assert counts["named"] == counts["live"] + counts["archived"]
    assert counts["archived"] == counts["ids"]
    assert (counts["edges"], counts["held"], counts["parked"]) == (0, 0, 0)
    assert heard["claimed"] > 0
    assert (heard["killed"] > 0) == killed
    assert together or deadlocks(db) == deadlocks_before


def deadlocks(conn: psycopg.Connection[Any]) -> int:
    row = conn.execute("select deadlocks from pg_stat_database where datname = current_database()").fetchone()
    assert row is not None
    count: int = row[0]
    return count
