"""Calls made over a list of items: a window of them is open at a time, results stand in the order of the items."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pgwf_sdk.replay._calls import PendingCall, Settled

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pgwf_sdk.replay._machine import Machine
    from pgwf_sdk.replay._scope import Scope

__all__ = ["CallGroup"]


class CallGroup(Settled):
    """One call an item, each in a scope of its own. The first failure abandons the others and is the group's error."""

    __slots__ = ("_code", "_index_of", "_items", "_machine", "_make", "_next", "_open", "_path", "_width")

    def __init__(
        self,
        machine: Machine,
        path: str,
        items: Sequence[Any],
        make: Callable[[Scope, Any], PendingCall],
        *,
        width: int | None,
        code: tuple[str, int] | None,
    ) -> None:
        super().__init__()
        self.value = [None] * len(items)
        self._machine = machine
        self._path = path
        self._items = items
        self._make = make
        self._width = len(items) if width is None else width
        self._code = code
        self._next = 0
        self._open: dict[PendingCall, int] = {}
        self._fill()
        self.is_done = not items

    @property
    def calls_needed(self) -> int:
        """How many of its calls must be settled before it can go on, if all go well."""
        return len(self._open) if self._next == len(self._items) else 1

    def wake(self, settled: Settled) -> None:
        """Take the result of one call and make the next."""
        assert isinstance(settled, PendingCall)
        index = self._open.pop(settled)
        if settled.error is not None:
            self.abandon()
            self._finish(settled.error)
            return
        self.value[index] = settled.value
        self._fill()
        if not self._open:
            self._finish(None)

    def abandon(self) -> None:
        for call in self._open:
            call.abandon()
        self._open.clear()
        self._next = len(self._items)

    def _fill(self) -> None:
        while self._next < len(self._items) and len(self._open) < self._width:
            index = self._next
            self._next += 1
            call = self._make(self._machine.scope(f"{self._path}[{index}]"), self._items[index])
            if self._machine.open(call) and self._code is not None:
                # Made by the driver on behalf of the line that called `map`.
                call.code = self._code
            call.waiter = self
            self._open[call] = index

    def _finish(self, error: BaseException | None) -> None:
        self.error = error
        self.is_done = True
        if self.waiter is not None:
            self.waiter.wake(self)
