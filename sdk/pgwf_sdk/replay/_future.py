"""What the methods of an AsyncContext return: a future that is a coroutine too.

As a future it can be gathered and waited for without a task of its own; as a coroutine it can be given to `create_task`
and `TaskGroup`. Cancelling it abandons the call behind it, also when a task is cancelled that never got to run.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextvars import Context

    from pgwf_sdk.replay._calls import Settled

__all__ = ["CallFuture"]


class CallFuture(asyncio.Future[Any]):
    """Done when a call, or a group of calls, is settled. `is_wanted` once somebody waits for it, or gave it up."""

    def __init__(self, settled: Settled, *, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(loop=loop)
        self.is_wanted = False
        self.settled = settled
        settled.waiter = self
        if settled.is_done:
            self.wake(settled)

    _is_cancelling = False
    _cancel_message: Any = None

    def wake(self, settled: Settled) -> None:
        """Become done with the value or the error, or as cancelled if that was only waiting for the end."""
        settled.waiter = None  # Otherwise each would keep the other until the garbage collector looks.
        if self.done():
            return
        if self._is_cancelling:
            super().cancel(self._cancel_message)
            return
        if settled.error is None:
            self.set_result(settled.value)
        else:
            self.set_exception(settled.error)

    def add_done_callback(self, fn: Callable[[Any], object], /, *, context: Context | None = None) -> None:
        """As every future; whoever waits for one that is not done comes here."""
        self.is_wanted = True
        super().add_done_callback(fn, context=context)

    def cancel(self, msg: Any = None) -> bool:
        self.is_wanted = True
        if self.done():
            return False
        if self.settled.abandon():
            self._is_cancelling, self._cancel_message = True, msg
            return True
        return super().cancel(msg)

    # The coroutine protocol; `send` and `throw` are what a task calls.

    def send(self, _value: None, /) -> CallFuture:
        """Hand itself to the task that waits, or end with the result."""
        if self.done():
            raise StopIteration(self.result())
        self._asyncio_future_blocking = True
        return self

    def throw(self, error: Any, value: Any = None, _trace: Any = None, /) -> CallFuture:
        """End with the error; a task that was cancelled before it ran cancels the call this way."""
        raised: BaseException = error if isinstance(error, BaseException) else (value or error())
        if isinstance(raised, asyncio.CancelledError) and self.cancel() and not self.done():
            self._asyncio_future_blocking = True
            return self
        raise raised

    def close(self) -> None:
        """Nothing to clean up: the activation ends as a whole."""
