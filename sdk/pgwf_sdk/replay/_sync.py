"""One activation of a `def` workflow."""

from __future__ import annotations

from contextvars import copy_context
from threading import get_ident
from typing import TYPE_CHECKING, Any

from pgwf_sdk._definition import inside_workflow
from pgwf_sdk._errors import ContextError, Suspend
from pgwf_sdk.replay._commands import Command, Outcome, RunInfo, Suspended
from pgwf_sdk.replay._context import Context
from pgwf_sdk.replay._fibers import Fibers
from pgwf_sdk.replay._input import decode_input
from pgwf_sdk.replay._machine import Machine
from pgwf_sdk.replay._unwinding import Unwinding

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pgwf_journal import Entry
    from pgwf_sdk._definition import Workflow

__all__ = ["SyncActivation"]


class SyncActivation:
    """Replays a run and goes on with it, on the thread that calls `run`."""

    def __init__(self, workflow: Workflow[..., Any], run: RunInfo, history: Sequence[Entry]) -> None:
        self._workflow = workflow
        self._machine = Machine(workflow, run, history)
        self._is_started = False
        self._has_ended = False

    def run(self, exchange: Callable[[list[Command]], Sequence[Entry]]) -> Outcome:
        """Run the workflow until it ends, cannot go on, or `exchange` gives it up.

        `exchange` takes what is to be done and returns every entry committed since, at least one, in order of seq; it
        may be called on the thread of a branch, but never twice at once. It raises Suspend to give the activation up;
        anything else it raises comes out of here, after the workflow was put away without effect.
        """
        machine = self._machine
        if self._is_started:
            raise ContextError(f"run {machine.run.run_id}: this activation was run already; make a new one")
        self._is_started = True
        arguments = decode_input(self._workflow, machine)
        if not isinstance(arguments, tuple):
            return arguments
        args, kwargs = arguments
        fibers = Fibers(machine, exchange)
        fibers.root.ident = get_ident()
        ctx = Context(machine, machine.root, fibers, fibers.root)
        context = copy_context()
        context.run(inside_workflow.set, self._workflow.name)
        value: Any = None
        error: BaseException | None = None
        try:
            value = context.run(self._workflow.fn, ctx, *args, **kwargs)
        except BaseException as raised:  # noqa: BLE001 - judged below: every kind of end becomes an outcome or leaves
            error = raised
        finally:
            fibers.root.ident = 0
        return self._judge(fibers, exchange, value, error)

    @property
    def is_ending(self) -> bool:
        """True when the code has returned, and the run ends once all that rides along is recorded."""
        return self._has_ended

    @property
    def wake_after(self) -> int:
        """How many children must complete before the code can go on, if nothing else comes. Only during an exchange."""
        return self._machine.wake_after

    def _judge(
        self,
        fibers: Fibers,
        exchange: Callable[[list[Command]], Sequence[Entry]],
        value: Any,
        error: BaseException | None,
    ) -> Outcome:
        machine = self._machine
        if fibers.failure is not None and not isinstance(fibers.failure, Suspend):
            raise fibers.failure
        if machine.blocked is not None:
            return machine.blocked
        if machine.is_latched:
            return Suspended()
        if isinstance(error, KeyboardInterrupt | SystemExit):
            raise error
        return self._end(exchange, value, error)

    def _end(
        self, exchange: Callable[[list[Command]], Sequence[Entry]], value: Any, error: BaseException | None
    ) -> Outcome:
        """The code has returned; the run ends once what it planned is done and all that rides along is recorded."""
        machine = self._machine
        unwinding = Unwinding(machine, self._workflow.codec, value, error)
        self._has_ended = True
        while True:
            commands = unwinding.go_on()
            if commands is None:
                machine.is_latched = True
                commands = machine.end(unwinding.error)
            if machine.blocked is not None:
                return machine.blocked
            if unwinding.is_over and not machine.has_unrecorded:
                return unwinding.outcome
            try:
                machine.feed(exchange(commands))
            except Suspend:
                return Suspended()
