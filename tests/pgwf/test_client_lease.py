import asyncio
import os
import signal
from contextlib import ExitStack
from datetime import datetime, timedelta
from typing import Any

import psycopg
import pytest

from pgwf import (
    AsyncClient,
    Client,
    Lease,
    LeaseLostError,
    LeaseSpentError,
    UnknownDependencyError,
)
from pgwf_sdk.embedded import EmbeddedServer
from tests.pgwf.clients import WORKER, submit, take
from tests.support import Clock, wait_until


@pytest.mark.parametrize("call", ["complete", "reschedule", "release"])
def test_a_lease_that_was_given_back_is_spent(client: Client, call: str) -> None:
    submit(client)
    lease = take(client)
    arguments: dict[str, dict[str, Any]] = {
        "complete": {},
        "reschedule": {"next_need": "gpu"},
        "release": {"error": "no disk", "delay_seconds": 5},
    }
    getattr(lease, call)(**arguments[call])

    assert lease.is_spent
    for again in (lease.complete, lease.extend, lease.release, lambda: lease.reschedule(next_need="gpu")):
        with pytest.raises(LeaseSpentError, match=f"job job-1.*{call}"):
            again()
    with pytest.raises(LeaseSpentError), lease.keep_alive():
        pass


def test_a_lost_lease_says_so_once_and_is_spent(client: Client, clock: Clock) -> None:
    submit(client)
    lease = take(client, lease_seconds=60)
    clock.advance(timedelta(minutes=2))
    client.sweep(worker_id=WORKER)
    again = take(client, worker_id="worker-2")

    with pytest.raises(LeaseLostError, match="job-1"):
        lease.complete()

    with pytest.raises(LeaseSpentError, match="its loss"):
        lease.extend()
    assert again.lease_no == 2
    again.complete()


def test_an_extended_lease_ends_later(client: Client) -> None:
    submit(client)
    lease = take(client, lease_seconds=10)
    before = lease.lease_expires_at

    assert lease.extend(additional_seconds=600) == lease.lease_expires_at > before


def test_the_loser_of_a_failed_call_keeps_its_lease(client: Client) -> None:
    submit(client)
    lease = take(client)

    with pytest.raises(UnknownDependencyError, match="nobody"):
        lease.reschedule(next_need="python", wait_for=["nobody"])

    assert not lease.is_spent
    lease.complete()


def test_the_first_canceller_is_kept(client: Client) -> None:
    submit(client)

    client.cancel_job(job_id="job-1", worker_id="ann", reason="typo")
    again = client.cancel_job(job_id="job-1", worker_id="bob")

    assert (again.cancelled_by, again.cancel_reason) == ("ann", "typo")
    assert client.archive_cancelled_jobs(worker_id=WORKER) + client.sweep(worker_id=WORKER) >= 1


def test_a_lease_is_kept_alive_while_its_holder_works(client: Client, db: psycopg.Connection[Any]) -> None:
    submit(client)
    lease = take(client, lease_seconds=1)

    with lease.keep_alive(lease_seconds=1):
        wait_until(
            lambda: until(db) > lease.lease_expires_at + timedelta(seconds=1), "extended beyond twice its length"
        )

    assert not lease.lost.is_set()
    lease.complete()


def until(db: psycopg.Connection[Any]) -> datetime:
    row = db.execute("select until from pgwf.lease").fetchone()
    assert row is not None
    value: datetime = row[0]
    return value


def test_the_holder_of_a_kept_lease_is_told_when_it_is_lost(client: Client, db: psycopg.Connection[Any]) -> None:
    submit(client)
    lease = take(client, lease_seconds=60)

    with lease.keep_alive(lease_seconds=0.3):
        db.execute("delete from pgwf.lease")

        assert lease.lost.wait(20)


def test_the_holder_of_a_kept_lease_is_told_when_its_job_is_cancelled(client: Client) -> None:
    submit(client)
    lease = take(client, lease_seconds=60)

    with lease.keep_alive(lease_seconds=0.3):
        client.cancel_job(job_id="job-1", worker_id="ann")

        assert lease.cancelled.wait(20)
    assert not lease.lost.is_set()
    lease.complete()


@pytest.mark.own_session
def test_the_holder_is_told_when_the_database_cannot_be_reached_for_the_length_of_the_lease(
    client: Client, db: psycopg.Connection[Any], server: EmbeddedServer
) -> None:
    submit(client)
    lease = take(client, lease_seconds=60)
    name = db.info.dbname

    with psycopg.connect(server.dsn, autocommit=True) as admin, lease.keep_alive(lease_seconds=0.6):
        admin.execute(f'alter database "{name}" allow_connections false'.encode())
        admin.execute("select pg_terminate_backend(pid) from pg_stat_activity where datname = %s", [name])

        assert lease.lost.wait(20)
        admin.execute(f'alter database "{name}" allow_connections true'.encode())


@pytest.mark.own_session
def test_a_kept_lease_survives_a_lost_connection(client: Client, db: psycopg.Connection[Any]) -> None:
    submit(client)
    lease = take(client, lease_seconds=1)
    keeper = """from pg_stat_activity
        where datname = current_database() and query like '%extend_leases%' and pid <> pg_backend_pid()"""

    with lease.keep_alive(lease_seconds=1.5):
        wait_until(lambda: db.execute(f"select pid {keeper}".encode()).rowcount, "an extension")
        db.execute(f"select pg_terminate_backend(pid) {keeper}".encode())
        seen = until(db)
        wait_until(lambda: until(db) > seen or lease.lost.is_set(), "the next extension")

    assert not lease.lost.is_set()
    lease.complete()


@pytest.mark.own_session
def test_the_holder_is_told_when_the_database_no_longer_answers(client: Client, db: psycopg.Connection[Any]) -> None:
    submit(client, "frozen")
    submit(client, "next")
    frozen, following = take(client), take(client, lease_seconds=1)

    with ExitStack() as thawing:
        with frozen.keep_alive(lease_seconds=1.5):
            thawing.callback(os.kill, freeze_keeper(db), signal.SIGCONT)

            assert frozen.lost.wait(20)
        with following.keep_alive(lease_seconds=1.5):
            wait_until(lambda: until_of(db, following) > following.lease_expires_at, "an extension by a new connection")
    assert not following.lost.is_set()


@pytest.mark.own_session
def test_the_holder_is_told_in_its_event_loop_when_the_database_no_longer_answers(
    dsn: str, db: psycopg.Connection[Any]
) -> None:
    async def hold() -> None:
        async with AsyncClient(dsn) as client:
            await client.submit_job(job_id="frozen", worker_id=WORKER, next_need="python")
            (lease,) = await client.get_work(worker_id=WORKER, worker_caps=["python"])
            with ExitStack() as thawing:
                async with lease.keep_alive(lease_seconds=1.5):
                    thawing.callback(os.kill, await asyncio.to_thread(freeze_keeper, db), signal.SIGCONT)
                    async with asyncio.timeout(20):
                        await lease.lost.wait()

    asyncio.run(hold())


def freeze_keeper(db: psycopg.Connection[Any]) -> int:
    """Stop the server process that extends leases, once it has extended one, and return which it is."""

    def keeper() -> int | None:
        row = db.execute(
            "select pid from pg_stat_activity"
            " where datname = current_database() and query like '%extend_leases%' and pid <> pg_backend_pid()"
        ).fetchone()
        return None if row is None else int(row[0])

    pid = wait_until(keeper, "an extension")
    assert pid is not None
    os.kill(pid, signal.SIGSTOP)
    return pid


def until_of(db: psycopg.Connection[Any], lease: Lease) -> datetime:
    row = db.execute("select until from pgwf.lease where n = %s", [lease.n]).fetchone()
    assert row is not None
    value: datetime = row[0]
    return value


def test_completing_at_once_after_keeping_alive_is_safe(client: Client) -> None:
    for i in range(20):
        submit(client, f"job-{i}")
        lease = take(client)
        with lease.keep_alive():
            lease.complete()


def test_closing_the_client_stops_keeping_leases_alive(dsn: str) -> None:
    client = Client(dsn)
    submit(client)
    lease = take(client)

    with lease.keep_alive():
        client.close()
