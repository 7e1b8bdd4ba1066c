"""What async steps do to the event loop they run on with all others stays with their run, and the worker goes on."""

from __future__ import annotations

import asyncio
import importlib
import sys
import threading
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from pgwf_sdk import AsyncContext, Client, Context, RetryPolicy, StepFailedError, Worker, step, workflow

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.sdk.worker.conftest import StartWorker

SOON = timedelta(seconds=30)
ONCE = RetryPolicy(max_attempts=1)


def cancel_own_task() -> None:
    task = asyncio.current_task()
    assert task is not None
    task.cancel()


@step(retry=ONCE)
async def cancels_itself() -> None:
    cancel_own_task()
    await asyncio.sleep(0)


@step(retry=ONCE, timeout=timedelta(seconds=20))
async def cancels_itself_in_time() -> None:
    cancel_own_task()
    await asyncio.sleep(0)


@step(retry=ONCE)
async def cancels_itself_and_returns() -> str:
    cancel_own_task()
    return "returned"


async def cancel_in_a_transaction(_conn: psycopg.AsyncConnection) -> None:
    cancel_own_task()


cancels_itself_in_a_transaction: Any = step(retry=ONCE)(cancel_in_a_transaction)

STEPS = {one.name: one for one in (cancels_itself, cancels_itself_in_time, cancels_itself_and_returns)}


@workflow
def calls(ctx: Context, name: str) -> str:
    try:
        if name == "transaction":
            ctx.transaction(cancels_itself_in_a_transaction)
            return "done"
        return ctx.step(STEPS[name]) or "done"
    except StepFailedError as error:
        return str(error)


@pytest.mark.parametrize(
    ("name", "result"),
    [
        ("cancels_itself", "asyncio.exceptions:CancelledError: "),
        ("cancels_itself_in_time", "asyncio.exceptions:CancelledError: "),
        ("cancels_itself_and_returns", "returned"),
        ("transaction", "asyncio.exceptions:CancelledError: "),
    ],
)
def test_a_step_that_cancels_the_task_it_runs_in_has_failed(
    name: str, result: str, client: Client, start_worker: StartWorker
) -> None:
    start_worker(calls)

    assert client.start(calls(name)).result(timeout=SOON) == result


async def leave(code: int) -> None:
    sys.exit(code)


@step(retry=ONCE)
async def exits_in_a_task() -> None:
    await asyncio.create_task(leave(0))


@step
async def stops_the_loop() -> str:
    asyncio.get_running_loop().stop()
    await asyncio.sleep(0)
    return "went on"


@workflow
async def story(ctx: AsyncContext) -> list[str]:
    try:
        await ctx.step(exits_in_a_task)
    except StepFailedError as error:
        return [str(error), await ctx.step(stops_the_loop)]
    return ["nothing was raised"]


@pytest.mark.parametrize("loop_factory", ["asyncio.new_event_loop", "uvloop.new_event_loop"])
def test_a_step_whose_task_exits_or_that_stops_the_loop_ends_no_worker(client: Client, loop_factory: str) -> None:
    module, _, name = loop_factory.rpartition(".")
    make: Callable[[], asyncio.AbstractEventLoop] = getattr(importlib.import_module(module), name)
    worker = Worker(client, workflows=[story])
    thread = threading.Thread(target=worker.run, kwargs={"loop_factory": make}, daemon=True)
    thread.start()
    try:
        assert client.start(story()).result(timeout=SOON) == ["builtins:SystemExit: 0", "went on"]
    finally:
        worker.stop()
        thread.join(SOON.total_seconds())
    assert not thread.is_alive()
