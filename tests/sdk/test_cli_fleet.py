"""Commands that steer the fleet, as an operator types them, on workers that are there."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from contextlib import ExitStack
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from pgwf_sdk import Client, Context, ops, step, workflow
from tests.sdk.cli_shop import blocked, stuck
from tests.sdk.sql.hand import Hand, start
from tests.sdk.test_cli_commands import Pgwf, pgwf
from tests.sdk.worker.conftest import StartWorker, client, start_worker
from tests.support import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["client", "pgwf", "start_worker"]

Conn = psycopg.Connection[Any]
ROOT = Path(__file__).parents[2]
SOON = timedelta(seconds=30)


class Gate:
    """A step that stays inside until it is let out."""

    def __init__(self) -> None:
        self.entered = threading.Event()
        self.let_out = threading.Event()
        self.calls_count = 0

    def workflow(self) -> Any:
        @step
        def stay() -> str:
            self.calls_count += 1
            self.entered.set()
            assert self.let_out.wait(30)
            return "done"

        @workflow(name="staying")
        def staying(ctx: Context) -> str:
            return ctx.step(stay)

        return staying


@pytest.fixture
def gate() -> Iterator[Gate]:
    gate = Gate()
    yield gate
    gate.let_out.set()


def test_a_worker_that_is_drained_from_elsewhere_ends_its_step_and_stops(
    pgwf: Pgwf, client: Client, db: Conn, start_worker: StartWorker, gate: Gate
) -> None:
    """Its heartbeat tells it again and again while the step goes on; only the first time counts."""
    staying = gate.workflow()
    worker = start_worker(staying, worker_id="w-1", lease=timedelta(seconds=1))
    run = client.start(staying())
    assert gate.entered.wait(20)
    wait_until(lambda: ops.list_workers(db), "the worker is known")

    said = pgwf("worker", "drain", "w-1")
    heard = "select heartbeat_at > clock_timestamp() from pgwf.worker where worker_id = 'w-1'"
    for _ in range(3):
        db.execute("update pgwf.worker set heartbeat_at = 'infinity' where worker_id = 'w-1'")
        wait_until(lambda: db.execute(heard).fetchone() == (False,), "it has heard of it again")
    shown = pgwf("worker", "list")
    gate.let_out.set()

    assert (said.code, said.err) == (0, "worker w-1: asked to drain\n")
    assert "draining" in shown.out
    worker.join()
    assert gate.calls_count == 1
    assert pgwf("worker", "list", "-o", "ids").out == ""
    phases = db.execute("select phase from pgwf_journal.entries where kind = 'step'").fetchall()
    assert phases == [("completed",)]
    start_worker(staying)
    assert run.result(timeout=SOON) == "done"
    assert db.execute("select lapses from pgwf_sdk.runs").fetchone() == (0,)


def test_draining_a_worker_nobody_has_heard_of_says_so(pgwf: Pgwf) -> None:
    said = pgwf("worker", "drain", "w-9")

    assert said.code == 4
    assert "no worker 'w-9' has been heard of" in said.err


def test_a_worker_does_not_drain_because_its_predecessor_was_asked_to(
    db: Conn, client: Client, start_worker: StartWorker, gate: Gate
) -> None:
    db.execute("select pgwf.worker_heartbeat('w-1', '{}')")
    db.execute("select pgwf.drain_worker('w-1')")
    gate.let_out.set()
    staying = gate.workflow()

    start_worker(staying, worker_id="w-1")

    assert client.start(staying()).result(timeout=SOON) == "done"


@pytest.fixture
def start_pgwf(dsn: str) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Runs commands as processes of their own; what is left is killed."""
    with ExitStack() as started:

        def start_command(*arguments: str) -> subprocess.Popen[str]:
            process = started.enter_context(
                subprocess.Popen(
                    [sys.executable, "-m", "pgwf_sdk.cli", *arguments],
                    env={**os.environ, "PGWF_DSN": dsn},
                    cwd=ROOT,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    text=True,
                )
            )
            started.callback(process.kill)
            return process

        yield start_command


def test_a_worker_process_that_was_drained_exits_with_0_and_the_command_waits_for_it(
    db: Conn, start_pgwf: Callable[..., subprocess.Popen[str]]
) -> None:
    worker = start_pgwf("worker", "run", "tests.sdk.cli_shop", "--name", "w-7")
    wait_until(lambda: [row.worker_id for row in ops.list_workers(db)], "the worker is known")

    drain = start_pgwf("worker", "drain", "w-7", "--wait", "--timeout", "60s")
    _, said = drain.communicate(timeout=90)

    assert (drain.returncode, said) == (0, "worker w-7: asked to drain\nstopped\n")
    worker.communicate(timeout=60)
    assert worker.returncode == 0


def test_waiting_for_a_worker_that_does_not_stop_ends_at_the_timeout(pgwf: Pgwf, db: Conn) -> None:
    db.execute("select pgwf.worker_heartbeat('w-1', '{}')")

    said = pgwf("worker", "drain", "w-1", "--timeout", "0s")

    assert said.code == 7
    assert "still there: w-1" in said.err


def test_needs_are_paused_limited_and_shown_so(pgwf: Pgwf, db: Conn) -> None:
    start(db, "order-1", need="gpu")

    assert pgwf("needs", "pause", "gpu", "cpu").err == "gpu: paused\ncpu: paused\n"
    assert pgwf("needs", "limit", "mail", "--active", "2", "--rate", "0.5").err == (
        "mail: 2 at once, 0.5/s, from the next run on\n"
    )
    shown = pgwf("needs", "-o", "json").json

    assert [(row["need"], row["is_paused"], row["max_active"], row["rate"]) for row in shown] == [
        ("cpu", True, None, None),
        ("gpu", True, None, None),
        ("mail", False, 2, 0.5),
    ]
    assert "`pgwf needs resume gpu`" in pgwf("why", "order-1").out
    assert "paused" in pgwf("needs").out
    assert pgwf("needs", "resume", "gpu", "cpu").err == "gpu: handed out\ncpu: handed out\n"
    assert pgwf("needs", "limit", "mail", "--none").err == "mail: no limit\n"
    assert [row["need"] for row in pgwf("needs", "-o", "json").json] == ["gpu"]


def test_a_run_that_waits_for_a_limit_says_so(pgwf: Pgwf, db: Conn) -> None:
    db.execute("select pgwf.worker_heartbeat('w-1', '{gpu}')")
    start(db, "order-1", need="gpu")
    start(db, "order-2", need="gpu")

    pgwf("needs", "limit", "gpu", "--rate", "0.5")
    assert "1 other run of the same need may be taken first, of which 0.5 a second" in pgwf("why", "order-2").out
    pgwf("needs", "limit", "gpu", "--active", "0")

    assert "it is limited to 0 at once, and 0 are with workers" in pgwf("why", "order-1").out


def test_keys_are_limited_and_shown_so(pgwf: Pgwf, db: Conn) -> None:
    hand = Hand(db, "w-1", ["python"])
    db.execute("select pgwf.worker_heartbeat('w-1', '{python}')")
    assert pgwf("keys").err == "no key is held, waited for or limited\n"
    for run_id in ("order-1", "order-2", "order-3"):
        start(db, run_id, singleton_key="ann")
    assert len(hand.claim(9)) == 1

    shown = pgwf("keys", "-o", "json").json
    assert [(row["singleton_key"], row["running"], row["waiting"], row["max_active"]) for row in shown] == [
        ("ann", 1, 2, None)
    ]
    said = pgwf("why", "order-2").out
    assert "of runs with its singleton key 'ann' 1 may be with a worker at a time, and 1 other with it is" in said
    assert "singleton key: ann" in pgwf("show", "order-2").out

    assert pgwf("keys", "limit", "ann", "--active", "3", "--rate", "0.001", "--burst", "1").err == (
        "ann: 3 at once, 0.001/s, from the next run on\n"
    )
    assert len(hand.claim(9)) == 1
    assert "3 at once, 0.001/s" in pgwf("keys").out
    assert "start at a limited rate: the next one may in" in pgwf("why", "order-3").out
    assert pgwf("keys", "limit", "ann", "--none").err == "ann: one at a time\n"
    assert pgwf("keys", "limit", "ann", "--active", "0").code == 2


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["limit", "gpu"], "give --active, --rate or both; or --none"),
        (["limit", "gpu", "--active", "1", "--none"], "give --active, --rate or both; or --none"),
        (["limit", "gpu", "--active", "1", "--burst", "2"], "--burst goes with --rate"),
        (["limit", "gpu", "--active", "-1"], "--active"),
        (["limit", "gpu", "--rate", "0"], "--rate"),
        (["pause"], "Missing argument"),
    ],
)
def test_limits_that_make_no_sense_are_refused(pgwf: Pgwf, arguments: list[str], said: str) -> None:
    answer = pgwf("needs", *arguments)

    assert answer.code == 2
    assert said in answer.err


def test_a_paused_need_is_not_handed_out_to_a_worker_that_waits_for_it(
    pgwf: Pgwf, client: Client, db: Conn, start_worker: StartWorker, gate: Gate
) -> None:
    gate.let_out.set()
    staying = gate.workflow()
    pgwf("needs", "pause", "staying")
    start_worker(staying, worker_id="w-1")
    run = client.start(staying())
    wait_until(lambda: db.execute("select 1 from pgwf.sleeper").fetchone(), "the worker sleeps")

    assert ops.get_run(db, run.run_id).status == "ready"

    pgwf("needs", "resume", "staying")
    assert run.result(timeout=SOON) == "done"


def test_a_signal_sent_twice_stops_a_worker_at_once(
    client: Client, db: Conn, start_pgwf: Callable[..., subprocess.Popen[str]]
) -> None:
    worker = start_pgwf("worker", "run", "tests.sdk.cli_shop:stuck", "--name", "w-7")
    run_id = client.start(stuck()).run_id
    wait_until(lambda: ops.get_run(db, run_id).worker_id == "w-7", "the worker is in the step", seconds=60)

    worker.send_signal(signal.SIGTERM)
    assert worker.stderr is not None
    assert any("drains; 1 runs in hand" in line for line in worker.stderr)
    worker.send_signal(signal.SIGTERM)

    worker.communicate(timeout=60)
    assert worker.returncode == 0
    assert ops.get_run(db, run_id).status == "ready"


@pytest.mark.parametrize("again", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("how", ["told", "drained", "told with its parent"])
def test_a_signal_ends_a_worker_at_once_that_only_waits_for_a_plain_step_it_gave_up(
    client: Client, db: Conn, start_pgwf: Callable[..., subprocess.Popen[str]], how: str, again: signal.Signals
) -> None:
    """The thread of a plain step cannot be ended, and keeps the process until the step returns."""
    options = ["--processes", "1"] if how == "told with its parent" else []
    worker = start_pgwf("worker", "run", "tests.sdk.cli_shop:blocked", "--name", "w", "--grace", "1s", *options)
    run_id = client.start(blocked()).run_id
    wait_until(lambda: ops.get_run(db, run_id).worker_id, "the worker is in the step", seconds=60)
    if how == "drained":
        wait_until(lambda: ops.drain_worker(db, "w"), "the worker is known")
    else:
        worker.send_signal(signal.SIGTERM)
    assert worker.stderr is not None
    assert any(": stopped" in line for line in worker.stderr)
    assert ops.get_run(db, run_id).status == "ready"
    assert worker.poll() is None

    worker.send_signal(again)

    _, said = worker.communicate(timeout=60)
    assert worker.returncode == 0
    assert "told to stop again: ends at once" in said


def test_workers_that_are_gone_are_left_out_of_a_list_of_those_that_are_there(pgwf: Pgwf, db: Conn) -> None:
    db.execute("select pgwf.worker_heartbeat('w-1', array['python'])")
    db.execute("update pgwf.worker set heartbeat_at = heartbeat_at - interval '1 hour'")
    assert "no worker is there now" in pgwf("worker", "list", "--live").err
    db.execute("select pgwf.worker_heartbeat('w-2', array['python'])")

    assert pgwf("worker", "list", "--live", "-o", "ids").out == "w-2\n"
    assert pgwf("worker", "list", "-o", "ids").out == "w-2\nw-1\n"
