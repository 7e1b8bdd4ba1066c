"""One LISTENing connection for all that wait in a client.

A notification is a hint: who waits here polls as well, so a waiter that cannot be served (no connection to be had, a
pooler that does not carry LISTEN and no way past it) is only slower. Errors of the connection are therefore met by
connecting again later.
"""

import asyncio
import selectors
import socket
import time
from collections.abc import AsyncGenerator, Callable, Generator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from threading import Condition, Event, Thread
from typing import Final

import psycopg
from psycopg import sql

from pgwf_sql.database._fork import forget_when_forked
from pgwf_sql.database._pool import AsyncDatabase, Database
from pgwf_sql.database._schema import SchemaOutdatedError

REQUEST_SECONDS: Final = 600.0
"""A request to be woken is made anew after this time: the sweep forgets it after an hour, taking its maker for dead."""
_IDLE_SECONDS_MAX = 30.0  # Nobody has waited for that long: the connection goes back to the server.
_RECONNECT_SECONDS_MIN = 0.1  # After an attempt that failed; a connection that is lost is replaced at once.
_RECONNECT_SECONDS_MAX = 5.0
_READY_SECONDS_MAX = 5.0  # How long a waiter holds back its first look for the LISTEN to be in force.


Ring = Callable[[], None]


class _Register:
    """Who waits for which channel, and which channels the connection listens to now."""

    def __init__(self) -> None:
        self._rings: dict[str, set[Ring]] = {}
        self._heard: set[str] = set()
        self.is_unserved = False  # The last attempt to listen failed: nobody should wait for it.
        self.pause_seconds = 0.0  # Before the next attempt.

    def add(self, ring: Ring, channels: Sequence[str]) -> None:
        for channel in channels:
            self._rings.setdefault(channel, set()).add(ring)

    def remove(self, ring: Ring, channels: Sequence[str]) -> None:
        for channel in channels:
            rings = self._rings.get(channel, set())
            rings.discard(ring)
            if not rings:
                self._rings.pop(channel, None)

    def is_settled(self, channels: Sequence[str]) -> bool:
        """True once `channels` are listened to, or will not be for a while."""
        return self.is_unserved or self._heard.issuperset(channels)

    def is_empty(self) -> bool:
        return not self._rings

    def due(self) -> list[tuple[str, bool]]:
        """Channels to listen to (True) and to leave (False) for the connection to match the waiters."""
        wanted = self._rings.keys()
        return [(c, True) for c in wanted - self._heard] + [(c, False) for c in self._heard - wanted]

    def done(self, changes: Sequence[tuple[str, bool]]) -> None:
        self.is_unserved = False
        self.pause_seconds = 0.0
        for channel, is_wanted in changes:
            if is_wanted:
                self._heard.add(channel)
                # Who did not wait for this (it took too long, or the connection was lost) may have missed something.
                self.ring(channel)
            else:
                self._heard.discard(channel)

    def ring(self, channel: str) -> None:
        for ring in self._rings.get(channel, ()):
            ring()

    def deafen(self) -> None:
        """The connection is gone. One that had listened is replaced at once."""
        if not self._heard:
            self.pause_seconds = min(max(self.pause_seconds * 2, _RECONNECT_SECONDS_MIN), _RECONNECT_SECONDS_MAX)
        self._heard.clear()
        self.is_unserved = True


def _change(channel: str, is_wanted: bool) -> sql.Composed:
    verb = sql.SQL("listen {}") if is_wanted else sql.SQL("unlisten {}")
    return verb.format(sql.Identifier(channel))


def _received(pgconn: psycopg.pq.abc.PGconn) -> Iterator[str]:
    """The channels of the notifications that have arrived; raises OperationalError when the connection is gone."""
    pgconn.consume_input()
    while (notification := pgconn.notifies()) is not None:
        yield notification.relname.decode()


class Listener:
    """Rings waiting threads when their channels are notified; one background thread, connected while somebody waits."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._changed = Condition()
        self._register = _Register()
        self._thread: Thread | None = None
        self._waker: socket.socket | None = None
        self._is_closed = False
        self.connections_count = 0
        """How often a connection was made. The server may have crashed before each, and forgotten who sleeps."""
        forget_when_forked(self)

    @property
    def epoch(self) -> tuple[int, int]:
        """Changes when a request to be woken is to be made anew: the server crashed perhaps, or it grows old."""
        return self.connections_count, int(time.monotonic() // REQUEST_SECONDS)

    def forget(self) -> None:
        """In a forked process: its parent's thread and connection are not there."""
        self._changed = Condition()
        self._register = _Register()
        self._thread = None
        self._waker = None

    @contextmanager
    def hear(self, channels: Sequence[str]) -> Generator[Event]:
        """An event that is set by each notification on `channels`; listening is in force on entry if it can be."""
        bell = Event()
        try:
            with self._changed:
                self._register.add(bell.set, channels)
                self._rouse()
                self._changed.wait_for(
                    lambda: self._is_closed or self._register.is_settled(channels), timeout=_READY_SECONDS_MAX
                )
                bell.clear()
            yield bell
        finally:
            with self._changed:
                self._register.remove(bell.set, channels)
                self._wake()

    def close(self) -> None:
        """End the background thread and its connection; idempotent."""
        with self._changed:
            self._is_closed = True
            thread = self._thread
            self._wake()
        if thread is not None:
            thread.join()

    def _rouse(self) -> None:
        if self._thread is None and not self._is_closed:
            self._thread = Thread(target=self._listen, name="pgwf-listener", daemon=True)
            self._thread.start()
        self._wake()

    def _wake(self) -> None:
        self._changed.notify_all()
        if self._waker is not None:
            with suppress(BlockingIOError):
                self._waker.send(b"\0")

    def _listen(self) -> None:
        while self._somebody_waits():
            try:
                self._serve()
            except (psycopg.Error, SchemaOutdatedError):
                with self._changed:
                    self._register.deafen()
                    self._changed.notify_all()
                    self._changed.wait_for(lambda: self._is_closed, timeout=self._register.pause_seconds)

    def _somebody_waits(self) -> bool:
        with self._changed:
            self._changed.wait_for(lambda: self._is_closed or not self._register.is_empty())
            return not self._is_closed

    def _serve(self) -> None:
        """Serve the waiters on one connection until nobody has waited for the idle time."""
        with (
            self._woken() as woken,
            self._database.connect_to_listen() as connection,
            selectors.DefaultSelector() as selector,
        ):
            self.connections_count += 1
            connection.add_notify_handler(lambda notification: self._ring(notification.channel))
            selector.register(connection.fileno(), selectors.EVENT_READ)
            selector.register(woken, selectors.EVENT_READ)
            is_stirred = True
            while self._apply(connection, is_stirred=is_stirred):
                is_stirred = bool(selector.select(_IDLE_SECONDS_MAX))
                with suppress(BlockingIOError):
                    woken.recv(4096)
                for channel in _received(connection.pgconn):
                    self._ring(channel)

    @contextmanager
    def _woken(self) -> Generator[socket.socket]:
        woken, waker = socket.socketpair()
        woken.setblocking(False)
        waker.setblocking(False)
        with woken, waker:
            try:
                with self._changed:
                    self._waker = waker
                yield woken
            finally:
                with self._changed:
                    self._waker = None

    def _apply(self, connection: psycopg.Connection, *, is_stirred: bool) -> bool:
        """Make the connection listen to what is waited for; False when it is no longer needed."""
        with self._changed:
            if self._is_closed or (self._register.is_empty() and not is_stirred):
                self._register.deafen()
                return False
            changes = self._register.due()
        for channel, is_wanted in changes:
            connection.execute(_change(channel, is_wanted))
        with self._changed:
            self._register.done(changes)
            self._changed.notify_all()
        return True

    def _ring(self, channel: str) -> None:
        with self._changed:
            self._register.ring(channel)


class AsyncListener:
    """Rings waiting tasks when their channels are notified; one background task, connected while somebody waits."""

    def __init__(self, database: AsyncDatabase) -> None:
        self._database = database
        self._register = _Register()
        self._task: asyncio.Task[None] | None = None
        self._woken = asyncio.Event()
        self._changed = asyncio.Condition()
        self._is_closed = False
        self.connections_count = 0
        """As Listener has it."""

    @property
    def epoch(self) -> tuple[int, int]:
        """As Listener has it."""
        return self.connections_count, int(time.monotonic() // REQUEST_SECONDS)

    @asynccontextmanager
    async def hear(self, channels: Sequence[str]) -> AsyncGenerator[asyncio.Event]:
        """An event that is set by each notification on `channels`; listening is in force on entry if it can be."""
        bell = asyncio.Event()
        async with self.tell(channels, bell.set):
            bell.clear()
            yield bell

    @asynccontextmanager
    async def tell(self, channels: Sequence[str], ring: Ring) -> AsyncGenerator[None]:
        """Call `ring` for each notification on `channels`, and when some may have been missed; listening is in force on
        entry if it can be."""
        self._register.add(ring, channels)
        try:
            self._rouse()
            with suppress(TimeoutError):
                async with asyncio.timeout(_READY_SECONDS_MAX), self._changed:
                    await self._changed.wait_for(lambda: self._is_closed or self._register.is_settled(channels))
            yield
        finally:
            self._register.remove(ring, channels)
            self._woken.set()

    async def close(self) -> None:
        """End the background task and its connection; idempotent."""
        self._is_closed = True
        self._woken.set()
        if self._task is not None:
            await self._task

    def _rouse(self) -> None:
        if self._task is None and not self._is_closed:
            self._task = asyncio.create_task(self._listen(), name="pgwf-listener")
        self._woken.set()

    async def _listen(self) -> None:
        while not self._is_closed:
            if self._register.is_empty():
                self._woken.clear()
                await self._woken.wait()
                continue
            try:
                await self._serve()
            except (psycopg.Error, SchemaOutdatedError):
                self._register.deafen()
                await self._announce()
                await self._pause_unless_closed(self._register.pause_seconds)

    async def _serve(self) -> None:
        """Serve the waiters on one connection until nobody has waited for the idle time."""
        async with await self._database.connect_to_listen() as connection:
            self.connections_count += 1
            connection.add_notify_handler(lambda notification: self._register.ring(notification.channel))
            is_stirred = True
            while await self._apply(connection, is_stirred=is_stirred):
                is_stirred = await self._stirred(connection)
                for channel in _received(connection.pgconn):
                    self._register.ring(channel)

    async def _apply(self, connection: psycopg.AsyncConnection, *, is_stirred: bool) -> bool:
        """Make the connection listen to what is waited for; False when it is no longer needed."""
        if self._is_closed or (self._register.is_empty() and not is_stirred):
            self._register.deafen()
            return False
        self._woken.clear()
        changes = self._register.due()
        for channel, is_wanted in changes:
            await connection.execute(_change(channel, is_wanted))
        self._register.done(changes)
        await self._announce()
        return True

    async def _stirred(self, connection: psycopg.AsyncConnection) -> bool:
        """Wait until the server or a waiter has something to say; False when neither had for the idle time."""
        loop = asyncio.get_running_loop()
        # psycopg watches the same descriptor while a statement runs and removes the watch afterwards: ours exists
        # only between statements.
        loop.add_reader(connection.fileno(), self._woken.set)
        try:
            async with asyncio.timeout(_IDLE_SECONDS_MAX):
                await self._woken.wait()
                return True
        except TimeoutError:
            return False
        finally:
            loop.remove_reader(connection.fileno())

    async def _announce(self) -> None:
        async with self._changed:
            self._changed.notify_all()

    async def _pause_unless_closed(self, seconds: float) -> None:
        loop = asyncio.get_running_loop()
        end = loop.time() + seconds
        while not self._is_closed and loop.time() < end:
            self._woken.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout_at(end):
                    await self._woken.wait()
