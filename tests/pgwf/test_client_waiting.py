import asyncio
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from threading import Thread
from typing import Any

import psycopg
import pytest

from pgwf import (
    AsyncClient,
    Client,
    Lease,
    _wakeup,
)
from pgwf._job import Outlook
from pgwf._wakeup import Vigil
from pgwf_sql.database import _listener
from tests.pgwf.clients import CAPS, WORKER, asleep, forget_sleepers, has_looked, submit
from tests.support import Session, wait_until

MINUTE = timedelta(minutes=1)


def awaiting(client: Client, **options: Any) -> tuple[Thread, list[Lease]]:
    found: list[Lease] = []
    waiter = Thread(target=lambda: found.extend(client.await_work(worker_id=WORKER, worker_caps=CAPS, **options)))
    waiter.start()
    return waiter, found


def test_a_waiting_worker_is_woken_by_a_submission(client: Client, db: psycopg.Connection[Any]) -> None:
    waiter, found = awaiting(client, poll=10 * MINUTE)
    wait_until(asleep(db), "the worker asleep")

    submit(client)
    waiter.join(20)

    assert [lease.job_id for lease in found] == ["job-1"]
    assert not asleep(db)()


@pytest.mark.own_session
def test_a_waiting_worker_asks_again_to_be_woken_after_a_crash_of_the_server(
    client: Client, db: psycopg.Connection[Any]
) -> None:
    waiter, found = awaiting(client, poll=MINUTE)
    wait_until(has_looked(db), "the worker asleep")

    forget_sleepers(db)
    wait_until(asleep(db), "the worker asleep again")
    db.execute("select pgwf.submit_job('job-1', 'shop', 'python')")
    waiter.join(20)

    assert [lease.job_id for lease in found] == ["job-1"]


@pytest.mark.own_session
def test_a_waiting_task_asks_again_to_be_woken_after_a_crash_of_the_server(
    dsn: str, db: psycopg.Connection[Any]
) -> None:
    async def wait() -> list[str]:
        async with AsyncClient(dsn) as client:
            waiting = asyncio.create_task(client.await_work(worker_id=WORKER, worker_caps=CAPS, poll=MINUTE))
            await asyncio.to_thread(wait_until, has_looked(db), "the worker asleep")
            await asyncio.to_thread(forget_sleepers, db)
            await asyncio.to_thread(wait_until, asleep(db), "the worker asleep again")
            await asyncio.to_thread(db.execute, "select pgwf.submit_job('job-1', 'shop', 'python')")
            async with asyncio.timeout(20):
                return [lease.job_id for lease in await waiting]

    assert asyncio.run(wait()) == ["job-1"]


def test_whoever_waits_for_long_repeats_that_it_is_to_be_woken(
    client: Client, db: psycopg.Connection[Any], dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def wait() -> list[str]:
        async with AsyncClient(dsn) as client:
            leases = await client.await_work(worker_id=WORKER, worker_caps=CAPS, poll=10 * MINUTE)
            return [lease.job_id for lease in leases]

    for module in (_listener, _wakeup):
        monkeypatch.setattr(module, "REQUEST_SECONDS", 0.2)
    waiter, found = awaiting(client, poll=10 * MINUTE)
    other = Thread(target=lambda: found_by_task.extend(asyncio.run(wait())))
    found_by_task: list[str] = []
    other.start()
    wait_until(lambda: sleepers_count(db) == 2, "both asleep")

    db.execute("delete from pgwf.sleeper")

    wait_until(lambda: sleepers_count(db) == 2, "both asked again")
    for number in (1, 2):
        submit(client, f"job-{number}")
    waiter.join(20)
    other.join(20)
    assert sorted([*(lease.job_id for lease in found), *found_by_task]) == ["job-1", "job-2"]


def sleepers_count(db: psycopg.Connection[Any]) -> int:
    return len(db.execute("select from pgwf.sleeper").fetchall())


def test_a_waiting_worker_wakes_for_a_timer_that_nobody_announces(client: Client, db: psycopg.Connection[Any]) -> None:
    submit(client, available_at=datetime.now(UTC) + timedelta(milliseconds=300))
    db.execute("set pgwf.notify = off")

    found = client.await_work(worker_id=WORKER, worker_caps=CAPS, poll=10 * MINUTE, timeout=MINUTE)

    assert [lease.job_id for lease in found] == ["job-1"]


def test_a_waiting_worker_finds_by_polling_what_was_not_announced(client: Client, db: psycopg.Connection[Any]) -> None:
    waiter, found = awaiting(client, poll=timedelta(milliseconds=50))
    wait_until(asleep(db), "the worker asleep")
    db.execute("set pgwf.notify = off")

    db.execute("select pgwf.submit_job('job-1', 'shop', 'python')")
    waiter.join(20)

    assert [lease.job_id for lease in found] == ["job-1"]


def test_waiting_for_work_ends_with_nothing_after_the_timeout(client: Client, db: psycopg.Connection[Any]) -> None:
    assert client.await_work(worker_id=WORKER, worker_caps=CAPS, timeout=timedelta(milliseconds=20)) == ()
    assert not asleep(db)()


def test_a_worker_dozes_while_an_older_transaction_may_still_bring_work(
    client: Client, session: Callable[[], Session], db: psycopg.Connection[Any]
) -> None:
    older = session()
    older.run("begin")
    older.run("select pgwf.submit_job('job-1', 'shop', 'python')")
    waiter, found = awaiting(client, poll=10 * MINUTE)
    wait_until(asleep(db), "the worker asleep")

    older.run("commit")
    waiter.join(20)

    assert [lease.job_id for lease in found] == ["job-1"]


def test_a_vigil_sleeps_until_whatever_comes_first() -> None:
    def pause(*, is_seen: bool, wakeup_seconds: float | None, poll: float = 5.0) -> float | None:
        vigil = Vigil(timeout=MINUTE, poll=timedelta(seconds=poll))
        return vigil.pause_seconds(Outlook(is_seen_by_all=is_seen, wakeup_seconds=wakeup_seconds))

    assert pause(is_seen=True, wakeup_seconds=None) == 5.0
    assert pause(is_seen=True, wakeup_seconds=2.0) == 2.0
    assert pause(is_seen=False, wakeup_seconds=2.0) == 0.005
    assert pause(is_seen=True, wakeup_seconds=-1.0) == 0.005
    assert (
        Vigil(timeout=timedelta(0), poll=MINUTE).pause_seconds(Outlook(is_seen_by_all=True, wakeup_seconds=None))
        is None
    )
