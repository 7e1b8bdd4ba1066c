"""The pure core of a replay: it numbers calls, checks them against the record and settles them in journal order.

It knows neither threads nor coroutines. A driver (async loop, sync fibers) runs user code until nothing can run, then
takes `advance()` once, wakes who waited, and repeats. Because exactly one entry is settled between two such moments,
code that waits for the first of several things goes the same way in every replay. Only when the journal is used up are
the open calls handed to the worker as commands.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from pgwf_journal import Kind, Phase
from pgwf_sdk._errors import RunCancelled, UndecodableError
from pgwf_sdk.replay import _mismatch
from pgwf_sdk.replay._calls import BranchCall, ChildCall, PatchCall, PendingCall, StepCall
from pgwf_sdk.replay._commands import Abandon, Blocked, CancelChild, Command, RunInfo
from pgwf_sdk.replay._group import CallGroup
from pgwf_sdk.replay._history import History
from pgwf_sdk.replay._places import line_of_caller
from pgwf_sdk.replay._plan import Plan
from pgwf_sdk.replay._scope import Scope

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterable, Sequence
    from datetime import datetime

    from pgwf_journal import Entry
    from pgwf_sdk._definition import Step, Workflow
    from pgwf_sdk.replay._awakeable import AwakeableCall
    from pgwf_sdk.replay._places import Line

__all__ = ["CancelRequest", "Machine"]

_OPENED: Final = Phase.OPENED  # Until Python 3.12 a look at a member of an enumeration takes as long as a call.
_PATCH: Final = Kind.PATCH


class CancelRequest:
    """Somebody asked the run to stop; delivered once, in journal order."""

    __slots__ = ("error",)

    def __init__(self, error: RunCancelled) -> None:
        self.error = error


class Machine:
    """One activation of one run."""

    __slots__ = (
        "_abandoned",
        "_cancelled_children",
        "_must_record",
        "_patches",
        "_scopes",
        "_unrecorded",
        "_unsent",
        "blocked",
        "cancel",
        "difference",
        "fn",
        "history",
        "is_awaited",
        "is_latched",
        "leaving",
        "now",
        "plans",
        "root",
        "run",
        "stands_at",
        "steps",
    )

    def __init__(self, workflow: Workflow[..., Any], run: RunInfo, history: Sequence[Entry]) -> None:
        self.run = run
        self.fn: Callable[..., Any] = workflow.fn
        self.is_awaited = workflow.is_async
        self.stands_at: Callable[[], Iterable[Line]] = tuple
        """Where the code waits just now; the driver knows."""
        self.now: datetime = run.started_at
        self.blocked: Blocked | None = None
        self.difference: tuple[PendingCall, Entry] | None = None
        """What blocks the run, if it is a call of the code where the journal has another one."""
        self.cancel: CancelRequest | None = None
        self.is_latched = False
        """True once this activation may bring about nothing more: what the code still calls stays without effect."""
        self.leaving: Coroutine[Any, Any, Any] | None = None
        """What leaves the code of an async workflow, once awaited, for the next run of its chain."""
        self.history = History(history)
        self.steps: dict[Any, Step[..., Any]] = {}
        self.plans: list[Plan] = []
        """What is to be done at the end, in the order in which it was planned."""
        self._scopes: dict[str, Scope] = {}
        self._unsent: list[PendingCall] = []
        self._abandoned: dict[tuple[str, int], PendingCall] = {}
        self._cancelled_children: list[ChildCall] = []
        self._must_record: list[PendingCall] = []
        self._unrecorded: list[AwakeableCall] = []
        self._patches: dict[str, bool] = {}
        self.root = self.scope("")

    def scope(self, path: str) -> Scope:
        """Return the scope of that path; made when it is first asked for."""
        scope = self._scopes.get(path)
        if scope is None:
            scope = self._scopes[path] = Scope(self, path, self.history.calls_in(path))
        return scope

    def open(self, call: PendingCall) -> bool:
        """Number a call the code makes now, and check it against the record. True when it was never recorded before.

        After a difference the machine is blocked: the call stays open for ever and no command leaves any more.
        """
        if self.is_latched:
            return False
        scope = call.scope
        call.ordinal = ordinal = scope.calls + 1
        scope.calls = ordinal
        repeated = (call.kind, call.name)
        call.occurrence = occurrence = scope.occurrences.get(repeated, 0) + 1
        scope.occurrences[repeated] = occurrence
        scope.open[ordinal] = call
        recorded = scope.recorded.get(ordinal)
        if recorded is None:
            call.code = call.code or line_of_caller()
            self._unsent.append(call)
            return True
        if recorded.name != call.name or recorded.kind != call.kind or recorded.occurrence != occurrence:
            if self.blocked is None:
                call.code = call.code or line_of_caller()
                self.difference = (call, recorded)
                self.blocked = Blocked(_mismatch.different_call(self, call, recorded))
        elif recorded.phase == _OPENED:
            call.opened = recorded
            self._unsent.append(call)
        return False

    def open_branches(self, name: str, scope: Scope) -> str:
        """Number a `parallel` or `map` and return its key, to which a branch's scope adds the index."""
        call = BranchCall(scope, name)
        self.open(call)
        self.withdraw(call)
        return call.id.key

    def withdraw(self, call: PendingCall) -> None:
        """Take back a call that needs no worker; its number stays taken."""
        call.scope.open.pop(call.ordinal, None)
        call.is_abandoned = True

    def abandon(self, call: PendingCall) -> None:
        """Nobody waits for `call` any more; the worker is told if it knows of it, now or from an earlier activation."""
        if call.is_done or call.is_abandoned:
            return
        self.withdraw(call)
        if call.is_sent or call.opened is not None:
            self._abandoned[call.scope.path, call.ordinal] = call

    def cancel_child(self, call: ChildCall) -> None:
        """Nobody wants the result of that child any more; it is asked to cancel, and waited for."""
        self._cancelled_children.append(call)

    def leave(self, call: PendingCall) -> None:
        """The code is gone: give `call` up, unless it is one that must be recorded."""
        if call not in self._must_record:
            self.abandon(call)

    def record_before_end(self, call: PendingCall) -> None:
        """The run must not end before the entry of `call` (of a spawned child: of its start) is in the journal."""
        self._must_record.append(call)

    def record_first(self, call: AwakeableCall) -> None:
        """No step that the code calls from now on begins before `call` is in the journal: it may tell others of it."""
        if call.opened is None:
            self._unrecorded.append(call)

    @property
    def has_unrecorded(self) -> bool:
        """True while something the code asked for without waiting is not in the journal yet."""
        self._must_record = [
            call
            for call in self._must_record
            if not (call.is_done or call.is_abandoned or (isinstance(call, ChildCall) and call.opened is not None))
        ]
        return bool(self._must_record)

    def patched(self, name: str) -> bool:
        """Whether this run takes the new way at the changed place `name`: decided once, and recorded if it does."""
        known = self._patches.get(name)
        if known is None:
            is_marked = name in self.history.markers
            known = self._patches[name] = is_marked or not self._has_been_further()
            if known and not is_marked:
                marker = PatchCall(self.root, name, _mismatch.no_codec)
                marker.occurrence = 1
                marker.code = line_of_caller()
                self._unsent.append(marker)
                self._must_record.append(marker)
        return known

    def feed(self, entries: Iterable[Entry]) -> None:
        """Take entries that were committed since. HistoryError: one is missing."""
        self.history.extend(entries)

    def advance(self) -> PendingCall | CancelRequest | None:
        """Settle the next call that an entry resolves and return it; None when there is none, or the run is blocked.

        Only to be called when no user code can run: an entry for a call that is not made by then never will be.
        """
        history = self.history
        entries = history.entries
        while history.cursor < len(entries):
            if self.blocked is not None:
                return None
            entry = entries[history.cursor]
            history.cursor += 1
            if entry.call == 0:
                if entry.kind == Kind.CANCEL:
                    self.now = max(self.now, entry.recorded_at)
                    self.cancel = CancelRequest(_mismatch.cancel_error(self.run.run_id, entry))
                    return self.cancel
                if entry.kind == _PATCH:
                    self._note_marker(entry.name)
                continue
            scope = self._scopes.get(entry.scope)
            if scope is None or entry.call > scope.calls:
                self.blocked = Blocked(_mismatch.call_not_made(self, entry, self.open_calls()))
                return None
            if entry.phase == _OPENED:
                self._note_opened(scope, entry)
                continue
            call = scope.open.pop(entry.call, None)
            if call is None:
                self._abandoned.pop((entry.scope, entry.call), None)
                continue
            try:
                call.settle(entry)
            except UndecodableError as error:
                self.blocked = Blocked(_mismatch.undecodable(self, entry, error, call))
                return None
            if entry.recorded_at > self.now:
                self.now = entry.recorded_at
            return call
        return None

    def take_commands(self) -> list[Command]:
        """Return what the worker is to do that it was not told yet, in the order the code asked for it."""
        if self.blocked is not None:
            return []
        commands: list[Command] = []
        if self._abandoned or self._cancelled_children:
            commands += [Abandon(call.id, call.is_sent) for call in self._abandoned.values()]
            commands += [CancelChild(call.id) for call in self._cancelled_children if not call.is_done]
            self._abandoned.clear()
            self._cancelled_children.clear()
        held_back = self._take_followers() if self._unrecorded else []
        for call in self._unsent:
            if not (call.is_done or call.is_abandoned):
                call.is_sent = True
                commands.append(call.command())
        self._unsent = held_back
        return commands

    def _take_followers(self) -> list[PendingCall]:
        """Take the steps out of what is to be sent, as long as an awakeable before them is not recorded."""
        self._unrecorded = [call for call in self._unrecorded if not (call.opened or call.is_done or call.is_abandoned)]
        if not self._unrecorded:
            return []
        followers: list[PendingCall] = [call for call in self._unsent if isinstance(call, StepCall)]
        for call in self._unrecorded:
            call.has_followers = bool(followers)
        self._unsent = [call for call in self._unsent if not isinstance(call, StepCall)]
        return followers

    def end(self, error: BaseException | None) -> list[Command]:
        """The code has ended: read the rest of the journal, and return what must still be recorded.

        Blocks the run when there are entries of calls that were never made. What else is open is of no interest.
        """
        history = self.history
        for entry in history.entries[history.cursor :]:
            history.cursor += 1
            if entry.kind == _PATCH:
                self._note_marker(entry.name)
            if not entry.call:
                continue
            scope = self._scopes.get(entry.scope)
            if scope is None or entry.call > scope.calls:
                self.blocked = Blocked(_mismatch.ended_early(self, entry, error))
                return []
            call = scope.open.get(entry.call)
            if call is not None:
                call.opened = entry
                call.is_done = entry.phase != _OPENED
        unsent = [call for call in self._must_record if not (call.is_sent or call.is_done or call.is_abandoned)]
        for call in unsent:
            call.is_sent = True
        return [call.command() for call in unsent]

    def stall(self) -> None:
        """Block the run: no code can run, and it waits for nothing that a worker or anybody else could bring about."""
        self.blocked = Blocked(_mismatch.stalled(self))

    @property
    def is_silent(self) -> bool:
        """True while what the code says was said before, or is not to be said at all."""
        return self.history.is_replaying or self.run.is_trial

    @property
    def is_waiting(self) -> bool:
        """True while some call is open, so that an entry may yet come."""
        for scope in self._scopes.values():  # noqa: SIM110 - a loop costs a third of `any`, and this is asked at every step
            if scope.open:
                return True
        return False

    @property
    def wake_after(self) -> int:
        """How many children must complete before the code can go on, if nothing else comes: sooner is in vain.

        Negative: so many must end, however they do. Otherwise one that does not complete wakes the run at once.
        """
        waiters = {call.waiter for call in self.open_calls() if isinstance(call, ChildCall)}
        needed = [waiter.ends_needed if isinstance(waiter, CallGroup) else 1 for waiter in waiters]
        least = min(map(abs, needed), default=1)
        return -least if needed and max(needed) < 0 else least

    def open_calls(self) -> list[PendingCall]:
        """The calls that no entry has resolved yet, in the order of the scopes' first use."""
        return [call for scope in self._scopes.values() for call in scope.open.values()]

    def _has_been_further(self) -> bool:
        """True when the journal has a call that the code has not made yet in this activation.

        Code with the patch would have decided on it before it made that call, and the marker would stand before it.
        """
        for path, recorded in self.history.scopes():
            scope = self._scopes.get(path)
            if recorded and (scope is None or max(recorded) > scope.calls):
                return True
        return False

    def _note_opened(self, scope: Scope, entry: Entry) -> None:
        call = scope.open.get(entry.call) or self._abandoned.get((entry.scope, entry.call))
        if call is not None:
            call.opened = entry

    def _note_marker(self, name: str) -> None:
        for call in self._must_record:
            if call.kind == _PATCH and call.name == name:
                call.is_done = True
