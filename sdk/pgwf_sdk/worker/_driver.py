"""One leased run in a worker: what its code asks for is done, and what was done is committed and told to its code.

At most one item of a run is on its way at a time, because each one names the journal's head it builds on. The run's
code sees a result only after its commit. The run parks when nothing of it can go on in this process.
"""

import logging
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from typing import TypeVarTuple

from pgwf_journal import ENCODING_JSON as JSON
from pgwf_journal import Entry, Kind, Phase
from pgwf_sdk import _failure
from pgwf_sdk._telemetry import RunTrace
from pgwf_sdk.replay import (
    Abandon,
    AttachRun,
    AwaitSignal,
    Blocked,
    CallId,
    CancelChild,
    Command,
    Hop,
    OpenAwakeable,
    OpenHuman,
    Outcome,
    RecordValue,
    RunStep,
    StartChild,
    StartTimer,
    Suspended,
    cancelled_unbegun,
)
from pgwf_sdk.worker._advance import Claim, Disposition, Item, ItemAnswer
from pgwf_sdk.worker._batch import Batch
from pgwf_sdk.worker._ending import ending_of
from pgwf_sdk.worker._engine import Engine
from pgwf_sdk.worker._head import Head
from pgwf_sdk.worker._home import Home
from pgwf_sdk.worker._port import Alarm, Port
from pgwf_sdk.worker._room import Occupant
from pgwf_sdk.worker._size import JournalSize
from pgwf_sdk.worker._stepping import STEP_KINDS, Stepping
from pgwf_sdk.worker._steps import StepCommitted, StepRaised, StepReport
from pgwf_sdk.worker._waits import Draft, Waits, draft

log = logging.getLogger("pgwf_sdk.worker")

Ts = TypeVarTuple("Ts")

_BROKEN_DELAY = timedelta(seconds=5)
_WAIT_KINDS = (Kind.TIMER, Kind.SIGNAL)
_CANCEL = Kind.CANCEL
_OPENED = Phase.OPENED  # Until Python 3.12 a look at a member of an enumeration takes as long as a call.
_NO_NUMBERS: dict[tuple[str, int], int] = {}


def _contained(act: "Callable[[Driver, *Ts], None]") -> "Callable[[Driver, *Ts], None]":
    """A run that breaks its worker would break each that takes it: whatever is raised costs the run a new start."""

    def contained(driver: "Driver", /, *args: *Ts) -> None:
        try:
            act(driver, *args)
        except Exception as error:  # noqa: BLE001 - as said above
            driver.broke(error)

    return contained


class Driver:
    """Drives one activation of a run; all its methods are called on the host loop's thread."""

    def __init__(self, claim: Claim, engine_of: "Callable[[Driver], Engine]", port: Port, trace: RunTrace) -> None:
        self.claim = claim
        self.trace = trace
        self._port = port
        self._head = Head(claim)
        self._lapsed = claim.streak > 0
        is_cancelled = _CANCEL in [entry.kind for entry in claim.history]
        self.waits = Waits(claim.inbox, deadline=claim.deadline, is_cancelled=is_cancelled)
        self.size = JournalSize(claim, port.journal_limits, trace)
        self._steps = Stepping(claim, port, self)
        self.occupant = Occupant(claim.current_need, self._steps.count_with_need)
        self._batch = Batch()
        self._in_flight: Batch | None = None
        self._outcome: Outcome | None = None
        self._home = Home(claim)
        self._leaving: Disposition | None = None
        self._leave_note: str | None = None
        self._leave_delay = timedelta(0)
        self._withdrawn: list[Draft] = []  # Timers and waits for signals that nobody waits for any more.
        self._alarm = Alarm(port)
        self._turn: str | None = None  # The step that appends in a transaction of its own, as the item in flight.
        self._wants_inbox = False
        self._is_explaining = False  # The report on a blocked run gets its source lines.
        self._is_settling = False  # What an answer led to is said in one item, once all of it is known.
        self._is_numbering = False  # Source lines are being numbered: what is to be said gathers until then.
        self.is_over = False
        """True when nothing more is said about the run from here."""
        self.is_giving_back = False
        """True while an item is on its way after which the lease is not held any more, unless it is refused."""
        self._engine = engine_of(self)

    # -- what the worker calls ------------------------------------------------------------------------------------

    @_contained
    def start(self) -> None:
        """Replay the history and go on; a run that is cancelled before it began ends without any of its code."""
        claim = self.claim
        is_unbegun = len(claim.history) == 1 and not (claim.streak or claim.attempts or self._home.is_away)
        if is_unbegun and not self.waits.is_quiet:
            self._batch.add(self.waits.resolve(self._port.now()))
        if self.waits.is_cancelled and self._batch.drafts:
            self._outcome = cancelled_unbegun(self.claim.run_id, self._batch.drafts[0].entry)
        else:
            self._is_settling = True
            self.size.heed(self)
            self._engine.start()
            self._is_settling = False
        self._pump()

    @_contained
    def settled(self, item: Item, answer: ItemAnswer) -> None:
        """The call that carried `item` has committed, or was refused."""
        batch, self._in_flight = self._in_flight, None
        self.is_giving_back = False
        if self.is_over or batch is None:
            return
        self._is_settling = True
        match answer.status:
            case "ok" | "unread":
                entries = answer.entries or self._head.entries_of(item, answer.now_at)
                news = self._committed(entries, item.told)
                if answer.status == "unread":
                    self._engine.feed(news)
                    self.waits.arrive(self._port.opened_inbox(self, answer.inbox))
                    self._wants_inbox = self._wants_inbox or not answer.inbox
                elif item.disposition != "keep":
                    self._over(_RELEASED_AS[item.disposition])
                elif news and self._outcome is None:
                    self.size.heed(self)
                    self._is_settling = False  # What its code asks for is all there is to come.
                    self._engine.feed(news)
            case "undecided":
                batch.give_back(self._batch, self.waits)
                self.waits.arrive(self._port.opened_inbox(self, answer.inbox))
            case "child_exists" | "no_run" | "cycle":
                for key in batch.refuse(answer, self.claim.run_id):
                    self.waits.close(key)
                batch.give_back(self._batch, self.waits)
            case "fenced":
                self.lose("another worker has the run")
            case "conflict":
                # Something was written that this activation has heard no answer of: the journal tells what.
                self._in_flight = batch
                self._port.recall(self, item)
            case "unknown":
                self._start_over()
            case "busy":
                raise AssertionError("an item that was left out is sent again, and not settled")
        self._is_settling = False
        self._pump()

    def refused(self, item: Item, error: Exception) -> None:
        """The database will not take `item`; the log says what it was, and the run is tried again later."""
        self._in_flight = None
        self.is_giving_back = False
        log.error("run %s: the database refused what it recorded", self.claim.run_id, exc_info=error)
        if item.expected_seq is None:
            # Not even giving it back is possible: its lease runs out, and the lapse is counted.
            self.lose("it cannot be given back")
        else:
            self._start_over(_BROKEN_DELAY, f"refused by the database: {error}")

    @_contained
    def step_reported(self, call: CallId, number: int, report: StepReport) -> None:
        """An attempt of a step ended, or said that it is alive."""
        if isinstance(report, StepCommitted):
            self._turn = None
            self.settled(report.item, report.answer)
            return
        if self.is_over:
            return
        if isinstance(report, StepRaised) and self._turn == call.key:
            turn, self._turn, self._in_flight = self._in_flight, None, None
            if turn is not None:
                self._batch.take_told(turn)  # Its transaction rolled back, with the entries in it.
        step = self._steps.reported(call, number, report, self._batch)
        if step is not None and step.step.need is not None and self._home.is_away:
            # The step is what brought the run here; the rest belongs to its home fleet.
            self.leave("hop")
        self._pump()

    def leave(self, disposition: Disposition, *, delay: timedelta = timedelta(0), note: str | None = None) -> None:
        """Give the run back as soon as the steps that are running have ended; what they return is recorded."""
        if self._leaving is None:
            self._leaving, self._leave_delay, self._leave_note = disposition, delay, note
            self._steps.drain()
        self._pump()

    def look(self) -> None:
        """The inbox has rows this activation has not read: an empty item that wants to decide brings them."""
        self._wants_inbox = True
        self._pump()

    def leave_now(self) -> None:
        """Give the run back without waiting for its steps: their results are dropped and they run again elsewhere."""
        self._steps.drop_all(but=self._turn)
        self.leave("release")

    def lose(self, why: str) -> None:
        """The lease is not this worker's any more: stop the work and say nothing more about the run."""
        if not self.is_over:
            log.warning("run %s: dropped by this worker: %s", self.claim.run_id, why)
            self._steps.drop_all(lease_lost=True)
            self._over("lost")

    # -- what the engine calls ------------------------------------------------------------------------------------

    @_contained
    def asked(self, commands: Sequence[Command]) -> None:
        """The run's code waits for these calls and for what it asked for before."""
        if self.is_over:
            return
        was_settling = self._is_settling
        for number, command in enumerate(commands, 1):
            # A step may end as it begins. What the steps before the last one have to say goes with its own.
            self._is_settling = was_settling or number < len(commands)
            self._take(command)
        self._pump()

    @_contained
    def ended(self, outcome: Outcome) -> None:
        """The run's code is over, or was suspended."""
        if self.is_over or isinstance(outcome, Suspended):
            return
        self._is_explaining = isinstance(outcome, Blocked) and self._outcome is None
        self._outcome = outcome
        if isinstance(outcome, Blocked) and self._is_explaining:
            self._port.explain(self.claim.n, outcome.report, lambda report: self.ended(Blocked(report)))
        else:
            self._pump()

    def broke(self, error: Exception) -> None:
        """Running the code failed in the SDK itself: never the run's fault, so it is given back and tried again."""
        log.error("run %s: cannot be executed here", self.claim.run_id, exc_info=_failure.log_info(error))
        self._is_settling = False
        if self._head.seq is None:
            self.lose(f"it cannot be given back: {_failure.line_of(error)}")
        else:
            self._start_over(_BROKEN_DELAY, _failure.line_of(error))

    # -- calls of the code ----------------------------------------------------------------------------------------

    def _take(self, command: Command) -> None:
        match command:
            case RunStep(id=call, step=step):
                if step.is_transaction and call.code is not None:
                    self._port.code_numbers({call.code}, _nothing)  # Its turn does not wait for them.
                if self._leaving is None:  # Otherwise whoever has the run next is asked again.
                    self._steps.take(command, self._batch)
            case RecordValue(payload=payload, encoding=encoding):
                self._batch.drafts.append(draft(command.id, Phase.COMPLETED, payload, encoding))
            case Hop():
                self._home.hop = command
            case CancelChild(id=call):
                if self._batch.forget(call.key):  # It was about to be started.
                    self.waits.close(call.key)
                    self._batch.drafts.append(draft(call, Phase.CANCELLED))
                else:
                    self._batch.cancels.append(call.key)
            case Abandon(id=call, is_sent=is_sent):
                is_unopened = self._batch.forget(call.key)
                if call.kind in _WAIT_KINDS and (not is_sent or self.waits.is_recorded(call.key)):
                    self._withdrawn.append(draft(call, Phase.CANCELLED))
                is_open = self.waits.close(call.key) or not is_sent
                if is_open and not is_unopened:
                    self._batch.give_up(call)
                if self._turn != call.key:  # One that has its turn is about to be recorded; nobody will look at it.
                    self._steps.drop(call.key)
            case StartTimer() | AwaitSignal() | StartChild() | AttachRun() | OpenAwakeable() | OpenHuman():
                self.waits.open(command)

    # -- what is said next ----------------------------------------------------------------------------------------

    @_contained
    def _pump(self) -> None:
        """Send the next item if there is something to say; otherwise wait for the next instant."""
        if self.is_over or self._in_flight is not None or self._is_numbering:
            return
        if self._is_explaining or self._is_settling:
            return
        if self._batch.is_deferrable:
            self._tell_deferred()
        is_quiet = self.waits.is_quiet and self._steps.is_quiet
        if self._outcome is None and not is_quiet:
            self._look_around()
        elif is_quiet and not (self._batch or self._outcome or self._wants_inbox or self._steps.is_idle):
            return  # Its steps will say when there is more.
        # What was said before goes first: a patch marker must not come after what the new code did.
        if not is_quiet and self._head.seq is not None and not self._batch.news and self._give_turn():
            return
        codes = {one.code for one in (*self._batch.drafts, *self._withdrawn) if one.code is not None}
        if not is_quiet:
            codes |= self.waits.silent_codes()
        if (hop := self._home.hop) is not None and hop.id.code is not None:
            codes.add(hop.id.code)
        numbers = self._port.code_numbers(codes, self._numbered) if codes else _NO_NUMBERS
        if numbers is None:
            self._is_numbering = True
            return
        rest = self._batch.split() if self._outcome is None else None
        item = self._next_item() if rest is None else self._item("keep", self._batch)
        if item is None:
            self._alarm.set(_earliest(self._steps.next_instant, self.waits.next_instant()), self._pump)
            return
        item.entries = self._batch.entries(numbers)
        item.decides = self._wants_inbox or bool(self._batch.by_deadline)
        self._wants_inbox = False
        self._in_flight, self._batch = self._batch, rest or Batch()
        self.is_giving_back = item.disposition != "keep"
        self._port.submit(self, item)

    def _tell_deferred(self) -> None:
        """Let the code go on with results that may be recorded later, if nothing else comes before them."""
        while self._outcome is None and self._leaving is None and self._batch.is_deferrable and self._batch:
            news = self._head.ahead(self._batch)
            self._batch.told = len(self._batch.drafts)
            self.size.grow(news)
            self._is_settling = True
            self.size.heed(self)
            self._engine.feed(news)
            self._is_settling = False

    def _numbered(self) -> None:
        self._is_numbering = False
        self._pump()

    def _give_turn(self) -> bool:
        """Let a step that commits with its own SQL append next. True when there is one."""
        batch = Batch()
        turn = self._steps.next_turn(batch)
        if turn is None:
            return False
        batch.take_told(self._batch)
        item = self._item("keep", batch)
        numbers = self._port.code_numbers({one.code for one in batch.drafts if one.code is not None}, _nothing) or {}
        item.entries = batch.entries(numbers)
        self._turn, self._in_flight = item.entries[-1].key, batch
        turn.set_result(item)
        return True

    def _look_around(self) -> None:
        """Take what the inbox and the clock have for the run."""
        now = self._port.now()
        was_cancelled = self.waits.is_cancelled
        self._batch.add(self.waits.resolve(now))
        if self.waits.is_cancelled and not was_cancelled:
            self._steps.stop_retrying()
        if self._leaving is None:
            self._is_settling = True
            self._steps.start_due(now)
            self._is_settling = False
        for wait in self.waits.unopened():
            try:
                self._batch.open(self.claim.run_id, wait)
            except Exception as error:  # noqa: BLE001 - the code asked for what cannot be, and hears of it where it asked
                self.waits.close(wait.id.key)
                self._batch.drafts.append(draft(wait.id, Phase.FAILED, _failure.describe(error), JSON))

    def _next_item(self) -> Item | None:
        batch = self._batch
        if self._outcome is not None:
            return self._last_item(self._outcome)
        hop = self._home.hop
        if self._leaving is None and hop is None and batch.has_results:
            return self._item("keep", batch)
        is_idle = not self._engine.is_busy and self._steps.is_idle and not self.waits.has_followers
        if self._leaving is not None and is_idle:
            if self._leaving == "block":
                self.size.say_blocked()
            need = self._home.need if self._leaving == "hop" else None
            item = self._item(self._leaving, batch, need=need, note=self._leave_note)
            item.delay = self._leave_delay if self._leaving == "release" else None
            return item
        if hop is not None and self._leaving is None and is_idle and not batch.by_deadline:
            moved = self._home.move(batch, hop)
            return self._item(moved, batch, need=self._home.need)
        if not is_idle or batch.has_results:
            return self._item("keep", batch) if batch or self._wants_inbox else None
        return self._parking_item(batch)

    def _parking_item(self, batch: Batch) -> Item | None:
        """Nothing of the run can go on here: give it back, unless it is about to go on."""
        if (need := self._steps.next_need) is not None:
            return self._item("hop", batch, need=need)
        until = _earliest(self._steps.next_instant, self.waits.next_instant(), self.waits.earliest_opening())
        delay = self.waits.shortest_opening()
        now = self._port.now()
        if self._engine.is_ending and batch:
            return self._item("keep", batch)  # Once that is recorded, the run is over.
        linger = self._port.linger
        if (until is not None and until - now < linger) or (delay is not None and delay < linger):
            return self._item("keep", batch) if batch else None
        # These entries cost no commit here, and tell people what the run waits for, and no longer waits for.
        batch.drafts += self._withdrawn
        self._withdrawn.clear()
        for wait in self.waits.silent():
            batch.open(self.claim.run_id, wait)
        # Whatever fleet it is with now, a run that waits goes on at home.
        item = self._item("park", batch, need=self._home.need)
        item.until, item.delay, item.wake_after = until, delay, self._engine.wake_after
        return item

    def _last_item(self, outcome: Outcome) -> Item:
        ending = ending_of(self.claim, outcome)
        if ending.entry is None:  # The run stays as its code knew it.
            told, self._batch = self._batch, Batch()
            self._batch.take_told(told)
        else:
            self._batch.drafts.append(Draft(ending.entry))
        return self._item(ending.disposition, self._batch, need=ending.need, note=ending.note)

    def _item(
        self, disposition: Disposition, batch: Batch, *, need: str | None = None, note: str | None = None
    ) -> Item:
        # Most fields are set afterwards: naming them in the call would take three times as long.
        item = Item(self.claim.n, self.claim.lease_id, self._head.seq, disposition)
        item.need, item.note, item.inbox_seen, item.lapsed = need, note, self.waits.inbox_seen, self._lapsed
        item.told, item.consumed, item.children = batch.told, batch.consumed, batch.children
        item.tasks, item.attempts = batch.tasks, batch.attempts
        item.cancels, item.attaches = batch.cancels, batch.attaches
        return item

    # -- after a commit -------------------------------------------------------------------------------------------

    def _committed(self, entries: list[Entry], told: int) -> list[Entry]:
        """Take note of what was recorded, and return what the code does not know yet: it was told so many before."""
        self._head.reached(entries)
        news = entries[told:]
        self._lapsed = self._lapsed and not entries
        if not entries:
            return entries
        self.trace.committed(entries)
        self.size.grow(news)
        for entry in entries:
            if entry.phase is not _OPENED:
                if entry.kind in STEP_KINDS and not self._steps.is_idle:
                    self._steps.committed(entry.key)
                continue
            if entry.kind in STEP_KINDS:
                self._steps.opened(entry.key)
            else:
                self.waits.opened(entry)
        return news

    def _start_over(self, delay: timedelta = timedelta(0), note: str | None = None) -> None:
        """Forget what this activation knows and give the run back, to be replayed from the journal."""
        self._steps.drop_all(but=self._turn)
        self._batch = Batch()
        self.waits.unfollow()
        self._outcome = None
        self._head.seq = None
        self.leave("release", delay=delay, note=note)

    def _over(self, status: str) -> None:
        self.is_over = True
        self._alarm.set(None, self._pump)
        self._steps.drop_all()
        self._engine.close()
        self.trace.released(status)
        self._port.released(self, status)


def _nothing() -> None:
    """For who does not wait for an answer."""


def _earliest(*instants: datetime | None) -> datetime | None:
    return min((instant for instant in instants if instant is not None), default=None)


_RELEASED_AS: dict[Disposition, str] = {
    "keep": "running",
    "park": "waiting",
    "hop": "hop",
    "release": "released",
    "complete": "completed",
    "fail": "failed",
    "cancel": "cancelled",
    "continue": "continued",
    "block": "blocked",
}
