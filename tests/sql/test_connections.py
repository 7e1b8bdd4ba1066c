"""The connections of clients, as networks and databases with preferences of their own see them."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta

import psycopg
import pytest
from psycopg import sql
from psycopg.conninfo import make_conninfo

from pgwf import AsyncClient, Client
from pgwf_sql.database import AsyncDatabase, Database

INSTANT = datetime(2020, 3, 1, 12, 30, tzinfo=UTC)
NAMES = ("tcp_user_timeout", "keepalives_idle", "keepalives_interval", "keepalives_count")


def network_settings(dsn: str) -> list[tuple[str | None, ...]]:
    """What a connection asks of the network: one by itself, one of the pool, one to listen; of both kinds of client."""

    async def from_a_loop() -> list[dict[str, str]]:
        database = AsyncDatabase(dsn, translate=lambda error: error)
        try:
            async with (
                await database.connect() as lone,
                database.connection() as pooled,
                await database.connect_to_listen() as listening,
            ):
                return [made.info.get_parameters() for made in (lone, pooled, listening)]
        finally:
            await database.close()

    database = Database(dsn, translate=lambda error: error)
    try:
        with database.connect() as lone, database.connection() as pooled, database.connect_to_listen() as listening:
            found = [made.info.get_parameters() for made in (lone, pooled, listening)]
    finally:
        database.close()
    return [tuple(each.get(name) for name in NAMES) for each in found + asyncio.run(from_a_loop())]


def test_a_network_that_swallows_packets_ends_a_connection_within_a_minute(dsn: str) -> None:
    assert set(network_settings(dsn)) == {("30000", "30", "10", "3")}


def test_what_a_connection_string_says_of_the_network_holds(dsn: str) -> None:
    theirs = make_conninfo(dsn, tcp_user_timeout=5_000, keepalives_idle=7)

    assert set(network_settings(theirs)) == {("5000", "7", "10", "3")}


@pytest.mark.own_session
@pytest.mark.parametrize("styles", ["German, sql_standard", "SQL, iso_8601", "Postgres, postgres_verbose"])
def test_clients_read_instants_and_intervals_whatever_style_the_database_prefers(dsn: str, styles: str) -> None:
    dates, intervals = styles.split(", ")
    with psycopg.connect(dsn, autocommit=True) as conn:
        name = sql.Identifier(conn.info.dbname)
        conn.execute(sql.SQL("alter database {} set datestyle = {}").format(name, dates))
        conn.execute(sql.SQL("alter database {} set intervalstyle = {}").format(name, intervals))

    async def from_a_loop() -> tuple[datetime | None, timedelta]:
        async with AsyncClient(dsn) as client:
            (lease,) = await client.get_work(worker_id="w", worker_caps=["python"])
            return lease.available_at, await client.priority_aging()

    with Client(dsn) as client:
        for job_id in ("a", "b"):
            client.submit_job(job_id=job_id, worker_id="w", next_need="python", available_at=INSTANT)
        (lease,) = client.get_work(worker_id="w", worker_caps=["python"])
        assert lease.extend(additional_seconds=600) > INSTANT
        found = lease.available_at, client.priority_aging()

    assert found == asyncio.run(from_a_loop()) == (INSTANT, timedelta(minutes=1))
