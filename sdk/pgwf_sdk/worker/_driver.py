"""One leased run in a worker: what its code asks for is done, and what was done is committed and told to its code.

At most one item of a run is on its way at a time, because each one names the journal's head it builds on. The run's
code sees a result only after its commit. The run parks when nothing of it can go on in this process.
"""

import json
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

import msgspec

from pgwf_journal import ENCODING_JSON as JSON
from pgwf_journal import ENCODING_NONE as NONE
from pgwf_journal import Entry, Kind, NewEntry, Phase
from pgwf_sdk import _failure
from pgwf_sdk._errors import StepInterruptedError, UsageError
from pgwf_sdk._telemetry import RunTrace
from pgwf_sdk.replay import (
    Abandon,
    AwaitSignal,
    Blocked,
    CallId,
    Cancelled,
    Command,
    Completed,
    Failed,
    OpenHuman,
    Outcome,
    RecordValue,
    RunStep,
    StartChild,
    StartTimer,
    Suspended,
)
from pgwf_sdk.worker._advance import (
    Attempt,
    AttemptNote,
    Claim,
    Disposition,
    Item,
    ItemAnswer,
    TaskClosing,
)
from pgwf_sdk.worker._batch import Batch
from pgwf_sdk.worker._engine import Engine
from pgwf_sdk.worker._port import Handle, Port
from pgwf_sdk.worker._steps import StepAttempt, StepRaised, StepResult, StepReturned
from pgwf_sdk.worker._waits import Draft, Wait, Waits, draft

log = logging.getLogger("pgwf_sdk.worker")

LINGER = timedelta(seconds=1)
"""A run whose next instant is nearer than this keeps its lease and waits here: parking it would cost more."""

_BROKEN_DELAY = timedelta(seconds=5)


@dataclass(frozen=True, slots=True)
class _Retry:
    command: RunStep
    number: int
    first_at: datetime
    next_at: datetime


class Driver:
    """Drives one activation of a run; all its methods are called on the host loop's thread."""

    def __init__(self, claim: Claim, engine_of: "Callable[[Driver], Engine]", port: Port, trace: RunTrace) -> None:
        self.claim = claim
        self.trace = trace
        self._port = port
        self._head: int | None = claim.head  # None: not known, so nothing more can be appended.
        self._lapsed = claim.streak > 0
        self._waits = Waits(claim.inbox)
        self._batch = Batch()
        self._in_flight: Batch | None = None
        self._running: dict[str, StepAttempt] = {}
        self._retries: dict[str, _Retry] = {}
        self._hops: dict[str, RunStep] = {}
        self._begun = {entry.key for entry in claim.history if entry.kind is Kind.STEP and entry.phase is Phase.OPENED}
        self._starting: dict[str, RunStep] = {}
        self._attempted = dict(claim.attempts)
        self._outcome: Outcome | None = None
        self._leaving: Disposition | None = None
        self._leave_note: str | None = None
        self._leave_delay = timedelta(0)
        self._alarm: Handle | None = None
        self._wants_inbox = False
        self._is_cancelled = any(entry.kind is Kind.CANCEL for entry in claim.history)
        self._is_over = False
        self._engine = engine_of(self)

    # -- what the worker calls ------------------------------------------------------------------------------------

    @property
    def inbox_seen(self) -> int:
        """The last inbox row this activation has read."""
        return self._waits.inbox_seen

    def start(self) -> None:
        """Replay the history and go on."""
        self._engine.start()
        self._pump()

    def settled(self, item: Item, answer: ItemAnswer) -> None:
        """The call that carried `item` has committed, or was refused."""
        batch, self._in_flight = self._in_flight, None
        if self._is_over or batch is None:
            return
        match answer.status:
            case "ok":
                entries = self._committed(item, answer.now_at)
                if item.disposition != "keep":
                    self._over(_RELEASED_AS[item.disposition])
                    return
                if entries and self._outcome is None:
                    self._engine.feed(entries)
            case "unread":
                self._engine.feed(self._committed(item, answer.now_at))
                self._waits.arrive(answer.inbox)
            case "undecided":
                self._take_back(batch)
                self._waits.arrive(answer.inbox)
            case "child_exists":
                for key in batch.refuse_children(answer.taken):
                    self._waits.close(key)
                self._take_back(batch)
            case "fenced":
                self.lose("another worker has the run")
            case "conflict":
                # The item was committed by an earlier try whose answer was lost: only replay knows what it led to.
                self._start_over()
        self._pump()

    def refused(self, error: Exception) -> None:
        """The database will not take the item in flight; the log says what it was, and the run is tried again later."""
        self._in_flight = None
        log.error("run %s: the database refused what it recorded", self.claim.run_id, exc_info=error)
        self._start_over(_BROKEN_DELAY, f"refused by the database: {error}")

    def step_done(self, call: CallId, number: int, result: StepResult) -> None:
        """An attempt of a step ended."""
        attempt = self._running.pop(call.key, None)
        if attempt is None or self._is_over:
            return
        if isinstance(result, StepRaised) and result.retry_in is not None and not self._is_cancelled:
            self._retry_later(attempt.command, number, result, result.retry_in)
        else:
            if isinstance(result, StepReturned):
                self._batch.drafts.append(draft(call, Phase.COMPLETED, result.payload, result.encoding))
            else:
                self._batch.drafts.append(draft(call, Phase.FAILED, result.envelope, JSON))
            if self._attempted.pop(call.key, None) is not None:
                self._batch.attempts.append(AttemptNote(key=call.key, no=number, next_seconds=None, error=None))
            if attempt.command.step.need is not None and not self._port.offers(self.claim.need):
                # The step is what brought the run here; the rest belongs to its home fleet.
                self.leave("hop")
        self._pump()

    def leave(self, disposition: Disposition, *, delay: timedelta = timedelta(0), note: str | None = None) -> None:
        """Give the run back as soon as the steps that are running have ended; what they return is recorded."""
        if self._leaving is None:
            self._leaving, self._leave_delay, self._leave_note = disposition, delay, note
            for attempt in self._running.values():
                attempt.context.draining = True
        self._pump()

    def look(self) -> None:
        """The inbox has rows this activation has not read: an empty item that wants to decide brings them."""
        self._wants_inbox = True
        self._pump()

    def leave_now(self) -> None:
        """Give the run back without waiting for its steps: their results are dropped and they run again elsewhere."""
        for attempt in self._running.values():
            attempt.drop()
        self._running.clear()
        self.leave("release")

    def lose(self, why: str) -> None:
        """The lease is not this worker's any more: stop the work and say nothing more about the run."""
        if not self._is_over:
            log.warning("run %s: dropped by this worker: %s", self.claim.run_id, why)
            for attempt in self._running.values():
                attempt.context.lease_lost = True
            self._over("lost")

    # -- what the engine calls ------------------------------------------------------------------------------------

    def asked(self, commands: Sequence[Command]) -> None:
        """The run's code waits for these calls and for what it asked for before."""
        if self._is_over:
            return
        for command in commands:
            self._take(command)
        self._pump()

    def ended(self, outcome: Outcome) -> None:
        """The run's code is over, or was suspended."""
        if self._is_over or isinstance(outcome, Suspended):
            return
        self._outcome = outcome
        self._pump()

    def broke(self, error: Exception) -> None:
        """Running the code failed in the SDK itself: never the run's fault, so it is given back and tried again."""
        log.error("run %s: cannot be executed here", self.claim.run_id, exc_info=error)
        self._start_over(_BROKEN_DELAY, f"{type(error).__name__}: {error}")

    # -- calls of the code ----------------------------------------------------------------------------------------

    def _take(self, command: Command) -> None:
        match command:
            case RunStep():
                self._take_step(command)
            case RecordValue(payload=payload, encoding=encoding):
                self._batch.drafts.append(draft(command.id, Phase.COMPLETED, payload, encoding))
            case Abandon():
                self._abandon(command.id)
            case StartTimer() | AwaitSignal() | StartChild() | OpenHuman():
                self._waits.open(command)

    def _take_step(self, command: RunStep) -> None:
        key = command.id.key
        if self._leaving is not None:
            return  # Whoever has the run next is asked again.
        if command.step.need is not None and not self._port.offers(command.step.need):
            self._hops[key] = command
        elif key in self._begun:
            interrupted = StepInterruptedError(
                f"step {command.step.name!r} had begun when its worker died; whether it took effect is unknown",
                step=command.step.name,
            )
            self._batch.drafts.append(draft(command.id, Phase.FAILED, _failure.describe(interrupted), JSON))
        elif (past := self._attempted.get(key)) is not None and past.next_at > self._port.now():
            self._retries[key] = _Retry(command, past.no + 1, past.first_at, past.next_at)
        elif command.step.at_most_once:
            self._starting[key] = command
            self._batch.drafts.append(draft(command.id, Phase.OPENED))
        else:
            self._start_step(command)

    def _start_step(self, command: RunStep) -> None:
        past = self._attempted.get(command.id.key)
        number = 1 if past is None else past.no + 1
        elapsed = timedelta(0) if past is None else max(self._port.now() - past.first_at, timedelta(0))
        self._running[command.id.key] = self._port.start_step(self, command, number=number, elapsed=elapsed)

    def _retry_later(self, command: RunStep, number: int, result: StepRaised, pause: timedelta) -> None:
        key, now = command.id.key, self._port.now()
        past = self._attempted.get(key)
        first_at = now if past is None else past.first_at
        log.info("run %s: %s: attempt %d failed, next in %s: %r", self.claim.run_id, key, number, pause, result.error)
        self._retries[key] = _Retry(command, number + 1, first_at, now + pause)
        self._attempted[key] = Attempt(number, first_at, now + pause)
        self._batch.attempts.append(
            AttemptNote(key=key, no=number, next_seconds=pause.total_seconds(), error=result.envelope.decode())
        )

    def _abandon(self, call: CallId) -> None:
        key = call.key
        is_unopened = self._batch.forget(key)
        if self._waits.close(key) and call.kind is Kind.HUMAN and not is_unopened:
            self._batch.tasks.append(TaskClosing(key=key, close="cancelled"))
        self._retries.pop(key, None)
        self._hops.pop(key, None)
        self._starting.pop(key, None)
        if (attempt := self._running.pop(key, None)) is not None:
            attempt.drop()

    # -- what is said next ----------------------------------------------------------------------------------------

    def _pump(self) -> None:
        """Send the next item if there is something to say; otherwise wait for the next instant."""
        if self._is_over or self._in_flight is not None:
            return
        if self._outcome is None:
            self._look_around()
        codes = {one.code for one in self._batch.drafts if one.code is not None}
        numbers = self._port.code_numbers(codes, self._pump) if codes else {}
        if numbers is None:
            return
        item = self._next_item()
        if item is None:
            self._set_alarm()
            return
        item.entries = [
            msgspec.structs.replace(one.entry, code=None if one.code is None else numbers[one.code])
            for one in self._batch.drafts
        ]
        item.consumed, item.children = self._batch.consumed, self._batch.children
        item.tasks, item.attempts = self._batch.tasks, self._batch.attempts
        item.decides = bool(self._batch.by_deadline) or self._wants_inbox
        self._wants_inbox = False
        self._in_flight, self._batch = self._batch, Batch()
        self._port.submit(self, item)

    def _look_around(self) -> None:
        """Take what the inbox and the clock have for the run."""
        now = self._port.now()
        for row in self._waits.consume(Kind.CANCEL):
            self._batch.consumed.append(row.id)
            self._cancel(row.payload)
        if self.claim.deadline is not None and self.claim.deadline <= now:
            self._cancel(json.dumps({"by": "deadline", "reason": f"not done by {self.claim.deadline}"}).encode())
        self._batch.add(self._waits.resolve(now))
        due = [] if self._leaving is not None else [k for k, retry in self._retries.items() if retry.next_at <= now]
        for key in due:
            self._start_step(self._retries.pop(key).command)
        for wait in self._waits.unopened():
            self._open(wait)

    def _cancel(self, payload: bytes | None) -> None:
        """The code hears of a cancel request once, at a place of the journal that replay finds again."""
        if not self._is_cancelled:
            self._is_cancelled = True
            self._batch.drafts.append(
                Draft(
                    NewEntry(
                        0, Kind.CANCEL, Phase.COMPLETED, "", "cancel", 1, payload, NONE if payload is None else JSON
                    )
                )
            )

    def _open(self, wait: Wait) -> None:
        try:
            self._batch.open(self.claim.run_id, wait)
        except UsageError as error:
            # The code asked for something that cannot be: it hears of it where it asked.
            self._waits.close(wait.id.key)
            self._batch.drafts.append(draft(wait.id, Phase.FAILED, _failure.describe(error), JSON))

    def _next_item(self) -> Item | None:
        batch = self._batch
        if self._outcome is not None:
            return self._last_item(self._outcome)
        is_idle = not self._engine.is_busy and not self._running and not self._starting
        if self._leaving is not None and is_idle:
            return self._item(
                self._leaving,
                need=self.claim.need if self._leaving == "hop" else None,
                delay=self._leave_delay if self._leaving == "release" else None,
                note=self._leave_note,
            )
        if any(one.entry.phase is not Phase.OPENED for one in batch.drafts) or not is_idle:
            return self._item("keep") if batch or self._wants_inbox else None
        return self._parking_item()

    def _parking_item(self) -> Item | None:
        """Nothing of the run can go on here: give it back, unless it is about to go on."""
        until = self._next_instant()
        openings = self._waits.earliest_opening()
        until = min((at for at in (until, openings) if at is not None), default=None)
        delay = self._waits.shortest_opening()
        now = self._port.now()
        if self._hops:
            first = min(self._hops.values(), key=lambda command: (command.id.scope, command.id.call))
            return self._item("hop", need=first.step.need)
        if (until is not None and until - now < LINGER) or (delay is not None and delay < LINGER):
            return self._item("keep") if self._batch else None
        return self._item("park", until=until, delay=delay, wake_after=self._engine.wake_after)

    def _last_item(self, outcome: Outcome) -> Item:
        match outcome:
            case Blocked(report=report):
                return self._item("block", note=json.dumps(report, default=str))
            case Completed(payload=payload, encoding=encoding):
                return self._end("complete", Phase.COMPLETED, payload, encoding)
            case Failed(payload=payload):
                return self._end("fail", Phase.FAILED, payload, JSON)
            case Cancelled(payload=payload):
                return self._end("cancel", Phase.CANCELLED, payload, JSON)
            case Suspended():
                raise AssertionError("a suspended activation says nothing more")

    def _end(self, disposition: Disposition, phase: Phase, payload: bytes | None, encoding: int) -> Item:
        self._batch.drafts.append(Draft(NewEntry(0, Kind.RUN, phase, "", self.claim.workflow, 1, payload, encoding)))
        return self._item(disposition)

    def _item(
        self,
        disposition: Disposition,
        *,
        until: datetime | None = None,
        delay: timedelta | None = None,
        need: str | None = None,
        note: str | None = None,
        wake_after: int = 1,
    ) -> Item:
        return Item(
            n=self.claim.n,
            lease_id=self.claim.lease_id,
            expected_seq=self._head,
            disposition=disposition,
            until=until,
            delay=delay,
            need=need,
            note=note,
            inbox_seen=self._waits.inbox_seen,
            wake_after=wake_after,
            lapsed=self._lapsed,
        )

    # -- after a commit -------------------------------------------------------------------------------------------

    def _committed(self, item: Item, now_at: datetime) -> list[Entry]:
        head = item.expected_seq or 0
        entries = [
            Entry(
                head + index,
                new.call,
                new.kind,
                new.phase,
                new.scope,
                new.name,
                new.occurrence,
                new.payload,
                new.encoding,
                now_at,
                self.claim.lease_no,
                new.code,
            )
            for index, new in enumerate(item.entries, 1)
        ]
        self._head = head + len(entries)
        self._lapsed = self._lapsed and not entries
        self.trace.committed(entries)
        for entry in entries:
            if entry.phase is Phase.OPENED:
                if entry.kind is Kind.STEP:
                    if (command := self._starting.pop(entry.key, None)) is not None:
                        self._start_step(command)
                else:
                    self._waits.opened(entry)
        return entries

    def _take_back(self, batch: Batch) -> None:
        """Nothing of `batch` was written. What only the clock had decided in it is decided anew."""
        self._waits.reopen(batch.by_deadline)
        batch.forget_decisions()
        self._batch.prepend(batch)

    def _start_over(self, delay: timedelta = timedelta(0), note: str | None = None) -> None:
        """Forget what this activation knows and give the run back, to be replayed from the journal."""
        for attempt in self._running.values():
            attempt.drop()
        self._running.clear()
        self._starting.clear()
        self._batch = Batch()
        self._outcome = None
        self._head = None
        self.leave("release", delay=delay, note=note)

    def _over(self, status: str) -> None:
        self._is_over = True
        if self._alarm is not None:
            self._alarm.cancel()
        for attempt in self._running.values():
            attempt.drop()
        self._running.clear()
        self._engine.close()
        self.trace.released(status)
        self._port.released(self, status)

    def _next_instant(self) -> datetime | None:
        instants = [retry.next_at for retry in self._retries.values()]
        if (instant := self._waits.next_instant()) is not None:
            instants.append(instant)
        if self.claim.deadline is not None and not self._is_cancelled:
            instants.append(self.claim.deadline)
        return min(instants, default=None)

    def _set_alarm(self) -> None:
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None
        if (instant := self._next_instant()) is not None:
            self._alarm = self._port.call_at(instant, self._pump)


_RELEASED_AS: dict[Disposition, str] = {
    "keep": "running",
    "park": "waiting",
    "hop": "hop",
    "release": "released",
    "complete": "completed",
    "fail": "failed",
    "cancel": "cancelled",
    "block": "blocked",
}
