"""A worker is cut off at every append of a story, and nothing may come out otherwise."""

from __future__ import annotations

import threading
from datetime import timedelta
from itertools import count
from typing import TYPE_CHECKING, Any, cast

import psycopg
import pytest

from pgwf_sdk import AsyncContext, AwakeableClosedError, Context, MinSuccessful, RetryPolicy, step, workflow
from pgwf_sdk.testing import CrashDifferenceError
from pgwf_sdk.testing._crashes import Appends, Cut
from tests.support import wait_until

if TYPE_CHECKING:
    from pgwf_sdk import Call, Run
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


@step
def ask(token: str) -> None:
    """Give the token to somebody."""


@workflow
def impatient(ctx: Context) -> list[str]:
    results = ctx.parallel(
        lambda ctx: ctx.human("question", "a parcel", bool, need="human.shop").value,
        lambda ctx: ctx.wait_for_callback(ask, bool),
        lambda ctx: ctx.sleep(timedelta(hours=1)),
        policy=MinSuccessful(1),
    )
    ctx.wait_signal("go", str)
    return [result.status for result in results]


@workflow
async def async_impatient(ctx: AsyncContext) -> list[str]:
    results = await ctx.parallel(
        lambda ctx: ctx.human("question", "a parcel", bool, need="human.shop"),
        lambda ctx: ctx.wait_for_callback(ask, bool),
        lambda ctx: ctx.sleep(timedelta(hours=1)),
        policy=MinSuccessful(1),
    )
    await ctx.wait_signal("go", str)
    return [result.status for result in results]


@pytest.mark.parametrize("call", [impatient(), async_impatient()], ids=["sync", "async"])
def test_what_nobody_waits_for_any_more_is_withdrawn_although_the_worker_died_before_it_could(
    env: Environment, call: Call[list[str]]
) -> None:
    asked = env.mock(ask, returns=None)

    def story(env: Environment) -> object:
        run = env.start(call, run_id="parcel")
        env.advance(timedelta(hours=2))
        open_tasks = len(env.client.human.list())
        try:
            is_taken = env.client.complete_awakeable(asked.calls[0].args[0], True)
        except AwakeableClosedError:
            is_taken = False
        run.signal("go", "Ann")
        return [open_tasks, is_taken, env.result(run), journal(run)]

    def journal(run: Run[Any]) -> list[str]:
        return sorted(f"{entry.key} {entry.phase.name}" for entry in env.journal(run))

    *found, entries = cast("list[Any]", story(env))

    assert found == [0, False, ["unfinished", "unfinished", "succeeded"]]
    assert "/branch:parallel#1[0]/human:question#1 CANCELLED" in entries
    assert "/branch:parallel#1[1]/awakeable:ask#1 CANCELLED" in entries
    assert len(env.crash_everywhere(story).cuts) >= 8


def test_a_step_whose_worker_was_killed_may_lock_its_run_a_while_longer(env: Environment) -> None:
    is_locked = threading.Event()
    lapsed = "select from pgwf.lease where until <= pgwf._now()"

    @step
    def lock() -> str:
        if not is_locked.is_set():
            with psycopg.connect(env.dsn) as own, psycopg.connect(env.dsn, autocommit=True) as watch:
                own.execute("select from pgwf.job for update")
                is_locked.set()
                wait_until(lambda: watch.execute(lapsed).rowcount == 1, "its worker is taken for dead")
                own.execute("select pg_sleep(0.05)")
        return "locked"

    @step
    def follow() -> str:
        assert is_locked.wait(30)
        return "followed"

    @workflow
    def program(ctx: Context) -> tuple[str, str]:
        return ctx.parallel(lambda branch: branch.step(lock), lambda branch: branch.step(follow))

    appends = env.reset_story(env.now(), Appends(Cut(1, "before")))

    assert env.run(program()) == ("locked", "followed")
    assert appends.is_cut
