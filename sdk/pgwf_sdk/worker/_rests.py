"""Items whose call failed: each rests before it is said again, a longer while each time."""

import asyncio
from collections import deque
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Final

from pgwf_sdk.worker._advance import Item

if TYPE_CHECKING:
    from pgwf_sdk.worker._driver import Driver

REST_SECONDS_MIN: Final = 0.05


class Rests:
    """Items that rest, and runs whose items were in a call that failed. `wake` is called when one has rested."""

    def __init__(self, wake: Callable[[], None]) -> None:
        self._wake = wake
        self._seconds: dict[int, float] = {}
        """By run: how long its item rests if it is found to be the reason."""
        self._count = 0

    @property
    def is_empty(self) -> bool:
        """True when no item rests."""
        return not self._count

    def suspect(self, numbers: Iterable[int]) -> None:
        """Items of these runs were in a call that failed, or on a connection that did."""
        self._seconds |= dict.fromkeys(numbers, REST_SECONDS_MIN)

    def clear(self, item: Item) -> None:
        """It was said."""
        self._seconds.pop(item.n, None)

    def is_wary(self, items: Iterable[Item]) -> bool:
        """One of them failed before: the call is to leave out what it would have to wait for."""
        return bool(self._seconds) and any(item.n in self._seconds for item in items)

    def begin(self, sent: "tuple[Driver, Item]", then: "deque[tuple[Driver, Item]]", seconds_max: float) -> None:
        """Put `sent` into the queue `then` after a while, a longer one each time."""
        _, item = sent
        seconds = self._seconds.get(item.n, REST_SECONDS_MIN)
        self._seconds[item.n] = min(seconds * 2, seconds_max)
        self._count += 1

        def end() -> None:
            self._count -= 1
            then.append(sent)
            self._wake()

        asyncio.get_running_loop().call_later(seconds, end)
