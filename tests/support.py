"""What tests share: a server and its databases, a clock that can be moved, sessions that block, waiting for a state."""

from __future__ import annotations

import os
import secrets
import shutil
import tempfile
import time
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager, suppress
from datetime import UTC, datetime, timedelta
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, LiteralString, Protocol, TypeVar, cast

import psycopg
from psycopg import sql
from psycopg.conninfo import make_conninfo

import pgwf_sql
from pgwf_sdk.embedded._locks import is_taken

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Mapping, Sequence
    from types import TracebackType
    from typing import Self

    from pgwf_sdk import Run

STATE_SECONDS_MAX = 20.0  # for a state to come about, on a busy machine
POLL_SECONDS = 0.01
FOLDER_PREFIX = "pgwf-test-"
ABANDONED_SECONDS = 3600.0
MEMORY = Path("/dev/shm")
MEMORY_BYTES_MIN = 2 << 30
TEMPLATE = "pgwf_template"


T = TypeVar("T")
Rows = list[tuple[Any, ...]]


class Connect(Protocol):
    """Makes connections to the test's database in autocommit mode, closed at the end of the test."""

    def __call__(self, **options: Any) -> psycopg.Connection[Any]: ...


class StateNotReachedError(AssertionError):
    """A state that the test waits for did not come about in time, or can no longer do so."""


def wait_until(condition: Callable[[], T], what: str, *, seconds: float = STATE_SECONDS_MAX) -> T:
    """Ask `condition` until its value is true, and return that. `what` names the state in the error."""
    until = time.monotonic() + seconds
    while not (value := condition()):
        if time.monotonic() > until:
            raise StateNotReachedError(f"after {seconds:.0f} s still not so: {what}; last seen: {value!r}")
        time.sleep(POLL_SECONDS)
    return value


def wait_for_status(run: Run[Any], status: str, *, seconds: float = STATE_SECONDS_MAX) -> None:
    """Wait until the run, or the live end of its chain, has that status."""
    try:
        wait_until(lambda: run.status() == status, f"run {run.run_id} is {status}", seconds=seconds)
    except StateNotReachedError as error:
        error.add_note(f"It is {run.status()}.")
        raise


@contextmanager
def short_folder() -> Generator[Path]:
    """Give a new folder with a short path, as Unix sockets need it, that every account may enter; removed afterwards.

    It is in memory where there is room for that: making a database is ten times faster there.
    """
    place = MEMORY if _has_room(MEMORY) else Path("/tmp")
    _remove_abandoned(place)
    folder = Path(tempfile.mkdtemp(prefix=FOLDER_PREFIX, dir=place))
    folder.chmod(0o755)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _has_room(folder: Path) -> bool:
    if not os.access(folder, os.W_OK):
        return False
    found = os.statvfs(folder)
    # Programs may have to be copied there and run from there.
    return found.f_bavail * found.f_frsize >= MEMORY_BYTES_MIN and not found.f_flag & getattr(os, "ST_NOEXEC", 0)


def _remove_abandoned(place: Path) -> None:
    """Remove the folders of test runs that were killed, long ago enough that nobody is between two servers in them."""
    for folder in place.glob(f"{FOLDER_PREFIX}*"):
        with suppress(OSError):
            is_old = time.time() - folder.stat().st_mtime > ABANDONED_SECONDS
            locks = [*folder.glob("holders.lock"), *folder.glob("*/holders.lock")]
            if is_old and not any(map(is_taken, locks)):
                shutil.rmtree(folder)


class Databases:
    """Fresh databases on one server, each a copy of a template in which the schemas are installed."""

    def __init__(self, dsn: str) -> None:
        self._dsn = dsn
        self._closing = ExitStack()
        self._admin = self._closing.enter_context(closing(psycopg.connect(dsn, autocommit=True)))

    def prepare(self) -> None:
        """Make the template."""
        with self.fresh(template="template0", keep_as=TEMPLATE) as dsn, psycopg.connect(dsn) as conn:
            pgwf_sql.install(conn)

    @contextmanager
    def fresh(self, *, template: str = TEMPLATE, keep_as: str | None = None) -> Generator[str]:
        """Give the connection string of a new database, which is dropped afterwards with whoever is still in it.

        With `keep_as` it is kept under that name instead, if all went well.
        """
        name = f"test_{secrets.token_hex(6)}"
        self._run("create database {} template {} strategy file_copy", name, template)
        try:
            yield make_conninfo(self._dsn, dbname=name)
            if keep_as is not None:
                self._run("alter database {} rename to {}", name, keep_as)
        finally:
            self._run("drop database if exists {} with (force)", name)

    @cached_property
    def shared(self) -> psycopg.Connection[Any]:
        """A connection to a database that tests share, for those that change nothing in it."""
        dsn = self._closing.enter_context(self.fresh())
        return self._closing.enter_context(closing(psycopg.connect(dsn, autocommit=True)))

    def _run(self, statement: LiteralString, *names: str) -> None:
        self._admin.execute(sql.SQL(statement).format(*map(sql.Identifier, names)))

    def close(self) -> None:
        self._closing.close()


class Clock:
    """The database's time, standing still until it is moved; it starts at `START`.

    Only in the test's own database: the three schemas' `_now()` are replaced there.
    """

    START = datetime(2030, 1, 1, 12, tzinfo=UTC)
    SCHEMAS = ("pgwf", "pgwf_journal", "pgwf_sdk")

    def __init__(self, conn: psycopg.Connection[Any]) -> None:
        self._conn = conn
        conn.execute("create schema test_clock")
        conn.execute("create table test_clock.reading (now_at timestamptz not null)")
        conn.execute("insert into test_clock.reading values (%s)", [self.START])
        conn.execute("grant usage on schema test_clock to public")
        conn.execute("grant select on test_clock.reading to public")
        for schema in self.SCHEMAS:
            conn.execute(
                sql.SQL(
                    "create or replace function {}() returns timestamptz language sql volatile"
                    " as $$ select now_at from test_clock.reading $$"
                ).format(sql.Identifier(schema, "_now"))
            )

    def now(self) -> datetime:
        row = self._conn.execute("select now_at from test_clock.reading").fetchone()
        assert row is not None
        return cast("datetime", row[0])

    def set(self, instant: datetime) -> datetime:
        """Move to `instant`, forwards or backwards, and return it."""
        self._conn.execute("update test_clock.reading set now_at = %s", [instant])
        return instant

    def advance(self, duration: timedelta | None = None, /, **parts: float) -> datetime:
        """Move on by a timedelta or by its parts, as in `advance(minutes=1)`, and return the new time."""
        return self.set(self.now() + (timedelta(**parts) if duration is None else duration))


class Session:
    """One database session whose statements run on a thread, so that one that blocks does not block the test.

    It is in autocommit mode: `run("begin")` opens a transaction, `run("commit")` ends it.
    """

    def __init__(self, dsn: str) -> None:
        self._conn = psycopg.connect(dsn, autocommit=True)
        self._observer = psycopg.connect(dsn, autocommit=True)
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="session")
        self._running: Future[Rows] | None = None
        self.pid = self._conn.info.backend_pid

    def start(
        self, statement: LiteralString, parameters: Sequence[Any] | Mapping[str, Any] | None = None
    ) -> Future[Rows]:
        """Send a statement and return at once; the future holds its rows, or raises its error."""
        self._running = self._thread.submit(self._execute, statement, parameters)
        return self._running

    def run(self, statement: LiteralString, parameters: Sequence[Any] | Mapping[str, Any] | None = None) -> Rows:
        """Send a statement and return its rows."""
        return self.start(statement, parameters).result(timeout=STATE_SECONDS_MAX)

    def start_blocked(
        self, statement: LiteralString, parameters: Sequence[Any] | Mapping[str, Any] | None = None
    ) -> Future[Rows]:
        """Send a statement that has to wait for another session's lock, and return once it does."""
        started = self.start(statement, parameters)
        self.wait_blocked()
        return started

    def wait_blocked(self) -> None:
        """Wait until the statement started last waits for a lock that another session holds.

        StateNotReachedError: it ended instead, or neither happened in time.
        """
        running = self._running
        assert running is not None, "wait_blocked: start a statement first"

        def blocked_by() -> list[int]:
            if running.done():
                raise StateNotReachedError(
                    f"session {self.pid}: expected to wait for a lock, but its statement ended "
                    f"({running.exception() or running.result()})"
                )
            row = self._observer.execute("select pg_blocking_pids(%s)", [self.pid]).fetchone()
            return cast("list[int]", row[0]) if row else []

        wait_until(blocked_by, f"session {self.pid} waits for a lock")

    def _execute(self, statement: LiteralString, parameters: Sequence[Any] | Mapping[str, Any] | None) -> Rows:
        cursor = self._conn.execute(statement, parameters)
        return cursor.fetchall() if cursor.description else []

    def close(self) -> None:
        """End the session, and a statement that still runs in it."""
        if self._running is not None and not self._running.done():
            self._observer.execute("select pg_terminate_backend(%s)", [self.pid])
        self._thread.shutdown(wait=True)
        self._conn.close()
        self._observer.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, _type: type[BaseException] | None, _value: BaseException | None, _traceback: TracebackType | None
    ) -> None:
        self.close()


def outcome(future: Future[Rows]) -> Rows | str:
    """The rows of a call, or the SQLSTATE with which it was refused."""
    error = future.exception(timeout=STATE_SECONDS_MAX)
    if error is None:
        return future.result()
    sqlstate: str | None = getattr(error, "sqlstate", None)
    if sqlstate is None:
        raise error
    return sqlstate
