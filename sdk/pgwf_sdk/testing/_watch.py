"""Looks on while a run is executed, and replays it from its journal after every commit."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from pgwf_journal import Phase
from pgwf_sdk import _serial
from pgwf_sdk._definition import pinned
from pgwf_sdk._errors import Suspend
from pgwf_sdk._wording import without_addresses
from pgwf_sdk.replay import (
    Abandon,
    AsyncActivation,
    AttachRun,
    AwaitSignal,
    Blocked,
    CancelChild,
    Cancelled,
    Command,
    Completed,
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
    SyncActivation,
)
from pgwf_sdk.testing._differences import ReplayDifferenceError
from pgwf_sdk.worker._engine import AsyncEngine, SyncEngine

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from pgwf_journal import Entry
    from pgwf_sdk._definition import Workflow
    from pgwf_sdk.worker._engine import Listener

REPLAYED_ENTRIES_MAX = 200
"""A longer journal is replayed when its length has doubled and when the run ends: each replay runs all of it."""

Place = tuple[str, int, bool]
"""Scope, number of the call, and whether it is asked to stop: a child is, while it is waited for all the same."""


class Watch:
    """Stands between a run's engine and its driver. What differs in a replay goes to `failed`."""

    def __init__(
        self,
        driver: Listener,
        workflow: Workflow[..., Any],
        info: RunInfo,
        history: Sequence[Entry],
        *,
        learn: Callable[[Workflow[..., Any]], None],
        offer: Callable[[str], None],
        failed: Callable[[AssertionError], None],
        is_replaying: bool,
    ) -> None:
        self.is_busy: Callable[[], bool] = bool
        self._driver = driver
        self._workflow = workflow
        self._info = info
        self._history = list(history)
        self._learn = learn
        self._offer = offer
        self._failed = failed
        self._is_replaying = is_replaying
        self._next_length = 0
        self._open: dict[Place, Command] = {}

    def fed(self, entries: Sequence[Entry]) -> None:
        """Entries were committed."""
        self._history += entries
        for entry in entries:
            if entry.phase != Phase.OPENED:
                self._forget(entry.scope, entry.call)

    def asked(self, commands: Sequence[Command]) -> None:
        for command in commands:
            if isinstance(command, Abandon):
                self._forget(command.id.scope, command.id.call)
                continue
            self._open[_place(command)] = command
            if isinstance(command, StartChild):
                self._learn(command.call.workflow)
            elif isinstance(command, Hop):
                self._offer(pinned(command.need, self._workflow.build))
        # A value that is being recorded would be computed anew; what is fed already has set the code going again.
        is_quiet = not self.is_busy() and not any(isinstance(one, RecordValue) for one in self._open.values())
        if self._is_replaying and is_quiet and len(self._history) >= self._next_length:
            if len(self._history) > REPLAYED_ENTRIES_MAX:
                self._next_length = 2 * len(self._history)
            self._check(None)
        self._driver.asked(commands)

    def _forget(self, scope: str, call: int) -> None:
        for is_stopping in (False, True):
            self._open.pop((scope, call, is_stopping), None)

    def ended(self, outcome: Outcome) -> None:
        if isinstance(outcome, Blocked):
            self._failed(difference(self._info, outcome))
        elif self._is_replaying and isinstance(outcome, Completed | Failed | Cancelled):
            self._check(outcome)
        self._driver.ended(outcome)

    def broke(self, error: Exception) -> None:
        self._driver.broke(error)

    def _check(self, ended: Outcome | None) -> None:
        try:
            commands, outcome = replay(self._workflow, self._info, self._history)
        except (SystemExit, KeyboardInterrupt):
            return  # The run's own end by such an exception; it is recorded as its failure.
        if isinstance(outcome, Blocked):
            self._failed(difference(self._info, outcome))
            return
        if said(ended) != said(outcome):
            self._report(f"it {said(ended)} the first time, and {said(outcome)} in a replay")
        if ended is not None or outcome is not None:
            return
        live = {place: intent(one) for place, one in self._open.items()}
        again = {_place(one): intent(one) for one in commands if not isinstance(one, Abandon)}
        # One that the code ran before others made promises is held back in a replay, until these are recorded.
        are_held = any(isinstance(one, OpenAwakeable) and one.has_followers for one in commands)
        for place in live | again:
            if are_held and place not in again and isinstance(self._open[place], RunStep):
                continue
            if live.get(place) != again.get(place):
                self._report(f"it asked for {live.get(place)} the first time, and for {again.get(place)} in a replay")
                return

    def _report(self, what: str) -> None:
        self._failed(
            ReplayDifferenceError(
                f"run {self._info.run_id} (workflow {self._info.workflow!r}) is not deterministic: with the first"
                f" {len(self._history)} entries of its journal {what}; values that differ from run to run come from a"
                " step, ctx.side_effect, ctx.now, ctx.random or ctx.uuid4"
            )
        )


class WatchedAsyncEngine(AsyncEngine):
    """Tells the watch what was committed before the code hears of it."""

    def __init__(self, activation: AsyncActivation, watch: Watch) -> None:
        super().__init__(activation, watch)
        self._watch = watch

    def feed(self, entries: Sequence[Entry]) -> None:
        self._watch.fed(entries)
        super().feed(entries)


class WatchedSyncEngine(SyncEngine):
    """Tells the watch what was committed before the code hears of it."""

    def __init__(self, activation: SyncActivation, watch: Watch, **options: Any) -> None:
        super().__init__(activation, watch, **options)
        self._watch = watch
        watch.is_busy = lambda: self.is_busy

    def feed(self, entries: Sequence[Entry]) -> None:
        self._watch.fed(entries)
        super().feed(entries)


def replay(
    workflow: Workflow[..., Any], info: RunInfo, history: Sequence[Entry]
) -> tuple[list[Command], Outcome | None]:
    """Run the code over a journal: what it asks for at its end, or how it ended."""
    if workflow.is_async:
        activation = AsyncActivation(workflow, info, history)
        try:
            return activation.start(), activation.outcome
        finally:
            activation.close()
    asked: list[Command] = []
    is_open = False

    def exchange(commands: list[Command]) -> Sequence[Entry]:
        nonlocal is_open
        is_open = True
        asked.extend(commands)
        raise Suspend

    outcome = SyncActivation(workflow, info, history).run(exchange)
    return asked, None if is_open else outcome


def difference(info: RunInfo, blocked: Blocked) -> ReplayDifferenceError:
    """The error of a run that cannot go on with its journal."""
    return ReplayDifferenceError(blocked.report.get("text") or f"run {info.run_id} is blocked", blocked.report)


def said(outcome: Outcome | None) -> str:
    """An outcome in words, without what differs between equal ones: the lines of a traceback, addresses of objects."""
    match outcome:
        case None:
            return "went on"
        case Completed(payload=payload, encoding=encoding):
            return f"returned {_text(payload, encoding)}"
        case Failed(payload=payload) | Cancelled(payload=payload):
            envelope: Mapping[str, Any] = msgspec.json.decode(payload)
            return without_addresses(f"raised {envelope.get('type')}: {envelope.get('message')}")
        case _:
            return f"was {type(outcome).__name__.lower()}"


def _place(command: Command) -> Place:
    return (command.id.scope, command.id.call, isinstance(command, CancelChild))


def intent(command: Command) -> str:
    """What a call asks for, in words that differ when the call does."""
    key = command.id.key
    match command:
        case RunStep(args=args, kwargs=kwargs):
            arguments = [*map(_stored, args), *(f"{name}={_stored(value)}" for name, value in kwargs.items())]
            return f"{key}({', '.join(arguments)})"
        case StartTimer(duration=duration, until=until):
            return f"{key} for {duration}" if until is None else f"{key} until {until}"
        case AwaitSignal(timeout=timeout):
            return f"{key} for {timeout}"
        case StartChild(call=call):
            return f"{key} with {call.encode().decode()}"
        case AttachRun(run_id=run_id, timeout=timeout):
            return f"{key} to {run_id} for {timeout}"
        case OpenHuman(request=request):
            return f"{key} about {_stored(request.subject)}"
        case _:
            return key


def _stored(value: object) -> str:
    try:
        return _text(*_serial.encode(value))
    except Exception:  # noqa: BLE001 - an argument of a step need not be storable; then only its type is compared
        return f"<{type(value).__name__}>"


def _text(payload: bytes | None, encoding: int) -> str:
    return "None" if payload is None else payload.decode(errors="replace") if encoding else repr(payload)
