"""What models of the leasing core share: buckets of tokens."""

from __future__ import annotations

from dataclasses import dataclass
from math import floor, inf
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from datetime import datetime


@dataclass
class Bucket:
    """Gets `rate` tokens a second, holds at most `burst` of them, and is full at first. Without a rate nobody counts.

    What was in it stays while there is no rate, and fills up at the rate there is when somebody looks.
    """

    rate: float | None = None
    burst: float = 1
    tokens: float | None = None
    filled_at: datetime | None = None

    def level(self, now: datetime) -> float:
        if self.rate is None:
            return inf
        if self.tokens is None or self.filled_at is None:
            return self.burst
        return min(self.burst, self.tokens + self.rate * (now - self.filled_at).total_seconds())

    def starts(self, now: datetime, *, at_most: int) -> int:
        """How many starts there are tokens for."""
        return floor(min(self.level(now), at_most))

    def spend(self, count: int, now: datetime) -> None:
        if count and self.rate is not None:
            self.tokens, self.filled_at = self.level(now) - count, now
