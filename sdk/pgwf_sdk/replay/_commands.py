"""What a replay asks its worker to do, and how an activation can end. Values only."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

from pgwf_journal import Kind, key_of

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import datetime, timedelta

    from pgwf_journal import Entry
    from pgwf_sdk._definition import Call, Step
    from pgwf_sdk.replay._human import HumanRequest

__all__ = [
    "Abandon",
    "AwaitSignal",
    "Blocked",
    "CallId",
    "Cancelled",
    "Command",
    "Completed",
    "Failed",
    "OpenHuman",
    "Outcome",
    "RecordValue",
    "RunInfo",
    "RunStep",
    "StartChild",
    "StartTimer",
    "Suspended",
]


@dataclass(frozen=True, slots=True)
class RunInfo:
    """What a replay needs to know of its run besides the journal."""

    run_id: str
    workflow: str
    seed: int
    started_at: datetime


@dataclass(frozen=True, slots=True)
class CallId:
    """Which call of the workflow a command or entry belongs to; `code` is the user's file and line that made it."""

    scope: str
    call: int
    kind: Kind
    name: str
    occurrence: int
    code: tuple[str, int] | None = None

    @property
    def key(self) -> str:
        """The key of the call's entries."""
        return key_of(self.scope, self.kind, self.name, self.occurrence)


@dataclass(frozen=True, slots=True)
class RunStep:
    """Run the step and record its result (completed) or its last failure (failed, an error envelope).

    A step with `is_transaction` gets the connection as first argument and commits together with its entry.
    """

    id: CallId
    step: Step[..., Any]
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class StartTimer:
    """Record that the timer is set, unless `opened` says it was, and that it fired once its time has come."""

    id: CallId
    duration: timedelta | None
    until: datetime | None
    opened: Entry | None


@dataclass(frozen=True, slots=True)
class AwaitSignal:
    """Record the oldest unconsumed signal of that name (completed), or that none came in time (timed_out)."""

    id: CallId
    signal: str
    timeout: timedelta | None
    opened: Entry | None


@dataclass(frozen=True, slots=True)
class StartChild:
    """Start the child run (opened) unless `opened` says it was, and record how it ended."""

    id: CallId
    call: Call[Any]
    run_id: str | None
    opened: Entry | None


@dataclass(frozen=True, slots=True)
class OpenHuman:
    """Open the task (opened) unless `opened` says it was, and record the decision, or that it expired (timed_out)."""

    id: CallId
    request: HumanRequest
    opened: Entry | None


@dataclass(frozen=True, slots=True)
class RecordValue:
    """Record the payload as completed, under the kind of `id`: a value, a patch marker or an attribute."""

    id: CallId
    payload: bytes | None
    encoding: int


@dataclass(frozen=True, slots=True)
class Abandon:
    """Nobody waits for that call any more: cancel the step, the timer, the wait, the task or the child behind it."""

    id: CallId


Command: TypeAlias = RunStep | StartTimer | AwaitSignal | StartChild | OpenHuman | RecordValue | Abandon


@dataclass(frozen=True, slots=True)
class Completed:
    """The workflow returned this value."""

    payload: bytes | None
    encoding: int


@dataclass(frozen=True, slots=True)
class Failed:
    """The workflow raised; the payload is an error envelope."""

    payload: bytes


@dataclass(frozen=True, slots=True)
class Cancelled:
    """The run was asked to stop, and did; the payload is an error envelope with the request's `by` and `reason`."""

    payload: bytes


@dataclass(frozen=True, slots=True)
class Blocked:
    """The code cannot go on with this journal: a person or a deploy must act. The run itself is untouched."""

    report: dict[str, Any] = field(default_factory=dict[str, Any])


@dataclass(frozen=True, slots=True)
class Suspended:
    """The activation was given up; the run goes on later from its journal."""


Outcome: TypeAlias = Completed | Failed | Cancelled | Blocked | Suspended
