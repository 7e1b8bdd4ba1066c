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


@workflow
def handing_on(ctx: Context, run_id: str) -> object:
    return ctx.attach(run_id)


@workflow
def calling(ctx: Context, run_id: str) -> object:
    return ctx.call(handing_on(run_id))


def test_of_errors_that_are_built_upon_each_other_only_the_last_says_what_to_do(env: Environment) -> None:
    env.start(packing(13), run_id="first")
    env.start(handing_on("first"), run_id="second")
    env.start(calling("second"), run_id="third")
    last = env.start(handing_on("third"), run_id="last")

    with pytest.raises(RunFailedError) as failed:
        env.result(last)

    advice = "see `pgwf show last`, and `client.retry('last')` once it is mended"
    assert (failed.value.run_id, failed.value.advice) == ("last", advice)
    assert str(failed.value) == (
        "run last failed with RunFailedError: run third failed with ChildFailedError: child run of 'handing_on' failed:"
        f" RunFailedError: run second failed with RunFailedError: run first failed with LookupError: 13; {advice}"
    )
    assert str(failed.value.__cause__).endswith("see `pgwf show third`, and `client.retry('third')` once it is mended")


def test_a_run_that_was_terminated_says_once_how_it_is_started_anew(env: Environment) -> None:
    env.start(packing(2), run_id="first").terminate(by="ann", reason="enough")

    with pytest.raises(RunFailedError) as failed:
        env.run(calling("first"), run_id="second")

    assert str(failed.value).count("client.retry") == 1
    assert "RunTerminatedError: run first was terminated by ann: enough; see `pgwf show second`" in str(failed.value)


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
