"""Plain steps that return after their time: nobody can stop a thread, and nobody listens to it any more."""

from __future__ import annotations

import threading
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from pgwf_sdk import (
    Context,
    RetryPolicy,
    RunCancelledError,
    RunFailedError,
    StepTimeoutError,
    current_step,
    step,
    workflow,
)
from tests.support import wait_for_status

if TYPE_CHECKING:
    from psycopg import Connection

    from pgwf_sdk import Client
    from tests.sdk.worker.conftest import StartWorker

SOON = timedelta(seconds=30)


@pytest.mark.parametrize("attempts", [1, 2])
def test_what_a_plain_step_returns_after_its_time_is_dropped(
    client: Client, start_worker: StartWorker, db: Connection[Any], attempts: int
) -> None:
    released, late = threading.Event(), threading.Event()

    @step(timeout=timedelta(milliseconds=50), retry=RetryPolicy(max_attempts=attempts, initial=timedelta(0)))
    def slow() -> str:
        number = current_step().attempt
        if number == 1:
            released.wait(20)
            late.set()
        return f"attempt {number}"

    @workflow
    def program(ctx: Context) -> str:
        try:
            said = ctx.step(slow)
        except StepTimeoutError as error:
            said = f"timed out in attempt {error.attempt}"
        return said + ctx.wait_signal("go", str)

    start_worker(program)
    run = client.start(program(), run_id="late")
    wait_for_status(run, "waiting")
    released.set()
    assert late.wait(20)
    run.signal("go", "!")

    assert run.result(timeout=SOON) == ("attempt 2!" if attempts == 2 else "timed out in attempt 1!")
    ends = db.execute(
        "select phase from pgwf_journal.entries where journal_id = 'late' and key = '/step:slow#1' order by seq"
    ).fetchall()
    assert ends == [("completed",) if attempts == 2 else ("failed",)]


@pytest.mark.parametrize("how", ["their time is over", "their runs are cancelled"])
def test_plain_steps_that_nobody_waits_for_any_more_hold_no_place(
    client: Client, start_worker: StartWorker, how: str
) -> None:
    """Both ways in which an attempt is given up, while its function goes on."""
    may_end = threading.Event()
    begun = threading.Semaphore(0)
    limit = timedelta(milliseconds=200) if how == "their time is over" else None

    @step(timeout=limit, retry=RetryPolicy(max_attempts=1))
    def hangs() -> None:
        begun.release()
        may_end.wait(60)

    @step
    def sound() -> str:
        return "sound"

    @workflow
    def poisoned(ctx: Context) -> None:
        ctx.step(hangs)

    @workflow
    def healthy(ctx: Context) -> str:
        return ctx.step(sound)

    start_worker(poisoned, healthy, step_threads=2)
    try:
        for number in range(4):  # Twice as many as there are places.
            run = client.start(poisoned(), run_id=f"poisoned-{number}")
            assert begun.acquire(timeout=20)
            if limit is None:
                run.cancel()
            with pytest.raises((RunFailedError, RunCancelledError)):
                run.result(timeout=SOON)

        assert client.start(healthy()).result(timeout=SOON) == "sound"
    finally:
        may_end.set()
