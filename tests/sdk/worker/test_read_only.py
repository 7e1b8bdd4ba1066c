"""A database that takes no writes for a while: a standby after a failover, or a primary whose disk is nearly full."""

from __future__ import annotations

import threading
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from psycopg import sql

from pgwf_sdk import Client, Context, RetryPolicy, step, workflow
from tests.support import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from tests.sdk.worker.conftest import StartWorker

Conn = psycopg.Connection[Any]

pytestmark = pytest.mark.own_session

SOON = timedelta(seconds=60)
ONCE = RetryPolicy(max_attempts=1)
HOT = "pgwf worker"
BACKENDS = "select pid from pg_stat_activity where datname = current_database() and application_name = %s"
END_ALL = (
    "select pg_terminate_backend(pid) from pg_stat_activity"
    " where datname = current_database() and (application_name like 'pgwf worker%' or application_name = 'asker')"
)


@contextmanager
def only_readable(db: Conn) -> Generator[None]:
    """Whoever is connected is thrown out, and finds a database that only reads when it comes back."""
    name = sql.Identifier(db.info.dbname)
    db.execute("set default_transaction_read_only = off")
    db.execute(sql.SQL("alter database {} set default_transaction_read_only = on").format(name))
    db.execute(END_ALL)
    try:
        yield
    finally:
        db.execute(sql.SQL("alter database {} reset default_transaction_read_only").format(name))


def see_backends(db: Conn, application: str, count: int) -> Callable[[], bool]:
    """Whether so many backends of this name, one after the other, have been seen since."""
    seen: set[int] = set()

    def have_come() -> bool:
        seen.update(pid for (pid,) in db.execute(BACKENDS, [application]).fetchall())
        return len(seen) >= count

    return have_come


class Gate:
    """A step that waits in its call until the test says go on."""

    def __init__(self) -> None:
        self.is_begun = threading.Event()
        self.may_end = threading.Event()
        self.calls: list[str] = []

    def work(self, name: str) -> str:
        self.calls.append(name)
        self.is_begun.set()
        self.may_end.wait(SOON.total_seconds())
        return name

    def book(self, conn: Conn, name: str) -> str:
        self.calls.append(name)
        self.is_begun.set()
        self.may_end.wait(SOON.total_seconds())
        conn.execute("insert into booked values (%s)", [name])
        return name


def test_a_worker_waits_until_the_database_takes_writes_again_and_repeats_no_step(
    client: Client, start_worker: StartWorker, db: Conn, caplog: pytest.LogCaptureFixture
) -> None:
    gate = Gate()

    @workflow
    def working(ctx: Context, name: str) -> str:
        return ctx.step(step(retry=ONCE)(gate.work), name)

    start_worker(working)
    gate.may_end.set()
    assert client.start(working("before")).result(timeout=SOON) == "before"  # Its lines are numbered by now.
    gate.is_begun.clear()
    gate.may_end.clear()
    run = client.start(working("during"), run_id="during")
    assert gate.is_begun.wait(SOON.total_seconds())

    with only_readable(db):
        have_come = see_backends(db, HOT, 3)
        gate.may_end.set()
        wait_until(have_come, "the worker looks for a server that takes writes")

    assert run.result(timeout=SOON) == "during"
    assert gate.calls == ["before", "during"]
    assert db.execute("select run_id from pgwf_sdk.runs where lapses > 0").fetchall() == []
    assert client.start(working("after")).result(timeout=SOON) == "after"
    assert caplog.text.count("cannot work with the database") == 1


def test_a_step_in_a_transaction_waits_until_the_database_takes_writes_again(
    client: Client, start_worker: StartWorker, db: Conn
) -> None:
    db.execute("create table booked (name text)")
    gate = Gate()

    @workflow
    def booking(ctx: Context, name: str) -> str:
        booked: str = ctx.transaction(step(retry=ONCE)(gate.book), name)
        return booked

    start_worker(booking)
    run = client.start(booking("a"))
    assert gate.is_begun.wait(SOON.total_seconds())

    with only_readable(db):
        gate.may_end.set()
        wait_until(lambda: len(gate.calls) >= 4, "the step was begun anew with a server that only reads")

    assert run.result(timeout=SOON) == "a"
    assert db.execute("select * from booked").fetchall() == [("a",)]


def test_a_client_is_not_bound_to_a_server_that_only_reads(dsn: str, db: Conn) -> None:
    @workflow
    def anything(ctx: Context) -> None: ...

    with Client(psycopg.conninfo.make_conninfo(dsn, application_name="asker"), connections_max=1) as client:

        def starts() -> bool:
            try:
                client.start(anything(), run_id="after")
            except psycopg.errors.ReadOnlySqlTransaction:  # Its pool had connected anew at once.
                return False
            return True

        client.start(anything(), run_id="before")
        with only_readable(db):
            assert not starts()

        wait_until(starts, "the client has found a server that takes writes")
