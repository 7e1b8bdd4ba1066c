"""A queue of notifications that nobody takes out of: PostgreSQL then refuses every commit that notifies."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import psycopg
import pytest

import pgwf_sql
from pgwf_sdk.embedded import EmbeddedServer
from tests.conftest import SETTINGS
from tests.pgwf.leasing import Leasing
from tests.support import short_folder

if TYPE_CHECKING:
    from collections.abc import Iterator

TOO_MANY = "too many notifications in the NOTIFY queue"


@pytest.fixture
def dsn() -> Iterator[str]:
    """A server whose queue is as small as it can be: 64 pages of 8 kB."""
    programs = os.environ.get("PGWF_TEST_PG_BIN")
    settings = SETTINGS | {"max_notify_queue_pages": "64"}
    with (
        short_folder() as home,
        EmbeddedServer(home, binaries=Path(programs) if programs else None, settings=settings) as server,
    ):
        yield server.dsn


def notify_without_end(conn: psycopg.Connection[Any], payload_bytes: int) -> NoReturn:
    while True:
        conn.execute("select pg_notify('filler', repeat('x', %s))", [payload_bytes])


@pytest.mark.skipif(bool(os.environ.get("PGWF_TEST_PG_BIN")), reason="before PostgreSQL 17 the queue holds 8 GB")
def test_a_full_queue_of_notifications_fails_no_write(dsn: str) -> None:
    with psycopg.connect(dsn, autocommit=True) as conn, psycopg.connect(dsn, autocommit=True) as deaf:
        pgwf_sql.install(conn)
        pgwf = Leasing(conn)
        pgwf.conn.execute("select pgwf.set_notify(true)")
        deaf.execute("listen filler")
        deaf.execute("begin")
        deaf.execute("select")  # What comes from now on stays in the queue until its end.
        for payload_bytes in (7900, 1):  # Until there is no room for the smallest one.
            with pytest.raises(psycopg.Error, match=TOO_MANY):
                notify_without_end(conn, payload_bytes)

        pgwf.submit("a")
        pgwf.complete(pgwf.take())

        assert pgwf.status("a") == "completed"
