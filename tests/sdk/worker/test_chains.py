"""Runs that go on as other runs, and what a parked run says of itself."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

import pytest

from pgwf_sdk import Client, Context, RetryPolicy, RunFailedError, step, workflow
from pgwf_sdk.ops import why_not_running
from tests.support import wait_until

if TYPE_CHECKING:
    from tests.sdk.worker.conftest import StartWorker

SOON = timedelta(seconds=30)
ONCE = RetryPolicy(max_attempts=1)


def is_waiting(client: Client, run_id: str) -> bool:
    return client.get(run_id).status() == "waiting"


def test_the_retry_of_a_parent_starts_its_child_under_an_id_of_its_own_although_the_first_was_given_one(
    client: Client, start_worker: StartWorker
) -> None:
    is_mended: list[bool] = []

    @step(retry=ONCE)
    def fragile() -> str:
        if not is_mended:
            raise ValueError("not yet")
        return "done"

    @workflow
    def part(ctx: Context) -> str:
        return ctx.step(fragile)

    @workflow
    def whole(ctx: Context) -> str:
        return ctx.call(part(), run_id="part-17")

    start_worker(whole, part)
    with pytest.raises(RunFailedError):
        client.start(whole(), run_id="whole").result(timeout=SOON)
    is_mended.append(True)

    again = client.retry("whole", whole)

    assert again.result(timeout=SOON) == "done"
    assert client.get("part-17").status() == "failed"
    assert client.get("part-17~2").status() == "completed"


def test_a_run_that_waits_for_a_signal_without_a_deadline_says_so(client: Client, start_worker: StartWorker) -> None:
    @workflow
    def waiting(ctx: Context) -> int:
        return ctx.wait_signal("go", int)

    start_worker(waiting)
    run = client.start(waiting(), run_id="w")
    wait_until(lambda: is_waiting(client, run.run_id), "the run waits")

    with client.connection() as conn:
        said = why_not_running(conn, "w")
    client.signal("w", "go", 1)

    assert "It waits for signal 'go'" in said
    assert run.result(timeout=SOON) == 1
