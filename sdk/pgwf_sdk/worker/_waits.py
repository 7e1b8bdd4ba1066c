"""What a run waits for, and how what came from outside and the clock resolve it. No I/O, no clock of its own.

Times are the database's: a deadline is the time at which the journal recorded the wait, plus its duration. A row that
arrived by the deadline beats it, however late somebody looks.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

import msgspec

from pgwf_journal import ENCODING_JSON as JSON
from pgwf_journal import ENCODING_NONE as NONE
from pgwf_journal import Entry, Kind, NewEntry, Phase
from pgwf_sdk._wording import instant_words
from pgwf_sdk.replay import AttachRun, AwaitSignal, CallId, OpenAwakeable, OpenHuman, StartChild, StartTimer
from pgwf_sdk.worker._advance import InboxRow

WaitCommand = StartTimer | AwaitSignal | StartChild | AttachRun | OpenAwakeable | OpenHuman

_MICROSECOND = timedelta(microseconds=1)
_ADDRESSED = frozenset({Kind.AWAKEABLE, Kind.ATTACH, Kind.CHILD, Kind.HUMAN})
"""Their inbox rows are named by the call they resolve."""


class Draft(msgspec.Struct, frozen=True):
    """An entry to append, with the user's line it comes from while that line has no number yet.

    One that `is_deferred` is no reason for a commit.
    """

    entry: NewEntry
    code: tuple[str, int] | None = None
    is_deferred: bool = False


def draft(
    call: CallId, phase: Phase, payload: bytes | None = None, encoding: int = NONE, *, is_deferred: bool = False
) -> Draft:
    """An entry of `call`."""
    entry = NewEntry(call.call, call.kind, phase, call.scope, call.name, call.occurrence, payload, encoding)
    return Draft(entry, call.code, is_deferred)


class Deadline(msgspec.Struct, omit_defaults=True):
    """What an `opened` entry says of the end of its wait: a duration from then on, an instant, or nothing."""

    microseconds: int | None = None
    until: datetime | None = None
    run_id: str | None = None
    token_hash: str | None = None

    @classmethod
    def of(cls, command: WaitCommand) -> "Deadline":
        """The deadline a command asks for."""
        match command:
            case StartTimer(duration=None, until=until):
                return cls(until=until)
            case (
                StartTimer(duration=duration)
                | AwaitSignal(timeout=duration)
                | OpenAwakeable(timeout=duration)
                | AttachRun(timeout=duration)
            ):
                return cls(microseconds=None if duration is None else duration // _MICROSECOND)
            case OpenHuman(request=request):
                return cls(microseconds=None if request.expires is None else request.expires // _MICROSECOND)
            case StartChild():
                return cls()

    def instant(self, opened_at: datetime) -> datetime | None:
        """When the wait ends that was recorded at `opened_at`."""
        if self.until is not None:
            return self.until
        return None if self.microseconds is None else opened_at + timedelta(microseconds=self.microseconds)


@dataclass(slots=True)
class Wait:
    """One open call that something outside resolves. `opened_at` is None until its opened entry is in the journal."""

    command: WaitCommand
    deadline: Deadline
    opened_at: datetime | None = None
    is_opening: bool = False

    @property
    def id(self) -> CallId:
        """The call that waits."""
        return self.command.id

    @property
    def ends_at(self) -> datetime | None:
        """When the wait ends by the clock; None: never, or not known before its entry is recorded."""
        return None if self.opened_at is None else self.deadline.instant(self.opened_at)

    @property
    def is_recorded(self) -> bool:
        """True when its opened entry is in the journal, or on its way there."""
        return self.opened_at is not None or self.is_opening

    @property
    def is_silent(self) -> bool:
        """True when nothing depends on its opened entry: it is written only to say what a parked run waits for."""
        return isinstance(self.command, AwaitSignal) and self.command.timeout is None


@dataclass(slots=True)
class Resolution:
    """What can be resolved now: entries in the order things happened, inbox rows they consume, tasks to close.

    `by_deadline` are waits that only the clock resolved although something could still have arrived in time: the
    entries hold only if the inbox has nothing newer, so they are appended as a decision.
    """

    drafts: list[Draft] = field(default_factory=list)
    consumed: list[int] = field(default_factory=list)
    closed_tasks: list[str] = field(default_factory=list)
    by_deadline: list[Wait] = field(default_factory=list)


class Waits:
    """The open waits of one run and the inbox rows nobody has consumed."""

    def __init__(
        self, inbox: Iterable[InboxRow] = (), *, deadline: datetime | None = None, is_cancelled: bool = False
    ) -> None:
        self._waits: dict[str, Wait] = {}
        self._inbox: dict[int, InboxRow] = {row.id: row for row in inbox}
        self._deadline = deadline
        self._followed: set[str] = set()
        self.inbox_seen = max(self._inbox, default=0)
        self.is_cancelled = is_cancelled
        """True once the code has heard, or is about to hear, of a cancel request; it hears of one only."""

    @property
    def is_quiet(self) -> bool:
        """True when neither the inbox nor the clock can have anything for the run, nor is there a wait to record."""
        return not self._waits and not self._inbox and self._deadline is None

    @property
    def has_followers(self) -> bool:
        """True when the code has more to ask for once a wait is recorded."""
        return bool(self._followed)

    def open(self, command: WaitCommand) -> None:
        """The run's code waits for `command`; its deadline is the recorded one where there is a record."""
        wait = Wait(command, Deadline.of(command))
        if isinstance(command, OpenAwakeable) and command.has_followers:
            self._followed.add(command.id.key)
        if command.opened is not None:
            self._record(wait, command.opened.payload, command.opened.recorded_at)
        self._waits[command.id.key] = wait

    def close(self, key: str) -> bool:
        """Nobody waits for the call any more. True when it was open."""
        self._followed.discard(key)
        return self._waits.pop(key, None) is not None

    def unfollow(self) -> None:
        """No record of a wait will be heard of any more: the code goes on elsewhere."""
        self._followed.clear()

    def is_recorded(self, key: str) -> bool:
        """True when the code waits for the call, and its opened entry is in the journal."""
        wait = self._waits.get(key)
        return wait is not None and wait.is_recorded

    def arrive(self, rows: Iterable[InboxRow]) -> None:
        """More of the inbox has been read."""
        for row in rows:
            self._inbox[row.id] = row
            self.inbox_seen = max(self.inbox_seen, row.id)

    def unopened(self) -> list[Wait]:
        """Waits whose opened entry is to be appended at once; they count as being opened from now on."""
        return self._opening([wait for wait in self._waits.values() if not (wait.is_recorded or wait.is_silent)])

    def silent(self) -> list[Wait]:
        """Waits that need no entry before the run parks; they count as being opened from now on."""
        return self._opening([wait for wait in self._waits.values() if not wait.is_recorded and wait.is_silent])

    def silent_codes(self) -> set[tuple[str, int]]:
        """The user's lines that entries of `silent` will name."""
        waits = (wait for wait in self._waits.values() if wait.is_silent and not wait.is_recorded)
        return {wait.id.code for wait in waits if wait.id.code is not None}

    def opened(self, entry: Entry) -> None:
        """The opened entry of a wait is in the journal."""
        wait = self._waits.get(entry.key)
        if wait is not None:
            self._record(wait, entry.payload, entry.recorded_at)

    def reopen(self, waits: Iterable[Wait]) -> None:
        """A decision did not hold: the waits are open as before."""
        for wait in waits:
            self._waits[wait.id.key] = wait

    def resolve(self, now: datetime) -> Resolution:
        """Resolve what the inbox and the time `now` allow; resolved waits are closed."""
        resolution = Resolution()
        if self.is_quiet:
            return resolution
        found: list[tuple[datetime, int, Wait, InboxRow | None]] = []
        by_key = {row.name: row for row in self._inbox.values() if row.kind in _ADDRESSED}
        signals = self._signals()
        for order, wait in enumerate(self._waits.values()):
            ends_at = wait.ends_at
            row = self._match(wait, by_key, signals)
            if row is not None and (ends_at is None or row.received_at <= ends_at):
                if wait.id.kind is Kind.SIGNAL:
                    signals[row.name].pop(0)
                found.append((row.received_at, order, wait, row))
            elif ends_at is not None and ends_at <= now:
                found.append((ends_at, order, wait, None))
        self._hear_of_cancel(now, resolution)
        for _, _, wait, row in sorted(found, key=lambda one: one[:2]):
            self._settle(wait, row, resolution)
        return resolution

    def next_instant(self) -> datetime | None:
        """The earliest recorded deadline, of a wait or of the run."""
        instants = [wait.ends_at for wait in self._waits.values() if wait.ends_at is not None]
        if self._deadline is not None and not self.is_cancelled:
            instants.append(self._deadline)
        return min(instants, default=None)

    def shortest_opening(self) -> timedelta | None:
        """The shortest duration among waits whose entries are being appended: their deadline counts from then."""
        durations = [
            wait.deadline.microseconds
            for wait in self._waits.values()
            if wait.is_opening and wait.opened_at is None and wait.deadline.microseconds is not None
        ]
        return timedelta(microseconds=min(durations)) if durations else None

    def earliest_opening(self) -> datetime | None:
        """The earliest instant among waits whose entries are being appended."""
        instants = [
            wait.deadline.until
            for wait in self._waits.values()
            if wait.is_opening and wait.opened_at is None and wait.deadline.until is not None
        ]
        return min(instants, default=None)

    def _hear_of_cancel(self, now: datetime, resolution: Resolution) -> None:
        requests = [row for row in self._inbox.values() if row.kind is Kind.CANCEL]
        for row in requests:
            del self._inbox[row.id]
            resolution.consumed.append(row.id)
        if self.is_cancelled:
            return
        if requests:
            resolution.drafts.append(_cancellation(requests[0].payload))
        elif self._deadline is not None and self._deadline <= now:
            reason = {"by": "deadline", "reason": f"not done by {instant_words(self._deadline)}"}
            resolution.drafts.append(_cancellation(msgspec.json.encode(reason)))
        self.is_cancelled = bool(resolution.drafts)

    def _opening(self, waits: list[Wait]) -> list[Wait]:
        for wait in waits:
            wait.is_opening = True
        return waits

    def _record(self, wait: Wait, payload: bytes | None, recorded_at: datetime) -> None:
        wait.deadline = Deadline() if payload is None else msgspec.json.decode(payload, type=Deadline)
        wait.opened_at = recorded_at
        self._followed.discard(wait.id.key)
        wait.is_opening = False

    def _signals(self) -> dict[str, list[InboxRow]]:
        signals: dict[str, list[InboxRow]] = {}
        for row in self._inbox.values():
            if row.kind is Kind.SIGNAL:
                signals.setdefault(row.name, []).append(row)
        return signals

    def _match(self, wait: Wait, by_key: dict[str, InboxRow], signals: dict[str, list[InboxRow]]) -> InboxRow | None:
        if isinstance(wait.command, AwaitSignal):
            return next(iter(signals.get(wait.command.signal, ())), None)
        return by_key.get(wait.id.key)

    def _settle(self, wait: Wait, row: InboxRow | None, resolution: Resolution) -> None:
        del self._waits[wait.id.key]
        if row is not None:
            del self._inbox[row.id]
            phase = Phase.FAILED if row.phase is Phase.TERMINATED else row.phase
            resolution.drafts.append(draft(wait.id, phase, row.payload, row.encoding))
            resolution.consumed.append(row.id)
        elif wait.id.kind is Kind.TIMER:
            resolution.drafts.append(draft(wait.id, Phase.COMPLETED))
        else:
            resolution.drafts.append(draft(wait.id, Phase.TIMED_OUT))
            resolution.by_deadline.append(wait)
            if wait.id.kind is Kind.HUMAN:
                resolution.closed_tasks.append(wait.id.key)


def opening(wait: Wait, **details: Any) -> Draft:
    """The opened entry of a wait."""
    deadline = msgspec.structs.replace(wait.deadline, **details)
    payload = msgspec.json.encode(deadline)
    return draft(wait.id, Phase.OPENED, None if payload == b"{}" else payload, NONE if payload == b"{}" else JSON)


def _cancellation(payload: bytes | None) -> Draft:
    encoding = NONE if payload is None else JSON
    return Draft(NewEntry(0, Kind.CANCEL, Phase.COMPLETED, "", "cancel", 1, payload, encoding))
