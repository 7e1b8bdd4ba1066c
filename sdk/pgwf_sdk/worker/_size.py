"""How long the journal of a run has become: people are warned in time, and a run without an end is stopped."""

import json
import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from pgwf_journal import Entry
from pgwf_sdk._telemetry import RunTrace
from pgwf_sdk._wording import count_words
from pgwf_sdk.replay import report_without_place
from pgwf_sdk.worker._advance import Claim
from pgwf_sdk.worker._settings import JournalLimits

if TYPE_CHECKING:
    from pgwf_sdk.worker._driver import Driver

log = logging.getLogger("pgwf_sdk.worker")

_HINT = (
    "its journal is longer than this worker allows, and each further activation would have to read and replay all of it"
)


class JournalSize:
    """Counts what one activation knows of its run's journal, and says once when it comes to be long."""

    __slots__ = ("_claim", "_entry_count", "_limits", "_trace", "_was_long", "payload_bytes")

    def __init__(self, claim: Claim, limits: JournalLimits, trace: RunTrace) -> None:
        self._claim = claim
        self._limits = limits
        self._trace = trace
        self._entry_count = len(claim.history)
        self.payload_bytes = _weight(claim.history)
        """What all entries that it knows carry."""
        self._was_long = self._is_long

    @property
    def is_full(self) -> bool:
        """True when nothing more should be added."""
        limits = self._limits
        return self._entry_count >= limits.entries_max or self.payload_bytes >= limits.bytes_max

    def grow(self, entries: Sequence[Entry]) -> None:
        """Entries were added."""
        self._entry_count += len(entries)
        self.payload_bytes += _weight(entries)
        if self._was_long or not self._is_long:
            return
        self._was_long = True
        if not self.is_full:
            self._trace.journal_grew_long("warn")
            log.warning("run %s: %s; it is blocked at %s", self._claim.run_id, self._words, self._limits.max_words)

    def heed(self, driver: "Driver") -> None:
        """Let the run be blocked when nothing more should be added; its code may still come to its end."""
        if self._was_long and self.is_full:
            driver.leave("block", note=json.dumps(self.report))

    @property
    def report(self) -> dict[str, Any]:
        """Why the run is blocked."""
        return report_without_place(
            "too_long",
            run_id=self._claim.run_id,
            workflow=self._claim.workflow,
            hint=_HINT,
            detail=f"{self._words}; the limits are {self._limits.max_words}",
            fixes=[
                "let the workflow end this run and go on in a new one, with what that needs: ctx.continue_as_new(…)",
                "or give its workers higher limits: Worker(…, journal_limits=JournalLimits(entries_max=…))",
                "then resume the run: it may still end or continue as new, but add nothing while it is over a limit",
            ],
        )

    def say_blocked(self) -> None:
        """The run is being blocked."""
        self._trace.journal_grew_long("max")
        log.error("run %s is blocked: %s", self._claim.run_id, self.report["text"])

    @property
    def _is_long(self) -> bool:
        limits = self._limits
        return self._entry_count >= limits.entries_warn or self.payload_bytes >= limits.bytes_warn

    @property
    def _words(self) -> str:
        entries = count_words(self._entry_count, "entry")
        return f"its journal has {entries} and {count_words(self.payload_bytes, 'byte')} of payload"


def _weight(entries: Sequence[Entry]) -> int:
    weight = 0
    for entry in entries:
        if entry.payload is not None:
            weight += len(entry.payload)
    return weight
