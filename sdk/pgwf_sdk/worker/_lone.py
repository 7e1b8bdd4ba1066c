"""The step of a run that is alone: sent as soon as it has ended, and answered, without waking the flusher's task."""

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import psycopg
from psycopg import AsyncConnection, errors

from pgwf_sdk.worker._advance import Item, ItemAnswer, entry_parameters
from pgwf_sql.database import PreparedCall, is_direct

if TYPE_CHECKING:
    from pgwf_sdk.worker._driver import Driver


class NothingAppendedError(Exception):
    """The shorter call wrote nothing; the longer one tells why: the lease is lost, or something was appended since."""


class LoneCall:
    """At most one call of `pgwf_sdk.append` under way, on the connection of a flusher, which waits for it before
    it uses that connection."""

    def __init__(
        self,
        settled: "Callable[[tuple[Driver, Item], ItemAnswer], None]",
        wake: Callable[[], None],
        seal: Callable[[Item], Item] | None,
    ) -> None:
        self._settled = settled
        self._wake = wake
        self._seal = seal
        self._call: PreparedCall | None = None
        self._sent: tuple[Driver, Item] | None = None
        self._error: Exception | None = None
        self._landing: asyncio.Future[None] | None = None
        self.is_grounded = False
        """True once the database was found to have no such call."""

    @property
    def is_under_way(self) -> bool:
        """True until it has been answered, or `landed` has told of its error."""
        return self._sent is not None

    def flies_on(self, connection: AsyncConnection[Any]) -> bool:
        """Whether calls can be prepared on this connection, which is the one of the next call then."""
        if self._call is None or self._call.connection is not connection:
            can_fly = is_direct(connection) and not self.is_grounded
            self._call = PreparedCall(connection, "sdk_append") if can_fly else None
        return self._call is not None

    def ground(self) -> None:
        """Send no more."""
        self.stop()
        self._call, self.is_grounded = None, True

    def send(self, sent: "tuple[Driver, Item]") -> None:
        """Say it now. The answer goes to `settled`; an error is kept for `landed`, and the flusher woken."""
        assert self._call is not None
        self._sent = sent
        _, item = sent
        try:
            self._call.start(entry_parameters(item if self._seal is None else self._seal(item)), self._answered)
        except Exception as error:  # noqa: BLE001 - a value of which no parameter can be made
            self._fail(error)

    async def landed(self) -> "tuple[tuple[Driver, Item], Exception] | None":
        """Return once no call is under way; if it failed: what it was to say, and the error."""
        if self._sent is not None and self._error is None:
            self._landing = asyncio.get_running_loop().create_future()
            await self._landing
        sent, error = self._sent, self._error
        self._landing = self._sent = self._error = None
        return None if sent is None or error is None else (sent, error)

    def stop(self) -> None:
        """Leave the connection to others, or to be closed: an answer that is under way does not come."""
        if self._call is not None:
            self._call.stop()

    def _answered(self, outcome: list[Any] | psycopg.Error) -> None:
        if isinstance(outcome, psycopg.Error):
            self._fail(NothingAppendedError() if isinstance(outcome, errors.UniqueViolation) else outcome)
            return
        (recorded_at,) = outcome
        if recorded_at is None:
            self._fail(NothingAppendedError())
            return
        sent, self._sent = self._sent, None
        assert sent is not None
        if self._landing is not None:
            self._land()
        self._settled(sent, ItemAnswer("ok", recorded_at, [], []))

    def _fail(self, error: Exception) -> None:
        self._error = error
        self._wake()
        self._land()

    def _land(self) -> None:
        if self._landing is not None and not self._landing.done():
            self._landing.set_result(None)
