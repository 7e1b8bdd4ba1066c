"""What makes a test fail although no assertion of its own did."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping


class ReplayDifferenceError(AssertionError):
    """A workflow did something else when it was replayed, or its run is blocked; `report` is that of a blocked run.

    In production the run would be blocked at that place the next time it is replayed.
    """

    def __init__(self, text: str, report: Mapping[str, Any] | None = None) -> None:
        super().__init__(text)
        self.report = dict(report or {})


class RunStuckError(AssertionError):
    """A run is not over, and nothing that the clock or a worker could do would bring it further."""


class CrashDifferenceError(AssertionError):
    """A run whose worker was cut off ended in another way, or with another journal, than one that was left alone."""
