"""Async steps begin within the turn in which the code asks for them, and what they do there stays with them."""

from __future__ import annotations

import asyncio
from contextvars import ContextVar
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from pgwf_sdk import AsyncContext, Client, Context, RetryPolicy, step, workflow

if TYPE_CHECKING:
    from tests.sdk.worker.conftest import StartWorker

SOON = timedelta(seconds=30)
ONCE = RetryPolicy(max_attempts=1)

tenant: ContextVar[str] = ContextVar("tenant", default="nobody")


@step
async def become(name: str, pause_seconds: float | None) -> str:
    """Who it was before."""
    before = tenant.get()
    if pause_seconds is not None:
        await asyncio.sleep(pause_seconds)
    tenant.set(name)
    return before


@step(durability="deferred")
async def become_in_passing(name: str) -> str:
    before = tenant.get()
    tenant.set(name)
    return before


@step
def ask() -> str:
    return tenant.get()


@workflow
async def asking(ctx: AsyncContext, name: str) -> list[str]:
    found: list[str] = []
    # The pause lets the worker come to rest: who reports then makes the call.
    for pause_seconds in (0.1, None, 0, 0.1):
        found.append(await ctx.step(become, name, pause_seconds))
        found.append(tenant.get())
        found.append(await ctx.step(ask))
        found.append(await ctx.step(become_in_passing, name))
    return found


@workflow
def asking_in_turn(ctx: Context, name: str) -> list[str]:
    return [ctx.step(become, name, 0.1), tenant.get(), ctx.step(ask), ctx.step(become, name, None), ctx.step(ask)]


@pytest.mark.parametrize("definition", [asking, asking_in_turn], ids=["async", "plain"])
def test_what_a_step_sets_in_its_context_no_other_step_and_no_run_finds(
    client: Client, start_worker: StartWorker, definition: Any
) -> None:
    start_worker(definition)

    for name in ("ann", "ben"):
        assert set(client.start(definition(name)).result(timeout=SOON)) == {"nobody"}


async def exit_at_once() -> str:
    raise SystemExit(3)


async def interrupt_at_once() -> str:
    raise KeyboardInterrupt


async def cancel_at_once() -> str:
    raise asyncio.CancelledError("by itself")


async def cancel_itself_and_return() -> str:
    _cancel_itself()
    return "returned"


async def cancel_itself_and_wait() -> str:
    _cancel_itself()
    await asyncio.sleep(60)
    return "slept"


async def cancel_itself_later() -> str:
    await asyncio.sleep(0)
    return await cancel_itself_and_wait()


def _cancel_itself() -> None:
    task = asyncio.current_task()
    assert task is not None
    task.cancel("by itself")


@pytest.mark.parametrize("options", [{}, {"timeout": SOON}, {"durability": "deferred"}], ids=str)
@pytest.mark.parametrize(
    ("fn", "ended"),
    [
        (exit_at_once, "builtins:SystemExit: 3"),
        (interrupt_at_once, "builtins:KeyboardInterrupt: "),
        (cancel_at_once, "asyncio.exceptions:CancelledError: by itself"),
        (cancel_itself_and_return, "returned"),
        (cancel_itself_and_wait, "asyncio.exceptions:CancelledError: by itself"),
        (cancel_itself_later, "asyncio.exceptions:CancelledError: by itself"),
    ],
)
def test_a_step_that_ends_itself_oddly_ends_nothing_else(
    client: Client, start_worker: StartWorker, fn: Any, ended: str, options: dict[str, Any]
) -> None:
    odd: Any = step(name="odd", retry=ONCE, **options)(fn)

    @workflow
    async def story(ctx: AsyncContext) -> list[str]:
        try:
            found = await ctx.step(odd)
        except Exception as error:  # noqa: BLE001 - which one it is, the test says
            found = str(error)
        return [found, await ctx.step(ask)]

    start_worker(story)

    assert client.start(story()).result(timeout=SOON) == [ended, "nobody"]
