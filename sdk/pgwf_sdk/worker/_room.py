"""What a worker has room for: how many runs it may ask for, and by which needs.

A capability with a bound of its own is counted by what uses it: steps with that need, wherever their run came from, and
runs that were handed over for it and are between two such steps. What the database bounds, or has paused, it counts by
leases: a step with such a need begins only in a run that was leased by it. A need that brought a run this worker cannot
execute rests for a moment, so that those who can are first.
"""

import asyncio
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from datetime import timedelta
from typing import Final, ParamSpec

from msgspec import Struct

from pgwf_sdk._definition import pinned

REST_SECONDS: Final = 0.25
"""How long a need rests. A worker that sleeps is awake and has asked within a few milliseconds."""
STRANGERS_MAX: Final = 10_000
"""Runs of unknown workflows a worker remembers; it forgets all of them rather than growing."""
_DELAY_SECONDS_MAX: Final = 60.0

P = ParamSpec("P")


def _none(_need: str) -> int:
    return 0


class Occupant(Struct, frozen=True, eq=False):
    """A run in this worker: the need for which it was handed over, and how many of its steps that are executed have a
    given need (none while its journal is still being read)."""

    current_need: str
    steps_with_need: Callable[[str], int] = _none


class Room:
    """Counts on demand, so that a worker without bounds of this kind pays nothing for them."""

    def __init__(
        self,
        capabilities: Sequence[str],
        *,
        concurrency: int,
        limits: Mapping[str, int],
        build: str,
        occupied_count: Callable[[], int],
        occupants: Callable[[], Iterable[Occupant]],
    ) -> None:
        self._capabilities = capabilities  # Looked at each time: who made it may have added some.
        self._concurrency = concurrency
        self._names = {need: {need, pinned(need, build)} for need in limits}
        self._limits = limits
        self._occupied_count = occupied_count
        self._occupants = occupants
        self._resting: dict[str, asyncio.TimerHandle] = {}
        self._strangers: dict[int, int] = {}
        self._limited_needs: frozenset[str] = frozenset()
        self.changed: Callable[[], None] = lambda: None
        """Called when a need that had no room, or rested, may have some."""

    def free(self, leaving: Collection[Occupant] = ()) -> tuple[Sequence[str], int]:
        """The needs to ask for and how many runs at most, once `leaving` have left."""
        slots = max(self._concurrency - self._occupied_count() + len(leaving), 0)
        if not self._limits and not self._resting:
            return self._capabilities, slots
        closed = set(self._resting)
        for need, names in self._names.items():
            left = self._limits[need] - self._used(need, leaving)
            if left <= 0:
                closed |= names
            elif not names <= closed:
                # Any of the runs may be one for this need; what it does not take, the next call asks for.
                slots = min(slots, left)
        return [need for need in self._capabilities if need not in closed], slots

    def offers(self, need: str, occupant: Occupant) -> bool:
        """Whether a step of `occupant` with this need may begin here now."""
        if need not in self._capabilities or (need in self._limited_needs and need != occupant.current_need):
            return False
        limited = next((name for name, names in self._names.items() if need in names), None)
        if limited is None:
            return True
        others_count = self._used(limited, (occupant,))
        return others_count + occupant.steps_with_need(limited) < self._limits[limited]

    def limit(self, needs: Iterable[str]) -> None:
        """These of the capabilities are paused, or limited for all workers together."""
        self._limited_needs = frozenset(needs)

    @property
    def is_limited_for_all(self) -> bool:
        """Whether some of the capabilities are paused, or limited for all workers together."""
        return bool(self._limited_needs)

    def watched(self, need: str | None, report: Callable[P, None]) -> Callable[P, None]:
        """`report`, which is told of a step with this need, and after it whoever waits for room, if it makes some."""
        if need not in self._limits:
            return report

        def report_and_tell(*args: P.args, **kwargs: P.kwargs) -> None:
            report(*args, **kwargs)
            self.changed()

        return report_and_tell

    def turn_away(self, n: int, need: str) -> timedelta:
        """Run number `n`, handed over for `need`, cannot be executed here: let the need rest, and say for how long to
        hold the run back. At first not at all; each further time that nobody else took it, twice as long."""
        if len(self._strangers) >= STRANGERS_MAX:
            self._strangers.clear()
        count = self._strangers[n] = self._strangers.get(n, 0) + 1
        if (resting := self._resting.get(need)) is not None:
            resting.cancel()
        self._resting[need] = asyncio.get_running_loop().call_later(REST_SECONDS, self._rested, need)
        return timedelta(seconds=0 if count == 1 else min(2.0 ** (count - 2), _DELAY_SECONDS_MAX))

    def close(self) -> None:
        """Call off what is to happen later."""
        for resting in self._resting.values():
            resting.cancel()

    def _rested(self, need: str) -> None:
        del self._resting[need]
        self.changed()

    def _used(self, need: str, but: Collection[Occupant]) -> int:
        names = self._names[need]
        return sum(
            max(occupant.steps_with_need(need), int(occupant.current_need in names))
            for occupant in self._occupants()
            if occupant not in but
        )
