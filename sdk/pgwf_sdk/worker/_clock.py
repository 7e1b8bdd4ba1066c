"""The database's time, as far as a worker can know it without asking."""

import asyncio
from datetime import datetime, timedelta


class DatabaseClock:
    """Told the database's time with each answer, it goes on from there by the monotonic clock.

    It is behind the database by the time the last answer travelled, never ahead: what it calls due is due.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._known_at: datetime | None = None
        self._known_monotonic = 0.0

    def told(self, now_at: datetime) -> None:
        """The database said that it is `now_at`."""
        self._known_at = now_at
        self._known_monotonic = self._loop.time()

    def now(self) -> datetime:
        """The time now; only after `told`."""
        assert self._known_at is not None, "asked before any answer of the database"
        return self._known_at + timedelta(seconds=self._loop.time() - self._known_monotonic)

    def loop_time(self, instant: datetime) -> float:
        """`instant` on the loop's clock, in seconds."""
        return self._loop.time() + (instant - self.now()).total_seconds()
