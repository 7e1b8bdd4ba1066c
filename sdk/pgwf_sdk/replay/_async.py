"""One activation of an `async def` workflow."""

from __future__ import annotations

import asyncio
import inspect
from contextvars import copy_context
from datetime import timedelta
from typing import TYPE_CHECKING, Any, cast

from pgwf_sdk._definition import inside_workflow
from pgwf_sdk._errors import ContextError
from pgwf_sdk.replay import _mismatch
from pgwf_sdk.replay._async_context import AsyncContext, current_scope
from pgwf_sdk.replay._calls import Settled, TimerCall
from pgwf_sdk.replay._commands import Blocked, Command, Outcome, RunInfo
from pgwf_sdk.replay._core import check_duration
from pgwf_sdk.replay._future import CallFuture
from pgwf_sdk.replay._group import CallGroup
from pgwf_sdk.replay._input import decode_input
from pgwf_sdk.replay._loop import WorkflowLoop
from pgwf_sdk.replay._machine import CancelRequest, Machine
from pgwf_sdk.replay._unwinding import Unwinding

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pgwf_journal import Entry
    from pgwf_sdk._definition import Workflow

__all__ = ["AsyncActivation"]


class AsyncActivation:
    """Replays a run and goes on with it. Every method is called on one thread, and never from inside a task's step of
    the loop that runs there: use a callback.

    `outcome` is None until the workflow has ended or cannot go on. Whoever gives an activation up calls `close`.
    """

    def __init__(self, workflow: Workflow[..., Any], run: RunInfo, history: Sequence[Entry]) -> None:
        self.outcome: Outcome | None = None
        self._workflow = workflow
        self._machine = Machine(workflow, run, history)
        self._root: asyncio.Task[Any] | None = None
        self._has_ended = False
        self._unwinding: Unwinding | None = None
        self._timers: dict[int, TimerCall] = {}
        # What a loop must have according to its stub is refused by methods that are made at import.
        make_loop: Callable[..., WorkflowLoop] = cast("Any", WorkflowLoop)
        self._loop = make_loop(
            time=self._seconds,
            set_timer=self._set_timer,
            drop_timer=self._drop_timer,
            is_quiet=lambda: self._machine.is_silent,
        )
        self._machine.stands_at = self._loop.stands_at

    def start(self) -> list[Command]:
        """Run the workflow over its journal and return what is to be done next."""
        if self._root is not None or self.outcome is not None:
            raise ContextError(f"run {self._machine.run.run_id}: this activation was started already; make a new one")
        arguments = decode_input(self._workflow, self._machine)
        if not isinstance(arguments, tuple):
            self.outcome = arguments
            return []
        args, kwargs = arguments
        context = copy_context()
        context.run(inside_workflow.set, self._workflow.name)
        context.run(current_scope.set, self._machine.root)
        ctx = AsyncContext(self._machine, self._machine.root, self._loop)

        def begin() -> list[Command]:
            body = context.run(self._workflow.fn, ctx, *args, **kwargs)
            self._root = self._loop.create_task(body, name=self._workflow.name, context=context)
            return self._proceed()

        return self._loop.inside(begin)

    def feed(self, entries: Sequence[Entry]) -> list[Command]:
        """Take entries that were committed since, run on, and return what is to be done next.

        Every entry of the run must be fed once, opened ones too, in order of seq. HistoryError: one is missing.
        """
        if self.outcome is not None:
            return []
        self._machine.feed(entries)
        return self._loop.inside(self._proceed)

    @property
    def is_ending(self) -> bool:
        """True when the code has returned, and the run ends once all that rides along is recorded."""
        return self._has_ended

    @property
    def wake_after(self) -> int:
        """How many children must complete before the code can go on, if nothing else comes."""
        return self._machine.wake_after

    def close(self) -> None:
        """Put the coroutines away, without effect on the run; idempotent."""
        self._machine.is_latched = True
        if self._loop.is_running():
            self._loop.inside(self._loop.close_tasks)

    def _proceed(self) -> list[Command]:
        machine, root = self._machine, self._root
        assert root is not None
        if self._has_ended:
            return self._finish()
        while self._run_code(root):
            settled = machine.advance()
            if isinstance(settled, CancelRequest):
                root.cancel(str(settled.error))
            elif settled is not None:
                if settled.waiter is not None:
                    settled.waiter.wake(settled)
            elif machine.blocked is None:
                if machine.is_waiting:
                    return machine.take_commands()
                machine.stall()
        if machine.blocked is not None:
            if machine.difference is not None:  # By now tasks beside it have made calls that tell more.
                return self._end(Blocked(_mismatch.different_call(machine, *machine.difference)))
            return self._end(machine.blocked)
        error = _error_of(root)
        if error is None:  # One of the user's may have no length, and so be as good as False.
            error = _never_awaited(machine)
        value = root.result() if error is None else None
        self._unwinding = Unwinding(machine, self._workflow.codec, value, error)
        self._leave_code()
        return self._finish()

    def _run_code(self, root: asyncio.Task[Any]) -> bool:
        """Run the workflow until nothing can run. False: it has ended, or it cannot go on."""
        if self._machine.blocked is None and not self._loop.run_ready():
            self._machine.stall()
        return self._machine.blocked is None and not root.done()

    def _leave_code(self) -> None:
        self._has_ended = True
        self._machine.is_latched = True
        self._loop.close_tasks()
        self._machine.is_latched = False

    def _finish(self) -> list[Command]:
        """The code has returned; the run ends once what it planned is done and all that rides along is recorded."""
        unwinding = self._unwinding
        assert unwinding is not None
        commands = unwinding.go_on()
        if commands is None:
            commands = self._machine.end(unwinding.error)
        if self._machine.blocked is not None:
            return self._end(self._machine.blocked)
        if unwinding.is_over and not self._machine.has_unrecorded:
            self._machine.is_latched = True
            self.outcome = unwinding.outcome
        return commands

    def _end(self, blocked: Blocked) -> list[Command]:
        self.outcome = blocked
        self.close()
        return []

    # -- timers of the loop

    def _seconds(self) -> float:
        return (self._machine.now - self._machine.run.started_at).total_seconds()

    def _set_timer(self, handle: asyncio.TimerHandle) -> None:
        scope = current_scope.get(None)
        if scope is None or scope.machine is not self._machine:
            scope = self._machine.root
        seconds = max(0.0, handle.when() - self._seconds())
        duration = timedelta(seconds=min(seconds, timedelta.max.total_seconds() // 2))
        check_duration(duration, "a timer of asyncio")
        call = TimerCall(scope, "asyncio", duration=duration)
        call.waiter = _TimerWaiter(self, handle)
        self._machine.open(call)
        self._timers[id(handle)] = call

    def _drop_timer(self, handle: asyncio.TimerHandle) -> None:
        call = self._timers.pop(id(handle), None)
        if call is not None:
            call.abandon()

    def fire(self, handle: asyncio.TimerHandle) -> None:
        """A timer's entry was delivered."""
        self._timers.pop(id(handle), None)
        self._loop.fire(handle)


def _error_of(root: asyncio.Task[Any]) -> BaseException | None:
    return asyncio.CancelledError("the workflow cancelled itself") if root.cancelled() else root.exception()


def _never_awaited(machine: Machine) -> ContextError | None:
    """The error of code that returned although a call it made was neither done, nor awaited, nor given up."""
    if machine.leaving is not None and inspect.getcoroutinestate(machine.leaving) == inspect.CORO_CREATED:
        machine.leaving.close()
        return ContextError(
            f"ctx.continue_as_new was never awaited, so workflow {machine.run.workflow!r} returned instead of going on;"
            " expected `await ctx.continue_as_new(…)`"
        )
    for call in machine.open_calls():
        waiter = call.waiter.waiter if isinstance(call.waiter, CallGroup) else call.waiter
        if isinstance(waiter, CallFuture) and not waiter.is_wanted:
            error = ContextError(
                f"{call.kind.label} {call.name!r} ({call.id.key}) was never awaited, and not done when workflow"
                f" {machine.run.workflow!r} returned; expected `await ctx.…`, or asyncio.create_task(ctx.…) for what"
                " may be left unfinished"
            )
            if call.code is not None:  # A note, since a replay may not know the line.
                error.add_note(f"It was called at {call.code[0]}:{call.code[1]}.")
            return error
    return None


class _TimerWaiter:
    __slots__ = ("activation", "handle")

    def __init__(self, activation: AsyncActivation, handle: asyncio.TimerHandle) -> None:
        self.activation = activation
        self.handle = handle

    def wake(self, _settled: Settled) -> None:
        self.activation.fire(self.handle)
