"""Commands as processes of their own: pipes, signals, and what starting one costs."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import psycopg

from pgwf_sdk import ops
from pgwf_sdk.cli._health import Address
from pgwf_sdk.cli._worker import _command_of_one, run
from tests.sdk.sql.hand import start
from tests.support import wait_until

Conn = psycopg.Connection[Any]
SHOP = "tests.sdk.cli_shop"


def test_the_reader_of_a_pipe_may_leave(dsn: str, db: Conn) -> None:
    for number in range(200):
        start(db, f"order-{number}")

    code, err = _piped(dsn, "list", "-n", "200", "-o", "json")

    assert (code, err) == (141, "")


def _piped(dsn: str, *arguments: str) -> tuple[int, str]:
    """Run a command whose stdout is closed before it writes; its exit code and stderr."""
    read_end, write_end = os.pipe()
    os.close(read_end)
    with os.fdopen(write_end, "wb") as stdout:
        done = subprocess.run(
            [sys.executable, "-m", "pgwf_sdk.cli", *arguments],
            env={**os.environ, "PGWF_DSN": dsn},
            stdout=stdout,
            stderr=subprocess.PIPE,
            text=True,
            timeout=60,
            check=False,
        )
    return done.returncode, done.stderr


def test_a_worker_is_run_by_module_and_drained_by_a_signal(dsn: str, db: Conn) -> None:
    with subprocess.Popen(
        [sys.executable, "-m", "pgwf_sdk.cli", "worker", "run", f"{SHOP}:doubling", "--name", "w-7"],
        env={**os.environ, "PGWF_DSN": dsn},
        cwd=Path(__file__).parents[2],
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            wait_until(lambda: [row.worker_id for row in ops.list_workers(db)] == ["w-7"], "the worker is known")
            start(db, "order-1", workflow="doubling", need="doubling", input_=b'{"args":[2],"kwargs":{}}')
            wait_until(lambda: ops.get_run(db, "order-1").is_final, "the run is over")
        finally:
            process.send_signal(signal.SIGTERM)
        _, err = process.communicate(timeout=60)

    assert process.returncode == 0
    assert "worker w-7 runs doubling" in err
    assert ops.get_ending(db, "order-1").payload == '"4"'


def test_each_of_several_worker_processes_is_given_all_options_that_were_typed() -> None:
    typed = (
        "shop orders.py:checkout --capability gpu --capability mail --concurrency 3 --limit gpu=1 --limit mail=2"
        " --step-threads 4 --grace 90s --build b7 --name w --processes 2 --detect --uvloop --log-level debug"
    )
    context = run.make_context("run", typed.split())

    command = _command_of_one(context, 2, 17, Address.parse("unix:/run/w"))

    given = run.make_context("run", command[command.index("run") + 1 :]).params
    own = {"processes": None, "parent": 17, "name": "w-2", "health": "unix:/run/w"}
    assert given == {**context.params, **own}
    assert given["grace"] == timedelta(seconds=90)
    assert {name for name, value in given.items() if not value} == {"processes"}, "an option that is not tried here"


PRINT_WHAT_HELP_LOADS = """
import sys
from pgwf_sdk.cli._app import run_command
code = run_command(["--help"])
print([name for name in ("psycopg", "asyncio", "pgwf_sdk.replay") if name in sys.modules], code, file=sys.stderr)
"""


def test_help_is_quick_because_nothing_is_imported_for_it() -> None:
    loaded = subprocess.run(
        [sys.executable, "-c", PRINT_WHAT_HELP_LOADS], capture_output=True, text=True, timeout=60, check=True
    )

    assert "Usage: pgwf" in loaded.stdout
    assert loaded.stderr == "[] 0\n"
