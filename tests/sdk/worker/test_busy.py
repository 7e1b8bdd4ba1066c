"""Somebody's long transaction holds rows of runs a worker works on."""

from __future__ import annotations

import threading
from datetime import timedelta
from typing import TYPE_CHECKING

from pgwf_sdk import Client, Context, step, workflow
from tests.support import wait_for_status, wait_until

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


def test_a_worker_whose_run_is_held_up_takes_no_other_in_its_place(
    client: Client, start_worker: StartWorker, session: Callable[[], Session], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG", "pgwf_sdk.worker")
    go_on.clear()
    may_end = threading.Event()

    @step
    def long() -> str:
        assert may_end.wait(SOON.total_seconds())
        return "done"

    @workflow
    def next_one(ctx: Context) -> str:
        return ctx.step(long)

    full = start_worker(held_up, next_one, concurrency=1).worker
    held = client.start(held_up(1), run_id="held-1")
    wait_for_status(held, "running")
    waiting = client.start(next_one())
    holder = session()
    holder.run("begin")
    holder.run("select from pgwf_sdk.run where run_id = 'held-1' for update")

    go_on.set()
    wait_until(lambda: "met a locked row" in caplog.text, "the run cannot leave")
    start_worker(next_one)
    wait_for_status(waiting, "running")

    assert full.health().runs == 1
    may_end.set()
    assert waiting.result(timeout=SOON) == "done"
    holder.run("rollback")
    assert held.result(timeout=SOON) == 2
