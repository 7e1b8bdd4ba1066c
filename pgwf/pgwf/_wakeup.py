"""How long a worker that found nothing sleeps. No I/O; sync and async clients share it."""

import math
import time
from datetime import timedelta
from uuid import uuid4

from pgwf._job import Outlook
from pgwf_sql.database import REQUEST_SECONDS

POLL = timedelta(seconds=5)
"""How long a sleeping worker trusts that somebody will wake it."""
_DOZE_SECONDS_MIN = 0.005
_DOZE_SECONDS_MAX = 0.25


def listener_name() -> str:
    """A name for one sleep."""
    return f"work-{uuid4()}"


class Vigil:
    """One wait for work: until a notification, the next wake-up, the poll or the timeout, whichever comes first."""

    def __init__(self, *, timeout: timedelta | None, poll: timedelta) -> None:
        self._end = math.inf if timeout is None else time.monotonic() + timeout.total_seconds()
        self._poll_seconds = min(poll.total_seconds(), REQUEST_SECONDS)
        self._doze_seconds = _DOZE_SECONDS_MIN

    def pause_seconds(self, outlook: Outlook) -> float | None:
        """How long to sleep at most before looking again; None when the timeout is over."""
        left_seconds = self._end - time.monotonic()
        if left_seconds <= 0:
            return None
        wakeup_seconds = math.inf if outlook.wakeup_seconds is None else max(0.0, outlook.wakeup_seconds)
        pause_seconds = min(self._poll_seconds, wakeup_seconds, left_seconds)
        if not outlook.is_seen_by_all or wakeup_seconds == 0.0:
            # Work may be on its way without a notification, or be due and in somebody else's hands: doze, look again.
            pause_seconds = min(self._doze_seconds, self._poll_seconds, left_seconds)
            self._doze_seconds = min(2 * self._doze_seconds, _DOZE_SECONDS_MAX)
        return pause_seconds
