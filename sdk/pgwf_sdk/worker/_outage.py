"""What a worker says of a fault that it waits out: that it began and that it is over, however often it tried."""

import logging

log = logging.getLogger("pgwf_sdk.worker")


class Outage:
    """Something that a worker cannot do for a while."""

    def __init__(self, worker_id: str, what: str) -> None:
        self._worker_id = worker_id
        self._what = what
        self._is_on = False

    def failed(self, error: Exception) -> None:
        """It did not go, for the first time or again."""
        if not self._is_on:
            log.warning("worker %s: cannot %s, and goes on trying: %s", self._worker_id, self._what, line_of(error))
        self._is_on = True

    def is_over(self) -> None:
        """It goes, as ever or again."""
        if self._is_on:
            log.info("worker %s: can %s again", self._worker_id, self._what)
        self._is_on = False


def line_of(error: Exception) -> str:
    """The error's message in one line; those about connections have several."""
    return " ".join(str(error).split())
