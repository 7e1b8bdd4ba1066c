"""Where a worker's next claim begins to look, so that it does not walk over what is finished again and again."""

import time
from collections.abc import Sequence
from typing import Any


class Position:
    """What the last claim said about the next one, for one connection; `pgwf._claim` says what it means."""

    __slots__ = ("_end_time", "is_whole", "starts")

    def __init__(self) -> None:
        self.starts: list[int] = []
        self._end_time = 0.0
        self.is_whole = True
        """Nothing that could be seen was passed by: a worker that found no work may sleep until it is told of some."""

    def told(self, rows: Sequence[tuple[Any, ...]]) -> None:
        """Read the answer to a claim. No row about it, which is the last: the next claim looks from the beginning."""
        if rows and rows[-1][-1]:
            _, _, status, now_at, *_, self.starts = rows[-1]
            self._end_time = time.monotonic() + self.starts[0] / 1000 - now_at.timestamp()
            self.is_whole = status == "whole"
        elif self.starts:
            self.starts = []
            self.is_whole = True

    @property
    def seconds_left(self) -> float:
        """For how long claims begin at it; 0 if they do not."""
        return max(self._end_time - time.monotonic(), 0) if self.starts else 0
