"""Plays the worker and the database for a replay: runs commands, gives entries their numbers and times.

`run` goes on until the workflow ends. With a `shuffle` the commands of one exchange are answered in another order, and
not all at once, as workers, people and clocks do.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from itertools import count
from typing import TYPE_CHECKING, Any

import msgspec

from pgwf_journal import Entry, Kind, Phase
from pgwf_sdk import _failure
from pgwf_sdk._errors import RunNotFoundError, Suspend
from pgwf_sdk._serial import encode
from pgwf_sdk._step_context import StepContext, enter_step, leave_step
from pgwf_sdk.replay import (
    Abandon,
    AsyncActivation,
    AttachRun,
    AwaitSignal,
    CallId,
    CancelChild,
    Cancelled,
    Command,
    Completed,
    Continued,
    Failed,
    Hop,
    OpenAwakeable,
    OpenHuman,
    Outcome,
    RecordValue,
    RunInfo,
    RunStep,
    StartChild,
    StartTimer,
    Suspended,
    SyncActivation,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from random import Random

    from pgwf_sdk._definition import Call, Step, Workflow

EPOCH = datetime(2026, 1, 1, tzinfo=UTC)
EXCHANGES_MAX = 5_000

Answer = tuple[Phase, bytes | None, int]


@dataclass
class Driver:
    """One run and its journal. `signals`, `decisions` and `completions` come from outside, by name, oldest first.

    Those of a name in `arrivals` come so long after the first entry; all others are there from the start.
    """

    call: Call[Any]
    seed: int = 17
    signals: dict[str, list[Any]] = field(default_factory=dict[str, list[Any]])
    decisions: dict[str, list[Any]] = field(default_factory=dict[str, list[Any]])
    completions: dict[str, list[Any]] = field(default_factory=dict[str, list[Any]])
    arrivals: dict[str, timedelta] = field(default_factory=dict[str, timedelta])
    ends: dict[str, Answer] = field(default_factory=dict[str, Answer])
    """How other runs ended, by id; one whose phase is opened goes on, and one that is not here is no run."""
    shuffle: Random | None = None
    journal: list[Entry] = field(default_factory=list[Entry])
    executed: Counter[str] = field(default_factory=Counter[str])
    commands: list[Command] = field(default_factory=list[Command])
    suspend_after: int | None = None
    """Give the activation up once the journal is that long."""
    cancel_at: int | None = None
    """Ask the run to stop in that exchange, counted from 0 over all activations."""
    exchange_count: int = 0
    asked_when_suspended: int = 0
    """How often a suspended activation asked for something all the same."""

    def __post_init__(self) -> None:
        self.clock = EPOCH
        self._open: dict[tuple[str, int], Command] = {}
        self._is_suspended = False
        if not self.journal:
            self.clock += timedelta(milliseconds=1)
            self._append(0, Kind.RUN, Phase.OPENED, "", self.workflow.name, 1, self.call.encode(), 1)

    @property
    def workflow(self) -> Workflow[..., Any]:
        return self.call.workflow

    @property
    def info(self) -> RunInfo:
        return RunInfo("run-1", self.workflow.name, self.seed, EPOCH)

    def run(self) -> Outcome:
        """One activation, from the journal as it is now."""
        self._open.clear()
        self._is_suspended = False
        self.clock = max(self.clock, self.journal[-1].recorded_at)
        if self.workflow.is_async:
            return self._run_async()
        return SyncActivation(self.workflow, self.info, list(self.journal)).run(self.exchange)

    def _run_async(self) -> Outcome:
        activation = AsyncActivation(self.workflow, self.info, list(self.journal))
        try:
            commands = activation.start()
            while activation.outcome is None:
                commands = activation.feed(self.exchange(commands))
        except Suspend:
            return Suspended()
        finally:
            activation.close()
        return activation.outcome

    def exchange(self, commands: list[Command]) -> Sequence[Entry]:
        """Do some of what is open and return what was recorded."""
        self.asked_when_suspended += self._is_suspended
        try:
            return self._exchange(commands)
        except Suspend:
            self._is_suspended = True
            raise

    def _exchange(self, commands: list[Command]) -> Sequence[Entry]:
        self.commands += commands
        first_new = len(self.journal)
        if self.exchange_count == self.cancel_at:
            self.cancel()
        self.exchange_count += 1
        for command in commands:
            self._take(command)
        is_held_back = any(isinstance(command, OpenAwakeable) and command.has_followers for command in commands)
        while len(self.journal) == first_new or (self._opened_only(first_new) and not is_held_back):
            if self.suspend_after is not None and len(self.journal) >= self.suspend_after:
                raise Suspend
            if not self._answer_some():
                break
        if self.suspend_after is not None and len(self.journal) >= self.suspend_after:
            raise Suspend
        assert len(self.journal) < EXCHANGES_MAX, "the run never ends"
        new = self.journal[first_new:]
        if not new:
            raise Suspend
        return new

    def cancel(self, by: str = "ann", reason: str = "changed her mind") -> None:
        payload = msgspec.json.encode({"by": by, "reason": reason})
        self.clock += timedelta(milliseconds=1)
        self._append(0, Kind.CANCEL, Phase.COMPLETED, "", "cancel", 1, payload, 1)

    def keys(self, phase: Phase = Phase.COMPLETED) -> list[str]:
        return [entry.key for entry in self.journal if entry.phase == phase and entry.call]

    def _opened_only(self, first: int) -> bool:
        return all(entry.phase == Phase.OPENED for entry in self.journal[first:])

    def _take(self, command: Command) -> None:
        place = (command.id.scope, command.id.call)
        if isinstance(command, CancelChild):
            if self._open.pop(place, None) is not None:
                self._record(command.id, Phase.CANCELLED)
            return
        if isinstance(command, Abandon):
            is_open = self._open.pop(place, None) is not None or not command.is_sent
            if is_open and command.id.kind in (Kind.AWAKEABLE, Kind.HUMAN, Kind.ATTACH):
                self._record(command.id, Phase.CANCELLED)
            return
        if isinstance(command, AttachRun) and command.run_id not in self.ends:
            self._record(command.id, Phase.FAILED, _failure.describe(RunNotFoundError(command.run_id)), 1)
            return
        if not isinstance(command, RunStep | RecordValue | Hop) and command.opened is None:
            self._record(command.id, Phase.OPENED)
        self._open[place] = command
        if isinstance(command, RecordValue):
            self._answer(command)  # As a worker does: it comes before all that the code asks for later.

    def _answer_some(self) -> bool:
        """Answer what can be; timers fire only when nothing else can happen, the earliest first."""
        ready = [command for command in self._open.values() if not self._is_timed(command)]
        if ready:
            if self.shuffle is not None:
                self.shuffle.shuffle(ready)
                ready = ready[: self.shuffle.randint(1, len(ready))]
            for command in ready:
                self._answer(command)
            return True
        due = {place: at for place, command in self._open.items() if (at := self._due(command)) is not None}
        coming = [at for command in self._open.values() if (at := self._arrival(command)) is not None]
        if coming and (not due or min(coming) < min(due.values())):
            self.clock = min(coming)
            return True
        if not due:
            return False
        place = min(due, key=due.__getitem__)
        command = self._open[place]
        self.clock = max(self.clock, due[place])
        self._record(command.id, Phase.COMPLETED if isinstance(command, StartTimer) else Phase.TIMED_OUT)
        del self._open[command.id.scope, command.id.call]
        return True

    def _is_timed(self, command: Command) -> bool:
        match command:
            case StartTimer():
                return True
            case AwaitSignal(signal=name):
                return not self.signals.get(name) or self._arrival(command) is not None
            case OpenAwakeable(id=call):
                return not self.completions.get(call.name) or self._arrival(command) is not None
            case AttachRun(run_id=run_id):
                return self.ends[run_id][0] is Phase.OPENED
            case OpenHuman(request=request):
                return not self.decisions.get(request.name)
            case _:
                return False

    def _arrival(self, command: Command) -> datetime | None:
        """When what the call waits for comes from outside; None: never, or it is there."""
        name = command.id.name
        match command:
            case AwaitSignal() if self.signals.get(name):
                after = self.arrivals.get(name)
            case OpenAwakeable() if self.completions.get(name):
                after = self.arrivals.get(name)
            case _:
                return None
        return None if after is None or EPOCH + after <= self.clock else EPOCH + after

    def _due(self, command: Command) -> datetime | None:
        opened = next(
            (e for e in self.journal if (e.scope, e.call) == (command.id.scope, command.id.call)), self.journal[-1]
        ).recorded_at
        match command:
            case StartTimer(duration=duration, until=until):
                return until if until is not None else opened + (duration or timedelta(0))
            case (
                AwaitSignal(timeout=timedelta() as timeout)
                | OpenAwakeable(timeout=timedelta() as timeout)
                | AttachRun(timeout=timedelta() as timeout)
            ):
                return opened + timeout
            case OpenHuman(request=request) if request.expires is not None:
                return opened + request.expires
            case _:
                return None

    def _answer(self, command: Command) -> None:
        del self._open[command.id.scope, command.id.call]
        phase, payload, encoding = self._outcome(command)
        is_deferred = isinstance(command, RunStep) and command.step.is_deferred
        self._record(command.id, phase, payload, encoding, is_deferred=is_deferred)

    def _outcome(self, command: Command) -> Answer:
        self.executed[command.id.key] += 1
        match command:
            case RunStep(step=step, args=args, kwargs=kwargs):
                return self._guarded(
                    lambda: step.codec.encode(self._ran(command.id.key, step, args, kwargs), subject="result")
                )
            case RecordValue(payload=payload, encoding=encoding):
                return Phase.COMPLETED, payload, encoding
            case StartChild(call=call):
                return self._child(call)
            case AttachRun(run_id=run_id):
                return self.ends[run_id]
            case Hop(need=need):
                return Phase.COMPLETED, msgspec.json.encode(need), 1
            case AwaitSignal(signal=name):
                return self._guarded(lambda: _encoded(self.signals[name].pop(0)))
            case OpenAwakeable(id=call):
                return self._guarded(lambda: _encoded(_raised(self.completions[call.name].pop(0))))
            case OpenHuman(request=request):
                value = self.decisions[request.name].pop(0)
                decided = {"value": msgspec.Raw(_encoded(value)[0] or b"null"), "by": "ann", "at": self.clock}
                return Phase.COMPLETED, msgspec.json.encode(decided), 1
            case _:
                raise AssertionError(command)

    def _ran(self, key: str, step: Step[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """The result of the first attempt that has one, or the error of the last."""
        for attempt in count(1):
            token = enter_step(StepContext(attempt=attempt, call=key))
            try:
                result = step.fn(*args, **kwargs)
                return asyncio.run(result) if step.is_async else result
            except Exception as error:
                if attempt == step.retry.max_attempts or not step.retry.allows(error):
                    raise
            finally:
                leave_step(token)
        raise AssertionError(key)

    def _guarded(self, act: Callable[[], tuple[bytes | None, int]]) -> Answer:
        try:
            return Phase.COMPLETED, *act()
        except Exception as error:  # noqa: BLE001 - every failure of a step is recorded
            return Phase.FAILED, _failure.describe(error), 1

    def _child(self, call: Call[Any]) -> Answer:
        child = Driver(call, seed=self.seed + 1, signals=self.signals, decisions=self.decisions)
        match child.run():
            case Completed(payload, encoding):
                return Phase.COMPLETED, payload, encoding
            case Failed(payload):
                return Phase.FAILED, payload, 1
            case Continued(call=following):
                return self._child(following)
            case Cancelled(payload):
                return Phase.CANCELLED, payload, 1
            case outcome:
                raise AssertionError(outcome)

    def _record(
        self,
        call: CallId,
        phase: Phase,
        payload: bytes | None = None,
        encoding: int = 0,
        *,
        is_deferred: bool = False,
    ) -> None:
        if not is_deferred:  # Otherwise the entry bears the time of the one before it.
            self.clock += timedelta(milliseconds=1)
        self._append(call.call, call.kind, phase, call.scope, call.name, call.occurrence, payload, encoding)

    def _append(
        self,
        call: int,
        kind: Kind,
        phase: Phase,
        scope: str,
        name: str,
        occurrence: int,
        payload: bytes | None,
        encoding: int,
    ) -> None:
        self.journal.append(
            Entry(
                seq=len(self.journal) + 1,
                call=call,
                kind=kind,
                phase=phase,
                scope=scope,
                name=name,
                occurrence=occurrence,
                payload=payload,
                encoding=encoding,
                recorded_at=self.clock,
                lease_no=1,
            )
        )


def run_twice(call: Any, **options: Any) -> tuple[Driver, Outcome]:
    """Run, replay, and check that the replay wants nothing and ends alike."""
    driver = Driver(call, **options)
    outcome = driver.run()
    wanted = len(driver.commands)
    assert driver.run() == outcome
    assert len(driver.commands) == wanted
    return driver, outcome


def _encoded(value: Any) -> tuple[bytes | None, int]:
    return encode(value)


def _raised(value: Any) -> Any:
    if isinstance(value, Exception):
        raise value
    return value
