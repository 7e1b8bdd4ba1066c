"""Runs that attach to others, in whole stories: each is replayed after every commit, and cut off at every append."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from pgwf_sdk import (
    AsyncContext,
    Context,
    RetryPolicy,
    RunFailedError,
    RunNotFoundError,
    WaitTimeoutError,
    step,
    workflow,
)

if TYPE_CHECKING:
    from pgwf_sdk import Workflow
    from pgwf_sdk.testing import Environment


@step(retry=RetryPolicy(max_attempts=1))
def pack(number: int) -> int:
    if number == 13:
        raise LookupError(number)
    return number * 10


@workflow
def packing(ctx: Context, number: int) -> int:
    ctx.sleep(timedelta(hours=number))
    if number == 3:
        ctx.continue_as_new(packing(4))
    return ctx.step(pack, number)


@workflow
def watching(ctx: Context) -> list[Any]:
    both = ctx.parallel(lambda ctx: ctx.attach("two", packing), lambda ctx: ctx.attach("three", packing))
    found: list[Any] = [*both, ctx.attach("two")]
    for run_id in ("thirteen", "nobody"):
        try:
            found.append(ctx.attach(run_id, packing))
        except (RunFailedError, RunNotFoundError) as error:
            found.append(f"{type(error).__name__}: {error.__cause__}")
    try:
        found.append(ctx.attach("long", packing, timeout=timedelta(hours=1)))
    except WaitTimeoutError as error:
        found.append(str(error))
    return [*found, ctx.step(pack, 1), ctx.attach("three")]


@workflow
async def awatching(ctx: AsyncContext) -> list[Any]:
    found: list[Any] = await ctx.map(lambda ctx, run_id: ctx.attach(run_id, packing), ["two", "three", "two"])
    for run_id in ("thirteen", "nobody"):
        try:
            found.append(await ctx.attach(run_id, packing))
        except (RunFailedError, RunNotFoundError) as error:
            found.append(f"{type(error).__name__}: {error.__cause__}")
    try:
        found.append(await ctx.attach("long", packing, timeout=timedelta(hours=1)))
    except WaitTimeoutError as error:
        found.append(str(error))
    return [*found, await ctx.step(pack, 1), await ctx.attach("three")]


EXPECTED = [20, 40, 20, "RunFailedError: 13", "RunNotFoundError: None", "run 'long' was not over within 1 hour", 10, 40]


@pytest.mark.parametrize("watcher", [watching, awatching], ids=["sync", "async"])
def test_a_story_of_attached_runs_ends_alike_wherever_a_worker_is_killed(
    env: Environment, watcher: Workflow[[], list[Any]]
) -> None:
    def story(env: Environment) -> object:
        others = {"two": 2, "three": 3, "thirteen": 13, "long": 1000}
        for run_id, number in others.items():
            env.start(packing(number), run_id=run_id)
        return env.result(env.start(watcher(), run_id="watcher"))

    report = env.crash_everywhere(story, cuts_max=16)

    assert story(env) == EXPECTED
    assert (len(report.cuts), report.append_count > 16) == (16, True)
