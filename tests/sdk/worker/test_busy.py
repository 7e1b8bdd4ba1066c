"""Somebody's long transaction holds rows of runs a worker works on."""

from __future__ import annotations

import threading
from datetime import timedelta
from typing import TYPE_CHECKING

from pgwf_sdk import Client, Context, step, workflow
from tests.support import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable

    import pytest

    from tests.sdk.worker.conftest import StartWorker
    from tests.support import Session

SOON = timedelta(seconds=30)
RUNS = 30


go_on = threading.Event()


@step
def double(x: int) -> int:
    return 2 * x


@step
def patient(x: int) -> int:
    assert go_on.wait(SOON.total_seconds())
    return 2 * x


@workflow
def free(ctx: Context, x: int) -> int:
    return ctx.step(double, x)


@workflow
def held_up(ctx: Context, x: int) -> int:
    return ctx.step(patient, x)


def test_runs_whose_rows_are_held_keep_no_other_run_waiting(
    client: Client, start_worker: StartWorker, session: Callable[[], Session], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG", "pgwf_sdk.worker")
    go_on.clear()
    start_worker(free, held_up, concurrency=2 * RUNS, step_threads=2 * RUNS)
    runs = [client.start(held_up(i), run_id=f"held-{i}") for i in range(RUNS)]
    wait_until(lambda: all(run.status() == "running" for run in runs), "each is in the worker's hands")
    holder = session()
    holder.run("begin")
    holder.run("select from pgwf_sdk.run where run_id like 'held-%%' order by n for update")
    go_on.set()

    for i in range(20):
        assert client.start(free(i), run_id=f"free-{i}").result(timeout=SOON) == 2 * i

    stalls = caplog.text.count("met a locked row")
    holder.run("rollback")
    assert [run.result(timeout=SOON) for run in runs] == [2 * i for i in range(RUNS)]
    assert stalls < RUNS / 3, "a run may stall the call in which it first wants its row, and never again"
