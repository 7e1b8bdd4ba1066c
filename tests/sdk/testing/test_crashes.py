"""A worker is cut off at every append of a story, and nothing may come out otherwise."""

from __future__ import annotations

from datetime import timedelta
from itertools import count
from typing import TYPE_CHECKING

import pytest

from pgwf_sdk import AsyncContext, Context, RetryPolicy, step, workflow
from pgwf_sdk.testing import CrashDifferenceError

if TYPE_CHECKING:
    from pgwf_sdk.testing import Environment


@step(retry=RetryPolicy(initial=timedelta(hours=1), max_interval=timedelta(hours=1)))
def fetch(number: int) -> int:
    return number * 10


@workflow
def doubled(ctx: Context, number: int) -> int:
    ctx.sleep(timedelta(minutes=number))
    return 2 * ctx.step(fetch, number)


@workflow
def ordered(ctx: Context) -> list[object]:
    first = ctx.step(fetch, 1)
    side = ctx.parallel(lambda ctx: ctx.step(fetch, 2), lambda ctx: ctx.call(doubled(3)))
    ctx.sleep(timedelta(days=1))
    go = ctx.wait_signal("go", str)
    return [first, side, go, ctx.map(doubled, [4, 5]), str(ctx.uuid4()), ctx.now().isoformat()]


@workflow
async def async_ordered(ctx: AsyncContext) -> list[object]:
    first = await ctx.step(fetch, 1)
    go = await ctx.wait_signal("go", str, timeout=timedelta(days=1))
    return [first, go, await ctx.map(fetch, [4, 5])]


def test_a_story_ends_alike_wherever_its_worker_is_killed(env: Environment) -> None:
    def story(env: Environment) -> object:
        run = env.start(ordered(), run_id="order-17")
        env.client.signal(run.run_id, "go", "Ann")
        return env.result(run)

    report = env.crash_everywhere(story)

    assert report.append_count >= 9
    assert len(report.cuts) == 2 * report.append_count


def test_an_async_workflow_ends_alike_wherever_its_worker_is_killed(env: Environment) -> None:
    env.mock(fetch, outcomes=[OSError("down"), 1, 4, 5])

    def story(env: Environment) -> object:
        run = env.start(async_ordered())
        env.advance(timedelta(hours=2))
        run.signal("go", "Ann")
        return env.result(run)

    report = env.crash_everywhere(story)

    assert len(report.cuts) == 2 * report.append_count > 6
    assert len(env.crash_everywhere(story, cuts_max=3).cuts) == 3


def test_a_step_that_does_not_bear_repetition_is_found(env: Environment) -> None:
    start = 0
    executions = count(1)
    env.mock(fetch, lambda number: next(executions) - start)

    @workflow
    def once(ctx: Context) -> int:
        return ctx.step(fetch, 1)

    def story(env: Environment) -> int:
        nonlocal start
        start = next(executions)
        return env.run(once())

    with pytest.raises(CrashDifferenceError, match=r"killed before append 1 the story gave 2; without, 1"):
        env.crash_everywhere(story)
