"""Calls made over a list of items: a window of them is open at a time, results stand in the order of the items."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from pgwf_sdk.replay._calls import PendingCall, Settled

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pgwf_sdk.replay._machine import Machine
    from pgwf_sdk.replay._policy import Tally
    from pgwf_sdk.replay._scope import Scope

__all__ = ["CallGroup"]

REFILL_PARTS: Final = 4
"""A map of children with a bound starts the next ones when so much of the bound is free: each time costs a replay."""


class CallGroup(Settled):
    """One call an item, each in a scope of its own. Those that can change nothing more are abandoned."""

    __slots__ = ("_code", "_is_stopped", "_items", "_machine", "_make", "_next", "_open", "_path", "_tally", "_width")

    def __init__(
        self,
        machine: Machine,
        path: str,
        items: Sequence[Any],
        make: Callable[[Scope, Any], PendingCall],
        *,
        tally: Tally,
        width: int | None,
        code: tuple[str, int] | None,
    ) -> None:
        super().__init__()
        self._tally = tally
        self._machine = machine
        self._path = path
        self._items = items
        self._make = make
        self._width = len(items) if width is None else width
        self._code = code
        self._next = 0
        self._open: dict[PendingCall, int] = {}
        self._is_stopped = False
        if items and not tally.is_over:
            self._fill()
        else:
            self.finish(*self._tally.outcome())

    @property
    def ends_needed(self) -> int:
        """How many of its calls must be settled before it can go on: see Tally. Places are filled up by the quarter."""
        needed = self._tally.ends_needed(len(self._open))
        if self._next == len(self._items):
            return needed
        refill = max(self._width // REFILL_PARTS, 1)
        return min(needed, refill) if needed > 0 else max(needed, -refill)

    def wake(self, settled: Settled) -> None:
        """Take the result of one call and make the next."""
        assert isinstance(settled, PendingCall)
        index = self._open.pop(settled)
        if not self._is_stopped:  # Otherwise it was only waited for.
            if settled.error is None:
                self._tally.succeeded(index, settled.value)
            else:
                self._tally.failed(index, settled.error)
            if self._tally.is_over:
                self.abandon()
            else:
                self._fill()
        if not self._open:
            self.finish(*self._tally.outcome())

    def abandon(self) -> bool:
        self._is_stopped = True
        self._next = len(self._items)
        self._open = {call: index for call, index in self._open.items() if call.abandon()}
        return bool(self._open)

    def _fill(self) -> None:
        while self._next < len(self._items) and len(self._open) < self._width:
            index = self._next
            self._next += 1
            call = self._make(self._machine.scope(f"{self._path}[{index}]"), self._items[index])
            call.code = self._code
            self._machine.open(call)
            call.waiter = self
            self._open[call] = index
