"""Plain steps that return after their time: nobody can stop a thread, and nobody listens to it any more."""

from __future__ import annotations

import threading
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from pgwf_sdk import Context, RetryPolicy, StepTimeoutError, current_step, step, workflow
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
