"""Runs with a singleton key, executed by real workers: never more of them at a time than the key allows."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from pgwf_sdk import AsyncClient, Client, Context, InvalidArgumentError, ops, step, workflow
from tests.support import wait_for_status

if TYPE_CHECKING:
    from psycopg import Connection

    from tests.sdk.worker.conftest import StartWorker

SOON = timedelta(seconds=60)
LEASED = "select count(*) from pgwf.lease where singleton_key = 'tenant-7'"


class Watch:
    """How many are inside at once, at most, and how many leases of the key the database shows meanwhile."""

    def __init__(self, db: Connection[Any]) -> None:
        self._db = db
        self._lock = threading.Lock()
        self._inside = 0
        self.most_inside = 0
        self.most_leased = 0
        self.visits: Counter[str] = Counter()

    def enter(self, who: str) -> None:
        with self._lock:
            self._inside += 1
            self.visits[who] += 1
            self.most_inside = max(self.most_inside, self._inside)
            row = self._db.execute(LEASED).fetchone()
            assert row is not None
            self.most_leased = max(self.most_leased, row[0])

    def leave(self) -> None:
        with self._lock:
            self._inside -= 1


def test_ten_runs_of_one_key_are_never_worked_on_at_the_same_time(
    client: Client, db: Connection[Any], start_worker: StartWorker
) -> None:
    watch = Watch(db)

    @step
    def visit(who: str) -> str:
        watch.enter(who)
        watch.leave()
        return who

    @workflow
    def booking(ctx: Context, who: str) -> str:
        ctx.step(visit, who)
        watch.enter(who)  # between steps the lease is held as well
        watch.leave()
        ctx.step(visit, who)
        ctx.sleep(timedelta(seconds=1.2))  # long enough to be given back
        return ctx.step(visit, who)

    for worker_id in ("w-1", "w-2"):
        start_worker(booking, worker_id=worker_id)
    runs = [client.start(booking(f"{i}"), singleton_key="tenant-7") for i in range(10)]

    assert [run.result(timeout=SOON) for run in runs] == [f"{i}" for i in range(10)]
    assert (watch.most_inside, watch.most_leased) == (1, 1)
    assert all(count >= 4 for count in watch.visits.values())


def test_of_runs_of_a_key_with_a_limit_of_three_three_are_worked_on_at_once_and_never_more(
    client: Client, db: Connection[Any], start_worker: StartWorker
) -> None:
    watch = Watch(db)
    three = threading.Barrier(3)

    @step
    def visit(who: str) -> str:
        watch.enter(who)
        three.wait(60)  # until three are inside
        watch.leave()
        three.wait(60)
        return who

    @workflow
    def booking(ctx: Context, who: str) -> str:
        return ctx.step(visit, who)

    db.execute("select pgwf.limit_key('tenant-7', 'op', 3)")
    for worker_id in ("w-1", "w-2"):
        start_worker(booking, worker_id=worker_id)
    runs = [client.start(booking(f"{i}"), singleton_key="tenant-7") for i in range(12)]

    assert [run.result(timeout=SOON) for run in runs] == [f"{i}" for i in range(12)]
    assert (watch.most_inside, watch.most_leased) == (3, 3)


def test_a_run_that_waits_lets_others_of_its_key_pass(client: Client, start_worker: StartWorker) -> None:
    @workflow
    def waiting(ctx: Context) -> str:
        return ctx.wait_signal("go", str)

    @workflow
    def passing(ctx: Context) -> str:
        return "passed"

    start_worker(waiting, passing)
    first = client.start(waiting(), singleton_key="tenant-7")
    wait_for_status(first, "waiting")

    assert client.start(passing(), singleton_key="tenant-7").result(timeout=SOON) == "passed"
    first.signal("go", "on")
    assert first.result(timeout=SOON) == "on"


def test_a_run_is_worked_on_once_a_token_of_its_key_comes(
    client: Client, db: Connection[Any], start_worker: StartWorker
) -> None:
    @workflow
    def booking(ctx: Context) -> None: ...

    db.execute("select pgwf.limit_key('tenant-7', 'op', 9, 4, 1)")
    start_worker(booking)
    runs = [client.start(booking(), singleton_key="tenant-7") for _ in range(5)]

    for run in runs:
        run.result(timeout=SOON)
    (row,) = db.execute(
        "select extract(epoch from max(event_at) - min(event_at)) from pgwf.trace where event_type = 'get_work'"
    ).fetchall()
    assert row[0] >= 1, "four more starts take a second"


def test_a_signal_starts_a_run_with_a_key_and_the_key_is_shown(client: Client) -> None:
    @workflow
    def booking(ctx: Context) -> None: ...

    client.signal_with_start(booking(), "booking-1", "go", singleton_key="tenant-7")

    assert ops.get_run(client, "booking-1").singleton_key == "tenant-7"
    assert [run.singleton_key for run in client.list()] == ["tenant-7"]


@pytest.mark.parametrize("key", ["", "x" * 513, "é" * 257, "a\nb", "a\0b", "\ud800"])
def test_a_key_that_cannot_be_one_is_refused_before_anything_is_started(client: Client, key: str) -> None:
    @workflow
    def booking(ctx: Context) -> None: ...

    async def try_async() -> None:
        async with AsyncClient(client.dsn) as other:
            await other.start(booking(), singleton_key=key)

    with pytest.raises(InvalidArgumentError, match="singleton_key"):
        client.start(booking(), singleton_key=key)
    with pytest.raises(InvalidArgumentError, match="singleton_key"):
        client.signal_with_start(booking(), "booking-1", "go", singleton_key=key)
    with pytest.raises(InvalidArgumentError, match="singleton_key"):
        asyncio.run(try_async())
    assert client.list() == ()
