"""The one PostgreSQL server of a benchmark, and its databases."""

from __future__ import annotations

import os
import shutil
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, LiteralString

import psycopg
from psycopg import sql
from psycopg.conninfo import make_conninfo

from pgwf_sdk.embedded import EmbeddedServer

if TYPE_CHECKING:
    from collections.abc import Generator

    Connection = psycopg.Connection[Any]

# As durable as PostgreSQL is by default; only sized so that neither cache nor checkpoints decide.
SETTINGS = {
    "fsync": "on",
    "synchronous_commit": "on",
    "full_page_writes": "on",
    "shared_buffers": "1GB",
    "max_wal_size": "8GB",
    "checkpoint_timeout": "15min",
    "autovacuum": "on",
    "autovacuum_naptime": "10s",
}


class Server:
    """A running server; `folder` is where its data is, on the disk that is being measured."""

    def __init__(self, dsn: str, folder: Path) -> None:
        self.folder = folder
        self._dsn = dsn
        self._admin = psycopg.connect(dsn, autocommit=True)

    def fresh(self, name: str) -> str:
        """Make the database `name` anew, empty, and return its connection string."""
        self._run("drop database if exists {} with (force)", name)
        self._run("create database {} template template0", name)
        return make_conninfo(self._dsn, dbname=name)

    def copy(self, source: str, name: str) -> str:
        """Make the database `name` anew as a copy of `source`, to which nobody may be connected."""
        self._run("drop database if exists {} with (force)", name)
        self._run("create database {} template {} strategy file_copy", name, source)
        return make_conninfo(self._dsn, dbname=name)

    def drop(self, name: str) -> None:
        """Drop the database, with whoever is still in it."""
        self._run("drop database if exists {} with (force)", name)

    def checkpoint(self) -> None:
        """Write out what is dirty, so that the next measurement does not pay for the last."""
        self._admin.execute("checkpoint")

    def settings(self) -> dict[str, str]:
        """The version, and the settings that decide how durable and how fast it is."""
        names = ["server_version", "wal_sync_method", *SETTINGS]
        rows = self._admin.execute(
            "select name, current_setting(name) from pg_settings where name = any (%s) order by name", [names]
        )
        return dict(rows.fetchall())

    def close(self) -> None:
        """End the connection the server is looked after with."""
        self._admin.close()

    def _run(self, statement: LiteralString, *names: str) -> None:
        self._admin.execute(sql.SQL(statement).format(*map(sql.Identifier, names)))


@contextmanager
def running(parent: Path | None = None) -> Generator[Server]:
    """Start a server with a new data folder below `parent` (default: the temporary folder); both are gone afterwards.

    PGWF_TEST_PG_BIN names PostgreSQL's programs; otherwise it is the embedded one.
    """
    programs = os.environ.get("PGWF_TEST_PG_BIN")
    if parent is not None:
        Path(parent).mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix="pgwf-bench-", dir=parent))
    folder.chmod(0o755)
    try:
        binaries = Path(programs) if programs else None
        with EmbeddedServer(folder / "home", binaries=binaries, settings=SETTINGS) as embedded:
            server = Server(embedded.dsn, folder)
            try:
                yield server
            finally:
                server.close()
    finally:
        shutil.rmtree(folder, ignore_errors=True)
