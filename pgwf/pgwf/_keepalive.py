"""Extends leases while their holders work: one background thread, or task, on a connection of its own.

The connection is not one of the pool's: work that has taken all of those must not cost its own leases. It is made when
the first extension is due, so short work never needs it.
"""

import asyncio
import time
from contextlib import suppress
from threading import Condition, Thread

import psycopg

from pgwf import _calls
from pgwf._job import HeldJob
from pgwf._patience import answered_within, answered_within_async
from pgwf._renewals import Holder, Renewals
from pgwf_sql.database import AsyncDatabase, Database, SchemaOutdatedError

_UNREACHABLE = (psycopg.Error, SchemaOutdatedError)


class Keepalive:
    """Keeps leases alive from a thread that exists while there are any; safe to share between threads."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._renewals: Renewals[Holder] = Renewals()
        self._changed = Condition()
        self._thread: Thread | None = None

    def add(self, holder: Holder, *, length_seconds: float) -> None:
        """Keep a lease alive, extending it by `length_seconds` each time."""
        with self._changed:
            self._renewals.add(holder, length_seconds=length_seconds, now=time.monotonic())
            if self._thread is None:
                self._thread = Thread(target=self._run, name="pgwf-keepalive", daemon=True)
                self._thread.start()
            self._changed.notify_all()

    def remove(self, holder: Holder) -> None:
        """Extend a lease no more; an extension that is under way may still come through."""
        with self._changed:
            self._renewals.remove(holder)
            self._changed.notify_all()

    def close(self) -> None:
        """Extend nothing any more and wait for the thread to end; the leases run out by themselves."""
        with self._changed:
            self._renewals.clear()
            thread = self._thread
            self._changed.notify_all()
        if thread is not None:
            thread.join()

    def _run(self) -> None:
        connection: psycopg.Connection | None = None
        try:
            while self._wait_until_due():
                if (due := self._renewals.due(time.monotonic())) is not None:
                    connection = self._extend(connection, *due)
        finally:
            if connection is not None:
                connection.close()

    def _wait_until_due(self) -> bool:
        with self._changed:
            while (pause_seconds := self._renewals.pause_seconds(time.monotonic())) is not None:
                if pause_seconds <= 0:
                    return True
                self._changed.wait(pause_seconds)
            # Decided under the lock: whoever adds a lease from now on starts a new thread.
            self._thread = None
            return False

    def _extend(
        self, connection: psycopg.Connection | None, worker_id: str, length_seconds: float, leases: list[HeldJob]
    ) -> psycopg.Connection | None:
        """Extend leases and report; gives the connection to use next time, None for a new one."""
        statement = _calls.extend_leases(worker_id, leases, additional_seconds=length_seconds, busy_ok=True)
        sent_at = time.monotonic()
        try:
            connection = connection or self._database.connect()
            with answered_within(connection, seconds=self._renewals.patience_seconds(sent_at)):
                outcomes = self._database.run(statement, connection)
        except _UNREACHABLE:
            if connection is not None:
                connection.close()
            self._renewals.failed(leases, now=time.monotonic())
            return None
        self._renewals.answered(leases, outcomes, sent_at=sent_at, now=time.monotonic())
        return connection


class AsyncKeepalive:
    """Keeps leases alive from a task that exists while there are any."""

    def __init__(self, database: AsyncDatabase) -> None:
        self._database = database
        self._renewals: Renewals[Holder] = Renewals()
        self._changed = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def add(self, holder: Holder, *, length_seconds: float) -> None:
        """Keep a lease alive, extending it by `length_seconds` each time."""
        self._renewals.add(holder, length_seconds=length_seconds, now=time.monotonic())
        if self._task is None:
            self._task = asyncio.create_task(self._run(), name="pgwf-keepalive")
        self._changed.set()

    def remove(self, holder: Holder) -> None:
        """Extend a lease no more; an extension that is under way may still come through."""
        self._renewals.remove(holder)
        self._changed.set()

    async def close(self) -> None:
        """Extend nothing any more and wait for the task to end; the leases run out by themselves."""
        self._renewals.clear()
        self._changed.set()
        if self._task is not None:
            await self._task

    async def _run(self) -> None:
        connection: psycopg.AsyncConnection | None = None
        try:
            while await self._wait_until_due():
                if (due := self._renewals.due(time.monotonic())) is not None:
                    connection = await self._extend(connection, *due)
        finally:
            if connection is not None:
                await connection.close()

    async def _wait_until_due(self) -> bool:
        while (pause_seconds := self._renewals.pause_seconds(time.monotonic())) is not None:
            if pause_seconds <= 0:
                return True
            self._changed.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(pause_seconds):
                    await self._changed.wait()
        self._task = None
        return False

    async def _extend(
        self,
        connection: psycopg.AsyncConnection | None,
        worker_id: str,
        length_seconds: float,
        leases: list[HeldJob],
    ) -> psycopg.AsyncConnection | None:
        """Extend leases and report; gives the connection to use next time, None for a new one."""
        statement = _calls.extend_leases(worker_id, leases, additional_seconds=length_seconds, busy_ok=True)
        sent_at = time.monotonic()
        try:
            connection = connection or await self._database.connect()
            with answered_within_async(connection, seconds=self._renewals.patience_seconds(sent_at)):
                outcomes = await self._database.run(statement, connection)
        except _UNREACHABLE:
            if connection is not None:
                await connection.close()
            self._renewals.failed(leases, now=time.monotonic())
            return None
        self._renewals.answered(leases, outcomes, sent_at=sent_at, now=time.monotonic())
        return connection
