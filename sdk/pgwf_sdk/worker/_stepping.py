"""The steps of one activation: which run, which wait for their next attempt, which belong to another fleet."""

import asyncio
import json
import logging
from collections import deque
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from pgwf_journal import ENCODING_JSON, Kind, Phase
from pgwf_sdk import _failure
from pgwf_sdk._definition import pinned
from pgwf_sdk._errors import StepInterruptedError
from pgwf_sdk.replay import CallId, RunStep
from pgwf_sdk.worker._advance import Attempt, AttemptNote, Claim, Item
from pgwf_sdk.worker._batch import Batch
from pgwf_sdk.worker._steps import StepAttempt, StepBeat, StepNews, StepRaised, StepReady, StepReturned
from pgwf_sdk.worker._waits import draft

if TYPE_CHECKING:
    from pgwf_sdk.worker._driver import Driver
    from pgwf_sdk.worker._port import Port

log = logging.getLogger("pgwf_sdk.worker")


_NONE = timedelta(0)


STEP_KINDS = frozenset({Kind.STEP, Kind.COMPENSATION})
"""The kinds of entries that record a step."""

_OPENED = Phase.OPENED  # Until Python 3.12 a look at a member of an enumeration takes as long as a call.
_COMPLETED = Phase.COMPLETED


@dataclass(frozen=True, slots=True)
class _Retry:
    command: RunStep
    next_at: datetime


class Stepping:
    """Takes the steps the code asks for, and says what is to be recorded about them."""

    def __init__(self, claim: Claim, port: "Port", driver: "Driver") -> None:
        self._run_id = claim.run_id
        self._build = claim.build
        self._port = port
        self._driver = driver
        self._running: dict[str, StepAttempt] = {}
        self._retries: dict[str, _Retry] = {}
        self._hops: dict[str, RunStep] = {}
        self._beginning: dict[str, RunStep] = {}
        self._begun = {entry.key for entry in claim.history if entry.kind in STEP_KINDS and entry.phase is _OPENED}
        self._noted = dict(claim.attempts)
        self._last: set[str] = set()
        self._ready: deque[tuple[RunStep, StepReady]] = deque()

    @property
    def is_idle(self) -> bool:
        """True when no step runs or is about to."""
        return not self._running and not self._beginning

    @property
    def is_quiet(self) -> bool:
        """True when no step waits for its next attempt, or for its turn to record its result in a transaction."""
        return not (self._retries or self._ready)

    @property
    def next_instant(self) -> datetime | None:
        """When the next attempt of some step is due."""
        return min((retry.next_at for retry in self._retries.values()), default=None)

    @property
    def next_need(self) -> str | None:
        """What the first step, in the order of the code, that only another fleet can do needs."""
        first = min(self._hops.values(), key=lambda command: (command.id.scope, command.id.call), default=None)
        return None if first is None or first.step.need is None else pinned(first.step.need, self._build)

    def count_with_need(self, need: str) -> int:
        """How many of the steps that run or are about to have this need."""
        under_way = [*(attempt.command for attempt in self._running.values()), *self._beginning.values()]
        return sum(command.step.need == need for command in under_way)

    def take(self, command: RunStep, batch: Batch) -> None:
        """The code waits for this step."""
        key = command.id.key
        if self._is_elsewhere(command):
            self._hops[key] = command
        elif key in self._begun and (command.step.at_most_once or command.undoes is None):
            interrupted = StepInterruptedError(
                f"step {command.step.name!r} had begun when its worker died; whether it took effect is unknown",
                step=command.step.name,
            )
            batch.drafts.append(draft(command.id, Phase.FAILED, _failure.describe(interrupted), ENCODING_JSON))
        elif (noted := self._noted.get(key)) is not None and noted.next_at > self._port.now():
            self._retries[key] = _Retry(command, noted.next_at)
        elif command.undoes is not None and command.opened is None:
            self._beginning[key] = command
            undoes = json.dumps({"undoes": command.undoes}).encode()
            batch.drafts.append(draft(command.id, Phase.OPENED, undoes, ENCODING_JSON))
        elif command.step.at_most_once:
            self._beginning[key] = command
            batch.drafts.append(draft(command.id, Phase.OPENED))
        else:
            self._start(command)

    def opened(self, key: str) -> None:
        """The entry that a step begins is in the journal: now it may begin."""
        if (command := self._beginning.pop(key, None)) is not None:
            self._start(command)

    def start_due(self, now: datetime) -> None:
        """Begin the attempts whose time has come."""
        for key in [key for key, retry in self._retries.items() if retry.next_at <= now]:
            command = self._retries.pop(key).command
            if self._is_elsewhere(command):  # Its place was taken while it paused.
                self._hops[key] = command
            else:
                self._start(command)

    def reported(self, call: CallId, number: int, report: StepNews, batch: Batch) -> RunStep | None:
        """An attempt reported. The step, if that ended it; None if it goes on or nobody waits for it any more."""
        attempt = self._running.get(call.key)
        if attempt is None or attempt.number != number:
            return None
        if isinstance(report, StepReady):
            self._ready.append((attempt.command, report))
            return None
        if isinstance(report, StepBeat):
            self._note(call.key, number - 1, timedelta(0), batch, heartbeat=report.details)
            return None
        del self._running[call.key]
        if isinstance(report, StepRaised) and report.retry_in is not None and call.key not in self._last:
            log.info(
                "run %s: %s: attempt %d failed, next in %s: %r",
                self._run_id,
                call.key,
                number,
                report.retry_in,
                report.error,
            )
            self._note(call.key, number, report.retry_in, batch, error=report.envelope.decode())
            self._retries[call.key] = _Retry(attempt.command, self._noted[call.key].next_at)
            return None
        is_deferred = attempt.command.step.is_deferred
        if isinstance(report, StepReturned):
            done = draft(call, _COMPLETED, report.payload, report.encoding, is_deferred=is_deferred)
            batch.drafts.append(done)
        else:
            log.warning(
                "run %s: %s failed in attempt %d, the last one",
                self._run_id,
                call.key,
                number,
                exc_info=_failure.log_info(report.error),
            )
            batch.drafts.append(draft(call, Phase.FAILED, report.envelope, ENCODING_JSON, is_deferred=is_deferred))
        if self._noted.pop(call.key, None) is not None:
            batch.attempts.append(_over(call.key, number))
        return attempt.command

    def stop_retrying(self) -> None:
        """The run is to cancel: an attempt under way is the last of its step. Later steps are cleanup."""
        self._last = {*self._running, *self._retries, *self._hops, *self._beginning}

    def next_turn(self, batch: Batch) -> "asyncio.Future[Item] | None":
        """The next step in a transaction that waits to record its result; what is to be recorded goes into `batch`."""
        while self._ready:
            command, report = self._ready.popleft()
            if command.id.key in self._running and not report.turn.done():
                batch.drafts.append(draft(command.id, Phase.COMPLETED, report.payload, report.encoding))
                if command.id.key in self._noted:
                    batch.attempts.append(_over(command.id.key, self._noted[command.id.key].no))
                return report.turn
        return None

    def committed(self, key: str) -> None:
        """The result of a step is in the journal."""
        self._running.pop(key, None)
        self._noted.pop(key, None)

    def drop(self, key: str) -> None:
        """Nobody waits for that step any more."""
        self._retries.pop(key, None)
        self._hops.pop(key, None)
        self._beginning.pop(key, None)
        if (attempt := self._running.pop(key, None)) is not None:
            attempt.drop()

    def drop_all(self, *, but: str | None = None, lease_lost: bool = False) -> None:
        """Whatever is running goes nowhere, except for the step `but`."""
        for key in self._running.keys() - {but}:
            attempt = self._running.pop(key)
            attempt.context.lease_lost = lease_lost
            attempt.drop()
        self._beginning.clear()

    def drain(self) -> None:
        """Tell the steps that run that their worker stops soon."""
        for attempt in self._running.values():
            attempt.context.draining = True

    def _is_elsewhere(self, command: RunStep) -> bool:
        """Whether another worker is to execute the step: one that offers its need, or has room for it."""
        if command.step.need is None:
            return False
        return not self._port.offers(pinned(command.step.need, self._build), self._driver)

    def _start(self, command: RunStep) -> None:
        noted = self._noted.get(command.id.key)
        number = 1 if noted is None else noted.no + 1
        elapsed = _NONE if noted is None else max(self._port.now() - noted.first_at, _NONE)
        attempt = self._running[command.id.key] = self._port.start_step(
            self._driver,
            command,
            number=number,
            elapsed=elapsed,
            last_heartbeat=None if noted is None else noted.heartbeat,
        )
        attempt.begin()

    def _note(
        self,
        key: str,
        failed_count: int,
        pause: timedelta,
        batch: Batch,
        *,
        error: str | None = None,
        heartbeat: str | None = None,
    ) -> None:
        now = self._port.now()
        noted = self._noted.get(key)
        self._noted[key] = Attempt(
            failed_count,
            now if noted is None else noted.first_at,
            now + pause,
            heartbeat or (None if noted is None else noted.heartbeat),
        )
        batch.attempts.append(
            AttemptNote(key=key, no=failed_count, next_seconds=pause.total_seconds(), error=error, heartbeat=heartbeat)
        )


def _over(key: str, failed_count: int) -> AttemptNote:
    return AttemptNote(key=key, no=failed_count, next_seconds=None, error=None, heartbeat=None)
