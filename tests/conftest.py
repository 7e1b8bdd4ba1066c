"""Fixtures of all tests: real PostgreSQL, a fresh database for each test, everything closed and stopped at the end.

The suite runs on the embedded server; PGWF_TEST_PG_BIN names the programs of another one, such as
/usr/lib/postgresql/15/bin. Each pytest-xdist worker has a server of its own: an open transaction of one test is seen
by every snapshot on its server, in whatever database.
"""

from __future__ import annotations

import os
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from pgwf_sdk.embedded import EmbeddedServer
from tests.support import Clock, Connect, Databases, Session, short_folder

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

HOME_VARIABLE = "PGWF_TEST_HOME"  # tells the workers of pytest-xdist where the run's servers are
# Nothing here outlives the test run, so nothing needs to reach the disk; autovacuum would only take locks at random.
SETTINGS = {"fsync": "off", "full_page_writes": "off", "synchronous_commit": "off", "autovacuum": "off"}


def pytest_configure(config: pytest.Config) -> None:
    if hasattr(config, "workerinput"):
        return
    cleanup = ExitStack()
    os.environ[HOME_VARIABLE] = str(cleanup.enter_context(short_folder()))
    config.add_cleanup(cleanup.close)


@pytest.fixture(scope="session")
def server() -> Iterator[EmbeddedServer]:
    """The PostgreSQL server of this test process."""
    programs = os.environ.get("PGWF_TEST_PG_BIN")
    home = Path(os.environ[HOME_VARIABLE]) / os.environ.get("PYTEST_XDIST_WORKER", "main")
    with EmbeddedServer(home, binaries=Path(programs) if programs else None, settings=SETTINGS) as server:
        yield server


@pytest.fixture(scope="session")
def databases(server: EmbeddedServer) -> Iterator[Databases]:
    """Makes databases in which the schemas are installed."""
    databases = Databases(server.dsn)
    try:
        databases.prepare()
        yield databases
    finally:
        databases.close()


@pytest.fixture
def database(databases: Databases) -> Iterator[str]:
    """The connection string of this test's own database, with the schemas installed."""
    with databases.fresh() as dsn:
        yield dsn


@pytest.fixture
def dsn(database: str) -> str:
    """The connection string of this test's own database, for code that connects by itself."""
    return database


@pytest.fixture
def connect(database: str) -> Iterator[Connect]:
    """Makes connections to this test's database in autocommit mode."""
    with ExitStack() as connections:

        def connect(**options: Any) -> psycopg.Connection[Any]:
            conn: psycopg.Connection[Any] = psycopg.connect(database, autocommit=True, **options)
            connections.callback(conn.close)
            return conn

        yield connect


@pytest.fixture
def db(connect: Connect) -> psycopg.Connection[Any]:
    """One connection to this test's database, in autocommit mode."""
    return connect()


@pytest.fixture
def clock(connect: Connect) -> Clock:
    """The time of this test's database, which stands still until the test moves it."""
    return Clock(connect())


@pytest.fixture
def session(database: str) -> Iterator[Callable[[], Session]]:
    """Makes sessions whose statements run on threads, for tests in which one session waits for another."""
    with ExitStack() as sessions:
        yield lambda: sessions.enter_context(Session(database))


@pytest.fixture
def two_sessions(session: Callable[[], Session]) -> tuple[Session, Session]:
    """Two sessions on this test's database."""
    return session(), session()
