"""asyncio inside async workflows: the idioms work, their timers are durable, and what cannot be repeated is refused."""

from __future__ import annotations

import asyncio
import contextlib
from datetime import timedelta
from random import Random
from typing import Any

import pytest

from pgwf_sdk import AsyncContext, Context, step, workflow
from pgwf_sdk.replay import Abandon, AsyncActivation, Completed, RunStep, StartTimer
from tests.sdk.replay.driver import EPOCH, Driver, run_twice


@step
def work(number: int) -> int:
    if number < 0:
        raise ValueError(number)
    return number * 10


def test_gathered_calls_run_side_by_side_and_are_numbered_as_they_were_made() -> None:
    @workflow
    async def program(ctx: AsyncContext) -> list[int]:
        return await asyncio.gather(*(ctx.step(work, number) for number in range(3)))

    driver = Driver(program())
    activation = AsyncActivation(driver.workflow, driver.info, driver.journal)
    commands = activation.start()
    activation.close()

    assert [(command.id.call, command.id.key) for command in commands] == [
        (1, "/step:work#1"),
        (2, "/step:work#2"),
        (3, "/step:work#3"),
    ]
    assert run_twice(program())[1] == Completed(b"[0,10,20]", 1)


@pytest.mark.parametrize("seed", range(6))
def test_what_completes_first_is_the_same_in_a_replay(seed: int) -> None:
    @workflow
    async def program(ctx: AsyncContext) -> list[int]:
        calls = [ctx.step(work, number) for number in range(4)]
        return [await done for done in asyncio.as_completed(calls)]

    @workflow
    async def first_of(ctx: AsyncContext) -> list[int]:
        tasks = [asyncio.create_task(ctx.step(work, number)) for number in range(4)]
        done, pending = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in pending:
            task.cancel()
        return sorted(task.result() for task in done)

    run_twice(program(), shuffle=Random(seed))
    _, outcome = run_twice(first_of(), shuffle=Random(seed))
    assert outcome in [Completed(b"[%d]" % number, 1) for number in (0, 10, 20, 30)]


def test_asyncio_sleep_and_timeout_are_timers_of_the_journal() -> None:
    @workflow
    async def program(ctx: AsyncContext) -> list[str]:
        said: list[str] = []
        await asyncio.sleep(86400)
        await asyncio.sleep(0)
        try:
            async with asyncio.timeout(60):
                await ctx.wait_signal("never", int)
        except TimeoutError:
            said.append("timeout")
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(ctx.wait_signal("never", int), 60)
        said.append(str(ctx.now() - EPOCH).partition(",")[0])
        return said

    driver, outcome = run_twice(program())

    assert outcome == Completed(b'["timeout","1 day"]', 1)
    timers = [command for command in driver.commands if isinstance(command, StartTimer)]
    assert [timer.duration for timer in timers] == [timedelta(days=1), timedelta(minutes=1), timedelta(minutes=1)]
    assert [timer.id.key for timer in timers] == ["/timer:asyncio#1", "/timer:asyncio#2", "/timer:asyncio#3"]


def test_a_timer_that_is_no_longer_needed_is_abandoned_or_never_asked_for() -> None:
    @workflow
    async def program(ctx: AsyncContext) -> int:
        async with asyncio.timeout(60):
            first = await ctx.step(work, 1)
        async with asyncio.timeout(60):
            await asyncio.sleep(0)
        return first + await ctx.step(work, 2)

    driver, _ = run_twice(program())

    assert [type(command) for command in driver.commands] == [StartTimer, RunStep, Abandon, RunStep]


def test_a_timer_set_in_a_branch_belongs_to_the_branch() -> None:
    @workflow
    async def program(ctx: AsyncContext) -> None:
        async def branch(_ctx: AsyncContext) -> None:
            await asyncio.sleep(5)

        await ctx.parallel(branch, branch)

    driver, _ = run_twice(program())

    assert driver.keys() == ["/branch:parallel#1[0]/timer:asyncio#1", "/branch:parallel#1[1]/timer:asyncio#1"]


def test_a_task_group_cancels_the_others_when_one_fails() -> None:
    @workflow
    async def program(ctx: AsyncContext) -> str:
        said = ""
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(ctx.step(work, -1))
                group.create_task(ctx.sleep(timedelta(days=1)))
        except* ValueError as errors:
            said = repr(errors.exceptions)
        return said

    driver, outcome = run_twice(program())

    assert outcome == Completed(b'"(ValueError(-1),)"', 1)
    assert [type(command) for command in driver.commands] == [RunStep, StartTimer]  # Nobody is told to give it up.


def test_gather_can_return_failures_and_locks_and_queues_work() -> None:
    @workflow
    async def program(ctx: AsyncContext) -> list[str]:
        lock, queue = asyncio.Lock(), asyncio.Queue[int]()

        async def produce(number: int) -> None:
            async with lock:
                await queue.put(await ctx.step(work, number))

        results = await asyncio.gather(produce(1), produce(-1), produce(2), return_exceptions=True)
        return [repr(result) for result in results] + [str(queue.get_nowait()), str(queue.get_nowait())]

    assert run_twice(program())[1] == Completed(b'["None","ValueError(-1)","None","10","20"]', 1)


def test_a_shielded_call_goes_on_when_its_waiter_is_cancelled() -> None:
    @workflow
    async def program(ctx: AsyncContext) -> int:
        call = asyncio.ensure_future(ctx.step(work, 1))
        try:
            async with asyncio.timeout(0):
                await asyncio.shield(call)
        except TimeoutError:
            return await call
        return -1

    driver, outcome = run_twice(program())

    assert outcome == Completed(b"10", 1)
    assert not any(isinstance(command, Abandon) for command in driver.commands)


def test_a_task_that_is_cancelled_before_it_ran_takes_its_call_back() -> None:
    @workflow
    async def program(ctx: AsyncContext) -> int:
        task = asyncio.create_task(ctx.step(work, 1))
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
        return await ctx.step(work, 2)

    driver, outcome = run_twice(program())

    assert outcome == Completed(b"20", 1)
    assert [command.id.key for command in driver.commands] == ["/step:work#2"]


def test_a_cancelled_parallel_ends_only_after_its_branches() -> None:
    order: list[str] = []

    @workflow
    async def program(ctx: AsyncContext) -> int:
        async def branch(c: AsyncContext) -> None:
            try:
                await c.sleep(timedelta(days=1))
            finally:
                await c.step(work, 1)
                order.append("branch")

        task = asyncio.create_task(ctx.parallel(branch, branch))
        await ctx.step(work, 0)
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
        order.append("after")
        return 1

    run_twice(program())

    assert order[:3] == ["branch", "branch", "after"]


def test_the_end_of_the_workflow_ends_what_it_left_running() -> None:
    left: list[str] = []

    @workflow
    async def program(ctx: AsyncContext) -> int:
        async def forgotten() -> None:
            try:
                await ctx.sleep(timedelta(days=1))
            finally:
                left.append("left")

        task = asyncio.create_task(forgotten())
        await asyncio.sleep(0)
        return 0 if task.done() else 1

    driver = Driver(program())

    assert driver.run() == Completed(b"1", 1)
    assert left == ["left"]
    assert driver.commands == []


def test_a_result_nobody_waited_for_does_not_block_the_end() -> None:
    @workflow
    async def program(ctx: AsyncContext) -> int:
        unread = ctx.step(work, 1)
        result = await ctx.step(work, 2)
        del unread
        return result

    assert run_twice(program())[1] == Completed(b"20", 1)


def test_network_threads_and_foreign_loops_are_refused_and_named() -> None:
    @workflow
    async def program(ctx: AsyncContext) -> list[str]:
        said: list[str] = []
        for attempt in (
            lambda: asyncio.to_thread(print),
            lambda: asyncio.open_connection("localhost", 1),
            lambda: asyncio.create_subprocess_exec("true"),
        ):
            try:
                await attempt()
            except Exception as error:  # noqa: BLE001 - reported
                said.append(f"{type(error).__name__}: {error}")
        return said

    outcome = Driver(program()).run()

    assert isinstance(outcome, Completed)
    assert (outcome.payload or b"").count(b"ContextError: a workflow used its event loop") == 3


def test_an_activation_can_be_driven_from_a_callback_of_another_loop() -> None:
    @workflow
    async def program(ctx: AsyncContext) -> int:
        return await ctx.step(work, 1) + await ctx.step(work, 2)

    driver = Driver(program())

    async def host() -> Any:
        loop = asyncio.get_running_loop()
        done = loop.create_future()
        loop.call_soon(lambda: done.set_result(driver.run()))
        outcome = await done
        assert asyncio.get_running_loop() is loop
        return outcome

    assert asyncio.run(host()) == Completed(b"30", 1)


def test_a_workflow_that_never_waits_is_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pgwf_sdk.replay._loop.CALLBACKS_MAX", 1000)

    @workflow
    async def program(ctx: AsyncContext) -> None:
        while True:  # noqa: ASYNC110 - the point of the test
            await asyncio.sleep(0)

    outcome = Driver(program()).run()

    assert outcome.report["class"] == "stalled"  # type: ignore[union-attr]


def test_an_async_generator_is_closed_with_the_activation() -> None:
    @workflow
    async def program(ctx: AsyncContext) -> int:
        async def numbers() -> Any:
            for number in range(3):
                yield await ctx.step(work, number)

        return sum([number async for number in numbers()])

    assert run_twice(program())[1] == Completed(b"30", 1)


def test_both_kinds_of_workflow_refuse_the_others_context() -> None:
    async def wrong(ctx: Context) -> None:
        return None

    def wrong_too(ctx: AsyncContext) -> None:
        return None

    for fn in (wrong, wrong_too):
        with pytest.raises(Exception, match="expected ctx: "):
            workflow(fn)  # type: ignore[arg-type]  # pyright: ignore
