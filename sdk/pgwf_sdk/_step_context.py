"""What the code of a running step can ask about its own attempt."""

from __future__ import annotations

import logging
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Final
from uuid import NAMESPACE_OID, UUID, uuid5

from pgwf_sdk import _serial
from pgwf_sdk._errors import ContextError, SerialisationError, UndecodableError

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextvars import Token

__all__ = ["StepContext", "current_step", "enter_step", "heartbeat_json", "heartbeat_of", "leave_step"]


log = logging.getLogger("pgwf_sdk.worker")


class StepContext:
    """One attempt of one step. The worker sets the three flags from its own thread while the step runs.

    `call` names the call in its run, of all runs; the idempotency key is derived from it.

    `attempt` counts from 1. `idempotency_key` is the same in every attempt of this call and differs between calls, so a
    provider that drops repeats by key never acts twice. `last_heartbeat` is what the attempt before this one reported
    last; None when that cannot be read here. `cancelled`: the run was asked to stop; `draining`: this worker stops
    soon; `lease_lost`: the run is somebody else's by now and whatever this attempt returns is discarded.
    """

    __slots__ = ("_beat", "_call", "attempt", "cancelled", "draining", "last_heartbeat", "lease_lost")

    def __init__(
        self,
        *,
        attempt: int,
        call: str,
        last_heartbeat: Any = None,
        beat: Callable[[Any], None] | None = None,
    ) -> None:
        self.attempt = attempt
        self._call = call
        self.last_heartbeat = last_heartbeat
        self.cancelled = False
        self.draining = False
        self.lease_lost = False
        self._beat = beat

    @property
    def call(self) -> str:
        """Which call of all runs this is an attempt of."""
        return self._call

    @property
    def idempotency_key(self) -> UUID:
        """The same for all attempts of this call, and no other's."""
        return uuid5(NAMESPACE_OID, f"pgwf:{self._call}")

    def heartbeat(self, details: object = None) -> None:
        """Say that the step is alive, and what a next attempt should know, 1 MiB of JSON at most. Cheap: it is written
        only now and then."""
        if self._beat is not None:
            self._beat(details)

    def end(self) -> None:
        """The attempt is over: what its code may still report goes nowhere."""
        self._beat = None


HEARTBEAT_BYTES_MAX: Final = 1 << 20
"""Of what an attempt reports, as JSON. A claim brings that of all open steps of its runs, whatever else it brings."""


def heartbeat_json(details: object) -> str | None:
    """What an attempt reports as it is stored. SerialisationError: it cannot be, or is too long."""
    payload, _ = _serial.encode(details, None, subject="heartbeat")
    if payload is not None and len(payload) > HEARTBEAT_BYTES_MAX:
        raise SerialisationError(
            f"heartbeat is {len(payload)} bytes long as JSON; expected at most {HEARTBEAT_BYTES_MAX}: report where the"
            " step is, and keep what it has in a place of its own",
            path="heartbeat",
        )
    return None if payload is None else payload.decode()


def heartbeat_of(payload: str | None, call: str) -> Any:
    """What the attempt before reported; None also when that cannot be read here: the step is to begin all the same."""
    if payload is None:
        return None
    try:
        return _serial.decode(payload.encode(), _serial.TAGGED_JSON)
    except UndecodableError as error:
        log.warning("%s: what its last attempt reported is not known to the next one: %s", call, error)
        return None


_running: Final[ContextVar[StepContext]] = ContextVar("pgwf_running_step")


def current_step() -> StepContext:
    """Return the attempt that this code runs in. ContextError: it runs in no step."""
    try:
        return _running.get()
    except LookupError:
        raise ContextError(
            "current_step() was called outside a running step; expected inside the function of a step that a worker"
            " runs, or below enter_step(StepContext(…)) in a test"
        ) from None


def enter_step(context: StepContext) -> Token[StepContext]:
    """Make `context` the current one of this thread or task; give the token to `leave_step`."""
    return _running.set(context)


def leave_step(token: Token[StepContext]) -> None:
    """Undo `enter_step`, in the thread or task that called it."""
    _running.reset(token)
