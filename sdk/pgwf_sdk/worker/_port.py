"""What a driver needs of its worker."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import datetime, timedelta

    from pgwf_sdk.replay import RunStep
    from pgwf_sdk.worker._advance import InboxRow, Item
    from pgwf_sdk.worker._driver import Driver
    from pgwf_sdk.worker._settings import JournalLimits
    from pgwf_sdk.worker._steps import StepAttempt


class Port(Protocol):
    """What a driver needs of its worker."""

    @property
    def linger(self) -> timedelta:
        """A run whose next instant is nearer than this keeps its lease and waits here: parking it would cost more."""
        ...

    @property
    def journal_limits(self) -> JournalLimits:
        """How long a journal may become."""
        ...

    def now(self) -> datetime:
        """The database's time, never ahead of it."""
        ...

    def offers(self, need: str, driver: Driver) -> bool:
        """True when this worker may do what needs `need` for that run now."""
        ...

    def submit(self, driver: Driver, item: Item) -> None:
        """Send the item with the next call; the answer comes to `driver.settled`."""

    def call_at(self, instant: datetime, act: Callable[[], None]) -> Handle:
        """Call `act` at a time of the database's clock."""
        ...

    def start_step(
        self, driver: Driver, command: RunStep, *, number: int, elapsed: timedelta, last_heartbeat: str | None
    ) -> StepAttempt:
        """Make an attempt; once it has begun, its reports come to `driver.step_reported`."""
        ...

    def code_numbers(
        self, codes: set[tuple[str, int]], then: Callable[[], None], /
    ) -> dict[tuple[str, int], int] | None:
        """The numbers of source lines, or None and a later call of `then` while the database has to be asked."""
        ...

    def explain(self, n: int, report: dict[str, Any], then: Callable[[dict[str, Any]], None], /) -> None:
        """Call `then` with the report on run `n`, completed by where its entries were recorded if that can be read."""

    def recall(self, driver: Driver, item: Item, /) -> None:
        """Read what became of an earlier try of `item`; it comes to `driver.settled`."""

    def opened_inbox(self, driver: Driver, rows: list[InboxRow], /) -> list[InboxRow]:
        """Inbox rows in clear; none, and the driver gives its run back, when one cannot be opened here."""
        ...

    def released(self, driver: Driver, status: str) -> None:
        """The lease is gone; `status` says how, as in RunTrace.released."""


class Handle(Protocol):
    """Something that can be called off."""

    def cancel(self) -> None:
        """Call it off."""


class Alarm:
    """Calls somebody at one instant at most, the last one that was set."""

    def __init__(self, port: Port) -> None:
        self._port = port
        self._handle: Handle | None = None

    def set(self, instant: datetime | None, act: Callable[[], None]) -> None:
        """Call `act` at `instant`, and not when it was set for before; None: not at all."""
        if self._handle is not None:
            self._handle.cancel()
        self._handle = None if instant is None else self._port.call_at(instant, act)
