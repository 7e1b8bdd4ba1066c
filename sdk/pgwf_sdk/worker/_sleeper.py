"""How a worker with room for work learns of some, without a query a second and without missing any.

It says which needs it sleeps on, looks once more, and sleeps until it is its turn or the poll is due: of many workers
that sleep, two are woken for new work, and those who find more than they can take wake others. A transaction
that had looked for sleepers before it saw the registration may still commit work afterwards: as long as a transaction
older than the registration is open, the worker looks again after short, growing pauses. Such a transaction's work may
also lie before the position (`_position.py`) at which a look began: the worker looks once more when that has ended.

The registration stands until there is no room: whoever commits work meanwhile sees it, so a run that is worked on costs
no looks. It is made anew when the poll finds what nobody told of, because the turn was given to a worker that is dead;
the last to register is the first to be told. So it is when the connection that listens was lost: a server that crashed
has forgotten who sleeps.
"""

import asyncio
import contextlib
import random
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Final

import psycopg

from pgwf_sdk.worker._flusher import Flusher
from pgwf_sdk.worker._outage import Outage
from pgwf_sdk.worker._room import Room
from pgwf_sql.database import AsyncDatabase, AsyncListener, Statement, read_nothing, read_value

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
        {"channels": [f"worker.{worker_id}", f"turn.{worker_id}", *(f"turns.{need}" for need in needs)]},
        lambda rows: [row["channel"] for row in rows],
        True,
    )


class _Bell(asyncio.Event):
    """Rung by the database when it is this worker's turn, or stirred by the worker itself."""

    is_turn = False

    def set(self) -> None:
        self.is_turn = True
        super().set()

    def stir(self) -> None:
        """There is or was room; nobody woke this worker."""
        super().set()

    def clear(self) -> None:
        self.is_turn = False
        super().clear()


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
        tend: Callable[[], None],
        watch: Callable[[bool], None],
    ) -> None:
        self._database = database
        self._flusher = flusher
        self._room = room
        self._worker_id = worker_id
        self._capabilities = capabilities
        self._tend = tend  # There is news of a run in hand, or of this worker.
        self._watch = watch  # Time may bring work; whether some was found just now.
        self._poll_seconds = poll.total_seconds()
        self._outage = Outage(worker_id, "hear of work")

    async def run(self) -> None:
        """Sleep and wake until cancelled; faults of the database are waited out."""
        while True:
            try:
                await self._sleep_and_wake()
            except psycopg.Error as error:
                task = asyncio.current_task()
                if task is not None and task.cancelling():  # A statement that is cancelled may end with such an error.
                    return
                self._outage.failed(error)
                await asyncio.sleep(_RECONNECT_SECONDS)

    async def _sleep_and_wake(self) -> None:
        listener = AsyncListener(self._database)
        try:
            word, *turns = await self._database.run(_channels_of(self._worker_id, self._capabilities))
            bell = _Bell()
            async with listener.tell([word], self._tend), listener.tell(turns, bell.set):
                self._outage.is_over()
                bell.clear()
                self._room.changed = self._flusher.filled = bell.stir
                while True:
                    await self._until_idle(bell)
                    await self._while_idle(bell, listener)
                    await self._database.run(_unregister(self._worker_id))
        finally:
            with contextlib.suppress(Exception):
                await self._database.run(_unregister(self._worker_id))
            await listener.close()

    async def _until_idle(self, bell: _Bell) -> None:
        """Wait until there is room and nothing to do. What this worker is woken for before that, others are to take."""
        while True:
            if bell.is_set():
                is_turn = bell.is_turn
                bell.clear()
                self._flusher.hunger()
                if is_turn:
                    await self._database.run(_wake_next(self._capabilities))
            if self._flusher.idle.is_set():
                return
            waiting = [asyncio.ensure_future(event.wait()) for event in (self._flusher.idle, bell)]
            try:
                await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for one in waiting:
                    one.cancel()

    async def _while_idle(self, bell: _Bell, listener: AsyncListener) -> None:
        """Register and look, and again whenever the bell rings, until there is no room for what this worker is
        registered for, or it may not be registered any more."""
        needs, _ = self._room.free()
        connections_count = listener.connections_count
        xid = await self._database.run(_register(self._worker_id, needs))
        pause = _PAUSE_SECONDS_MIN
        is_past = is_certain = False
        is_rung = True
        # A bell that ends this goes on ringing: whoever it was meant for is told.
        while self._flusher.idle.is_set() and self._room.free()[0] == needs:
            if listener.connections_count != connections_count:
                return
            bell.clear()
            is_past = is_past or await self._database.run(_is_past(xid))
            found_count = await self._flusher.claim()
            if self._room.is_limited_for_all:
                self._watch(found_count > 0)  # For what was left for want of a token, a sweep wakes somebody in time.
            if found_count and is_certain and not is_rung:
                return
            is_certain = is_past and self._flusher.position.is_whole
            seconds = self._poll_seconds * random.uniform(1 - _JITTER, 1)
            if not is_past:
                seconds = min(seconds, pause)
            elif not is_certain:
                seconds = min(seconds, max(self._flusher.position.seconds_left, pause))
            is_rung = await _rings(bell, seconds)
            pause = _PAUSE_SECONDS_MIN if is_rung else min(pause * 2, _PAUSE_SECONDS_MAX)


async def _rings(bell: _Bell, seconds: float) -> bool:
    """Wait for the bell, at most so long."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await bell.wait()
    return bell.is_set()
