"""What probes are told of a worker, over HTTP."""

from __future__ import annotations

import asyncio
import socket
from contextlib import closing
from datetime import timedelta
from typing import TYPE_CHECKING

import psycopg
import pytest

from pgwf_sdk import Client, Context, Worker, step, workflow
from pgwf_sdk.cli._health import Address, HealthServer, Vitals, ask
from pgwf_sdk.worker import Health
from pgwf_sdk.worker._health import SILENCE_SECONDS_MAX, Pulse
from tests.sdk.test_cli_commands import Pgwf, pgwf
from tests.sdk.worker.conftest import StartWorker, client, start_worker
from tests.support import wait_until

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["client", "pgwf", "start_worker"]


@workflow
def idle(ctx: Context) -> None:
    ctx.sleep(timedelta(0))


def test_an_address_is_a_port_or_a_unix_socket() -> None:
    assert Address.parse("127.0.0.1:8080") == Address(host="127.0.0.1", port=8080)
    assert Address.parse(":8080") == Address(port=8080)
    assert Address.parse("[::1]:80") == Address(host="::1", port=80)
    assert str(Address.parse("unix:/run/pgwf.sock")) == "unix:/run/pgwf.sock"


@pytest.mark.parametrize("text", ["", "8080", "host:", "host:x", "host:70000", "unix:"])
def test_what_is_no_address_is_refused(pgwf: Pgwf, text: str) -> None:
    said = pgwf("worker", "health", text)

    assert said.code == 2
    assert "is no address; expected HOST:PORT, :PORT, or unix:PATH" in said.err


@pytest.mark.parametrize("is_unix", [False, True], ids=["port", "unix"])
@pytest.mark.parametrize(
    ("vitals", "live", "ready"),
    [
        (Vitals(is_alive=True, is_ready=True, report={"state": "ready"}), 200, 200),
        (Vitals(is_alive=True, is_ready=False, report={"state": "draining"}), 200, 503),
        (Vitals(is_alive=False, is_ready=False, report={"state": "stopped"}), 503, 503),
    ],
)
def test_probes_are_answered_with_a_status_and_the_report(
    tmp_path: Path, is_unix: bool, vitals: Vitals, live: int, ready: int
) -> None:
    wanted = f"unix:{tmp_path}/s" if is_unix else "127.0.0.1:0"

    with HealthServer(Address.parse(wanted), lambda: vitals) as server:
        assert ask(server.address, "/live") == (live, vitals.report)
        assert ask(server.address, "/ready?verbose") == (ready, vitals.report)
        with pytest.raises(ConnectionError, match="is no worker"):
            ask(server.address, "/elsewhere")
    with pytest.raises(OSError):  # noqa: PT011 - refused, or no such file
        ask(server.address, "/live")


def test_a_probe_that_says_nothing_keeps_no_other_from_an_answer() -> None:
    vitals = Vitals(is_alive=True, is_ready=True, report={})

    with HealthServer(Address.parse("127.0.0.1:0"), lambda: vitals) as server:
        address = server.address
        with closing(socket.create_connection((address.host, address.port))):
            assert ask(address, "/live") == (200, {})


def test_a_socket_left_behind_by_a_killed_process_is_no_obstacle(tmp_path: Path) -> None:
    path = tmp_path / "s"
    with closing(socket.socket(socket.AF_UNIX)) as left_behind:
        left_behind.bind(str(path))

    with HealthServer(Address(path=path), lambda: Vitals(True, True, {})) as server:
        assert ask(server.address, "/live") == (200, {})
    assert not path.exists()


def test_a_worker_is_ready_once_the_database_has_heard_of_it_until_it_has_stopped(
    client: Client, start_worker: StartWorker
) -> None:
    worker = Worker(client, workflows=[idle], worker_id="w-1", concurrency=3)
    assert worker.health() == Health("w-1", "starting", slots=3)

    running = start_worker(idle, worker_id="w-1", concurrency=3)
    wait_until(lambda: running.worker.health().is_ready, "it is ready")
    health = running.worker.health()
    running.stop()

    assert health.is_alive
    assert (health.runs, health.slots) == (0, 3)
    assert health.keepalive_age_seconds is not None
    assert 0 <= health.keepalive_age_seconds < 15
    stopped = running.worker.health()
    assert (stopped.state, stopped.is_alive, stopped.is_ready) == ("stopped", False, False)


def test_a_worker_that_drains_is_alive_and_not_ready(client: Client, start_worker: StartWorker) -> None:
    @step
    async def stay() -> None:
        await asyncio.sleep(60)

    @workflow
    def staying(ctx: Context) -> None:
        ctx.step(stay)

    running = start_worker(staying, grace=timedelta(seconds=60))
    client.start(staying())
    wait_until(lambda: running.worker.health().runs == 1, "it has a run")

    running.worker.stop()
    wait_until(lambda: running.worker.health().state == "draining", "it drains")

    assert running.worker.health().is_alive
    assert not running.worker.health().is_ready
    running.worker.stop()


def test_a_worker_whose_database_is_gone_is_alive_and_not_ready(
    dsn: str, client: Client, start_worker: StartWorker, db: psycopg.Connection[object]
) -> None:
    """It is connected again by itself; to start the process again would only lose what it has in hand."""
    running = start_worker(idle, lease=timedelta(seconds=1))
    wait_until(lambda: running.worker.health().is_ready, "it is ready")
    name = psycopg.conninfo.conninfo_to_dict(dsn)["dbname"]
    with psycopg.connect(dsn, dbname="postgres", autocommit=True) as admin:
        admin.execute(f'alter database "{name}" allow_connections false')
        admin.execute(
            "select pg_terminate_backend(pid) from pg_stat_activity where datname = %s and application_name ~ '^pgwf'",
            [name],
        )
        wait_until(lambda: running.worker.health().state == "disconnected", "it notices")
        assert running.worker.health().is_alive

        admin.execute(f'alter database "{name}" allow_connections true')

    wait_until(lambda: running.worker.health().is_ready, "it is connected again")


def test_a_host_loop_that_does_not_answer_is_noticed() -> None:
    asked: list[object] = []
    pulse = Pulse(asked.append)

    assert pulse.silence_seconds() == 0
    assert pulse.silence_seconds() > 0
    assert len(asked) == 1
    hung = Health("w", "ready", loop_silence_seconds=SILENCE_SECONDS_MAX)
    assert not hung.is_alive


def test_the_health_command_asks_a_worker(pgwf: Pgwf) -> None:
    vitals = Vitals(is_alive=True, is_ready=False, report={"state": "draining", "worker_id": "w-1"})

    with HealthServer(Address.parse("127.0.0.1:0"), lambda: vitals) as server:
        ready = pgwf("worker", "health", str(server.address))
        live = pgwf("worker", "health", str(server.address), "--live", "-o", "json")
    gone = pgwf("worker", "health", str(server.address))

    assert (ready.code, ready.out) == (8, "draining\n")
    assert (live.code, live.json) == (0, {"schema": "pgwf.health/1", **vitals.report})
    assert gone.code == 8
    assert f"{server.address}: no answer" in gone.err
