"""Tasks that begin at once: a step that does not wait is over before the loop turns."""

from __future__ import annotations

import asyncio
import contextlib
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

import pytest

from pgwf_sdk.worker import _eager_task

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

place: ContextVar[str] = ContextVar("place", default="outside")


def begin(work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
    return _eager_task.begin(work, loop=asyncio.get_running_loop(), name="eager")


def run_both(test: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """From within a task, and from a callback of the loop, where no task is the current one."""
    asyncio.run(test())

    async def from_callback() -> None:
        ended: asyncio.Future[asyncio.Task[None]] = asyncio.get_running_loop().create_future()
        asyncio.get_running_loop().call_soon(lambda: ended.set_result(begin(test())))
        await (await ended)

    asyncio.run(from_callback())


def test_what_does_not_wait_is_done_when_it_returns() -> None:
    done: list[str] = []

    async def work() -> None:
        task = asyncio.current_task()
        done.append("" if task is None else task.get_name())

    async def test() -> None:
        outer = asyncio.current_task()
        task = begin(work())
        assert done.pop() == "eager"
        assert asyncio.current_task() is outer
        await task
        assert task.done()

    run_both(test)


def test_an_error_is_that_of_the_task() -> None:
    async def work() -> None:
        raise ValueError("at once")

    async def test() -> None:
        task = begin(work())
        with pytest.raises(ValueError, match="at once"):
            await task

    run_both(test)


def test_it_goes_on_when_what_it_waits_for_is_done() -> None:
    said: list[str] = []

    async def work() -> None:
        said.append("begun")
        await asyncio.sleep(0)
        said.append("turned")
        async with asyncio.timeout(None):
            await asyncio.get_running_loop().run_in_executor(None, said.append, "in a thread")
        said.append("ended")

    async def test() -> None:
        said.clear()
        task = begin(work())
        assert said == ["begun"]
        await task
        assert said == ["begun", "turned", "in a thread", "ended"]

    run_both(test)


def test_what_it_sets_for_itself_stays_there() -> None:
    seen: list[str] = []

    async def work() -> None:
        place.set("inside")
        await asyncio.sleep(0)
        seen.append(place.get())

    async def test() -> None:
        task = begin(work())
        assert place.get() == "outside"
        await task
        assert seen.pop() == "inside"

    run_both(test)


@pytest.mark.parametrize("turns", [0, 1])
def test_cancelling_it_cancels_what_it_waits_for(turns: int) -> None:
    async def test() -> None:
        awaited: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        caught: list[bool] = []

        async def work() -> None:
            try:
                await awaited
            except asyncio.CancelledError:
                caught.append(awaited.cancelled())
                raise

        task = begin(work())
        for _ in range(turns):
            await asyncio.sleep(0)
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
        assert task.cancelled()
        assert caught == [True]

    run_both(test)


def test_one_that_cancels_itself_before_its_first_wait_is_cancelled_there() -> None:
    said: list[str] = []

    async def work() -> None:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        try:
            await asyncio.sleep(10)
        except asyncio.CancelledError:
            said.append("cancelled")
            raise

    async def test() -> None:
        task = begin(work())
        with contextlib.suppress(asyncio.CancelledError):
            await task
        assert task.cancelled()
        assert said.pop() == "cancelled"

    run_both(test)


def test_a_time_limit_ends_what_it_began() -> None:
    async def work() -> None:
        async with asyncio.timeout(0.01):
            await asyncio.Event().wait()

    async def test() -> None:
        with pytest.raises(TimeoutError):
            await begin(work())

    run_both(test)


def test_a_group_whose_task_fails_cancels_the_rest_of_it() -> None:
    said: list[str] = []

    async def fail() -> None:
        raise ValueError("of the group")

    async def work() -> None:
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(fail())
                await asyncio.Event().wait()
        except* ValueError:
            said.append("failed")

    async def test() -> None:
        await begin(work())
        assert said.pop() == "failed"

    run_both(test)
