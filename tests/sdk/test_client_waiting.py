"""Waiting for the result of a run: woken, not woken, after a crash, and through an outage."""

import asyncio
from collections.abc import Iterator
from threading import Thread
from typing import Any

import psycopg
import pytest

from pgwf_sdk._client import AsyncClient, Client
from pgwf_sdk.embedded import EmbeddedServer
from pgwf_sql.database import _listener
from tests.pgwf.clients import asleep, forget_sleepers
from tests.sdk.test_client import MINUTE, Receipt, checkout, complete
from tests.support import wait_until


@pytest.fixture
def client(dsn: str) -> Iterator[Client]:
    with Client(dsn, name="shop") as client:
        yield client


def test_many_waiters_are_woken_by_one_connection_when_their_runs_end(
    client: Client, db: psycopg.Connection[Any]
) -> None:
    runs = [client.start(checkout(str(i))) for i in range(6)]
    results: dict[str, Receipt] = {}
    waiters = [Thread(target=lambda run=run: results.setdefault(run.run_id, run.result(MINUTE))) for run in runs]
    for waiter in waiters:
        waiter.start()
    wait_until(lambda: db.execute("select count(*) = 6 from pgwf.sleeper").fetchone() == (True,), "six waiters asleep")

    for i in range(6):
        complete(db, Receipt(str(i), 0))
    for waiter in waiters:
        waiter.join()

    assert {results[run.run_id].order for run in runs} == {str(i) for i in range(6)}
    assert db.execute("select count(*) from pgwf.sleeper").fetchone() == (0,)
    listening = "select count(*) from pg_stat_activity where datname = current_database() and query ilike 'listen%'"
    assert db.execute(listening).fetchone() <= (1,)  # type: ignore[operator]


@pytest.mark.own_session
def test_a_wait_asks_again_to_be_woken_after_a_crash_of_the_server(client: Client, db: psycopg.Connection[Any]) -> None:
    run = client.start(checkout("17"))
    results: list[Receipt] = []
    waiter = Thread(target=lambda: results.append(run.result(MINUTE)))
    waiter.start()
    wait_until(asleep(db), "the waiter asleep")

    forget_sleepers(db)
    wait_until(asleep(db), "the waiter asleep again")
    complete(db, Receipt("17", 0))
    waiter.join()

    assert results == [Receipt("17", 0)]


def test_a_long_wait_repeats_that_it_is_to_be_woken(
    client: Client, db: psycopg.Connection[Any], dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = client.start(checkout("17"))
    results: list[Receipt] = []

    async def wait() -> Receipt:
        async with AsyncClient(dsn) as async_client:
            return await (await async_client.get(run.run_id, checkout)).result(MINUTE)

    monkeypatch.setattr(_listener, "REQUEST_SECONDS", 0.2)
    waiters = [
        Thread(target=lambda: results.append(run.result(MINUTE))),
        Thread(target=lambda: results.append(asyncio.run(wait()))),
    ]
    for waiter in waiters:
        waiter.start()
    both = "select count(*) = 2 from pgwf.sleeper"
    wait_until(lambda: db.execute(both).fetchone() == (True,), "both asleep")

    db.execute("delete from pgwf.sleeper")

    wait_until(lambda: db.execute(both).fetchone() == (True,), "both asked again")
    complete(db, Receipt("17", 0))
    for waiter in waiters:
        waiter.join()
    assert results == [Receipt("17", 0)] * 2


def test_a_wait_ends_without_any_notification_by_polling(client: Client, db: psycopg.Connection[Any]) -> None:
    run = client.start(checkout("17"))
    results: list[Receipt] = []
    waiter = Thread(target=lambda: results.append(run.result(MINUTE)))
    waiter.start()
    wait_until(lambda: db.execute("select count(*) = 1 from pgwf.sleeper").fetchone() == (True,), "the waiter asleep")
    db.execute("set pgwf.notify = off")

    complete(db, Receipt("17", 0))
    waiter.join()

    assert results == [Receipt("17", 0)]


@pytest.mark.own_session
def test_a_wait_outlasts_an_outage_of_the_database(
    client: Client, db: psycopg.Connection[Any], server: EmbeddedServer
) -> None:
    run = client.start(checkout("17"))
    results: list[Receipt] = []
    waiter = Thread(target=lambda: results.append(run.result(MINUTE)))
    waiter.start()
    wait_until(lambda: db.execute("select count(*) = 1 from pgwf.sleeper").fetchone() == (True,), "the waiter asleep")
    name = db.info.dbname

    with psycopg.connect(server.dsn, autocommit=True) as admin:
        admin.execute(f'alter database "{name}" allow_connections false'.encode())
        admin.execute("select pg_terminate_backend(pid) from pg_stat_activity where datname = %s", [name])
        with pytest.raises(psycopg.OperationalError):
            run.status()
        admin.execute(f'alter database "{name}" allow_connections true'.encode())
    with psycopg.connect(db.info.dsn, password=db.info.password, autocommit=True) as again:
        complete(again, Receipt("17", 0))
    waiter.join()

    assert results == [Receipt("17", 0)]
