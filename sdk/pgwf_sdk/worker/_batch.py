"""What is to be said about a run with its next item."""

from dataclasses import dataclass, field

from pgwf_sdk.worker._advance import AttemptNote, ChildStart, TaskClosing, TaskOpening
from pgwf_sdk.worker._waits import Draft, Resolution, Wait


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
        return bool(self.drafts or self.consumed or self.attempts)

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

    def forget_decisions(self) -> None:
        """Take out what only the clock had decided."""
        decided = {wait.id.key for wait in self.by_deadline}
        self.drafts = [one for one in self.drafts if one.entry.key not in decided]
        self.tasks = [task for task in self.tasks if task["key"] not in decided]
        self.by_deadline = []
