"""What is to be said about a run with its next item."""

from collections.abc import Mapping
from typing import Final, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from pgwf_journal import ENCODING_JSON, Kind, NewEntry, Phase
from pgwf_sdk import _failure
from pgwf_sdk._errors import PgwfError, RunConflictError, RunCycleError, RunNotFoundError
from pgwf_sdk.replay import AttachRun, CallId, OpenAwakeable, OpenHuman, StartChild
from pgwf_sdk.replay._child_ids import is_same_chain
from pgwf_sdk.worker._advance import (
    Attaching,
    AttemptNote,
    ChildStart,
    ItemAnswer,
    TaskClosing,
    TaskOpening,
    opened_bytes,
)
from pgwf_sdk.worker._openings import child_start, task_opening
from pgwf_sdk.worker._waits import Draft, Resolution, Wait, Waits, draft, opening

T = TypeVar("T")

_OPENED: Final = Phase.OPENED

DEFERRED_ENTRIES_MAX: Final = 100
"""So many results the code of a run may know before they are recorded; a crash repeats no more steps than that."""

DEFERRED_BYTES_MAX: Final = 1 << 20
"""Payload of such results after which they are recorded."""

ITEM_BYTES_MAX: Final = 16 << 20
"""Payload after which an item takes no further result, and opens nothing more: PostgreSQL closes the connection on a
message of a gigabyte, and whoever else shares the call would wait for it."""

_RESULTS: Final = frozenset({Kind.STEP, Kind.COMPENSATION, Kind.VALUE})


class Batch(Struct):
    """Entries and what goes with them, gathered while the item before them is on its way.

    The code of the run knows the first `told` of its drafts already: they are no reason to say anything, and go first.
    """

    drafts: list[Draft] = []
    consumed: list[int] = []
    children: list[ChildStart] = []
    tasks: list[TaskOpening | TaskClosing] = []
    attempts: list[AttemptNote] = []
    by_deadline: list[Wait] = []
    cancels: list[str] = []
    attaches: list[Attaching] = []
    told: int = 0

    def __bool__(self) -> bool:
        news = self.consumed or self.attempts or self.tasks or self.cancels or self.attaches
        return bool(len(self.drafts) > self.told or news)

    @property
    def news(self) -> list[Draft]:
        """What the code does not know yet."""
        return self.drafts[self.told :]

    @property
    def has_results(self) -> bool:
        """True when the code waits for some of the news, and not only others for its waits to be recorded."""
        for one in self.news:  # noqa: SIM110 - a loop costs a third of `any`, and this is asked at every step
            if one.entry.phase is not _OPENED:
                return True
        return False

    @property
    def is_deferrable(self) -> bool:
        """True when all that is new may be told at once, and recorded with what comes next."""
        if not self.drafts or not self.drafts[-1].is_deferred or len(self.drafts) > DEFERRED_ENTRIES_MAX:
            return False
        if self.consumed or self.children or self.attempts or self.tasks or self.cancels or self.attaches:
            return False
        return all(one.is_deferred for one in self.drafts) and _weight(self.drafts) <= DEFERRED_BYTES_MAX

    def split(self) -> "Batch | None":
        """Keep what one item may carry, and return the rest, to be said next; None when that is nothing.

        The rest is results and openings. The code knows of neither, so that what it did since may come before them.
        """
        if len(self.drafts) < 2:
            return None
        opens = opened_bytes(self.children, self.tasks)
        if _weight(self.drafts) + sum(opens.values()) <= ITEM_BYTES_MAX:
            return None
        kept, rest, payload_bytes = self.drafts[: self.told], Batch(), _weight(self.drafts[: self.told])
        for one in self.news:
            key = one.entry.key
            can_wait = key in opens or (one.entry.kind in _RESULTS and one.entry.phase is not _OPENED)
            if can_wait and payload_bytes >= ITEM_BYTES_MAX:
                rest.drafts.append(one)
                continue
            kept.append(one)
            payload_bytes += len(one.entry.payload or b"") + opens.get(key, 0)
        late = {one.entry.key for one in rest.drafts}
        self.drafts = kept
        self.children, rest.children = _parted(self.children, [child.key in late for child in self.children])
        self.tasks, rest.tasks = _parted(self.tasks, [task["key"] in late for task in self.tasks])
        self.attempts, rest.attempts = _parted(self.attempts, [note["key"] in late for note in self.attempts])
        return rest if late else None

    def entries(self, numbers: Mapping[tuple[str, int], int]) -> list[NewEntry]:
        """What is to be appended, with the user's lines by number."""
        return [
            one.entry if one.code is None else replace(one.entry, code=numbers.get(one.code)) for one in self.drafts
        ]

    def add(self, resolution: Resolution) -> None:
        """Take over what the inbox and the clock resolved."""
        self.drafts += resolution.drafts
        self.consumed += resolution.consumed
        self.by_deadline += resolution.by_deadline
        self.tasks += [TaskClosing(key=key, close="expired") for key in resolution.closed_tasks]
        late = (wait.id for wait in resolution.by_deadline if wait.id.kind is Kind.ATTACH)
        self.attaches += [Attaching(key=call.key, run_id=None) for call in late]

    def forget(self, key: str) -> bool:
        """Take out what was going to be said about a call. True when it was to be opened."""
        is_unopened = any(one.entry.key == key and one.entry.phase is Phase.OPENED for one in self.drafts)
        self.drafts[self.told :] = [one for one in self.news if one.entry.key != key or one.entry.call == 0]
        self.children = [child for child in self.children if child.key != key]
        self.tasks = [task for task in self.tasks if task["key"] != key]
        self.attaches = [one for one in self.attaches if one["key"] != key]
        return is_unopened

    def give_up(self, call: CallId) -> None:
        """Nobody waits any more for what was opened for `call`: it is closed, a child is asked to cancel.

        That is recorded where it must not be done again by each activation that comes there.
        """
        if call.kind is Kind.CHILD:
            self.cancels.append(call.key)
        elif call.kind is Kind.HUMAN:
            self.tasks.append(TaskClosing(key=call.key, close="cancelled"))
            self.drafts.append(draft(call, Phase.CANCELLED))
        elif call.kind is Kind.ATTACH:
            self.attaches.append(Attaching(key=call.key, run_id=None))
            self.drafts.append(draft(call, Phase.CANCELLED))
        elif call.kind is Kind.AWAKEABLE:
            self.drafts.append(draft(call, Phase.CANCELLED))

    def give_back(self, following: "Batch", waits: Waits) -> None:
        """Nothing of this was written: it goes into the next item. What only the clock had decided is decided anew,
        and the entry that ends the run comes with the item that does."""
        waits.reopen(self.by_deadline)
        decided = {wait.id.key for wait in self.by_deadline}
        following.drafts[:0] = [
            one for one in self.drafts if one.entry.key not in decided and one.entry.kind is not Kind.RUN
        ]
        following.told = self.told
        following.tasks[:0] = [task for task in self.tasks if task["key"] not in decided]
        following.attaches[:0] = [one for one in self.attaches if one["key"] not in decided]
        following.consumed[:0] = self.consumed
        following.children[:0] = self.children
        following.cancels[:0] = self.cancels
        following.attempts[:0] = self.attempts

    def take_told(self, other: "Batch") -> None:
        """Take over from `other` what the code knows already."""
        self.drafts[:0] = other.drafts[: other.told]
        other.drafts = other.news
        self.told, other.told = other.told, 0

    def open(self, run_id: str, wait: Wait) -> None:
        """Record that the run waits, and open what it waits for. UsageError: that cannot be."""
        command = wait.command
        if isinstance(command, StartChild):
            child = child_start(run_id, command)
            self.children.append(child)
            self.drafts.append(opening(wait, run_id=child.run_id))
            return
        if isinstance(command, AttachRun):
            self.attaches.append(Attaching(key=command.id.key, run_id=command.run_id))
            self.drafts.append(opening(wait, run_id=command.run_id))
            return
        if isinstance(command, OpenAwakeable):
            self.drafts.append(opening(wait, token_hash=command.token_hash))
            return
        if isinstance(command, OpenHuman):
            self.tasks.append(task_opening(run_id, command))
        self.drafts.append(opening(wait))

    def refuse(self, answer: ItemAnswer, own_id: str) -> list[str]:
        """Calls fail whose child or task ids are taken, or that cannot attach; the keys of these calls."""
        if answer.status == "child_exists":
            ids = {child.key: child.run_id for child in self.children}
            ids |= {task["key"]: task["task_id"] for task in self.tasks if "close" not in task}
            refused = {key: run_id for key, run_id in ids.items() if run_id in answer.taken}
        else:
            refused = {one["key"]: one["run_id"] or "" for one in self.attaches if one["key"] in answer.taken}
        self.children = [child for child in self.children if child.key not in refused]
        self.tasks = [task for task in self.tasks if task["key"] not in refused]
        self.attaches = [one for one in self.attaches if one["key"] not in refused]
        for key, run_id in refused.items():
            index = next(i for i, one in enumerate(self.drafts) if one.entry.key == key)
            payload = _failure.describe(_refusal(answer.status, run_id, own_id))
            failed = replace(self.drafts[index].entry, phase=Phase.FAILED, payload=payload, encoding=ENCODING_JSON)
            self.drafts[index] = Draft(failed, self.drafts[index].code)
        return list(refused)


def _refusal(status: str, run_id: str, own_id: str) -> PgwfError:
    match status:
        case "no_run":
            return RunNotFoundError(
                f"ctx.attach: no run {run_id!r}; expected the id of a run that was started, and that retention has not"
                " removed since"
            )
        case "cycle" if is_same_chain(run_id, own_id):
            return RunCycleError(
                f"ctx.attach: run {run_id!r} is this run itself, and cannot wait for its own end; attach to another"
                " one, start a child with ctx.call, or go on anew with ctx.continue_as_new"
            )
        case "cycle":
            return RunCycleError(
                f"ctx.attach: run {run_id!r} waits for this one, or is a run above it that closes it at its end, so"
                " neither would end; attach from a run that it does not wait for, or let it send a signal"
            )
        case _:
            return RunConflictError(f"{run_id}: the id is taken; choose one that names this piece of work")


def _parted(all_: list[T], are_late: list[bool]) -> tuple[list[T], list[T]]:
    both = list(zip(all_, are_late, strict=True))
    return [one for one, is_late in both if not is_late], [one for one, is_late in both if is_late]


def _weight(drafts: list[Draft]) -> int:
    return sum(len(one.entry.payload or b"") for one in drafts)
