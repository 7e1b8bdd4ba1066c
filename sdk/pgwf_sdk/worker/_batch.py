"""What is to be said about a run with its next item."""

from collections.abc import Collection
from dataclasses import dataclass, field

from msgspec.structs import replace

from pgwf_journal import ENCODING_JSON, Kind, Phase
from pgwf_sdk import _failure
from pgwf_sdk._errors import RunConflictError
from pgwf_sdk.replay import CallId, OpenAwakeable, OpenHuman, StartChild
from pgwf_sdk.worker._advance import AttemptNote, ChildStart, TaskClosing, TaskOpening
from pgwf_sdk.worker._openings import child_start, task_opening
from pgwf_sdk.worker._waits import Draft, Resolution, Wait, Waits, draft, opening


@dataclass(slots=True)
class Batch:
    """Entries and what goes with them, gathered while the item before them is on its way."""

    drafts: list[Draft] = field(default_factory=list)
    consumed: list[int] = field(default_factory=list)
    children: list[ChildStart] = field(default_factory=list)
    tasks: list[TaskOpening | TaskClosing] = field(default_factory=list)
    attempts: list[AttemptNote] = field(default_factory=list)
    by_deadline: list[Wait] = field(default_factory=list)
    cancels: list[str] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.drafts or self.consumed or self.attempts or self.tasks or self.cancels)

    def add(self, resolution: Resolution) -> None:
        """Take over what the inbox and the clock resolved."""
        self.drafts += resolution.drafts
        self.consumed += resolution.consumed
        self.by_deadline += resolution.by_deadline
        self.tasks += [TaskClosing(key=key, close="expired") for key in resolution.closed_tasks]

    def forget(self, key: str) -> bool:
        """Take out what was going to be said about a call. True when it was to be opened."""
        is_unopened = any(one.entry.key == key and one.entry.phase is Phase.OPENED for one in self.drafts)
        self.drafts = [one for one in self.drafts if one.entry.key != key or one.entry.call == 0]
        self.children = [child for child in self.children if child.key != key]
        self.tasks = [task for task in self.tasks if task["key"] != key]
        return is_unopened

    def give_up(self, call: CallId) -> None:
        """Nobody waits any more for what was opened for `call`: it is closed, a child is asked to cancel."""
        if call.kind is Kind.HUMAN:
            self.tasks.append(TaskClosing(key=call.key, close="cancelled"))
        elif call.kind is Kind.CHILD:
            self.cancels.append(call.key)
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
        following.tasks[:0] = [task for task in self.tasks if task["key"] not in decided]
        following.consumed[:0] = self.consumed
        following.children[:0] = self.children
        following.cancels[:0] = self.cancels
        following.attempts[:0] = self.attempts

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
