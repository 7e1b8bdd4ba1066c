"""A task that begins at once, as those of `asyncio.eager_task_factory` do from Python 3.12 on: what its coroutine does
before it has to wait takes no turn of the loop. Before 3.12 only in a callback of the loop, where it spares a lone step
that turn; elsewhere another task would have to step aside for it, which costs more than it gains."""

import asyncio
import sys
from collections.abc import Coroutine
from contextvars import Context
from typing import Any

if sys.version_info >= (3, 12):

    def begin(
        work: Coroutine[Any, Any, None], *, loop: asyncio.AbstractEventLoop, name: str, context: Context
    ) -> asyncio.Task[None]:
        """Run `work` in `context` on the running loop up to its first wait; return the task that goes on with it."""
        return asyncio.Task(work, loop=loop, name=name, context=context, eager_start=True)

else:

    def begin(
        work: Coroutine[Any, Any, None], *, loop: asyncio.AbstractEventLoop, name: str, context: Context
    ) -> asyncio.Task[None]:
        """Run `work` in `context` on the running loop up to its first wait, if no task is current; return its task."""
        if asyncio.current_task(loop) is not None:
            return asyncio.Task(work, loop=loop, name=name, context=context)
        begun = _Begun(work)
        task = asyncio.Task(begun, loop=loop, name=name, context=context)
        asyncio.tasks._enter_task(loop, task)
        try:
            begun.awaited = context.run(work.send, None)
        except StopIteration:
            begun.has_ended = True
        except BaseException as error:  # noqa: BLE001 - the coroutine has ended, and its task ends with it
            begun.error = error
        finally:
            asyncio.tasks._leave_task(loop, task)
        return task

    class _Begun(Coroutine[Any, Any, None]):
        """A coroutine that came to its first wait, or to its end, before its task did."""

        __slots__ = ("_is_known", "_work", "awaited", "error", "has_ended")

        def __init__(self, work: Coroutine[Any, Any, None]) -> None:
            self._work = work
            self._is_known = False  # To its task.
            self.awaited: Any = None
            """What it waits for first."""
            self.has_ended = False
            self.error: BaseException | None = None

        def send(self, value: None, /) -> Any:
            if self._is_known:
                return self._work.send(value)
            self._tell_end()
            return self.awaited

        def throw(self, *error: Any) -> Any:
            if not self._is_known:  # Cancelled before its task knew what to cancel instead.
                self._tell_end()
                said = error[0].args if isinstance(error[0], asyncio.CancelledError) else ()
                if asyncio.isfuture(self.awaited) and self.awaited.cancel(*said[:1]):
                    return self.awaited
            return self._work.throw(*error)

        def _tell_end(self) -> None:
            self._is_known = True
            if self.has_ended:
                raise StopIteration
            if self.error is not None:
                error, self.error = self.error, None  # Or each would keep the other until the garbage collector looks.
                try:
                    raise error
                finally:
                    del error

        def close(self) -> None:
            self._work.close()

        def __await__(self) -> Any:
            raise AssertionError("only its task awaits it")
