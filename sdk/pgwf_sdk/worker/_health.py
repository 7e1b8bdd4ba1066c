"""How a worker is, as one value, and whether the host loop still answers."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, Literal

from pgwf_sdk.worker._settings import Settings
from pgwf_sdk.worker._tender import Tender

HealthState = Literal["starting", "ready", "disconnected", "draining", "stopped"]

SILENCE_SECONDS_MAX: Final = 60.0
"""A host loop that has not answered for so long counts as hung: its runs would stay where they are for ever."""


@dataclass(frozen=True, slots=True)
class Health:
    """How a worker is. Ages and silences are seconds.

    `starting`: it has not been connected yet. `ready`: it takes runs. `disconnected`: the database has not answered for
    the length of a lease. `draining`: it takes no more runs. `stopped`: it has ended, or was never run.
    `keepalive_age_seconds` is how long ago the database last heard of it (None: never); `loop_silence_seconds` how long
    the host loop has left a question unanswered, which a step that blocks it causes.
    """

    worker_id: str
    state: HealthState
    runs: int = 0
    slots: int = 0
    keepalive_age_seconds: float | None = None
    loop_silence_seconds: float = 0.0

    @property
    def is_ready(self) -> bool:
        """Whether it takes runs."""
        return self.state == "ready"

    @property
    def is_alive(self) -> bool:
        """Whether it can go on by itself. A database that is gone is no reason to start the process again."""
        return self.state != "stopped" and self.loop_silence_seconds < SILENCE_SECONDS_MAX


class Pulse:
    """Asks the host loop whether it still runs; safe from any thread."""

    def __init__(self, call_threadsafe: Callable[..., Any]) -> None:
        self._call_threadsafe = call_threadsafe
        self._asked_time: float | None = None

    def silence_seconds(self) -> float:
        """How long the oldest question has gone unanswered; 0 when there is none. Asks the next one."""
        asked_time = self._asked_time
        if asked_time is None:
            self._asked_time = time.monotonic()
            self._call_threadsafe(self._answer)
            return 0.0
        return time.monotonic() - asked_time

    def _answer(self) -> None:
        self._asked_time = None


class Checkup:
    """Says how a worker that runs is; safe from any thread."""

    def __init__(
        self,
        settings: Settings,
        tender: Tender,
        pulse: Pulse,
        *,
        runs: Callable[[], int],
        is_stopping: Callable[[], bool],
    ) -> None:
        self._settings = settings
        self._tender = tender
        self._pulse = pulse
        self._runs = runs
        self._is_stopping = is_stopping

    def health(self) -> Health:
        """How it is now."""
        contact_time = self._tender.contact_time
        age_seconds = None if contact_time is None else time.monotonic() - contact_time
        return Health(
            self._settings.worker_id,
            self._state(age_seconds),
            runs=self._runs(),
            slots=self._settings.concurrency,
            keepalive_age_seconds=age_seconds,
            loop_silence_seconds=self._pulse.silence_seconds(),
        )

    def _state(self, age_seconds: float | None) -> HealthState:
        if self._is_stopping():
            return "draining"
        if age_seconds is None:
            return "starting"
        return "disconnected" if age_seconds >= self._settings.lease.total_seconds() else "ready"
