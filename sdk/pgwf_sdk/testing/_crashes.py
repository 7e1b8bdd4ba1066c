"""Where a worker is cut off, and how that is counted."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, TypeAlias

Side: TypeAlias = Literal["before", "after"]


class WorkerCut(BaseException):
    """The worker dies here."""


@dataclass(frozen=True, slots=True)
class Cut:
    """A place to cut a worker off: `before` its `append`th append reaches the database, or `after` it committed."""

    append: int
    side: Side

    def __str__(self) -> str:
        return f"{self.side} append {self.append}"


@dataclass(slots=True)
class Appends:
    """Counts the appends of a worker, and says where it ends."""

    cut: Cut | None = None
    count: int = 0
    is_cut: bool = False

    def ends(self, side: Side) -> bool:
        """Whether the worker ends on this side of the append that was counted last; it ends once."""
        if self.is_cut or self.cut != Cut(self.count, side):
            return False
        self.is_cut = True
        return True


@dataclass(frozen=True, slots=True)
class CrashReport:
    """What was tried: `append_count` appends without a crash, and the cuts after which everything ended alike."""

    append_count: int
    cuts: tuple[Cut, ...] = field(default_factory=tuple[Cut, ...])
