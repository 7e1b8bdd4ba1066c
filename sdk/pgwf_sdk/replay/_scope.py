"""Scopes: the root and each branch count their own calls, so that what runs side by side cannot renumber each other."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pgwf_journal import Entry
    from pgwf_sdk.replay._calls import PendingCall
    from pgwf_sdk.replay._machine import Machine

__all__ = ["Scope"]


class Scope:
    """One numbering of calls: '' is the root; a branch is the key of its parallel or map with the branch's index."""

    __slots__ = ("_random", "calls", "machine", "occurrences", "open", "path", "recorded")

    def __init__(self, machine: Machine, path: str, recorded: dict[int, Entry]) -> None:
        self.machine = machine
        self.path = path
        self.calls = 0
        self.occurrences: dict[tuple[int, str], int] = {}
        self.open: dict[int, PendingCall] = {}
        self.recorded = recorded
        """The first entry of each call of the journal that the activation began with, by the call's ordinal."""
        self._random: Random | None = None

    @property
    def random(self) -> Random:
        """A generator that gives the same numbers in every replay, and others in every run and branch."""
        if self._random is None:
            self._random = Random(f"{self.machine.run.seed}{self.path}")
        return self._random
