"""Branches of an async workflow: a task each, joined before the `parallel` or `map` that started them goes on.

A shielded part of a workflow is a task as well.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from pgwf_sdk.replay._calls import Settled
from pgwf_sdk.replay._future import CallFuture

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine

    from pgwf_sdk.replay._async_context import AsyncContext
    from pgwf_sdk.replay._awakeable import AwakeableCall
    from pgwf_sdk.replay._loop import WorkflowLoop
    from pgwf_sdk.replay._policy import Tally

__all__ = ["BranchTasks", "Shielded", "answered", "run_branch"]


class BranchTasks(Settled):
    """Runs `start(index)` for each index, `width` at a time. Those that can change nothing more are cancelled; all are
    joined.
    """

    __slots__ = ("_count", "_is_stopped", "_next", "_running", "_start", "_tally", "_width")

    def __init__(
        self,
        start: Callable[[int], asyncio.Task[Any]],
        count: int,
        *,
        tally: Tally,
        width: int | None,
    ) -> None:
        super().__init__()
        self._tally = tally
        self._start = start
        self._count = count
        self._width = count if width is None else width
        self._next = 0
        self._running: dict[asyncio.Task[Any], int] = {}
        self._is_stopped = tally.is_over
        self._fill()
        if not self._running:
            self.finish(*self._tally.outcome())

    def abandon(self) -> bool:
        if not self._is_stopped:
            self._is_stopped = True
            for task in list(self._running):
                task.cancel()
        return True

    def _fill(self) -> None:
        while not self._is_stopped and self._next < self._count and len(self._running) < self._width:
            index = self._next
            self._next += 1
            task = self._start(index)
            self._running[task] = index
            task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[Any]) -> None:
        index = self._running.pop(task)
        error: BaseException | None = asyncio.CancelledError() if task.cancelled() else task.exception()
        if not self._is_stopped:
            if error is None:
                self._tally.succeeded(index, task.result())
            else:
                self._tally.failed(index, error)
            if self._tally.is_over:
                self.abandon()
        self._fill()
        if not self._running:
            self.finish(*self._tally.outcome())


class Shielded(Settled):
    """A task that is not told of a cancellation; who waits for it hears of that when it has ended."""

    __slots__ = ()

    def __init__(self, task: asyncio.Task[Any]) -> None:
        super().__init__()
        task.add_done_callback(self._ended)

    def abandon(self) -> bool:
        return True

    def _ended(self, task: asyncio.Task[Any]) -> None:
        error = asyncio.CancelledError() if task.cancelled() else task.exception()
        self.finish(task.result() if error is None else None, error)


async def run_branch(fn: Callable[..., Awaitable[Any]], ctx: AsyncContext, args: tuple[Any, ...]) -> Any:
    """The body of a branch, as a coroutine whatever kind of awaitable it gives."""
    return await fn(ctx, *args)


async def answered(started: Coroutine[None, None, Any], awakeable: AwakeableCall, loop: WorkflowLoop) -> Any:
    """What a promise is completed with, once the step that gives it away has returned."""
    try:
        await started
        return await CallFuture(awakeable, loop=loop)
    finally:
        awakeable.abandon()
