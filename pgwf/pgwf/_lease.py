"""A lease as its holder sees it: the job, and the calls only the holder may make."""

import asyncio
from collections.abc import AsyncGenerator, Generator, Sequence
from contextlib import asynccontextmanager, contextmanager
from datetime import datetime
from threading import Event
from typing import TYPE_CHECKING, Any

from psycopg import AsyncConnection, Connection

from pgwf._errors import LeaseLostError, LeaseSpentError
from pgwf._job import Grant, RescheduledJob

if TYPE_CHECKING:
    from pgwf._async import AsyncClient
    from pgwf._sync import Client

LEASE_SECONDS = 60
"""How long a lease lasts, unless told otherwise."""


class _Held:
    """What both kinds of lease know, and whether it is still any use."""

    def __init__(self, grant: Grant, worker_id: str) -> None:
        self.job_id = grant.job_id
        self.lease_id = grant.lease_id
        self.worker_id = worker_id
        self.next_need = grant.next_need
        self.singleton_key = grant.singleton_key
        self.wait_for = grant.wait_for
        self.available_at = grant.available_at
        self.lease_expires_at = grant.lease_expires_at
        self.n = grant.n
        self.lease_no = grant.lease_no
        self.priority = grant.priority
        self._spent_by: str | None = None

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of job {self.job_id!r}, lease number {self.lease_no}>"

    @property
    def is_spent(self) -> bool:
        """True after the lease was given back, completed or lost: every further call raises LeaseSpentError."""
        return self._spent_by is not None

    def _require_unspent(self) -> None:
        if self._spent_by is not None:
            raise LeaseSpentError(
                f"job {self.job_id}: this lease was spent by {self._spent_by}, expected a live one; take new work"
            )

    @contextmanager
    def _using(self, call: str | None) -> Generator[None]:
        """Around a call to the database that ends the lease when it succeeds (`call` names it) or finds it lost."""
        self._require_unspent()
        try:
            yield
        except LeaseLostError:
            self._spent_by = "its loss"
            raise
        if call is not None:
            self._spent_by = call


class Lease(_Held):
    """A leased job. Made by Client.get_work, await_work and lease_job; spent by complete, reschedule and release.

    `lost` and `cancelled` are set from the thread that keeps the lease alive; a holder that works for long looks at
    them, or waits for them, and stops.
    """

    def __init__(self, client: "Client", grant: Grant, worker_id: str) -> None:
        super().__init__(grant, worker_id)
        self._client = client
        self.lost = Event()
        self.cancelled = Event()

    def extend(self, *, additional_seconds: int = LEASE_SECONDS, connection: Connection[Any] | None = None) -> datetime:
        """Hold the job for `additional_seconds` from now, if that is longer than before; returns the new end."""
        with self._using(None):
            self.lease_expires_at = self._client.extend_lease(
                job_id=self.job_id,
                lease_id=self.lease_id,
                worker_id=self.worker_id,
                additional_seconds=additional_seconds,
                connection=connection,
            )
        return self.lease_expires_at

    def reschedule(
        self,
        *,
        next_need: str,
        wait_for: Sequence[str] = (),
        singleton_key: str | None = None,
        available_at: datetime | None = None,
        connection: Connection[Any] | None = None,
    ) -> RescheduledJob:
        """Give the job to whoever offers `next_need`, once `wait_for` is over and `available_at` has come."""
        with self._using("reschedule"):
            return self._client.reschedule_job(
                job_id=self.job_id,
                lease_id=self.lease_id,
                worker_id=self.worker_id,
                next_need=next_need,
                wait_for=wait_for,
                singleton_key=singleton_key,
                available_at=available_at,
                connection=connection,
            )

    def release(
        self,
        *,
        error: str | None = None,
        delay_seconds: float = 0.0,
        connection: Connection[Any] | None = None,
    ) -> datetime | None:
        """Give the job back as it is, runnable again after the delay; None if it was cancelled and is archived."""
        with self._using("release"):
            return self._client.release_job(
                job_id=self.job_id,
                lease_id=self.lease_id,
                worker_id=self.worker_id,
                error=error,
                delay_seconds=delay_seconds,
                connection=connection,
            )

    def complete(self, *, connection: Connection[Any] | None = None) -> None:
        """End the job; whoever waits for it is released."""
        with self._using("complete"):
            self._client.complete_job(
                job_id=self.job_id, lease_id=self.lease_id, worker_id=self.worker_id, connection=connection
            )

    @contextmanager
    def keep_alive(self, *, lease_seconds: float = LEASE_SECONDS) -> Generator[None]:
        """Extend the lease by `lease_seconds`, three times in that length, for as long as the block runs.

        `lost` is set when the lease is gone, or when the database could not be reached for its whole length, because
        then somebody else may have the job; `cancelled` when the job was cancelled and the lease will run out.
        """
        self._require_unspent()
        self._client.keepalive.add(self, length_seconds=lease_seconds)
        try:
            yield
        finally:
            self._client.keepalive.remove(self)


class AsyncLease(_Held):
    """A leased job, for one event loop; otherwise as Lease."""

    def __init__(self, client: "AsyncClient", grant: Grant, worker_id: str) -> None:
        super().__init__(grant, worker_id)
        self._client = client
        self.lost = asyncio.Event()
        self.cancelled = asyncio.Event()

    async def extend(
        self, *, additional_seconds: int = LEASE_SECONDS, connection: AsyncConnection[Any] | None = None
    ) -> datetime:
        """Hold the job for `additional_seconds` from now, if that is longer than before; returns the new end."""
        with self._using(None):
            self.lease_expires_at = await self._client.extend_lease(
                job_id=self.job_id,
                lease_id=self.lease_id,
                worker_id=self.worker_id,
                additional_seconds=additional_seconds,
                connection=connection,
            )
        return self.lease_expires_at

    async def reschedule(
        self,
        *,
        next_need: str,
        wait_for: Sequence[str] = (),
        singleton_key: str | None = None,
        available_at: datetime | None = None,
        connection: AsyncConnection[Any] | None = None,
    ) -> RescheduledJob:
        """Give the job to whoever offers `next_need`, once `wait_for` is over and `available_at` has come."""
        with self._using("reschedule"):
            return await self._client.reschedule_job(
                job_id=self.job_id,
                lease_id=self.lease_id,
                worker_id=self.worker_id,
                next_need=next_need,
                wait_for=wait_for,
                singleton_key=singleton_key,
                available_at=available_at,
                connection=connection,
            )

    async def release(
        self,
        *,
        error: str | None = None,
        delay_seconds: float = 0.0,
        connection: AsyncConnection[Any] | None = None,
    ) -> datetime | None:
        """Give the job back as it is, runnable again after the delay; None if it was cancelled and is archived."""
        with self._using("release"):
            return await self._client.release_job(
                job_id=self.job_id,
                lease_id=self.lease_id,
                worker_id=self.worker_id,
                error=error,
                delay_seconds=delay_seconds,
                connection=connection,
            )

    async def complete(self, *, connection: AsyncConnection[Any] | None = None) -> None:
        """End the job; whoever waits for it is released."""
        with self._using("complete"):
            await self._client.complete_job(
                job_id=self.job_id, lease_id=self.lease_id, worker_id=self.worker_id, connection=connection
            )

    @asynccontextmanager
    async def keep_alive(self, *, lease_seconds: float = LEASE_SECONDS) -> AsyncGenerator[None]:
        """Extend the lease by `lease_seconds`, three times in that length, for as long as the block runs.

        `lost` is set when the lease is gone, or when the database could not be reached for its whole length, because
        then somebody else may have the job; `cancelled` when the job was cancelled and the lease will run out.
        """
        self._require_unspent()
        self._client.keepalive.add(self, length_seconds=lease_seconds)
        try:
            yield
        finally:
            self._client.keepalive.remove(self)
