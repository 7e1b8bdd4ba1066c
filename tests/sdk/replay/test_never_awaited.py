"""What an `async def` workflow calls and does not await: silently not done would be the worst answer."""

from __future__ import annotations

import asyncio
import inspect
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from pgwf_sdk import AsyncContext, ChildFailedError, Context, step, workflow
from pgwf_sdk.replay import Completed, Failed
from tests.sdk.replay.driver import Driver

if TYPE_CHECKING:
    from collections.abc import Callable


@step
def charge(order: str) -> str:
    return f"{order} charged"


@workflow
def child(ctx: Context) -> None: ...


async def forgets(act: Callable[[AsyncContext], Any], ctx: AsyncContext) -> str:
    forgotten = act(ctx)
    del forgotten
    return "done"


@pytest.mark.parametrize(
    ("act", "named"),
    [
        (lambda ctx: ctx.step(charge, "17"), "step 'charge' (/step:charge#1)"),
        (lambda ctx: ctx.sleep(timedelta(days=1)), "timer 'sleep' (/timer:sleep#1)"),
        (lambda ctx: ctx.wait_signal("go", str), "signal 'go' (/signal:go#1)"),
        (lambda ctx: ctx.call(child()), "child 'child' (/child:child#1)"),
        (lambda ctx: ctx.map(charge, ["17"]), "step 'charge' (/branch:map#1[0]/step:charge#1)"),
    ],
    ids=["step", "sleep", "signal", "call", "map"],
)
def test_a_call_that_is_never_awaited_fails_its_run_and_is_named_with_its_line(
    act: Callable[[AsyncContext], Any], named: str
) -> None:
    @workflow
    async def program(ctx: AsyncContext) -> str:
        return await forgets(act, ctx)

    driver = Driver(program())
    outcome = driver.run()

    assert isinstance(outcome, Failed)
    envelope = msgspec.json.decode(outcome.payload)
    assert envelope["type"] == "pgwf_sdk._errors:ContextError"
    assert f"{named} was never awaited, and not done when workflow" in envelope["message"]
    lines, first = inspect.getsourcelines(act)
    (note,) = envelope["notes"]
    assert note.startswith(f"It was called at {__file__}:")
    assert first <= int(note.rpartition(":")[2].removesuffix(".")) < first + len(lines)
    assert driver.executed.total() == 0
    again = driver.run()
    assert isinstance(again, Failed)
    assert msgspec.json.decode(again.payload)["message"] == envelope["message"]


def test_a_run_that_forgets_to_await_its_continuation_fails_instead_of_completing() -> None:
    @workflow
    async def program(ctx: AsyncContext) -> str:
        return await forgets(lambda ctx: ctx.continue_as_new(child()), ctx)

    outcome = Driver(program()).run()

    assert isinstance(outcome, Failed)
    assert b"ctx.continue_as_new was never awaited" in outcome.payload


def test_what_is_given_up_left_to_a_task_or_held_by_a_handle_is_not_forgotten() -> None:
    @workflow
    async def program(ctx: AsyncContext) -> str:
        given_up = asyncio.ensure_future(ctx.step(charge, "given up"))
        given_up.cancel()
        left = asyncio.create_task(ctx.step(charge, "left"))
        promise, spawned = ctx.awakeable(str), ctx.spawn(child())
        callback = asyncio.create_task(ctx.wait_for_callback(charge, str))
        first, _ = await asyncio.wait(
            [asyncio.create_task(ctx.step(charge, "first")), asyncio.create_task(ctx.sleep(timedelta(days=1)))],
            return_when=asyncio.FIRST_COMPLETED,
        )
        del left, promise, spawned, callback
        return str(first.pop().result())

    assert Driver(program()).run() == Completed(b'"first charged"', 1)


def test_an_error_of_the_code_is_told_rather_than_what_it_left_unawaited() -> None:
    @workflow
    async def program(ctx: AsyncContext) -> None:
        forgotten = ctx.step(charge, "17")
        del forgotten
        raise ChildFailedError("the code's own error")

    outcome = Driver(program()).run()

    assert isinstance(outcome, Failed)
    assert b"the code's own error" in outcome.payload
