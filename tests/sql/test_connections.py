"""The connections of clients, as the server of a network sees them."""

from __future__ import annotations

import asyncio

from psycopg.conninfo import make_conninfo

from pgwf_sql.database import AsyncDatabase, Database

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
