"""The calls a workflow can make: which command each becomes, and which value or failure its entry gives the code.

A call is settled once, by the entry that resolves it. Who waits for it (a future, a fiber, a group) is its `waiter`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, ClassVar, Final, Protocol

import msgspec

from pgwf_journal import ENCODING_TAGGED_JSON, Kind, Phase
from pgwf_sdk import _failure
from pgwf_sdk._errors import (
    ChildFailedError,
    StepInterruptedError,
    StepTimeoutError,
    UndecodableError,
    WaitTimeoutError,
)
from pgwf_sdk._wording import within_words
from pgwf_sdk.replay._child_ids import child_id, given_id
from pgwf_sdk.replay._commands import (
    AwaitSignal,
    CallId,
    Command,
    Hop,
    OpenHuman,
    RecordValue,
    RunStep,
    StartChild,
    StartTimer,
)
from pgwf_sdk.replay._human import Decision, StoredDecision, Vote, stored_decisions
from pgwf_sdk.replay._plan import Plan

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import datetime, timedelta

    from pgwf_journal import Entry
    from pgwf_sdk._definition import Call, Step
    from pgwf_sdk._serial import Codec
    from pgwf_sdk.replay._commands import OnClose
    from pgwf_sdk.replay._human import HumanRequest
    from pgwf_sdk.replay._scope import Scope

FAILURE_MARK = b'{"$failure":'
"""Heads the payload of a value whose function raised: a value has no phase of its own for that."""

_COMPLETED: Final = Phase.COMPLETED  # Until Python 3.12 a look at a member of an enumeration takes as long as a call.


class Waiter(Protocol):
    """Whoever goes on once something is settled."""

    def wake(self, settled: Settled, /) -> None:
        """Called once, right after `settled` got its value or its error."""
        ...


class Settled(ABC):
    """Something to wait for, which ends with a value or with an error."""

    __slots__ = ("error", "is_done", "value", "waiter")

    def __init__(self) -> None:
        self.is_done = False
        self.value: Any = None
        self.error: BaseException | None = None
        self.waiter: Waiter | None = None

    @abstractmethod
    def abandon(self) -> bool:
        """Nobody wants the outcome any more. True: it is to be waited for all the same; calling again is no harm."""

    def finish(self, value: Any, error: BaseException | None) -> None:
        """Take value or error, and let whoever waits go on."""
        self.value, self.error = value, error
        self.is_done = True
        if self.waiter is not None:
            self.waiter.wake(self)

    def outcome(self) -> Any:
        """Return the value or raise the error."""
        if self.error is not None:
            raise self.error
        return self.value


class PendingCall(Settled):
    """One call of a workflow, from the moment the code makes it until an entry resolves it."""

    __slots__ = ("code", "is_abandoned", "is_sent", "name", "occurrence", "opened", "ordinal", "scope")

    kind: ClassVar[Kind]

    def __init__(self, scope: Scope, name: str) -> None:
        self.is_done = False
        self.value = None
        self.error = None
        self.waiter = None
        self.scope = scope
        self.name = name
        self.ordinal = 0
        self.occurrence = 0
        self.code: tuple[str, int] | None = None
        self.opened: Entry | None = None
        self.is_sent = False
        self.is_abandoned = False

    @property
    def id(self) -> CallId:
        """The call as commands name it."""
        return CallId(self.scope.path, self.ordinal, self.kind, self.name, self.occurrence, self.code)

    def abandon(self) -> bool:
        self.scope.machine.abandon(self)
        return False

    @abstractmethod
    def command(self) -> Command:
        """Return what the worker is to do about this call."""

    @abstractmethod
    def settle(self, entry: Entry) -> None:
        """Take value or error from the entry. UndecodableError: the payload does not fit, and the run is blocked."""


class StepCall(PendingCall):
    """A step."""

    __slots__ = ("args", "kwargs", "step")
    kind = Kind.STEP

    def __init__(self, scope: Scope, step: Step[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        super().__init__(scope, step.name)
        self.step = step
        self.args = args
        self.kwargs = kwargs

    def command(self) -> Command:
        return RunStep(self.id, self.step, self.args, self.kwargs)

    def abandon(self) -> bool:
        return (self.step.finishes and not self.is_done and not self.is_abandoned) or super().abandon()

    def settle(self, entry: Entry) -> None:
        if entry.phase == _COMPLETED:
            self.value = self.step.codec.decode(entry.payload, entry.encoding)
            if self.step.undo is not None:
                self.scope.machine.plans.append(Plan(self.step.undo_step, (self.value,), {}, self.id.key, self.code))
        elif entry.payload is not None:
            self.error = _failure.rebuild(entry.payload)
        elif entry.phase == Phase.TIMED_OUT:
            self.error = StepTimeoutError(f"step {self.name!r} did not end in time", step=self.name)
        else:
            self.error = StepInterruptedError(
                f"step {self.name!r} was interrupted, and whether its effect happened is unknown", step=self.name
            )
        self.is_done = True


class CompensationCall(StepCall):
    """A step that is done when the code has left; `undoes` is the key of the step it takes back, if it does."""

    __slots__ = ("undoes",)
    kind = Kind.COMPENSATION

    def __init__(self, scope: Scope, plan: Plan) -> None:
        super().__init__(scope, plan.step, plan.args, plan.kwargs)
        self.undoes = plan.undoes
        self.code = plan.code

    def command(self) -> Command:
        return RunStep(self.id, self.step, self.args, self.kwargs, self.opened, self.undoes)


class TimerCall(PendingCall):
    """A durable timer: it fires `duration` after it was set, or at the instant `until`."""

    __slots__ = ("duration", "until")
    kind = Kind.TIMER

    def __init__(
        self, scope: Scope, name: str, *, duration: timedelta | None = None, until: datetime | None = None
    ) -> None:
        super().__init__(scope, name)
        self.duration = duration
        self.until = until

    def command(self) -> Command:
        return StartTimer(self.id, self.duration, self.until, self.opened)

    def settle(self, entry: Entry) -> None:
        self.is_done = True


class SignalCall(PendingCall):
    """A wait for the next signal of one name."""

    __slots__ = ("codec", "timeout")
    kind = Kind.SIGNAL

    def __init__(self, scope: Scope, name: str, codec: Codec, timeout: timedelta | None) -> None:
        super().__init__(scope, name)
        self.codec = codec
        self.timeout = timeout

    def command(self) -> Command:
        return AwaitSignal(self.id, self.name, self.timeout, self.opened)

    def settle(self, entry: Entry) -> None:
        if entry.phase == _COMPLETED:
            self.value = self.codec.decode_sent(entry.payload, entry.encoding)
        else:
            within = within_words(self.timeout)
            self.error = WaitTimeoutError(f"signal {self.name!r} did not come{within}", name=self.name)
        self.is_done = True


class ChildCall(PendingCall):
    """A child run. `is_spawned` means that its start must be recorded before this run may end."""

    __slots__ = ("call", "is_cancelling", "is_spawned", "on_close", "run_id")
    kind = Kind.CHILD

    def __init__(
        self,
        scope: Scope,
        call: Call[Any],
        run_id: str | None,
        *,
        is_spawned: bool = False,
        on_close: OnClose = "request_cancel",
    ) -> None:
        super().__init__(scope, call.workflow.name)
        self.call = call
        self.run_id = run_id
        self.is_spawned = is_spawned
        self.is_cancelling = False
        self.on_close: OnClose = on_close

    @property
    def child_run_id(self) -> str:
        """The id of the child: as the journal has it, which a retry or a fork took over, or as it will have it."""
        if self.opened is not None and self.opened.payload is not None:
            return _opened_children.decode(self.opened.payload).run_id
        parent = self.scope.machine.run.run_id
        if self.run_id is not None:
            return given_id(parent, self.run_id)
        return child_id(parent, self.scope.path, self.name, self.occurrence)

    def command(self) -> Command:
        return StartChild(self.id, self.call, self.run_id, self.opened, self.on_close)

    def abandon(self) -> bool:
        if self.is_done or self.is_abandoned:
            return False
        if not self.is_sent and self.opened is None:
            return super().abandon()  # Nobody knows of it yet.
        if not self.is_cancelling:
            self.is_cancelling = True
            self.scope.machine.cancel_child(self)
        return True

    def settle(self, entry: Entry) -> None:
        if entry.phase == _COMPLETED:
            self.value = self.call.workflow.codec.decode(entry.payload, entry.encoding)
        else:
            name, status = self.call.workflow.name, Phase(entry.phase).label
            cause = None if entry.payload is None else _failure.rebuild(entry.payload)
            said = "" if cause is None else f": {_failure.line_of(cause)}"
            self.error = ChildFailedError(f"child run of {name!r} {_ENDED[status]}{said}", workflow=name, status=status)
            self.error.__cause__ = cause
        self.is_done = True


class _OpenedChild(msgspec.Struct):
    run_id: str


_opened_children = msgspec.json.Decoder(_OpenedChild)

_ENDED = {
    "failed": "failed",
    "cancelled": "was cancelled",
    "terminated": "was terminated",
    "timed_out": "did not end in time",
    "continued": "went on as another run",
}


class HumanCall(PendingCall):
    """A question to people."""

    __slots__ = ("request",)
    kind = Kind.HUMAN

    def __init__(self, scope: Scope, request: HumanRequest) -> None:
        super().__init__(scope, request.name)
        self.request = request

    def command(self) -> Command:
        return OpenHuman(self.id, self.request, self.opened)

    def settle(self, entry: Entry) -> None:
        if entry.phase == _COMPLETED:
            self.value = self._decision(entry)
        elif entry.phase == Phase.FAILED:
            self.error = _failure.rebuild(entry.payload)
        elif self.request.on_expire is not None:
            # Through its bytes, as every other value, so that first run and replay see the same.
            payload, encoding = self.request.codec.encode(self.request.on_expire, subject="on_expire")
            value = self.request.codec.decode(payload, encoding)
            self.value = Decision(value, "", entry.recorded_at, (), timed_out=True)
        else:
            within = within_words(self.request.expires)
            self.error = WaitTimeoutError(f"human task {self.name!r} was not decided{within}", name=self.name)
        self.is_done = True

    def _decision(self, entry: Entry) -> Decision[Any]:
        try:
            stored = stored_decisions.decode(entry.payload or b"")
        except msgspec.MsgspecError as error:
            raise UndecodableError(
                f"decision of human task {self.name!r}: {error}; expected an object with value, by and at"
            ) from error
        votes = tuple(self._vote(vote, entry) for vote in stored.votes) or (self._vote(stored, entry),)
        last = votes[-1]
        return Decision(self._vote(stored, entry).value, last.by, last.at, votes)

    def _vote(self, stored: StoredDecision, entry: Entry) -> Vote[Any]:
        # Senders may not know the type, so plain JSON is read by it and tags are honoured.
        value = self.request.codec.decode_sent(bytes(stored.value), ENCODING_TAGGED_JSON)
        return Vote(value, stored.by, stored.at or entry.recorded_at)


class ValueCall(PendingCall):
    """A value the workflow computed by itself, or an attribute or patch marker it recorded."""

    __slots__ = ("codec", "encoding", "payload")
    kind = Kind.VALUE

    def __init__(self, scope: Scope, name: str, codec: Codec) -> None:
        super().__init__(scope, name)
        self.codec = codec
        self.payload: bytes | None = None
        self.encoding = 0

    def command(self) -> Command:
        return RecordValue(self.id, self.payload, self.encoding)

    def settle(self, entry: Entry) -> None:
        payload = entry.payload
        if payload is not None and payload.startswith(FAILURE_MARK):
            self.error = _failure.rebuild(payload[len(FAILURE_MARK) : -1])
        else:
            self.value = self.codec.decode(payload, entry.encoding)
        self.is_done = True


class AttributeCall(ValueCall):
    """An attribute of the run: nobody waits for it, but the run does not end before it is recorded."""

    __slots__ = ()
    kind = Kind.ATTRIBUTE

    def settle(self, entry: Entry) -> None:
        self.is_done = True


class PatchCall(ValueCall):
    """The marker that a run passed a changed place with the new code. It has no ordinal, so that it shifts nothing."""

    __slots__ = ()
    kind = Kind.PATCH

    def settle(self, entry: Entry) -> None:
        self.is_done = True


class HopCall(PendingCall):
    """The run moves to the workers that offer a need."""

    __slots__ = ()
    kind = Kind.HOP

    def command(self) -> Command:
        return Hop(self.id, self.name)

    def settle(self, entry: Entry) -> None:
        self.is_done = True


class BranchCall(PendingCall):
    """A `parallel` or `map`: it takes an ordinal and names the scopes of its branches, but has no entry of its own."""

    __slots__ = ()
    kind = Kind.BRANCH

    def command(self) -> Command:
        raise AssertionError(f"{self.id.key}: a branch is numbered and withdrawn at once, so nobody is to act on it")

    def settle(self, entry: Entry) -> None:
        raise AssertionError(f"{self.id.key}: a branch is numbered and withdrawn at once, so no entry finds it")
