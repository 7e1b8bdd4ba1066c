"""What is to be said about a run with its next item."""

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Final

from msgspec.structs import replace

from pgwf_journal import ENCODING_JSON, Kind, Phase
from pgwf_sdk import _failure
from pgwf_sdk._errors import RunConflictError
from pgwf_sdk.replay import CallId, OpenAwakeable, OpenHuman, StartChild
from pgwf_sdk.worker._advance import AttemptNote, ChildStart, TaskClosing, TaskOpening
from pgwf_sdk.worker._openings import child_start, task_opening
from pgwf_sdk.worker._waits import Draft, Resolution, Wait, Waits, draft, opening

DEFERRED_ENTRIES_MAX: Final = 100
"""So many results the code of a run may know before they are recorded; a crash repeats no more steps than that."""

DEFERRED_BYTES_MAX: Final = 1 << 20
"""Payload of such results after which they are recorded."""


@dataclass(slots=True)
class Batch:
    """Entries and what goes with them, gathered while the item before them is on its way.

    The code of the run knows the first `told` of its drafts already: they are no reason to say anything, and go first.
    """

    drafts: list[Draft] = field(default_factory=list)
    consumed: list[int] = field(default_factory=list)
    children: list[ChildStart] = field(default_factory=list)
    tasks: list[TaskOpening | TaskClosing] = field(default_factory=list)
    attempts: list[AttemptNote] = field(default_factory=list)
    by_deadline: list[Wait] = field(default_factory=list)
    cancels: list[str] = field(default_factory=list)
    told: int = 0

    def __bool__(self) -> bool:
        return bool(len(self.drafts) > self.told or self.consumed or self.attempts or self.tasks or self.cancels)

    @property
    def news(self) -> list[Draft]:
        """What the code does not know yet."""
        return self.drafts[self.told :]

    @property
    def is_deferrable(self) -> bool:
        """True when all that is new may be told at once, and recorded with what comes next."""
        if not self.drafts or not self.drafts[-1].is_deferred or len(self.drafts) > DEFERRED_ENTRIES_MAX:
            return False
        if self.consumed or self.children or self.attempts or self.tasks or self.cancels:
            return False
        return all(one.is_deferred for one in self.drafts) and _weight(self.drafts) <= DEFERRED_BYTES_MAX

    def add(self, resolution: Resolution) -> None:
        """Take over what the inbox and the clock resolved."""
        self.drafts += resolution.drafts
        self.consumed += resolution.consumed
        self.by_deadline += resolution.by_deadline
        self.tasks += [TaskClosing(key=key, close="expired") for key in resolution.closed_tasks]

    def forget(self, key: str) -> bool:
        """Take out what was going to be said about a call. True when it was to be opened."""
        is_unopened = any(one.entry.key == key and one.entry.phase is Phase.OPENED for one in self.drafts)
        self.drafts[self.told :] = [one for one in self.news if one.entry.key != key or one.entry.call == 0]
        self.children = [child for child in self.children if child.key != key]
        self.tasks = [task for task in self.tasks if task["key"] != key]
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
        if isinstance(command, OpenAwakeable):
            self.drafts.append(opening(wait, token_hash=command.token_hash))
            return
        if isinstance(command, OpenHuman):
            self.tasks.append(task_opening(run_id, command))
        self.drafts.append(opening(wait))

    def refuse(self, taken: Collection[str]) -> list[str]:
        """The calls whose child or task ids are taken fail with RunConflictError; the keys of these calls."""
        ids = {child.key: child.run_id for child in self.children}
        ids |= {task["key"]: task["task_id"] for task in self.tasks if "close" not in task}
        refused = {key: run_id for key, run_id in ids.items() if run_id in taken}
        self.children = [child for child in self.children if child.key not in refused]
        self.tasks = [task for task in self.tasks if task["key"] not in refused]
        for key, run_id in refused.items():
            index = next(i for i, one in enumerate(self.drafts) if one.entry.key == key)
            error = RunConflictError(f"{run_id}: the id is taken; choose one that names this piece of work")
            failed = replace(
                self.drafts[index].entry, phase=Phase.FAILED, payload=_failure.describe(error), encoding=ENCODING_JSON
            )
            self.drafts[index] = Draft(failed, self.drafts[index].code)
        return list(refused)


def _weight(drafts: list[Draft]) -> int:
    return sum(len(one.entry.payload or b"") for one in drafts)
