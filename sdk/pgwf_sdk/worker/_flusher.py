"""The worker's one hot connection: one call at a time carries what all drivers have to say and brings new work.

While a call is on its way, everything that becomes ready waits for the next one, so calls grow with the load and a lone
run pays one round trip a step. There is no timer in between.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from datetime import timedelta
from typing import Any, Final

import psycopg
from psycopg import AsyncConnection, errors

from pgwf_sdk.worker._advance import (
    Claim,
    Item,
    ItemAnswer,
    answers,
    claim_parameters,
    now_of,
    parameters,
)
from pgwf_sdk.worker._clock import DatabaseClock
from pgwf_sdk.worker._driver import Driver
from pgwf_sdk.worker._lone import LoneCall, NothingAppendedError
from pgwf_sdk.worker._outage import Outage
from pgwf_sdk.worker._position import Position
from pgwf_sdk.worker._recovery import Recovery
from pgwf_sdk.worker._rests import REST_SECONDS_MIN, Rests
from pgwf_sdk.worker._room import Room
from pgwf_sql import query
from pgwf_sql.database import mismatch

log = logging.getLogger("pgwf_sdk.worker")

ITEMS_MAX: Final = 500
"""Items of one call; more would make everybody wait for the slowest commit."""

PAYLOAD_BYTES_MAX: Final = 16 << 20
"""Payload after which a call takes no further item: PostgreSQL bounds what one statement may carry."""

_RECONNECT_SECONDS_MIN: Final = 0.1
_RECONNECT_SECONDS_MAX: Final = 5.0
_BUSY_SECONDS_MAX: Final = 2.0
_REFUSED_SECONDS: Final = 1.0
_DOUBLINGS_MAX: Final = 10
_RECOVERY_SECONDS: Final = 1.0

_NOTHING: Final[Sequence[str]] = ()

Sent = tuple[Driver, Item]


def _number(sent: Sent) -> int:
    return sent[1].n


class Flusher:
    """Collects items and claim requests, and sends them. `run` is its only task; everything else returns at once."""

    def __init__(
        self,
        connect: Callable[[], Awaitable[AsyncConnection[Any]]],
        *,
        worker_id: str,
        room: Room,
        lease: timedelta,
        clock: DatabaseClock,
        claimed: Callable[[Sequence[Claim]], None],
        seal: Callable[[Item], Item] | None = None,
        recovery: Recovery | None = None,
    ) -> None:
        self._connect = connect
        self._worker_id = worker_id
        self._room = room
        self._asked: tuple[str, ...] = ()
        self._lease = lease
        self._clock = clock
        self._claimed = claimed
        self._seal = seal
        self._recovery = recovery
        self._is_recovering = False
        self._connection: AsyncConnection[Any] | None = None
        self._items: deque[Sent] = deque()
        self._singles: deque[Sent] = deque()
        self._asking: list[asyncio.Future[int]] = []
        self._work = asyncio.Event()
        self._rests = Rests(self._work.set)
        self._lone = LoneCall(self._lone_settled, self._work.set, seal)
        self._is_at_rest = False
        self._is_hungry = True
        self._is_claiming = True
        self._is_closing = False
        self._faults_count = 0
        self._outage = Outage(worker_id, "work with the database")
        self._is_alone = False
        self.position = Position()
        self.idle = asyncio.Event()
        """Set while the last claim brought less than there was room for: there was nothing more to do."""
        self.filled: Callable[[], None] = lambda: None
        """Called when this worker is idle no more."""

    def put(self, driver: Driver, item: Item) -> None:
        """Send `item` with the next call; the answer goes to `driver.settled`."""
        sent = driver, item
        if self._is_at_rest and not self._work.is_set() and not self._lone.is_under_way and self._goes_alone(sent):
            self._lone.send(sent)
        else:
            self._items.append(sent)
            self._work.set()

    def hunger(self) -> None:
        """There is room for work, or word of it: ask with the next call."""
        self._is_hungry = True
        self._work.set()

    async def claim(self) -> int:
        """Ask for work in a call that begins after this moment, and return how much it brought."""
        future: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._asking.append(future)
        self._work.set()
        return await future

    def stop_claiming(self) -> None:
        """Bring no more runs."""
        self._is_claiming = False
        self._fill()

    def close(self) -> None:
        """Send what there is, claim nothing more, then end `run`."""
        self._is_claiming = False
        self._is_closing = True
        self._work.set()

    async def run(self) -> None:
        """Send until closed and empty. Faults of the database are waited out; nothing that was put is dropped."""
        self._work.set()
        try:
            while not (self._is_closing and not self._items and not self._singles and self._rests.is_empty):
                self._is_at_rest = True
                await self._work.wait()
                self._is_at_rest = False
                self._work.clear()
                if (failed := await self._lone.landed()) is not None:
                    sent, error = failed
                    await self._on_error([sent], error)
                await self._flush()
                # What the answers set going and is done at once goes with the next call: no need to be woken for it.
                await asyncio.sleep(0)
                if self._items or self._singles or self._asking or (self._is_hungry and self._is_claiming):
                    self._work.set()
        finally:
            self._is_at_rest = False
            for future in self._asking:
                future.cancel()
            self._lone.stop()
            if self._connection is not None:
                await self._connection.close()

    async def _flush(self) -> None:
        batch = self._next_batch()
        if self._is_alone:
            # It may fail again and must not take a claim with it.
            if await self._attempt(batch, _NOTHING, 0) is not None:
                self._is_hungry = True
            return
        asking, self._asking = self._asking, []
        # Runs that leave with this call make room for others, which the same call may bring.
        leaving = [driver.occupant for driver, item in batch if item.disposition != "keep"]
        wants = self._is_claiming and (self._is_hungry or bool(asking) or bool(leaving))
        needs, slots = self._room.free(leaving) if wants else (_NOTHING, 0)
        claims: list[Claim] | None = []
        if len(batch) == 1 and not slots and self._goes_alone(batch[0]):
            self._lone.send(batch[0])
        elif batch or slots or self._is_recovering:
            claims = await self._attempt(batch, needs, slots)
        if claims is None:
            self._is_hungry = self._is_hungry or wants
        elif wants:
            self._is_hungry = len(claims) == slots > 0  # There may be more where these came from.
            if len(claims) < slots and self._is_claiming:
                self.idle.set()
            else:
                self._fill()
        for future in asking:
            if not future.done():
                future.set_result(len(claims or ()))

    def _fill(self) -> None:
        if self.idle.is_set():
            self.idle.clear()
            self.filled()

    async def _attempt(self, batch: Sequence[Sent], needs: Sequence[str], slots: int) -> list[Claim] | None:
        """One call; the claimed runs are on their way when this returns. None: it failed, and is made good later."""
        try:
            settled, claims = await self._send([item for _, item in batch], needs, slots)
        except Exception as error:  # noqa: BLE001 - among them what is refused: a value of which no parameter can be made
            await self._on_error(batch, error)
            return None
        for (driver, item), answer in zip(batch, settled, strict=True):
            if answer.status == "busy":
                self._rests.begin((driver, item), self._items, _BUSY_SECONDS_MAX)
                continue
            self._rests.clear(item)
            driver.settled(item, answer)
        if claims:
            self._claimed(claims)
        self._no_fault()
        return claims

    def _goes_alone(self, sent: Sent) -> bool:
        """Whether one item can be said by the shorter call, because it is all there is to do."""
        if self._items or self._singles or self._is_closing or self._is_recovering or self._connection is None:
            return False
        _, item = sent
        return item.is_one_entry and not self._rests.is_wary([item]) and self._lone.flies_on(self._connection)

    def _lone_settled(self, sent: Sent, answer: ItemAnswer) -> None:
        driver, item = sent
        self._clock.told(answer.now_at)
        self._no_fault()
        driver.settled(item, answer)

    def _no_fault(self) -> None:
        if self._faults_count:
            self._faults_count = 0
            self._outage.is_over()

    async def _on_error(self, batch: Sequence[Sent], error: Exception) -> None:
        """A call failed, and what it was to say is to be said again, or refused."""
        match error:
            case errors.LockNotAvailable() | errors.DeadlockDetected():
                self._on_busy(batch, error)
            case NothingAppendedError():
                self._rests.suspect(item.n for _, item in batch)
                self._items.extendleft(reversed(batch))
            case errors.FeatureNotSupported() | errors.InvalidSqlStatementName():
                # The prepared call is not what the database has now: the schema was upgraded under it, or a pooler took
                # its place.
                await self._on_stale(batch, error)
            case errors.ReadOnlySqlTransaction():
                # A standby, or a primary that takes no writes for a while: perhaps another server is to be had by now.
                await self._disconnect()
                await self._on_fault(batch, error)
            case errors.ProgramLimitExceeded() | errors.StatementTooComplex():
                await self._on_refused(batch, error)
            case psycopg.OperationalError():
                await self._on_fault(batch, error)
            case errors.UndefinedFunction() if error.diag.context is None:  # Not one in a trigger.
                # Another release has installed its schema. Without the short call this worker can go on; without the
                # others it could record nothing, and would run steps again and again.
                if self._lone.is_grounded:
                    raise await mismatch(self._connection or await self._open(), error) from error
                self._lone.ground()
                self._items.extendleft(reversed(batch))
            case _:
                await self._on_refused(batch, error)

    def _next_batch(self) -> list[Sent]:
        # In turns: an item that fails again and again must not hold up what has come since.
        self._is_alone = bool(self._singles) and not self._is_alone
        if self._is_alone:
            return [self._singles.popleft()]
        batch: list[Sent] = []
        payload_bytes = 0
        while self._items and len(batch) < ITEMS_MAX and payload_bytes < PAYLOAD_BYTES_MAX:
            batch.append(self._items.popleft())
            payload_bytes += batch[-1][1].payload_bytes
        batch.sort(key=_number)  # As their leases are locked: the call has nothing to match then.
        return batch

    async def _send(
        self, items: Sequence[Item], needs: Sequence[str], slots: int
    ) -> tuple[list[ItemAnswer], list[Claim]]:
        self._lone.stop()
        connection = self._connection or await self._open()
        if self._is_recovering and self._recovery is not None:
            self._is_recovering = False
            await self._recovery.look(connection)
        if slots and (asked := tuple(needs)) != self._asked:
            # What the last claim said about the next one holds for the same needs in the same order.
            self._asked, self.position = asked, Position()
        if self._seal is not None:
            items = [self._seal(item) for item in items]
        position = self.position.starts if slots else None
        if items:
            name, values = (
                "sdk_advance",
                parameters(
                    self._worker_id,
                    items,
                    capabilities=needs,
                    slots=slots,
                    lease=self._lease,
                    position=position,
                    busy_ok=self._rests.is_wary(items),
                ),
            )
        else:
            name, values = (
                "sdk_claim",
                claim_parameters(
                    self._worker_id, capabilities=needs, slots=slots, lease=self._lease, position=position
                ),
            )
        async with connection.cursor(binary=True) as cursor:
            await cursor.execute(query(name).encode(), values)
            rows = await cursor.fetchall()
        if slots:
            self.position.told(rows)
        if rows:
            self._clock.told(now_of(rows[0]))
        return answers(rows)

    async def _on_fault(self, batch: Sequence[Sent], error: psycopg.Error) -> None:
        """The connection broke, or the server is out of something. The batch is sent again as it was: if the first try
        did commit after all, the journal's head tells ("conflict")."""
        self._faults_count = min(self._faults_count + 1, _DOUBLINGS_MAX)
        pause = min(REST_SECONDS_MIN * 2**self._faults_count, _RECONNECT_SECONDS_MAX)
        if self._connection is None or self._connection.broken:
            if self._faults_count > 1:
                # One item may be what breaks it: from now on they go one by one, and not all at once.
                self._singles.extend(batch)
                await asyncio.sleep(pause)
            else:
                self._items.extendleft(reversed(batch))
            await self._reconnect(error)
            return
        log.warning("worker %s: the database cannot take a call just now: %s", self._worker_id, error)
        self._part(batch, _RECONNECT_SECONDS_MAX)
        if not batch:
            await asyncio.sleep(pause)

    async def _on_stale(self, batch: Sequence[Sent], error: psycopg.Error) -> None:
        """A new connection has nothing prepared; what it refuses at once is refused for another reason."""
        if self._faults_count:
            await self._on_refused(batch, error)
            return
        self._faults_count = 1
        log.info("worker %s: connects anew, because the call it had prepared is gone: %s", self._worker_id, error)
        await self._disconnect()
        self._items.extendleft(reversed(batch))

    def _on_busy(self, batch: Sequence[Sent], error: psycopg.Error) -> None:
        """Somebody's long transaction holds a row of one item: the others shall not wait for it."""
        log.debug("a call with %d items met a locked row: %s", len(batch), error)
        if self._rests.is_wary(item for _, item in batch):
            # Not a row that can be skipped: the id of a child, say, which somebody is just taking.
            self._part(batch, _BUSY_SECONDS_MAX)
        else:
            self._rests.suspect(item.n for _, item in batch)
            self._items.extendleft(reversed(batch))

    def _part(self, batch: Sequence[Sent], rest_seconds_max: float) -> None:
        """From now on each goes alone. One that went alone rests first: it holds up everybody until it has failed."""
        if len(batch) != 1:
            self._singles.extend(batch)
            return
        self._rests.begin(batch[0], self._singles, rest_seconds_max)

    async def _on_refused(self, batch: Sequence[Sent], error: Exception) -> None:
        """The database will not take something in this call, whoever else is in it."""
        if len(batch) > 1:
            self._singles.extend(batch)
            return
        for driver, item in batch:
            driver.refused(item, error)
        if not batch:
            log.error("worker %s: asking for work failed", self._worker_id, exc_info=error)
            await asyncio.sleep(_REFUSED_SECONDS)

    async def _open(self) -> AsyncConnection[Any]:
        connection = self._connection = await self._connect()
        self.position = Position()
        # It may lead to another server, which has not all the last one had: the shorter call would leave a gap.
        if self._recovery is not None:
            self._rests.suspect(self._recovery.known())
        return connection

    async def _disconnect(self) -> None:
        self._lone.stop()
        if self._connection is not None:
            await self._connection.close()
            self._connection = None

    async def _reconnect(self, error: psycopg.Error) -> None:
        self._outage.failed(error)
        await self._disconnect()
        pause = _RECONNECT_SECONDS_MIN
        while True:
            try:
                await self._open()
            except (psycopg.Error, OSError) as again:
                log.debug("worker %s: still not reachable: %s", self._worker_id, again)
                await asyncio.sleep(pause)
                pause = min(pause * 2, _RECONNECT_SECONDS_MAX)
            else:
                self._recover()
                # The server may still be at the call whose connection broke.
                asyncio.get_running_loop().call_later(_RECOVERY_SECONDS, self._recover)
                return

    def _recover(self) -> None:
        self._is_recovering = self._recovery is not None
        self._work.set()
