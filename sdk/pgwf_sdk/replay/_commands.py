"""What a replay asks its worker to do, and how an activation can end. Values only."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from msgspec import Struct, field
from msgspec.structs import force_setattr

from pgwf_journal import Kind, key_of

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import datetime, timedelta

    from pgwf_journal import Entry
    from pgwf_sdk._definition import Call, Step
    from pgwf_sdk.replay._human import HumanRequest

__all__ = [
    "Abandon",
    "AttachRun",
    "AwaitSignal",
    "Blocked",
    "CallId",
    "CancelChild",
    "Cancelled",
    "Command",
    "Completed",
    "Continued",
    "Failed",
    "Hop",
    "OpenAwakeable",
    "OpenHuman",
    "Outcome",
    "RecordValue",
    "RunInfo",
    "RunStep",
    "StartChild",
    "StartTimer",
    "Suspended",
]


OnClose: TypeAlias = Literal["request_cancel", "terminate", "abandon"]
"""What becomes of a child that still runs when its parent ends."""


class RunInfo(Struct, frozen=True):
    """What a replay needs to know of its run besides the journal."""

    run_id: str
    workflow: str
    seed: int
    started_at: datetime
    is_trial: bool = False
    """True when nobody acts on what the code asks for: then it does nothing by itself either."""
    token_key: bytes = b""
    """The installation's key for the tokens of awakeables."""


class CallId(Struct, frozen=True, gc=False):
    """Which call of the workflow a command or entry belongs to; `code` is the user's file and line that made it.

    `key` is the key of the call's entries.
    """

    scope: str
    call: int
    kind: Kind
    name: str
    occurrence: int
    code: tuple[str, int] | None = None
    key: str = ""

    def __post_init__(self) -> None:
        force_setattr(self, "key", key_of(self.scope, self.kind, self.name, self.occurrence))


class RunStep(Struct, frozen=True):
    """Run the step and record its result (completed) or its last failure (failed, an error envelope).

    One that `undoes` a step (its key) is recorded as opened before it begins, unless `opened` says it was.
    A step with `is_transaction` gets the connection as first argument and commits together with its entry.
    """

    id: CallId
    step: Step[..., Any]
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    opened: Entry | None = None
    undoes: str | None = None


class StartTimer(Struct, frozen=True):
    """Record that the timer is set, unless `opened` says it was, and that it fired once its time has come."""

    id: CallId
    duration: timedelta | None
    until: datetime | None
    opened: Entry | None


class AwaitSignal(Struct, frozen=True):
    """Record the oldest unconsumed signal of that name (completed), or that none came in time (timed_out)."""

    id: CallId
    signal: str
    timeout: timedelta | None
    opened: Entry | None


class StartChild(Struct, frozen=True):
    """Start the child run (opened) unless `opened` says it was, and record how it ended."""

    id: CallId
    call: Call[Any]
    run_id: str | None
    opened: Entry | None
    on_close: OnClose = "request_cancel"


class AttachRun(Struct, frozen=True):
    """Wait for the end of that run (opened) unless `opened` says so already, and record it, or that it did not come in
    time. One that cannot be waited for is recorded as failed, and nothing as opened."""

    id: CallId
    run_id: str
    timeout: timedelta | None
    opened: Entry | None


class OpenAwakeable(Struct, frozen=True):
    """Open the promise (opened) unless `opened` says it was, and record how it ended, or that it did not in time.

    `has_followers`: what comes next is sent only once this is recorded, so the run must not be given back before.
    """

    id: CallId
    token_hash: str
    timeout: timedelta | None
    opened: Entry | None
    has_followers: bool


class OpenHuman(Struct, frozen=True):
    """Open the task (opened) unless `opened` says it was, and record the decision, or that it expired (timed_out)."""

    id: CallId
    request: HumanRequest
    opened: Entry | None


class RecordValue(Struct, frozen=True):
    """Record the payload as completed, under the kind of `id`: a value, a patch marker or an attribute."""

    id: CallId
    payload: bytes | None
    encoding: int


class Hop(Struct, frozen=True):
    """Record that the run is at home with workers that offer `need` from now on; only there its code goes on."""

    id: CallId
    need: str


class CancelChild(Struct, frozen=True):
    """Ask the child of that call to cancel, and record how it ended as ever; it was not started yet: as cancelled."""

    id: CallId


class Abandon(Struct, frozen=True):
    """Nobody waits for that call any more: cancel the step, the timer, the wait, the task or the child behind it.

    Not `is_sent`: it is an earlier activation that asked for it, and no end of it is recorded.
    """

    id: CallId
    is_sent: bool = True


Command: TypeAlias = (
    RunStep
    | StartTimer
    | AwaitSignal
    | StartChild
    | AttachRun
    | OpenAwakeable
    | OpenHuman
    | RecordValue
    | Hop
    | CancelChild
    | Abandon
)


class Completed(Struct, frozen=True):
    """The workflow returned this value."""

    payload: bytes | None
    encoding: int


class Failed(Struct, frozen=True):
    """The workflow raised; the payload is an error envelope."""

    payload: bytes


class Cancelled(Struct, frozen=True):
    """The run was asked to stop, and did; the payload is an error envelope with the request's `by` and `reason`."""

    payload: bytes


class Continued(Struct, frozen=True):
    """The run goes on as the next one of its chain, which begins with `call`; `payload` is its input, encoding 1."""

    call: Call[Any]
    payload: bytes


class Blocked(Struct, frozen=True):
    """The code cannot go on with this journal: a person or a deploy must act. The run itself is untouched."""

    report: dict[str, Any] = field(default_factory=dict)


class Suspended(Struct, frozen=True):
    """The activation was given up; the run goes on later from its journal."""


Outcome: TypeAlias = Completed | Failed | Cancelled | Continued | Blocked | Suspended
