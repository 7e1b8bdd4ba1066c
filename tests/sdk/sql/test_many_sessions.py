"""Many sessions at once do everything at random to one family of runs: nothing deadlocks, and what must hold does."""

from __future__ import annotations

import random
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import psycopg

from pgwf_journal import Kind, Phase
from tests.sdk.sql.hand import Hand, Held, Item, child, entry, rows, start, task

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.support import Connect

SESSIONS = 6
ACTS = 60  # of each session
RUNS = [f"order-{number}" for number in range(3)]
# Refusals that a race may bring; a deadlock (40P01) or a broken constraint is not among them.
EXPECTED = {"WS003", "WS005", "WS010", "WS011", "WS012", "55P03"}


class Actor:
    """One session that does the next random thing, as a worker, a client or a person."""

    def __init__(self, conn: psycopg.Connection[Any], seed: int) -> None:
        self.conn = conn
        self.random = random.Random(seed)
        self.name = f"worker-{seed}"
        self.hand = Hand(conn, self.name, ["python"])
        self.held: list[Held] = []
        self.counter = 0
        self.surprises: list[str] = []

    def live(self) -> list[str]:
        for _ in range(ACTS):
            act = self.random.choice([self.work, self.work, self.work, self.steer, self.decide, self.sweep])
            try:
                act()
            except psycopg.Error as error:
                if error.sqlstate not in EXPECTED:
                    self.surprises.append(f"{act.__name__}: {error.sqlstate} {error}")
        return self.surprises

    def work(self) -> None:
        saying, self.held = self.held, []
        items = [self.item(held) for held in saying]
        try:
            answers, claims = self.hand.call(*items, slots=2)
        except psycopg.errors.LockNotAvailable:
            self.held = saying
            raise
        for held, item, answer in zip(saying, items, answers, strict=True):
            if (answer.status == "ok" and item.disposition == "keep") or answer.status in ("unread", "undecided"):
                self.held.append(held)
        self.held.extend(claims)

    def item(self, held: Held) -> Item:
        self.counter += 1
        mark = f"{self.name}.{self.counter}"
        one = entry("charge", held.head)
        choices: list[Callable[[], Item]] = [
            lambda: held.item("keep", one),
            lambda: held.item("keep", one, decides=True),
            lambda: held.item("park", one, wake_after=self.random.randint(1, 3)),
            lambda: held.item("release", one),
            lambda: held.end(self.random.choice(("complete", "fail", "cancel")), b"{}"),
            lambda: held.item(
                self.random.choice(("keep", "park")),
                entry("ship", held.head, kind=Kind.CHILD, phase=Phase.OPENED, payload=None),
                children=[child(f"{held.run_id[:80]}/{mark}", f"/child:{mark}#1")],
                tasks=[task(f"{held.run_id[:80]}/task-{mark}", f"/human:{mark}#1")],
            ),
        ]
        return self.random.choice(choices)()

    def steer(self) -> None:
        found = rows(self.conn, "select run_id from pgwf_sdk.run order by random() limit 1")
        verb = self.random.choice(
            (
                "signal_run(%s, 'go', null, 0)",
                "cancel_run(%s, 'ann')",
                "pause_run(%s, 'ann')",
                "resume_run(%s, 'ann')",
                "resume_run(%s, 'ann')",
                "terminate_run(%s, 'ann')",
                "retry_run(%s, 'ann')",
            )
        )
        self.conn.execute(f"select pgwf_sdk.{verb}".encode(), [found[0][0]])

    def decide(self) -> None:
        found = rows(
            self.conn, "select task_id from pgwf_sdk.tasks where state in ('open', 'claimed') order by random() limit 1"
        )
        verb = self.random.choice(("claim_task(%s, %s)", "release_task(%s, %s)", "decide_task(%s, %s, 'true', 1)"))
        for (task_id,) in found:
            self.conn.execute(f"select pgwf_sdk.{verb}".encode(), [task_id, self.name])

    def sweep(self) -> None:
        self.conn.execute("select pgwf.sweep(%s)", [self.name])
        start(self.conn, f"{self.random.choice(RUNS)}.{self.name}.{self.counter}")


def test_sessions_that_do_everything_at_once_never_deadlock(db: psycopg.Connection[Any], connect: Connect) -> None:
    for run_id in RUNS:
        start(db, run_id)
    actors = [Actor(connect(), seed) for seed in range(SESSIONS)]

    with ThreadPoolExecutor(SESSIONS) as pool:
        surprises = [surprise for found in pool.map(Actor.live, actors) for surprise in found]

    assert surprises == []
    assert rows(db, "select count(*) from pgwf_sdk.run")[0][0] > len(RUNS)
    assert (
        rows(db, "select 1 from pgwf_sdk.inbox i where not exists (select from pgwf_sdk.run r where r.n = i.n)") == []
    )
