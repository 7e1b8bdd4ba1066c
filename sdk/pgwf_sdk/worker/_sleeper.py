"""How a worker with nothing to do learns of work, without a query a second and without missing any.

It says which needs it sleeps on, looks once more, and sleeps until it is its turn or the poll is due: of many workers
that sleep, two are woken for new work, and those who find more than they can take wake others. A transaction
that had looked for sleepers before it saw the registration may still commit work afterwards: as long as a transaction
older than the registration is open, the worker looks again after short, growing pauses; so it does when its look
began at a position (`_position.py`), because such a transaction's work may lie before it.
"""

import asyncio
import contextlib
import functools
import logging
import random
from collections.abc import Sequence
from datetime import timedelta
from typing import Final

import psycopg

from pgwf_sdk.worker._flusher import Flusher
from pgwf_sdk.worker._room import Room
from pgwf_sql.database import AsyncDatabase, AsyncListener, Statement, read_nothing, read_value

log = logging.getLogger("pgwf_sdk.worker")

_RECONNECT_SECONDS: Final = 1.0
_PAUSE_SECONDS_MIN: Final = 0.005
_PAUSE_SECONDS_MAX: Final = 0.25
_JITTER: Final = 0.2  # Workers that were started together must not poll together for ever.


def _register(listener: str, needs: Sequence[str]) -> Statement[str]:
    return Statement(
        "sdk_sleep_in_turn", {"listener": listener, "needs": list(needs)}, lambda rows: str(read_value(rows)), True
    )


def _wake_next(needs: Sequence[str]) -> Statement[None]:
    return Statement("sdk_wake_next", {"needs": list(needs)}, read_nothing, is_repeatable=True)


def _unregister(listener: str) -> Statement[None]:
    return Statement("pgwf_wake_up", {"listener": listener}, read_nothing, is_repeatable=True)


def _is_past(xid: str) -> Statement[bool]:
    return Statement("sdk_horizon", {"xid": xid}, read_value, is_repeatable=True)


def _channels_of(worker_id: str, needs: Sequence[str]) -> Statement[list[str]]:
    return Statement(
        "sdk_channels",
        {"channels": [f"turn.{worker_id}", *(f"turns.{need}" for need in needs)]},
        lambda rows: [row["channel"] for row in rows],
        True,
    )


class Sleeper:
    """Makes the flusher ask for work when there may be some."""

    def __init__(
        self,
        database: AsyncDatabase,
        flusher: Flusher,
        room: Room,
        *,
        worker_id: str,
        capabilities: Sequence[str],
        poll: timedelta,
    ) -> None:
        self._database = database
        self._flusher = flusher
        self._room = room
        self._worker_id = worker_id
        self._capabilities = capabilities
        self._poll_seconds = poll.total_seconds()
        self._is_turn = True  # When the bell rings next, this worker has been woken for work.

    async def run(self) -> None:
        """Sleep and wake until cancelled; faults of the database are waited out."""
        while True:
            try:
                await self._sleep_and_wake()
            except psycopg.Error as error:
                task = asyncio.current_task()
                if task is not None and task.cancelling():  # A statement that is cancelled may end with such an error.
                    return
                log.warning("worker %s: cannot hear of work just now: %s", self._worker_id, error)
                await asyncio.sleep(_RECONNECT_SECONDS)

    async def _sleep_and_wake(self) -> None:
        listener = AsyncListener(self._database)
        try:
            channels = await self._database.run(_channels_of(self._worker_id, self._capabilities))
            async with listener.hear(channels) as bell:
                self._room.changed = functools.partial(self._stir, bell)
                while True:
                    await self._until_idle(bell)
                    needs, _ = self._room.free()
                    xid = await self._database.run(_register(self._worker_id, needs))
                    await self._until_work(bell, xid, needs)
                    await self._database.run(_unregister(self._worker_id))
        finally:
            with contextlib.suppress(Exception):
                await self._database.run(_unregister(self._worker_id))
            await listener.close()

    async def _until_idle(self, bell: asyncio.Event) -> None:
        """Wait until there is room and nothing to do. What this worker is woken for before that, others are to take."""
        while not self._flusher.idle.is_set():
            waiting = [asyncio.ensure_future(event.wait()) for event in (self._flusher.idle, bell)]
            try:
                await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for one in waiting:
                    one.cancel()
            if bell.is_set():
                bell.clear()
                self._flusher.hunger()
                is_turn, self._is_turn = self._is_turn, True
                if is_turn:
                    await self._database.run(_wake_next(self._capabilities))

    def _stir(self, bell: asyncio.Event) -> None:
        """There is room again; nobody woke this worker."""
        self._is_turn = bell.is_set() and self._is_turn
        bell.set()

    async def _until_work(self, bell: asyncio.Event, xid: str, needs: Sequence[str]) -> None:
        pause = _PAUSE_SECONDS_MIN
        is_past = False
        while True:
            bell.clear()
            self._is_turn = True
            is_past = is_past or await self._database.run(_is_past(xid))
            if await self._flusher.claim() or not self._flusher.idle.is_set():
                return
            if self._room.free()[0] != needs:
                return  # It is registered for more than it has room for, or for less.
            is_certain = is_past and self._flusher.position.is_whole
            seconds = self._poll_seconds * random.uniform(1 - _JITTER, 1) if is_certain else pause
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await bell.wait()
            pause = min(pause * 2, _PAUSE_SECONDS_MAX)
