"""Timers, signals, promises, chains, shields and branches, each run replayed from its journal at each commit."""

from __future__ import annotations

import asyncio
import threading
from datetime import datetime, timedelta
from random import Random
from typing import TYPE_CHECKING, Any

import pytest

from pgwf_sdk import (
    AsyncContext,
    BranchCancelled,
    Context,
    RetryPolicy,
    RunCancelled,
    RunCancelledError,
    RunFailedError,
    RunFinishedError,
    RunTerminatedError,
    WaitTimeoutError,
    ops,
    step,
    workflow,
)
from pgwf_sdk.testing import ReplayDifferenceError

if TYPE_CHECKING:
    from pgwf_sdk import Run
    from pgwf_sdk.testing import Environment

HOUR = timedelta(hours=1)


def recorded(env: Environment, run: Run[Any], key: str) -> list[tuple[str, datetime]]:
    """Phase and time of the entries of one call."""
    return [(entry.phase.label, entry.recorded_at) for entry in env.journal(run) if entry.key == key]


def test_a_timer_fires_at_the_instant_it_was_set_for_however_late_its_worker_is(env: Environment) -> None:
    @workflow
    def program(ctx: Context) -> timedelta:
        before = ctx.now()
        ctx.sleep(HOUR)
        return ctx.now() - before

    began = env.now()
    run = env.start(program())
    env.advance(HOUR / 2)
    assert run.details().available_at == began + HOUR
    late = env.start(program())
    env.client.pause(late.run_id)
    env.advance(2 * HOUR)
    env.client.resume(late.run_id)

    assert env.result(run) == HOUR
    assert env.result(late) == 2 * HOUR, "it saw the time at which it fired"
    assert [phase for phase, _ in recorded(env, late, "/timer:sleep#1")] == ["opened", "completed"]


@pytest.mark.parametrize(("kind", "count"), [("tasks", 50), ("runs", 200)])
def test_many_timers_fire_each_once_in_the_order_of_their_instants(env: Environment, kind: str, count: int) -> None:
    minutes = Random(17).sample(range(1, 10_000), count)
    fired: list[int] = []

    @step
    def note(minute: int) -> int:
        fired.append(minute)
        return minute

    @workflow
    async def together(ctx: AsyncContext) -> list[int]:
        async def wake(minute: int) -> int:
            await ctx.sleep(timedelta(minutes=minute))
            return minute

        tasks = [asyncio.create_task(wake(minute)) for minute in minutes]
        return [await done for done in asyncio.as_completed(tasks)]

    @workflow
    def alone(ctx: Context, minute: int) -> int:
        ctx.sleep(timedelta(minutes=minute))
        return ctx.step(note, minute)

    if kind == "tasks":
        assert env.run(together()) == sorted(minutes)
        return
    runs = [env.client.start(alone(minute)) for minute in minutes]
    env.settle()
    env.advance(timedelta(minutes=10_000))

    assert fired == sorted(minutes)
    assert [env.result(run) for run in runs] == minutes


def test_a_timer_that_lost_its_race_wakes_nobody(env: Environment) -> None:
    @workflow
    async def program(ctx: AsyncContext) -> list[str]:
        async with asyncio.timeout(3600):
            first = await ctx.wait_signal("first", str)
        return [first, await asyncio.wait_for(ctx.wait_signal("second", str), 7200)]

    run = env.start(program())
    began = env.now()
    run.signal("first", "a")
    env.settle()
    assert run.details().available_at == began + 2 * HOUR, "the second timer, and no longer the first"
    why = ops.why_not_running(env.client, run.run_id)
    assert why == (
        "It waits for a timer set 0 ms ago, fires in 2h 0m; and signal 'second', since 0 ms"
        f" (`pgwf signal {run.run_id} second`)."
    )
    assert [phase for phase, _ in recorded(env, run, "/timer:asyncio#1")] == ["opened", "cancelled"]
    run.signal("second", "b")

    assert env.result(run) == ["a", "b"]


@workflow
def collecting(ctx: Context, count: int) -> list[str]:
    return [ctx.wait_signal("item", str) for _ in range(count)]


def test_signals_sent_before_a_worker_before_the_code_and_before_the_wait_are_received_in_order(
    env: Environment,
) -> None:
    @workflow
    def busy(ctx: Context) -> list[str]:
        ctx.wait_signal("begin", bool)
        ctx.sleep(HOUR)
        return [ctx.wait_signal("item", str) for _ in range(3)]

    run = env.client.start(busy())
    run.signal("item", "before the code")
    env.settle()
    run.signal("item", "before the wait")
    run.signal("begin", True)
    env.settle()
    run.signal("item", "while it sleeps")

    assert env.result(run) == ["before the code", "before the wait", "while it sleeps"]


def test_a_signal_sent_twice_under_one_id_is_received_once_and_others_in_turn(env: Environment) -> None:
    run = env.client.start(collecting(3))
    sent = [run.signal("item", text, dedup_id=number) for number, text in (("1", "a"), ("1", "a"), ("2", "b"))]
    env.settle()
    assert run.signal("item", "a", dedup_id="1") is False, "also once it was received"
    run.signal("item", "c")

    assert sent == [True, False, True]
    assert env.result(run) == ["a", "b", "c"]
    with pytest.raises(RunFinishedError, match="is over"):
        run.signal("item", "late")


@pytest.mark.parametrize("timeout", [timedelta(0), -HOUR])
def test_a_timeout_that_is_over_takes_what_is_there_and_waits_for_nothing_else(
    env: Environment, timeout: timedelta
) -> None:
    @workflow
    def program(ctx: Context) -> list[str]:
        taken = [ctx.wait_signal("paid", str, timeout=timeout)]
        try:
            taken.append(ctx.wait_signal("paid", str, timeout=timeout))
        except WaitTimeoutError as error:
            taken.append(str(error))
        return taken

    run = env.client.start(program())
    run.signal("paid", "card")
    began = env.now()

    assert env.result(run) == ["card", "signal 'paid' did not come within 0 seconds"]
    assert env.now() == began


def test_a_signal_of_another_type_blocks_its_run_which_says_what_came_and_loses_nothing(env: Environment) -> None:
    @workflow(name="counting")
    def counting(ctx: Context) -> int:
        return ctx.wait_signal("count", int)

    @workflow(name="counting")
    def tolerant(ctx: Context) -> str:
        return f"{ctx.wait_signal('count', int | str)}"

    run = env.start(counting())
    run.signal("count", "many")
    with pytest.raises(ReplayDifferenceError, match='"many" was sent where int is expected; accept it in the workflow'):
        env.settle()
    assert run.status() == "blocked"
    assert '"many" was sent where int is expected' in ops.why_not_running(env.client, run.run_id)

    env.add(tolerant)
    env.client.resume(run.run_id)
    env.settle()

    assert run.status() == "completed"
    assert env.record(run).entries[-1].payload == b'"many"'


def test_a_promise_that_was_kept_while_the_run_waited_for_something_else_is_there_when_it_is_asked_for(
    env: Environment,
) -> None:
    tokens: list[str] = []

    @workflow
    def program(ctx: Context) -> list[str]:
        first, second = ctx.awakeable(str, name="first"), ctx.awakeable(str, name="second")
        ctx.step(step(name="hand_out")(tokens.extend), [first.token, second.token])
        note = ctx.wait_signal("note", str)
        return [note, second.wait(), first.wait(), first.wait()]

    run = env.start(program())
    env.client.complete_awakeable(tokens[0], "one")
    env.settle()
    assert run.status() == "waiting"
    run.signal("note", "noted")
    env.settle()
    assert run.status() == "waiting"
    assert env.client.complete_awakeable(tokens[0], "again") is False
    env.client.complete_awakeable(tokens[1], "two")

    assert env.result(run) == ["noted", "two", "one", "one"]


@workflow
def drawing(ctx: Context) -> list[Any]:
    def draw(ctx: Context, number: int) -> list[Any]:
        ctx.sleep(timedelta(minutes=number))
        return [ctx.random.random(), str(ctx.uuid4()), ctx.now().isoformat()]

    first, second = ctx.map(draw, [1, 2])
    return [ctx.random.random(), str(ctx.uuid4()), *first, *second]


@step
def boom(name: str) -> str:
    raise ValueError(name)


@workflow
def failing(ctx: Context) -> str:
    return ctx.step(boom.options(retry=RetryPolicy(max_attempts=1)), "boom")


@workflow
def sleeping(ctx: Context) -> None:
    ctx.sleep(HOUR)


@pytest.mark.parametrize("is_async", [False, True])
def test_a_child_that_is_cancelled_for_another_is_waited_for_and_a_replay_asks_the_same(
    env: Environment, is_async: bool
) -> None:
    @workflow(name="program")
    def program(ctx: Context) -> object:
        return ctx.parallel(lambda branch: branch.call(sleeping()), lambda branch: branch.call(failing()))

    @workflow(name="program")
    async def async_program(ctx: AsyncContext) -> object:
        return await ctx.parallel(lambda branch: branch.call(sleeping()), lambda branch: branch.call(failing()))

    began = env.now()
    with pytest.raises(RunFailedError, match="child run of 'failing' failed: ValueError: boom"):
        env.run(async_program() if is_async else program())
    assert env.now() == began


def test_a_step_that_runs_when_another_branch_makes_a_promise_is_no_difference(env: Environment) -> None:
    is_second_there = threading.Event()

    @step
    def begin() -> None: ...

    @step
    def first(token: str) -> None:
        assert is_second_there.wait(30)
        env.client.complete_awakeable(token, "first")

    @step
    def second(token: str) -> None:
        is_second_there.set()
        env.client.complete_awakeable(token, "second")

    def promise(ctx: Context) -> str:
        ctx.step(begin)
        return ctx.wait_for_callback(second, str)

    @workflow
    def program(ctx: Context) -> tuple[str, str]:
        return ctx.parallel(lambda branch: branch.wait_for_callback(first, str), promise)

    assert env.run(program()) == ("first", "second")


def test_what_is_drawn_is_the_same_in_each_replay_and_differs_between_runs_and_branches(env: Environment) -> None:
    first, second = env.run(drawing()), env.run(drawing())

    drawn = [*first, *second]
    assert len(set(drawn)) == len(drawn)


def test_branches_maps_and_children_nest(env: Environment) -> None:
    @workflow
    def child(ctx: Context, number: int) -> int:
        return sum(ctx.map(step(name="double")(lambda one: 2 * one), list(range(number))))

    @workflow
    def program(ctx: Context) -> list[Any]:
        def outer(ctx: Context, number: int) -> list[Any]:
            def waits(ctx: Context) -> int:
                ctx.sleep(timedelta(minutes=10 - number))
                return number

            return [*ctx.parallel(waits, lambda ctx: ctx.call(child(number))), ctx.map(child, [number, number + 1])]

        return ctx.map(outer, [1, 2, 3], max_concurrency=2)

    assert env.run(program()) == [[1, 0, [0, 2]], [2, 2, [2, 6]], [3, 6, [6, 12]]]


def test_a_cancellation_reaches_the_code_when_its_shielded_part_has_ended(env: Environment) -> None:
    seen: list[str] = []

    @step
    def note(text: str) -> None:
        seen.append(text)

    @workflow
    def program(ctx: Context) -> None:
        def careful(ctx: Context) -> None:
            ctx.wait_signal("go", bool)
            ctx.step(note, "careful")

        try:
            ctx.shield(careful)
            ctx.step(note, "after")
        except RunCancelled as request:
            ctx.step(note, f"cancelled by {request.by}")
            raise

    run = env.start(program())
    run.cancel(by="ann")
    env.advance(timedelta(minutes=1))
    assert (run.status(), seen) == ("waiting", [])
    run.signal("go", True)
    with pytest.raises(RunCancelledError, match="cancelled by ann"):
        env.result(run)

    assert seen == ["careful", "cancelled by ann"]


def test_a_chain_carries_attributes_signals_and_its_id(env: Environment) -> None:
    @workflow
    def looping(ctx: Context, left: int) -> str:
        ctx.set_attribute("left", left)
        if left:
            ctx.continue_as_new(looping(left - 1))
        return ctx.wait_signal("kept", str)

    run = env.client.start(looping(2), run_id="loop", attributes={"customer": "ann"})
    run.signal("kept", "from the beginning")

    assert env.result(run) == "from the beginning"
    assert run.result() == "from the beginning"
    (found,) = env.client.list(attributes={"customer": "ann", "left": 0})
    assert (found.run_id, env.client.get("loop").run_id) == ("loop~3", "loop~3")
    statuses = {one.run_id: one.status for one in env.client.list()}
    assert statuses == {"loop": "continued", "loop~2": "continued", "loop~3": "completed"}


def test_cancelled_branches_clean_up_and_what_is_shielded_in_them_ends(env: Environment) -> None:
    seen: list[str] = []

    @step
    def note(text: str) -> None:
        seen.append(text)

    @workflow
    def program(ctx: Context) -> None:
        def waits(ctx: Context) -> None:
            try:
                ctx.sleep(timedelta(days=1))
            except BranchCancelled:
                ctx.step(note, "cleaned up")
                raise

        def fails(ctx: Context) -> None:
            ctx.sleep(HOUR)
            raise LookupError("no")

        try:
            ctx.parallel(waits, fails)
        except LookupError:
            ctx.step(note, "after")

    env.run(program())

    assert seen == ["cleaned up", "after"]


def test_a_race_that_timers_lose_leaves_the_same_journal_wherever_its_worker_is_killed(env: Environment) -> None:
    @workflow
    def child(ctx: Context, number: int) -> int:
        ctx.sleep(timedelta(minutes=number))
        return number

    @workflow
    async def program(ctx: AsyncContext) -> list[int]:
        async with asyncio.timeout(3600):
            first = await ctx.call(child(1))
        return [first, *await ctx.map(child, [2, 3])]

    assert env.crash_everywhere(program()).append_count > 5


def test_why_says_how_long_a_cancelled_run_may_clean_up(env: Environment) -> None:
    @workflow
    def tidying(ctx: Context) -> None:
        try:
            ctx.wait_signal("never", str)
        finally:
            ctx.sleep(2 * HOUR)

    run = env.start(tidying())
    env.settle()
    run.cancel(reason="enough", grace=3 * HOUR)
    env.advance(HOUR)

    why = ops.why_not_running(env.client, run.run_id)

    assert " ago: enough. It may clean up for another 2h 0m; then it is terminated." in why


def test_a_cleanup_that_takes_longer_than_it_may_is_terminated_at_its_instant(env: Environment) -> None:
    @workflow
    def tidying(ctx: Context, duration: timedelta) -> None:
        try:
            ctx.wait_signal("never", str)
        finally:
            ctx.sleep(duration)

    quick, slow = env.start(tidying(HOUR)), env.start(tidying(3 * HOUR))
    asked_at = env.now()
    for run in (quick, slow):
        run.cancel(grace=2 * HOUR)

    with pytest.raises(RunCancelledError):
        env.result(quick)
    with pytest.raises(RunTerminatedError, match="its cleanup was not done by"):
        env.result(slow)

    assert slow.details().finished_at == asked_at + 2 * HOUR
