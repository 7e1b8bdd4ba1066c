"""Tasks that begin at once: a step that does not wait is over before the loop turns."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from contextvars import ContextVar, copy_context
from typing import TYPE_CHECKING, Any

import pytest

from pgwf_sdk.worker import _eager_task

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine


place: ContextVar[str] = ContextVar("place", default="outside")


def begin(work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
    return _eager_task.begin(work, loop=asyncio.get_running_loop(), name="eager", context=copy_context())


async def begin_in_callback(
    work: Coroutine[Any, Any, None], then: Callable[[asyncio.Task[None]], object] = lambda task: None
) -> asyncio.Task[None]:
    """Begin where no task is the current one, and do something before the loop turns."""
    made: asyncio.Future[asyncio.Task[None]] = asyncio.get_running_loop().create_future()

    def callback() -> None:
        task = begin(work)
        try:
            then(task)
        except BaseException as error:  # noqa: BLE001 - raised where it is awaited
            made.set_exception(error)
        else:
            made.set_result(task)

    asyncio.get_running_loop().call_soon(callback)
    return await made


def test_what_does_not_wait_is_done_when_it_returns() -> None:
    done: list[str] = []

    async def work() -> None:
        task = asyncio.current_task()
        done.append("" if task is None else task.get_name())

    def check(_: asyncio.Task[None]) -> None:
        assert done == ["eager"]
        assert asyncio.current_task() is None

    async def test() -> None:
        await (await begin_in_callback(work(), check))

    asyncio.run(test())


def test_within_a_task_it_begins_at_once_where_python_can() -> None:
    done: list[str] = []

    async def work() -> None:
        done.append("done")

    async def test() -> None:
        outer = asyncio.current_task()
        task = begin(work())
        assert done == (["done"] if sys.version_info >= (3, 12) else [])
        assert asyncio.current_task() is outer
        await task

    asyncio.run(test())
    assert done == ["done"]


def test_an_error_is_that_of_the_task() -> None:
    async def work() -> None:
        raise ValueError("at once")

    async def test() -> None:
        task = await begin_in_callback(work())
        with pytest.raises(ValueError, match="at once"):
            await task

    asyncio.run(test())


def test_it_goes_on_when_what_it_waits_for_is_done() -> None:
    said: list[str] = []

    async def work() -> None:
        said.append("begun")
        await asyncio.sleep(0)
        said.append("turned")
        async with asyncio.timeout(None):
            await asyncio.get_running_loop().run_in_executor(None, said.append, "in a thread")
        said.append("ended")

    def check(_: asyncio.Task[None]) -> None:
        assert said == ["begun"]

    async def test() -> None:
        await (await begin_in_callback(work(), check))

    asyncio.run(test())
    assert said == ["begun", "turned", "in a thread", "ended"]


def test_what_it_sets_for_itself_stays_there() -> None:
    seen: list[str] = []

    async def work() -> None:
        place.set("inside")
        await asyncio.sleep(0)
        seen.append(place.get())

    def check(_: asyncio.Task[None]) -> None:
        assert place.get() == "outside"

    async def test() -> None:
        await (await begin_in_callback(work(), check))

    asyncio.run(test())
    assert seen == ["inside"]


@pytest.mark.parametrize("turns", [0, 1])
def test_cancelling_it_cancels_what_it_waits_for(turns: int) -> None:
    caught: list[object] = []

    async def test() -> None:
        awaited: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        async def work() -> None:
            try:
                await awaited
            except asyncio.CancelledError as error:
                caught.extend([awaited.cancelled(), str(error)])
                raise

        said = "by the test"  # Libraries tell by the message whose cancellation it is.
        task = await begin_in_callback(work(), lambda task: None if turns else task.cancel(said))
        task.cancel(said)
        with contextlib.suppress(asyncio.CancelledError):
            await task
        assert task.cancelled()

    asyncio.run(test())
    assert caught == [True, "by the test"]


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
        task = await begin_in_callback(work())
        with contextlib.suppress(asyncio.CancelledError):
            await task
        assert task.cancelled()

    asyncio.run(test())
    assert said == ["cancelled"]


def test_a_time_limit_ends_what_it_began() -> None:
    async def work() -> None:
        async with asyncio.timeout(0.01):
            await asyncio.Event().wait()

    async def test() -> None:
        with pytest.raises(TimeoutError):
            await (await begin_in_callback(work()))

    asyncio.run(test())


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
        await (await begin_in_callback(work()))

    asyncio.run(test())
    assert said == ["failed"]
