"""parallel and map: scopes, order, limits and failures, in both kinds of workflow."""

from __future__ import annotations

import asyncio
import threading
from datetime import timedelta
from random import Random
from typing import Any

import pytest

from pgwf_journal import Phase
from pgwf_sdk import AsyncContext, BranchCancelled, ChildFailedError, Context, step, workflow
from pgwf_sdk.replay import Abandon, Completed, Failed, RunStep, StartChild, StartTimer, SyncActivation
from tests.sdk.replay.driver import Driver, run_twice


@step
def work(number: int) -> int:
    if number < 0:
        raise ValueError(number)
    return number * 10


@workflow
def doubled(ctx: Context, number: int) -> int:
    return 2 * ctx.step(work, number)


@pytest.mark.parametrize("seed", range(5))
def test_parallel_returns_results_in_the_order_of_its_branches_whatever_ends_first(seed: int) -> None:
    @workflow
    def program(ctx: Context) -> Any:
        return ctx.parallel(lambda c: c.step(work, 1), lambda c: c.step(work, 2), lambda c: str(c.step(work, 3)))

    _, outcome = run_twice(program(), shuffle=Random(seed))

    assert outcome == Completed(b'{"$tuple":[10,20,"30"]}', 2)


def test_branches_are_numbered_by_index_and_scopes_nest() -> None:
    @workflow
    def program(ctx: Context) -> None:
        ctx.parallel(lambda c: c.map(work, [1]), lambda c: c.parallel(lambda c: c.step(work, 2)))

    driver, _ = run_twice(program())

    assert driver.keys() == [
        "/branch:parallel#1[0]/branch:map#1[0]/step:work#1",
        "/branch:parallel#1[1]/branch:parallel#1[0]/step:work#1",
    ]


def test_nothing_to_do_is_done_at_once() -> None:
    @workflow
    def program(ctx: Context) -> Any:
        return [*ctx.map(work, []), *ctx.map(doubled, []), *ctx.map(lambda c, i: i, list[int]()), *ctx.parallel()]  # type: ignore[call-overload]

    @workflow
    async def async_program(ctx: AsyncContext) -> Any:
        async def each(_ctx: AsyncContext, number: int) -> int:
            return number

        return [*await ctx.map(work, []), *await ctx.map(each, []), *await ctx.parallel()]  # type: ignore[call-overload]

    assert run_twice(program())[1] == run_twice(async_program())[1] == Completed(b"[]", 2)


def test_map_takes_a_step_a_workflow_or_a_function() -> None:
    @workflow
    def program(ctx: Context) -> Any:
        return [
            ctx.map(work, [1, 2]),
            ctx.map(doubled, [1, 2]),
            ctx.map(lambda c, number: c.step(work, number) + 1, [1, 2]),
        ]

    driver, outcome = run_twice(program())

    assert outcome == Completed(b"[[10,20],[20,40],[11,21]]", 2)
    assert [command.id.scope for command in driver.commands if isinstance(command, StartChild)] == [
        "/branch:map#2[0]",
        "/branch:map#2[1]",
    ]


@pytest.mark.parametrize("limit", [0, -1])
def test_map_refuses_to_do_less_than_one_at_a_time(limit: int) -> None:
    @workflow
    def program(ctx: Context) -> Any:
        return ctx.map(work, [1], max_concurrency=limit)

    driver = Driver(program())

    assert isinstance(driver.run(), Failed)
    assert driver.commands == []


def test_map_refuses_a_set_whose_order_differs_between_processes() -> None:
    @workflow
    def program(ctx: Context) -> Any:
        return ctx.map(work, {1, 2})

    outcome = Driver(program()).run()

    assert isinstance(outcome, Failed)
    assert b"sorted(items)" in outcome.payload


def each_of(kind: str) -> Any:
    """`map` over six items, three at a time, by each of its forms."""

    @workflow
    def over_step(ctx: Context) -> Any:
        return ctx.map(work, range(6), max_concurrency=3)

    @workflow
    def over_function(ctx: Context) -> Any:
        return ctx.map(lambda c, number: c.step(work, number), range(6), max_concurrency=3)

    @workflow
    async def over_async_function(ctx: AsyncContext) -> Any:
        async def each(c: AsyncContext, number: int) -> int:
            return await c.step(work, number)

        return await ctx.map(each, range(6), max_concurrency=3)

    return {"step": over_step, "function": over_function, "async": over_async_function}[kind]()


@pytest.mark.parametrize("kind", ["step", "function", "async"])
@pytest.mark.parametrize("seed", range(3))
def test_map_never_has_more_items_under_way_than_it_may(kind: str, seed: int) -> None:
    under_way_max = 0

    class Watch(Driver):
        def exchange(self, commands: list[Any]) -> Any:
            nonlocal under_way_max
            under_way_max = max(under_way_max, len(self._open) + len(commands))
            return super().exchange(commands)

    driver = Watch(each_of(kind), shuffle=Random(seed))

    assert driver.run() == Completed(b"[0,10,20,30,40,50]", 2)
    assert under_way_max == 3


def test_the_first_failure_cancels_the_other_branches_and_is_raised_when_all_have_ended() -> None:
    cleaned: list[str] = []

    @workflow
    def program(ctx: Context) -> Any:
        def waits(c: Context) -> None:
            try:
                c.sleep(timedelta(days=1))
            except BranchCancelled:
                cleaned.append("stopped")
                c.step(work, 7)
                raise

        try:
            ctx.parallel(waits, lambda c: c.step(work, -1))
        except ValueError as error:
            return str(error)

    driver, outcome = run_twice(program())

    assert outcome == Completed(b'"-1"', 2)
    assert cleaned == ["stopped", "stopped"]
    assert [type(command) for command in driver.commands] == [StartTimer, RunStep, Abandon, RunStep]
    assert "/branch:parallel#1[0]/step:work#1" in set(driver.keys())


def test_an_async_branch_is_cancelled_as_any_task_and_joined() -> None:
    @workflow
    async def program(ctx: AsyncContext) -> Any:
        async def waits(c: AsyncContext) -> None:
            try:
                await c.sleep(timedelta(days=1))
            except asyncio.CancelledError:
                await c.step(work, 7)
                raise

        async def fails(c: AsyncContext) -> None:
            await c.step(work, -1)

        try:
            await ctx.parallel(waits, fails)
        except ValueError as error:
            return str(error)

    driver, outcome = run_twice(program())

    assert outcome == Completed(b'"-1"', 2)
    assert [type(command) for command in driver.commands] == [StartTimer, RunStep, Abandon, RunStep]


def test_a_failure_in_a_map_over_a_step_abandons_the_rest_and_starts_no_more() -> None:
    @workflow
    def program(ctx: Context) -> Any:
        try:
            ctx.map(work, [1, -2, 3, 4, 5], max_concurrency=2)
        except ValueError as error:
            return str(error)

    driver, outcome = run_twice(program())

    assert outcome == Completed(b'"-2"', 2)
    assert "/branch:map#1[4]/step:work#1" not in set(driver.keys(Phase.COMPLETED))


def test_a_failed_child_in_a_map_raises_child_failed() -> None:
    @workflow
    def program(ctx: Context) -> Any:
        try:
            ctx.map(doubled, [1, -1])
        except ChildFailedError as error:
            return error.workflow

    assert run_twice(program())[1] == Completed(b'"doubled"', 2)


def test_a_branch_that_never_began_is_not_begun_once_another_failed() -> None:
    begun: list[int] = []

    @workflow
    def program(ctx: Context) -> Any:
        def fails(_ctx: Context) -> None:
            raise ValueError("at once")

        try:
            ctx.parallel(fails, lambda _c: begun.append(1))
        except ValueError:
            return begun

    assert run_twice(program())[1] == Completed(b"[]", 2)


def test_a_branch_may_not_use_the_context_of_its_parent() -> None:
    @workflow
    def program(ctx: Context) -> Any:
        return ctx.parallel(lambda _ctx: ctx.step(work, 1))

    @workflow
    async def async_program(ctx: AsyncContext) -> Any:
        return await ctx.parallel(lambda _ctx: ctx.step(work, 1))

    for call in (program(), async_program()):
        outcome = Driver(call).run()

        assert isinstance(outcome, Failed)
        assert b"expected each branch to use the ctx it is given" in outcome.payload


def test_a_thread_may_not_use_a_context() -> None:
    @workflow
    def program(ctx: Context) -> Any:
        said: list[str] = []

        def elsewhere() -> None:
            try:
                ctx.step(work, 1)
            except Exception as error:  # noqa: BLE001 - reported below
                said.append(str(error))

        thread = threading.Thread(target=elsewhere)
        thread.start()
        thread.join()
        return said

    outcome = Driver(program()).run()

    assert isinstance(outcome, Completed)
    assert b"threads to live inside steps" in (outcome.payload or b"")


def test_branches_run_one_at_a_time_and_a_run_without_branches_on_the_calling_thread_only() -> None:
    threads: set[int] = set()
    inside = 0

    @workflow
    def program(ctx: Context) -> Any:
        def branch(c: Context, number: int) -> int:
            nonlocal inside
            for _ in range(5):
                inside += 1
                assert inside == 1
                inside -= 1
                c.step(work, number)
            return number

        return ctx.map(branch, range(10))

    @workflow
    def straight(ctx: Context) -> None:
        for number in range(5):
            ctx.step(work, number)
            threads.add(threading.get_ident())

    assert isinstance(run_twice(program(), shuffle=Random(1))[1], Completed)
    assert isinstance(run_twice(straight())[1], Completed)
    assert threads == {threading.get_ident()}


def test_more_branches_than_threads_are_refused_with_the_ways_out() -> None:
    @workflow
    def program(ctx: Context) -> Any:
        return ctx.map(lambda c, number: c.step(work, number), range(1001))

    outcome = Driver(program()).run()

    assert isinstance(outcome, Failed)
    assert b"pass max_concurrency" in outcome.payload
    assert isinstance(run_twice(each_of("async"))[1], Completed)


def test_a_thousand_branches_at_once_work() -> None:
    @workflow
    def program(ctx: Context) -> int:
        return sum(ctx.map(lambda c, number: c.step(work, number), range(1000)))

    assert run_twice(program())[1] == Completed(b"4995000", 1)


def test_what_the_system_refuses_a_thread_for_leaves_the_activation_as_an_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    @workflow
    def program(ctx: Context) -> Any:
        return ctx.parallel(lambda c: c.step(work, 1), lambda c: c.step(work, 2))

    driver = Driver(program())
    activation = SyncActivation(driver.workflow, driver.info, driver.journal)

    def refuse(_thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    with pytest.raises(RuntimeError, match="can't start new thread"):
        activation.run(driver.exchange)
