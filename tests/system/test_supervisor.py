"""`pgwf worker run --processes N` with real processes: they die, are drained, are told to stop, lose their parent."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from contextlib import ExitStack
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from pgwf_sdk import Client, ops
from pgwf_sdk.cli._health import Address, ask
from tests.sdk.cli_shop import doubling, stuck
from tests.support import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

Conn = psycopg.Connection[Any]
ROOT = Path(__file__).resolve().parents[2]
SHOP = "tests.sdk.cli_shop"
LONG = 90.0


class Fleet:
    """A supervisor, and what it says."""

    def __init__(self, process: subprocess.Popen[bytes], log: Path) -> None:
        self.process = process
        self._log = log

    @property
    def said(self) -> str:
        return self._log.read_text()

    def wait_said(self, text: str, count: int = 1) -> None:
        wait_until(lambda: self.said.count(text) >= count, f"the supervisor says {text!r}", seconds=LONG)

    def wait_ended(self) -> int:
        return self.process.wait(timeout=LONG)


@pytest.fixture
def start_fleet(dsn: str, tmp_path: Path) -> Iterator[Callable[..., Fleet]]:
    """Starts supervisors; those that are left are killed, and their workers drain."""
    with ExitStack() as started:

        def start(*arguments: str, reference: str = SHOP) -> Fleet:
            path = tmp_path / f"fleet-{len(list(tmp_path.iterdir()))}.log"
            process = subprocess.Popen(
                [sys.executable, "-m", "pgwf_sdk.cli", "worker", "run", reference, *arguments],
                env={**os.environ, "PGWF_DSN": dsn},
                cwd=ROOT,
                stdout=subprocess.DEVNULL,
                stderr=started.enter_context(path.open("wb")),
            )
            started.callback(process.wait)
            started.callback(process.kill)
            return Fleet(process, path)

        yield start


@pytest.fixture
def client(dsn: str) -> Iterator[Client]:
    with Client(dsn) as client:
        yield client


def wait_live(db: Conn, *worker_ids: str) -> None:
    wait_until(
        lambda: sorted(row.worker_id for row in ops.list_workers(db) if row.is_live) == sorted(worker_ids),
        f"live: {worker_ids}",
        seconds=LONG,
    )


def pid_of(fleet: Fleet, number: int) -> int:
    started = [line for line in fleet.said.splitlines() if f"worker process {number}: started" in line]
    return int(started[-1].rpartition("pid ")[2].rstrip(")"))


def test_a_worker_that_dies_is_started_again_and_a_signal_stops_all_with_0(
    db: Conn, client: Client, start_fleet: Callable[..., Fleet]
) -> None:
    fleet = start_fleet("--processes", "2", "--name", "w")
    wait_live(db, "w-1", "w-2")

    os.kill(pid_of(fleet, 1), signal.SIGKILL)
    fleet.wait_said("worker process 1: died (SIGKILL)")
    fleet.wait_said("worker process 1: started", 2)
    assert client.start(doubling(21)).result(timeout=timedelta(seconds=LONG)) == "42"
    fleet.process.send_signal(signal.SIGTERM)

    assert fleet.wait_ended() == 0
    assert fleet.said.count("worker process 2: started") == 1


QUITTING = """
import ctypes
import os
from pathlib import Path

from pgwf_sdk import Context, RetryPolicy, step, workflow


@step(retry=RetryPolicy(max_attempts=1))
def quit(how: str) -> str:
    Path(__file__).with_name(how).touch(exist_ok=False)  # Whoever has it next lets it fail.
    if how == "at once":
        os._exit(0)
    if how == "from C":
        ctypes.CDLL(None).exit(0)
    return how


@workflow
def quitting(ctx: Context, how: str) -> str:
    return ctx.step(quit, how)
"""


def test_a_worker_whose_step_ends_the_process_with_0_is_started_again_and_told_of(
    db: Conn, client: Client, tmp_path: Path, start_fleet: Callable[..., Fleet]
) -> None:
    module = tmp_path / "quitting.py"
    module.write_text(QUITTING)
    fleet = start_fleet("--processes", "1", "--name", "w", reference=str(module))
    wait_live(db, "w-1")

    for died_count, how in enumerate(["at once", "from C"], 1):
        db.execute("select pgwf_sdk.start('quitting', %s)", [json.dumps([how])])
        fleet.wait_said("worker process 1: died (exit code 0, though nobody told it to stop", died_count)
        fleet.wait_said("worker process 1: started", died_count + 1)
    fleet.process.send_signal(signal.SIGTERM)

    assert fleet.wait_ended() == 0


def test_drained_workers_stay_away_and_the_last_one_ends_the_supervisor(
    db: Conn, start_fleet: Callable[..., Fleet]
) -> None:
    fleet = start_fleet("--processes", "2", "--name", "w")
    wait_live(db, "w-1", "w-2")

    assert ops.drain_worker(db, "w-1")
    wait_live(db, "w-2")
    assert fleet.process.poll() is None
    assert ops.drain_worker(db, "w-2")

    assert fleet.wait_ended() == 0
    assert fleet.said.count(": started") == 2


def test_a_second_signal_stops_workers_at_once(db: Conn, client: Client, start_fleet: Callable[..., Fleet]) -> None:
    fleet = start_fleet("--processes", "1", "--name", "w")
    run_id = client.start(stuck()).run_id
    wait_until(lambda: ops.get_run(db, run_id).worker_id == "w-1", "the worker has it", seconds=LONG)

    fleet.process.send_signal(signal.SIGINT)
    fleet.wait_said("drains; 1 runs in hand")
    fleet.process.send_signal(signal.SIGINT)

    assert fleet.wait_ended() == 0
    assert ops.get_run(db, run_id).status == "ready"
    assert db.execute("select sum(lapses) from pgwf_sdk.runs").fetchone() == (0,)


def test_workers_whose_supervisor_is_killed_drain(db: Conn, start_fleet: Callable[..., Fleet]) -> None:
    fleet = start_fleet("--processes", "2", "--name", "w")
    wait_live(db, "w-1", "w-2")

    fleet.process.kill()

    wait_live(db)


def test_a_worker_that_cannot_work_stops_all_with_its_exit_code(start_fleet: Callable[..., Fleet]) -> None:
    fleet = start_fleet("--processes", "2", reference=f"{SHOP}:NUMBER")

    assert fleet.wait_ended() == 6
    assert "expected a workflow" in fleet.said
    assert "started again" not in fleet.said


def test_health_of_all_is_served_in_one_place(db: Conn, tmp_path: Path, start_fleet: Callable[..., Fleet]) -> None:
    address = Address(path=tmp_path / "health")
    fleet = start_fleet("--processes", "2", "--name", "w", "--health", str(address))

    def report() -> dict[str, Any]:
        try:
            status, found = ask(address, "/ready")
        except OSError:
            return {}
        assert status == (200 if found["state"] == "ready" else 503)
        return found

    wait_until(lambda: report().get("state") == "ready", "both are ready", seconds=LONG)
    assert sorted(one["worker_id"] for one in report()["workers"]) == ["w-1", "w-2"]
    assert ask(address, "/live")[0] == 200
    ops.drain_worker(db, "w-1")
    wait_live(db, "w-2")

    fleet.process.send_signal(signal.SIGTERM)
    assert fleet.wait_ended() == 0
    assert not address.path.exists()  # type: ignore[union-attr]


def test_one_worker_serves_its_health_and_runs_on_uvloop(
    db: Conn, client: Client, tmp_path: Path, start_fleet: Callable[..., Fleet]
) -> None:
    pytest.importorskip("uvloop")
    address = Address(path=tmp_path / "health")
    fleet = start_fleet("--name", "w", "--health", str(address), "--uvloop")
    wait_live(db, "w")

    assert client.start(doubling(21)).result(timeout=timedelta(seconds=LONG)) == "42"
    status, found = ask(address, "/ready")

    assert (status, found["worker_id"], found["state"]) == (200, "w", "ready")
    fleet.process.send_signal(signal.SIGTERM)
    assert fleet.wait_ended() == 0
