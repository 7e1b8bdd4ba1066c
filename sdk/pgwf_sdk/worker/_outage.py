"""What a worker says of a fault that it waits out: that it began and that it is over, however often it tried."""

import logging
import math
import time
from typing import Final

import psycopg

log = logging.getLogger("pgwf_sdk.worker")

_QUIET_SECONDS: Final = 60.0
"""A database that only reads fails some calls and not others: what comes and goes is said once in so long."""


class Outage:
    """Something that a worker cannot do for a while."""

    def __init__(self, worker_id: str, what: str) -> None:
        self._worker_id = worker_id
        self._what = what
        self._is_told = False
        self._told_time = -math.inf  # On the monotonic clock.

    def failed(self, error: psycopg.Error) -> None:
        """It did not go, for the first time or again."""
        now = time.monotonic()
        if self._is_told or now - self._told_time < _QUIET_SECONDS:
            return
        self._is_told, self._told_time = True, now
        # In one line: messages about connections have several.
        said = " ".join((error.diag.message_primary or str(error)).split())
        log.warning("worker %s: cannot %s, and goes on trying: %s", self._worker_id, self._what, said)

    def is_over(self) -> None:
        """It goes, as ever or again."""
        if self._is_told:
            log.info("worker %s: can %s again", self._worker_id, self._what)
        self._is_told = False
