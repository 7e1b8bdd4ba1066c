"""Which cells a run measures, and how long each sample takes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from bench.queue_cells import submitting, taking
from bench.snapshot_cells import held_snapshot

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from bench.rounds import Cell
    from bench.server import Server
    from bench.subjects import Subjects


@dataclass(frozen=True)
class Plan:
    """How much a run measures."""

    rounds: int
    seconds: float
    """Of one sample of a rate."""
    backlogs: tuple[int, ...]
    hold_seconds: float
    """How long each system works while a snapshot is held."""


PLANS = {
    "quick": Plan(rounds=3, seconds=0.5, backlogs=(0, 10_000, 1_000_000), hold_seconds=20),
    "full": Plan(rounds=9, seconds=2.0, backlogs=(0, 10_000, 1_000_000), hold_seconds=60),
}


def cells(server: Server, subjects: Subjects, plan: Plan, only: Sequence[str]) -> Iterator[Cell]:
    """All cells of the plan, or those whose group has one of the words `only` in its name."""
    groups: dict[str, Callable[[], Iterator[Cell]]] = {
        "enqueue": lambda: submitting(server, subjects.queues, seconds=plan.seconds),
        "claim": lambda: taking(server, subjects.queues, seconds=plan.seconds, backlogs=plan.backlogs),
        "snapshot": lambda: held_snapshot(
            server, subjects.two_call_queues(), seconds=plan.seconds, hold_seconds=plan.hold_seconds
        ),
    }
    for name, group in groups.items():
        if not only or any(word in name for word in only):
            yield from group()
