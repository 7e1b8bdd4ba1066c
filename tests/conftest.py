"""Fixtures of all tests: real PostgreSQL, a fresh database for each test, everything closed and stopped at the end.

The suite runs on the embedded server; PGWF_TEST_PG_BIN names the programs of another one, such as
/usr/lib/postgresql/15/bin. Each pytest-xdist worker has a server of its own: an open transaction of one test is seen
by every snapshot on its server, in whatever database.

PGWF_TEST_PGBOUNCER names a PgBouncer (/usr/sbin/pgbouncer): clients, and the tests' own connections, then go through it
in transaction mode. Tests whose subject is a session, marked `own_session`, are left out.
"""

from __future__ import annotations

import os
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from pgwf_sdk.embedded import EmbeddedServer
from tests.pooler import PROGRAM_VARIABLE, Pooler, pooler_program
from tests.support import Clock, Connect, Databases, Session, short_folder

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

HOME_VARIABLE = "PGWF_TEST_HOME"  # tells the workers of pytest-xdist where the run's servers are
# Nothing here outlives the test run, so nothing needs to reach the disk; autovacuum would only take locks at random.
SETTINGS = {
    "fsync": "off",
    "full_page_writes": "off",
    "synchronous_commit": "off",
    "autovacuum": "off",
    "max_prepared_transactions": "10",
}


def pytest_configure(config: pytest.Config) -> None:
    if hasattr(config, "workerinput"):
        return
    cleanup = ExitStack()
    os.environ[HOME_VARIABLE] = str(cleanup.enter_context(short_folder()))
    config.add_cleanup(cleanup.close)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if pooler_program() is not None:
        for item in items:
            if item.get_closest_marker("own_session"):
                item.add_marker(pytest.mark.skip(reason=f"its subject is a session ({PROGRAM_VARIABLE} is set)"))


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


@pytest.fixture(scope="session")
def pooler(server: EmbeddedServer) -> Iterator[Pooler | None]:
    """The PgBouncer that clients go through, if the run has one."""
    program = pooler_program()
    if program is None:
        yield None
        return
    folder = Path(os.environ[HOME_VARIABLE]) / f"pooler-{os.environ.get('PYTEST_XDIST_WORKER', 'main')}"
    with Pooler(program, folder, server.dsn) as pooler:
        yield pooler


@pytest.fixture
def database(databases: Databases) -> Iterator[str]:
    """The connection string of this test's own database, with the schemas installed."""
    with databases.fresh() as dsn:
        yield dsn


@pytest.fixture
def dsn(database: str, pooler: Pooler | None) -> str:
    """The connection string of this test's own database, for code that connects by itself."""
    return database if pooler is None else pooler.dsn(database)


@pytest.fixture
def connect(dsn: str) -> Iterator[Connect]:
    """Makes connections to this test's database in autocommit mode."""
    with ExitStack() as connections:

        def connect(**options: Any) -> psycopg.Connection[Any]:
            options.setdefault("prepare_threshold", None if pooler_program() else 5)
            conn: psycopg.Connection[Any] = psycopg.connect(dsn, autocommit=True, **options)
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
