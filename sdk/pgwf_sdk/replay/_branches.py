"""Branches of an async workflow: a task each, joined before the `parallel` or `map` that started them goes on."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from pgwf_sdk.replay._calls import Settled
from pgwf_sdk.replay._future import CallFuture

if TYPE_CHECKING:
    from collections.abc import Callable

    from pgwf_sdk.replay._policy import Tally

__all__ = ["BranchTasks", "JoinFuture"]


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
            self._finish()

    def abandon(self) -> None:
        self._is_stopped = True
        for task in list(self._running):
            task.cancel()

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
            self._finish()

    def _finish(self) -> None:
        self.value, self.error = self._tally.outcome()
        self.is_done = True
        if self.waiter is not None:
            self.waiter.wake(self)


class JoinFuture(CallFuture):
    """Done when all branches are. A cancelled one cancels them and waits for them first."""

    def __init__(self, branches: BranchTasks, *, loop: asyncio.AbstractEventLoop) -> None:
        self._cancel_message: Any = None
        self._is_cancelling = False
        super().__init__(branches, loop=loop)

    def wake(self, settled: Settled) -> None:
        if self._is_cancelling:
            super(CallFuture, self).cancel(self._cancel_message)
        else:
            super().wake(settled)

    def cancel(self, msg: Any = None) -> bool:
        if self.done():
            return False
        self._is_cancelling = True
        self._cancel_message = msg
        self.settled.abandon()
        return True
