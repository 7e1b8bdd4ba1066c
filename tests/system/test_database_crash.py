"""PostgreSQL is killed under a worker at work; when it is back, the work goes on."""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
import threading
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import psycopg
import pytest

import pgwf_sql
from pgwf_sdk import Client, Context, Worker, step, workflow
from pgwf_sdk.embedded import EmbeddedServer
from tests.support import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

SOON = timedelta(seconds=60)
STEPS_COUNT = 60


@pytest.fixture
def home() -> Iterator[Path]:
    home = Path(tempfile.mkdtemp(prefix="pgwf-", dir="/tmp"))
    home.chmod(0o755)
    yield home
    shutil.rmtree(home, ignore_errors=True)


def test_a_run_goes_on_after_postgresql_was_killed_and_started_again(home: Path) -> None:
    programs = os.environ.get("PGWF_TEST_PG_BIN")
    binaries = Path(programs) if programs else None
    done: list[int] = []
    reached = threading.Event()

    @step
    def count(i: int) -> int:
        done.append(i)
        if i == STEPS_COUNT // 3:
            reached.set()
        return i

    @workflow
    def counting(ctx: Context) -> list[int]:
        return [ctx.step(count, i) for i in range(STEPS_COUNT)]

    with EmbeddedServer(home, binaries=binaries) as server:
        with psycopg.connect(server.dsn) as conn:
            pgwf_sql.install(conn)
        with Client(server.dsn) as client:
            worker = Worker(client, workflows=[counting], lease=timedelta(seconds=2), poll=timedelta(seconds=1))
            thread = threading.Thread(target=worker.run, daemon=True)
            thread.start()
            run = client.start(counting(), run_id="c")
            assert reached.wait(60)

            _kill(home)
            with EmbeddedServer(home, binaries=binaries) as again:
                result = wait_until(lambda: _result(again.dsn), "the run is over", seconds=60)

                assert result == list(range(STEPS_COUNT))
                with psycopg.connect(again.dsn) as conn:
                    doubled = conn.execute(
                        "select key from pgwf_journal.entries group by n, key, phase having count(*) > 1"
                    ).fetchall()
                    assert doubled == []
                    assert conn.execute("select * from pgwf.check()").fetchall() == []
                worker.stop()
                thread.join(60)
                assert not thread.is_alive()
            del run


def test_a_claim_that_a_crash_of_postgresql_takes_back_was_never_made(home: Path) -> None:
    """A claim does not wait for the disk; here nothing else brings it there before the server is killed."""
    programs = os.environ.get("PGWF_TEST_PG_BIN")
    binaries = Path(programs) if programs else None
    inside, let_out = threading.Event(), threading.Event()
    begun: list[str] = []

    @step
    def hold() -> str:
        begun.append("hold")
        inside.set()
        assert let_out.wait(60)
        return "held"

    @workflow
    def holding(ctx: Context) -> str:
        return ctx.step(hold)

    with EmbeddedServer(home, binaries=binaries, settings={"wal_writer_delay": "10s"}) as server:
        with psycopg.connect(server.dsn) as conn:
            pgwf_sql.install(conn)
        with Client(server.dsn) as client, psycopg.connect(server.dsn, autocommit=True) as db:
            worker = Worker(client, workflows=[holding], lease=timedelta(minutes=5), poll=timedelta(seconds=1))
            thread = threading.Thread(target=worker.run, daemon=True)
            thread.start()
            wait_until(lambda: db.execute("select from pgwf.sleeper").fetchone() is not None, "the worker sleeps")
            client.start(holding(), run_id="c")
            assert inside.wait(60)

            _kill(home)
            with EmbeddedServer(home, binaries=binaries) as again:
                let_out.set()

                assert wait_until(lambda: _result(again.dsn), "the run is over", seconds=60) == "held"
                assert begun == ["hold", "hold"], "the first claim is gone"
                with psycopg.connect(again.dsn) as conn:
                    results = conn.execute("select count(*) from pgwf_journal.entries where kind = 'step'").fetchone()
                    assert results == (1,)
                    assert conn.execute("select * from pgwf.check()").fetchall() == []
                worker.stop()
                thread.join(60)
                assert not thread.is_alive()


def test_an_idle_worker_is_told_of_work_after_postgresql_was_killed_and_started_again(home: Path) -> None:
    """Its registration was in a table that a crash empties; its poll would find the run in an hour."""
    programs = os.environ.get("PGWF_TEST_PG_BIN")
    binaries = Path(programs) if programs else None

    @workflow
    def greeting(ctx: Context) -> str:
        return "hello"

    with EmbeddedServer(home, binaries=binaries) as server:
        with psycopg.connect(server.dsn) as conn:
            pgwf_sql.install(conn)
        with Client(server.dsn) as client:
            worker = Worker(client, workflows=[greeting], poll=timedelta(hours=1))
            thread = threading.Thread(target=worker.run, daemon=True)
            thread.start()
            with psycopg.connect(server.dsn, autocommit=True) as db:
                wait_until(lambda: db.execute("select from pgwf.sleeper").fetchone() is not None, "the worker sleeps")

            _kill(home)
            with (
                EmbeddedServer(home, binaries=binaries) as again,
                psycopg.connect(again.dsn, autocommit=True) as db,
            ):
                wait_until(lambda: db.execute("select from pgwf.sleeper").fetchone() is not None, "it sleeps again")

                assert client.start(greeting(), run_id="c").result(SOON) == "hello"
                worker.stop()
                thread.join(60)
                assert not thread.is_alive()


def _kill(home: Path) -> None:
    os.kill(int((home / "data" / "postmaster.pid").read_text().split()[0]), signal.SIGKILL)


def _result(dsn: str) -> object:
    with psycopg.connect(dsn) as conn:
        row = conn.execute("select pgwf_sdk.result('c') -> 'value'").fetchone()
    return None if row is None else row[0]
