"""What is still to be done when the code of a run has left: compensations of what it did, and its exit steps.

Both were planned while the code ran, and are done one after the other, last planned first, each as a call of the root
scope with entries of its own. So whoever replays a run that was cut off in between goes on with the next of them.
Compensations are done when the run fails or is cancelled, exit steps always. One that fails for good does not stop the
others; the run then fails with a CleanupFailedError.
"""

from __future__ import annotations

from asyncio import CancelledError
from typing import TYPE_CHECKING, Any, cast

from pgwf_sdk import _failure
from pgwf_sdk._errors import CleanupFailedError, RunCancelled, RunContinued, SerialisationError
from pgwf_sdk.replay._calls import ChildCall, CompensationCall, StepCall
from pgwf_sdk.replay._commands import Cancelled, Completed, Continued, Failed

if TYPE_CHECKING:
    from pgwf_sdk._definition import Call
    from pgwf_sdk._serial import Codec
    from pgwf_sdk.replay._commands import Command, Outcome
    from pgwf_sdk.replay._machine import Machine
    from pgwf_sdk.replay._plan import Plan

__all__ = ["Unwinding"]


class Unwinding:
    """The end of one run's code, which raised `error` or returned `value` (None)."""

    def __init__(self, machine: Machine, codec: Codec, value: Any, error: BaseException | None) -> None:
        self._machine = machine
        self._completed: Completed | None = None
        if error is None:
            try:
                self._completed = Completed(*codec.encode(value, subject="result"))
            except SerialisationError as refused:
                error = refused  # A failure as any other: what the run did is undone.
        self._left_with = error
        self._is_failed = error is not None and not isinstance(error, RunContinued)
        self.is_over = False
        """True once all is done."""
        self._has_begun = False
        self._unfinished: list[StepCall] = []
        self._current: CompensationCall | None = None
        self._failed: list[CompensationCall] = []

    @property
    def error(self) -> BaseException | None:
        """What the run ends with, once all is done."""
        if not self._failed:
            return self._left_with
        said = "; ".join(map(_said_of, self._failed))
        failure = CleanupFailedError(
            f"{len(self._failed)} of the steps that clean up after the run failed for good ({said}); settle by hand"
            " what they should have done",
            keys=tuple(call.id.key for call in self._failed),
        )
        failure.__cause__ = self._left_with if self._is_failed else self._failed[0].error
        return failure

    @property
    def outcome(self) -> Outcome:
        """How the run ends, once all is done."""
        error, cancel = self.error, self._machine.cancel
        if error is None:
            assert self._completed is not None
            return self._completed
        if isinstance(error, RunContinued):
            return Continued(cast("Call[Any]", error.call), cast("Call[Any]", error.call).encode())
        is_told = isinstance(error, RunCancelled) or (self._machine.is_awaited and isinstance(error, CancelledError))
        if cancel is not None and is_told:
            return Cancelled(_failure.describe(cancel.error))
        return Failed(_failure.describe(error))

    def go_on(self) -> list[Command] | None:
        """Return what the worker is to do next; None once all is done, or when the machine is blocked."""
        machine = self._machine
        if self.is_over or not self._begin():
            self.is_over = True
            return None
        while machine.blocked is None:
            if self._current is not None and self._current.is_done:
                if self._current.error is not None:
                    self._failed.append(self._current)
                self._current = None
            if self._current is None and all(call.is_done for call in self._unfinished):
                self._current = self._next()
                if self._current is None:
                    self.is_over = True
                    return None
                machine.open(self._current)
            # Nobody is left to be woken by what is settled, and a cancel request comes too late.
            elif machine.advance() is None and machine.blocked is None:
                return machine.take_commands()
        return None

    def _begin(self) -> bool:
        """Give up what is open, but for steps that may leave something to undo. False: there is nothing to do."""
        if self._has_begun:
            return True
        is_open = [call for call in self._machine.open_calls() if isinstance(call, StepCall)]
        self._unfinished = [call for call in is_open if self._is_failed and call.step.undo is not None]
        self._has_begun = bool(self._unfinished) or any(self._is_due(plan) for plan in self._machine.plans)
        if self._has_begun:
            for call in self._machine.open_calls():
                if call not in self._unfinished and not (isinstance(call, ChildCall) and call.is_spawned):
                    self._machine.leave(call)
        return self._has_begun

    def _next(self) -> CompensationCall | None:
        plans = self._machine.plans
        while plans:
            plan = plans.pop()
            if self._is_due(plan):
                return CompensationCall(self._machine.root, plan)
        return None

    def _is_due(self, plan: Plan) -> bool:
        return self._is_failed or plan.undoes is None


def _said_of(call: CompensationCall) -> str:
    was = "planned by on_exit" if call.undoes is None else f"undoing {call.undoes}"
    assert call.error is not None
    return f"{call.id.key}, {was}: {_failure.line_of(call.error)}"
