"""How long a client waits for the end of a run."""

import math
import time
from datetime import timedelta
from typing import TYPE_CHECKING

import psycopg

from pgwf_sdk._errors import ResultTimeoutError
from pgwf_sdk._kinds import check_wait
from pgwf_sdk._wording import not_over_words

if TYPE_CHECKING:
    from pgwf_sdk._client._calls import Ending

_POLL_SECONDS_MIN = 1.0
_POLL_SECONDS_MAX = 5.0
_POLL_GROWTH = 1.5


class Patience:
    """How long a wait for a run's end goes on: polls from 1 s growing to 5 s, until the timeout (None: for ever)."""

    def __init__(self, run_id: str, timeout: timedelta | None) -> None:
        if timeout is not None:
            check_wait(timeout, used=f"run {run_id}: result(timeout=…)")
        self._run_id = run_id
        self._waited_seconds = 0.0 if timeout is None else timeout.total_seconds()
        self._end = math.inf if timeout is None else time.monotonic() + timeout.total_seconds()
        self._pause_seconds = _POLL_SECONDS_MIN

    def pause_seconds(self, seen: "Ending") -> float:
        """How long to wait at most before looking again. ResultTimeoutError when the time is over."""
        if self._left_seconds() <= 0:
            raise ResultTimeoutError(
                not_over_words(seen.status, self._run_id, self._waited_seconds),
                run_id=self._run_id,
                status=seen.status,
            )
        return self._next_pause_seconds()

    def pause_seconds_after(self, error: psycopg.OperationalError) -> float:
        """The same after a look that failed: a restart or failover ends, the run goes on. `error` when it does not."""
        if self._left_seconds() <= 0:
            raise error
        return self._next_pause_seconds()

    def _left_seconds(self) -> float:
        return self._end - time.monotonic()

    def _next_pause_seconds(self) -> float:
        pause_seconds = min(self._pause_seconds, max(0.0, self._left_seconds()))
        self._pause_seconds = min(self._pause_seconds * _POLL_GROWTH, _POLL_SECONDS_MAX)
        return pause_seconds
