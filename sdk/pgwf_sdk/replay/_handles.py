"""What a workflow holds of calls it has made and not waited for: children and awakeables, in both kinds of workflow."""

from __future__ import annotations

import asyncio
from threading import get_ident
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from pgwf_sdk._errors import ContextError
from pgwf_sdk.replay._calls import ChildCall, PendingCall, Settled

if TYPE_CHECKING:
    from collections.abc import Awaitable

    from pgwf_sdk.replay._awakeable import AwakeableCall
    from pgwf_sdk.replay._fibers import Fibers
    from pgwf_sdk.replay._loop import WorkflowLoop

__all__ = ["AsyncAwakeable", "AsyncChild", "Awakeable", "Child"]

R_co = TypeVar("R_co", covariant=True)


class _Watch(Settled):
    """One wait for a call that others may wait for too: giving it up leaves the call alone."""

    __slots__ = ()

    def take(self, settled: Settled) -> None:
        self.value, self.error, self.is_done = settled.value, settled.error, True

    def abandon(self) -> bool:
        self.waiter = None
        return False


class _Handle:
    __slots__ = ("_call", "_fibers", "_watches")

    def __init__(self, call: PendingCall, fibers: Fibers) -> None:
        self._call = call
        self._fibers = fibers
        self._watches: list[_Watch] = []
        call.waiter = self

    def _outcome(self, asked: str) -> Any:
        fiber = self._fibers.current
        if fiber.ident != get_ident():
            raise ContextError(f"{asked} was asked for outside the code of the run that made it")
        watch = _Watch()
        if self._call.is_done:
            watch.take(self._call)
        else:
            self._watches.append(watch)
        return self._fibers.wait(fiber, watch)

    def wake(self, settled: Settled) -> None:
        for watch in self._watches:
            watch.take(settled)
            if watch.waiter is not None:
                watch.waiter.wake(watch)


class Child(_Handle, Generic[R_co]):
    """A child run that was started and not waited for."""

    __slots__ = ("_run_id",)

    def __init__(self, call: ChildCall, fibers: Fibers) -> None:
        super().__init__(call, fibers)
        self._run_id = call.child_run_id

    @property
    def run_id(self) -> str:
        """The id of the child, the same in every replay. It may be passed on before the child is started."""
        return self._run_id

    def result(self) -> R_co:
        """Return what the child returned. ChildFailedError: it failed, was cancelled or was terminated."""
        result: R_co = self._outcome("a child's result")
        return result


class Awakeable(_Handle, Generic[R_co]):
    """A promise of this run that somebody outside completes, once, with its token."""

    __slots__ = ("_token",)

    def __init__(self, call: AwakeableCall, fibers: Fibers) -> None:
        super().__init__(call, fibers)
        self._token = call.token

    @property
    def token(self) -> str:
        """What `client.complete_awakeable` takes. Whoever has it can complete the promise: treat it as a password."""
        return self._token

    def wait(self) -> R_co:
        """Return what the promise was completed with, or raise what it was failed with.

        WaitTimeoutError: neither happened within its timeout. Waiting again gives the same.
        """
        result: R_co = self._outcome("an awakeable's value")
        return result


class _AsyncHandle:
    __slots__ = ("_future",)

    def __init__(self, call: PendingCall, loop: WorkflowLoop) -> None:
        self._future: asyncio.Future[Any] = loop.create_future()
        call.waiter = self

    def wake(self, settled: Settled) -> None:
        if settled.error is None:
            self._future.set_result(settled.value)
        else:
            self._future.set_exception(settled.error)
            self._future.exception()  # Marked as read: not everybody asks how it ended.


class AsyncChild(_AsyncHandle, Generic[R_co]):
    """A child run that was started and not waited for."""

    __slots__ = ("_run_id",)

    def __init__(self, call: ChildCall, loop: WorkflowLoop) -> None:
        super().__init__(call, loop)
        self._run_id = call.child_run_id

    @property
    def run_id(self) -> str:
        """The id of the child, the same in every replay. It may be passed on before the child is started."""
        return self._run_id

    def result(self) -> Awaitable[R_co]:
        """What the child returned. ChildFailedError: it failed, was cancelled or was terminated."""
        # Shielded: several may wait, and one of them giving up is no reason to cancel the child.
        return asyncio.shield(self._future)


class AsyncAwakeable(_AsyncHandle, Generic[R_co]):
    """A promise of this run that somebody outside completes, once, with its token."""

    __slots__ = ("_token",)

    def __init__(self, call: AwakeableCall, loop: WorkflowLoop) -> None:
        super().__init__(call, loop)
        self._token = call.token

    @property
    def token(self) -> str:
        """What `client.complete_awakeable` takes. Whoever has it can complete the promise: treat it as a password."""
        return self._token

    def wait(self) -> Awaitable[R_co]:
        """What the promise was completed with; awaiting it raises what it was failed with.

        WaitTimeoutError: neither happened within its timeout. Waiting again gives the same.
        """
        return asyncio.shield(self._future)
