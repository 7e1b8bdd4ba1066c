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

            postmaster = int((home / "data" / "postmaster.pid").read_text().split()[0])
            os.kill(postmaster, signal.SIGKILL)
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


def _result(dsn: str) -> object:
    with psycopg.connect(dsn) as conn:
        row = conn.execute("select pgwf_sdk.result('c') -> 'value'").fetchone()
    return None if row is None else row[0]
