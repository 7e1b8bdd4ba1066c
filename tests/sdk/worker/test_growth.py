"""What a worker and its client hold does not grow with the runs that are over."""

from __future__ import annotations

import gc
import logging
import threading
from collections import Counter
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from pgwf_sdk import AsyncContext, Client, Context, RetryPolicy, RunCancelledError, RunFailedError, step, workflow
from tests.support import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.sdk.worker.conftest import StartWorker

RUNS = 60
LEFT_MAX = 10
"""What the last calls still refer to."""


@step
def plain(number: int) -> int:
    return number


@step
async def awaited(number: int) -> int:
    return number


@step(retry=RetryPolicy(max_attempts=2, initial=timedelta(0)))
def failing() -> None:
    raise ValueError("never")


@workflow
def small(ctx: Context, number: int) -> int:
    return ctx.step(plain, number) + sum(ctx.map(plain, [1, 2]))


@workflow
async def small_async(ctx: AsyncContext, number: int) -> int:
    return await ctx.step(awaited, number) + sum(await ctx.map(awaited, [1, 2]))


@workflow
def family(ctx: Context, number: int) -> int:
    return ctx.call(small(number))


@workflow
def failed(ctx: Context, _number: int) -> None:
    ctx.step(failing)


@workflow
async def asleep(ctx: AsyncContext, number: int) -> int:
    await ctx.sleep(timedelta(seconds=1.2))  # Longer than a worker keeps a run that waits.
    return number


@workflow
def unwanted(ctx: Context, _number: int) -> None:
    ctx.wait_signal("never", str)


def held() -> Counter[str]:
    """How many there are of the objects of which a run has at least one."""
    gc.collect()
    kinds = ("Driver", "Machine", "Entry", "WorkflowLoop", "SyncEngine", "AsyncEngine", "StepAttempt", "Task")
    found = Counter(type(one).__name__ for one in gc.get_objects())
    return Counter({kind: found[kind] for kind in kinds})


@pytest.fixture(autouse=True)
def quiet(caplog: pytest.LogCaptureFixture) -> None:
    """What is logged is kept for the report on a test, with the frames of each error."""
    caplog.set_level(logging.CRITICAL, "pgwf_sdk")


def live(client: Client, flow: Any) -> None:
    runs = [client.start(flow(number)) for number in range(RUNS)]
    for run in runs:
        if flow is unwanted:
            run.cancel()
        try:
            run.result(timeout=timedelta(seconds=60))
        except (RunFailedError, RunCancelledError):
            assert flow in (failed, unwanted)


@pytest.mark.parametrize("flow", [small, small_async, family, failed, asleep, unwanted], ids=lambda one: one.name)
def test_a_worker_holds_nothing_of_runs_that_are_over(flow: Any, client: Client, start_worker: StartWorker) -> None:
    running = start_worker(flow, small)
    client.start(small(1)).result(timeout=timedelta(seconds=60))
    before = held()

    live(client, flow)
    wait_until(lambda: running.worker.health().runs == 0, "no run is in hand")

    grown: Callable[[], Counter[str]] = lambda: held() - before  # noqa: E731
    wait_until(lambda: max(grown().values(), default=0) <= LEFT_MAX, "what is over is let go")


@pytest.mark.parametrize("flow", [small, small_async], ids=lambda one: one.name)
def test_a_worker_starts_no_more_threads_than_it_has_places(
    flow: Any, client: Client, start_worker: StartWorker
) -> None:
    start_worker(flow, concurrency=4, step_threads=2)
    live(client, flow)
    before = threading.active_count()

    live(client, flow)

    assert threading.active_count() <= before
