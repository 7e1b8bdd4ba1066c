"""What is to be said about a run with its next item."""

from collections.abc import Collection
from dataclasses import dataclass, field

from msgspec.structs import replace

from pgwf_journal import ENCODING_JSON, Phase
from pgwf_sdk import _failure
from pgwf_sdk._errors import RunConflictError
from pgwf_sdk.replay import OpenHuman, StartChild
from pgwf_sdk.worker._advance import AttemptNote, ChildStart, TaskClosing, TaskOpening
from pgwf_sdk.worker._openings import child_start, task_opening
from pgwf_sdk.worker._waits import Draft, Resolution, Wait, opening


@dataclass(slots=True)
class Batch:
    """Entries and what goes with them, gathered while the item before them is on its way."""

    drafts: list[Draft] = field(default_factory=list)
    consumed: list[int] = field(default_factory=list)
    children: list[ChildStart] = field(default_factory=list)
    tasks: list[TaskOpening | TaskClosing] = field(default_factory=list)
    attempts: list[AttemptNote] = field(default_factory=list)
    by_deadline: list[Wait] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.drafts or self.consumed or self.attempts or self.tasks)

    def add(self, resolution: Resolution) -> None:
        """Take over what the inbox and the clock resolved."""
        self.drafts += resolution.drafts
        self.consumed += resolution.consumed
        self.by_deadline += resolution.by_deadline
        self.tasks += [TaskClosing(key=key, close="expired") for key in resolution.closed_tasks]

    def prepend(self, other: "Batch") -> None:
        """Put back what was not written after all."""
        self.drafts[:0] = other.drafts
        self.consumed[:0] = other.consumed
        self.children[:0] = other.children
        self.tasks[:0] = other.tasks
        self.attempts[:0] = other.attempts

    def forget(self, key: str) -> bool:
        """Take out what was going to be said about a call. True when it was to be opened."""
        is_unopened = any(one.entry.key == key and one.entry.phase is Phase.OPENED for one in self.drafts)
        self.drafts = [one for one in self.drafts if one.entry.key != key or one.entry.call == 0]
        self.children = [child for child in self.children if child.key != key]
        self.tasks = [task for task in self.tasks if task["key"] != key]
        return is_unopened

    def forget_decisions(self) -> None:
        """Take out what only the clock had decided."""
        decided = {wait.id.key for wait in self.by_deadline}
        self.drafts = [one for one in self.drafts if one.entry.key not in decided]
        self.tasks = [task for task in self.tasks if task["key"] not in decided]
        self.by_deadline = []

    def open(self, run_id: str, wait: Wait) -> None:
        """Record that the run waits, and open what it waits for. UsageError: that cannot be."""
        command = wait.command
        if isinstance(command, StartChild):
            child = child_start(run_id, command)
            self.children.append(child)
            self.drafts.append(opening(wait, run_id=child.run_id))
            return
        if isinstance(command, OpenHuman):
            self.tasks.append(task_opening(run_id, command))
        self.drafts.append(opening(wait))

    def refuse_children(self, taken: Collection[str]) -> list[str]:
        """The calls whose child ids are taken fail with RunConflictError; the keys of these calls."""
        refused = [child for child in self.children if child.run_id in taken]
        self.children = [child for child in self.children if child.run_id not in taken]
        for child in refused:
            index = next(i for i, one in enumerate(self.drafts) if one.entry.key == child.key)
            error = RunConflictError(
                f"child run {child.run_id}: the id is taken; choose one that names this piece of work"
            )
            failed = replace(
                self.drafts[index].entry, phase=Phase.FAILED, payload=_failure.describe(error), encoding=ENCODING_JSON
            )
            self.drafts[index] = Draft(failed, self.drafts[index].code)
        return [child.key for child in refused]
