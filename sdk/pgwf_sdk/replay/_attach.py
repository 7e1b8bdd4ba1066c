"""Attaching: waiting for the end of a run that is not a child of this one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pgwf_journal import Entry, Kind, Phase
from pgwf_sdk import _failure
from pgwf_sdk._ends import error_of_end
from pgwf_sdk._errors import RunTerminatedError, WaitTimeoutError
from pgwf_sdk._misuse import check_attach
from pgwf_sdk._names import check_id
from pgwf_sdk._serial import codec_for
from pgwf_sdk._wording import within_words
from pgwf_sdk.replay._calls import PendingCall
from pgwf_sdk.replay._commands import AttachRun, Command
from pgwf_sdk.replay._core import check_duration

if TYPE_CHECKING:
    from datetime import timedelta
    from typing import Any

    from pgwf_sdk._definition import Workflow
    from pgwf_sdk.replay._scope import Scope

__all__ = ["AttachCall", "open_attach"]

_UNNAMED = "run"
"""Names the call where nobody said which workflow the run is of."""


class AttachCall(PendingCall):
    """A wait for the end of another run. One that is refused is recorded as failed, without having been opened."""

    __slots__ = ("codec", "run_id", "timeout")
    kind = Kind.ATTACH

    def __init__(
        self, scope: Scope, run_id: str, workflow: Workflow[..., Any] | None, timeout: timedelta | None
    ) -> None:
        super().__init__(scope, _UNNAMED if workflow is None else workflow.name)
        self.codec = codec_for(None) if workflow is None else workflow.codec
        self.run_id = run_id
        self.timeout = timeout

    def command(self) -> Command:
        return AttachRun(self.id, self.run_id, self.timeout, self.opened)

    def settle(self, entry: Entry) -> None:
        if entry.phase == Phase.COMPLETED:
            self.value = self.codec.decode(entry.payload, entry.encoding)
        elif entry.phase == Phase.TIMED_OUT:
            within = within_words(self.timeout)
            self.error = WaitTimeoutError(f"run {self.run_id!r} was not over{within}", name=self.run_id)
        elif self.opened is None:
            self.error = _failure.rebuild(entry.payload)
        else:
            self.error = error_of_end(_status_of(entry), entry.payload, run_id=self.run_id)
        self.is_done = True


def _status_of(entry: Entry) -> str:
    """How the run ended; a terminated one is told as failed, with an error that names no run it could have got."""
    if entry.phase == Phase.CANCELLED:
        return "cancelled"
    cause = None if entry.payload is None else _failure.rebuild(entry.payload)
    return "terminated" if isinstance(cause, RunTerminatedError) and not cause.run_id else "failed"


def open_attach(
    scope: Scope, run_id: str, workflow: Workflow[..., Any] | None, timeout: timedelta | None
) -> AttachCall:
    """The call that waits for the end of a run. TypeError, DefinitionError: that cannot be the id of one."""
    check_attach(run_id, workflow)
    check_id(run_id, "ctx.attach")
    if timeout is not None:
        check_duration(timeout, "ctx.attach(timeout=…)")
    call = AttachCall(scope, run_id, workflow, timeout)
    scope.machine.open(call)
    return call
