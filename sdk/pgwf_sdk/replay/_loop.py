"""An event loop that knows no clock and no sockets: it runs what is ready, and its timers are timers of the journal.

It has its own ready queue, so that "nothing can run" is simply an empty queue.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from collections import deque
from contextvars import Context, copy_context
from typing import TYPE_CHECKING, Any, Final, NoReturn, TypeVar

from pgwf_sdk._errors import ContextError
from pgwf_sdk.replay._future import CallFuture
from pgwf_sdk.replay._places import line_of_task

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from pgwf_sdk.replay._places import Line

__all__ = ["ReadyHandle", "WorkflowLoop"]

T = TypeVar("T")

CALLBACKS_MAX: Final = 10_000_000
"""Callbacks run between two entries before a workflow counts as one that never waits."""
CLOSES_MAX: Final = 100
"""Times a coroutine is closed again when it awaits in its `finally`."""

_logger = logging.getLogger("pgwf_sdk.replay")


class ReadyHandle:
    """A callback in the ready queue; what `call_soon` returns."""

    __slots__ = ("args", "callback", "context", "is_cancelled")

    def __init__(self, callback: Callable[..., object], args: tuple[Any, ...], context: Context) -> None:
        self.callback = callback
        self.args = args
        self.context = context
        self.is_cancelled = False

    def cancel(self) -> None:
        """Do not run it."""
        self.is_cancelled = True

    def cancelled(self) -> bool:
        """True after `cancel`."""
        return self.is_cancelled


class WorkflowLoop(asyncio.AbstractEventLoop):
    """Runs the tasks of one activation. `set_timer` and `drop_timer` connect it to the journal."""

    def __init__(
        self,
        *,
        time: Callable[[], float],
        set_timer: Callable[[asyncio.TimerHandle], None],
        drop_timer: Callable[[asyncio.TimerHandle], None],
        is_quiet: Callable[[], bool],
    ) -> None:
        self._ready: deque[ReadyHandle] = deque()
        self._tasks: list[asyncio.Task[Any]] = []
        self._tasks_kept_max = 64
        self._time = time
        self._set_timer = set_timer
        self._drop_timer = drop_timer
        self._is_quiet = is_quiet
        self._is_closing = False

    # -- what the driver uses

    def inside(self, act: Callable[[], T]) -> T:
        """Call `act` with this loop as the running one of the thread, and put back whatever loop ran before."""
        # A function, since a context manager would cost more than what runs inside.
        outer = asyncio._get_running_loop()  # pyright: ignore[reportPrivateUsage] - documented for loop implementors
        hooks = sys.get_asyncgen_hooks()
        asyncio._set_running_loop(self)  # pyright: ignore[reportPrivateUsage]
        sys.set_asyncgen_hooks(None, None)  # Those of the outer loop would take what is not its own.
        try:
            return act()
        finally:
            sys.set_asyncgen_hooks(*hooks)
            asyncio._set_running_loop(outer)  # pyright: ignore[reportPrivateUsage]

    def run_ready(self) -> bool:
        """Run callbacks until none is left. False: the workflow never comes to a wait."""
        ready = self._ready
        left = CALLBACKS_MAX
        while ready:
            handle = ready.popleft()
            if handle.is_cancelled:
                continue
            try:
                handle.context.run(handle.callback, *handle.args)
            except Exception as error:  # noqa: BLE001 - logged with its verdict: the other callbacks go on
                self.call_exception_handler({"message": f"callback {handle.callback!r} failed", "exception": error})
            left -= 1
            if not left:
                return False
        return True

    def stands_at(self) -> list[Line]:
        """Where its tasks await."""
        lines = [line_of_task(task) for task in self._tasks if not task.done()]
        return [line for line in lines if line is not None]

    def close_tasks(self) -> None:
        """Close every coroutine, the youngest first, on this thread: never leave it to the garbage collector."""
        self._is_closing = True
        for task in reversed(self._tasks):
            if not task.done():
                _close(task.get_coro())
        self._tasks.clear()
        self._ready.clear()

    # -- what asyncio and the code of the workflow use

    def call_soon(  # type: ignore[override]
        self, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> ReadyHandle:
        handle = ReadyHandle(callback, args, copy_context() if context is None else context)
        self._ready.append(handle)
        return handle

    def call_soon_threadsafe(  # type: ignore[override]
        self, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> ReadyHandle:
        if asyncio._get_running_loop() is not self:  # pyright: ignore[reportPrivateUsage]
            raise ContextError(
                "a workflow was called from another thread; expected threads to live inside steps, which run in threads"
                " of their own"
            )
        return self.call_soon(callback, *args, context=context)

    def call_later(  # type: ignore[override]
        self, delay: float, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        return self.call_at(self._time() + delay, callback, *args, context=context)

    def call_at(  # type: ignore[override]
        self, when: float, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        handle = asyncio.TimerHandle(when, callback, args, self, context)
        self._set_timer(handle)
        return handle

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        self._drop_timer(handle)

    def fire(self, handle: asyncio.TimerHandle) -> None:
        """Queue the callback of a timer whose entry was delivered."""
        if not handle.cancelled():
            self._ready.append(ReadyHandle(handle._run, (), copy_context()))  # pyright: ignore

    def time(self) -> float:
        """Seconds of the journal since the run started."""
        return self._time()

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=self)

    def create_task(  # type: ignore[override]
        self, coro: Coroutine[Any, Any, Any], *, name: str | None = None, context: Context | None = None, **options: Any
    ) -> asyncio.Task[Any]:
        if isinstance(coro, CallFuture):
            coro.is_wanted = True
        task: asyncio.Task[Any] = asyncio.Task(coro, loop=self, name=name, context=context, **options)
        # Kept alive here: asyncio itself holds tasks weakly, and when one is collected must not matter to a replay.
        self._tasks.append(task)
        if len(self._tasks) > self._tasks_kept_max:
            self._tasks = [known for known in self._tasks if not known.done()]
            self._tasks_kept_max = 2 * len(self._tasks) + 64
        return task

    def get_debug(self) -> bool:
        return False

    def set_debug(self, enabled: bool) -> None:
        """Without effect: asyncio's debug mode looks at clocks."""

    def is_running(self) -> bool:
        return not self._is_closing

    def is_closed(self) -> bool:
        return self._is_closing

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """Log what nobody retrieved, once: not while an earlier activation's steps are only repeated."""
        if self._is_closing or self._is_quiet() or isinstance(context.get("future"), CallFuture):
            return
        error = context.get("exception")
        _logger.error("in a workflow: %s", context.get("message"), exc_info=error if error is not None else False)

    def default_exception_handler(self, context: dict[str, Any]) -> None:
        self.call_exception_handler(context)


def _close(coroutine: Any) -> None:
    for _ in range(CLOSES_MAX):
        try:
            coroutine.close()
        except RuntimeError:
            continue  # It awaited again in a `finally`; the next close leaves that await as well.
        except BaseException:  # The activation is over: what its cleanup raises has nobody to go to.
            _logger.debug("a workflow raised while it was put away", exc_info=True)
        return


def _refused(method: str) -> Callable[..., NoReturn]:
    def refuse(self: WorkflowLoop, *_args: object, **_kwargs: object) -> NoReturn:
        raise ContextError(
            f"a workflow used its event loop's {method}, which would not be repeated in a replay; expected network,"
            " processes, threads and signals to be used inside steps"
        )

    return refuse


for _method in (
    "run_in_executor", "create_connection", "create_server", "create_unix_connection", "create_unix_server",
    "create_datagram_endpoint", "connect_accepted_socket", "sendfile", "start_tls", "connect_read_pipe",
    "connect_write_pipe", "subprocess_exec", "subprocess_shell", "add_reader", "remove_reader", "add_writer",
    "remove_writer", "sock_recv", "sock_recv_into", "sock_recvfrom", "sock_recvfrom_into", "sock_sendall",
    "sock_sendto", "sock_connect", "sock_accept", "sock_sendfile", "getaddrinfo", "getnameinfo",
    "add_signal_handler", "remove_signal_handler", "run_forever", "run_until_complete",
):  # fmt: skip
    setattr(WorkflowLoop, _method, _refused(_method))
