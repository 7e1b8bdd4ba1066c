"""The synchronous client: the functions of schema pgwf under their own names."""

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

import psycopg
from psycopg import Connection

from pgwf import _calls
from pgwf._errors import translate
from pgwf._job import (
    PRIORITY_DEFAULT,
    BrokenRule,
    CancelledJob,
    Dependency,
    HeldJob,
    JobOutcome,
    NewJob,
    Reschedule,
    RescheduledJob,
    SubmittedJob,
    place_of,
)
from pgwf._keepalive import Keepalive
from pgwf._lease import LEASE_SECONDS, Lease
from pgwf._wakeup import POLL, Vigil, listener_name
from pgwf_sql.database import CONNECTIONS_MAX, Closing, Database, Listener


class Client(Closing):
    """The leasing core of one database; safe to share between threads. Close it, or use it as a context manager.

    With `connection` a call is part of that connection's transaction, and becomes true when it commits. Without, it is
    a transaction of its own, on one of at most `connections_max` connections. Calls for many jobs that meet rows which
    others hold for long leave those out, with status `busy`; on a connection of the caller they raise instead, as the
    transaction is broken by then, unless `busy_ok` says to leave them out from the first. Where `dsn` leads through a
    pooler in transaction mode, `listen_dsn` leads past it: only such a connection hears notifications.
    """

    def __init__(self, dsn: str, *, connections_max: int = CONNECTIONS_MAX, listen_dsn: str | None = None) -> None:
        self._database = Database(dsn, translate=translate, connections_max=connections_max, listen_dsn=listen_dsn)
        self._listener = Listener(self._database)
        self.keepalive = Keepalive(self._database)

    def submit_job(
        self,
        *,
        job_id: str,
        worker_id: str,
        next_need: str,
        wait_for: Sequence[str] = (),
        singleton_key: str | None = None,
        available_at: datetime | None = None,
        expires_at: datetime | None = None,
        priority: int = PRIORITY_DEFAULT,
        connection: Connection[Any] | None = None,
    ) -> SubmittedJob:
        """Make a job that a worker offering `next_need` can take, once `wait_for` is over and `available_at` has come.

        `expires_at` is when it is no longer wanted. JobExistsError, JobFinishedError: the id is taken.
        UnknownDependencyError: `wait_for` names a job that does not exist.
        """
        job = NewJob(
            job_id=job_id,
            next_need=next_need,
            wait_for=tuple(wait_for),
            singleton_key=singleton_key,
            available_at=available_at,
            expires_at=expires_at,
            priority=priority,
        )
        return self._database.run(_calls.submit_job(worker_id, job), connection)

    def submit_jobs(
        self, *, worker_id: str, jobs: Sequence[NewJob], connection: Connection[Any] | None = None
    ) -> tuple[JobOutcome, ...]:
        """Make many jobs; one that cannot be made fails alone. A job may wait for earlier ones of the same call.

        Statuses: ok, live, finished, duplicate, invalid, unknown (it waits for a job that does not exist).
        """
        return self._database.run(_calls.submit_jobs(worker_id, jobs), connection)

    def get_work(
        self,
        *,
        worker_id: str,
        worker_caps: Sequence[str],
        lease_seconds: int = LEASE_SECONDS,
        limit_jobs: int = 1,
        connection: Connection[Any] | None = None,
    ) -> tuple[Lease, ...]:
        """Lease up to `limit_jobs` runnable jobs whose need is among `worker_caps`; empty when there are none."""
        statement = _calls.get_work(worker_id, worker_caps, lease_seconds=lease_seconds, limit_jobs=limit_jobs)
        return tuple(Lease(self, grant, worker_id) for grant in self._database.run(statement, connection))

    def await_work(
        self,
        *,
        worker_id: str,
        worker_caps: Sequence[str],
        lease_seconds: int = LEASE_SECONDS,
        limit_jobs: int = 1,
        timeout: timedelta | None = None,
        poll: timedelta = POLL,
    ) -> tuple[Lease, ...]:
        """Like get_work, but sleeps until there is work; empty only after `timeout` (None waits for ever).

        Wakes by notification, at the next instant at which time alone brings work, and every `poll`.
        """

        def claim() -> tuple[Lease, ...]:
            return self.get_work(
                worker_id=worker_id, worker_caps=worker_caps, lease_seconds=lease_seconds, limit_jobs=limit_jobs
            )

        if leases := claim():
            return leases
        vigil = Vigil(timeout=timeout, poll=poll)
        listener = listener_name()
        epoch = self._listener.epoch
        asleep = self._database.run(_calls.sleep_on(listener, worker_caps))
        try:
            with self._listener.hear(asleep.channels) as bell:
                while True:
                    if epoch != self._listener.epoch:
                        # The server may have forgotten who sleeps.
                        epoch = self._listener.epoch
                        asleep = self._database.run(_calls.sleep_on(listener, worker_caps))
                    outlook = self._database.run(_calls.outlook(asleep, worker_caps))
                    if leases := claim():
                        return leases
                    pause_seconds = vigil.pause_seconds(outlook)
                    if pause_seconds is None:
                        return ()
                    bell.wait(pause_seconds)
                    bell.clear()
        finally:
            self._forget(listener)

    def lease_job(
        self,
        *,
        job_id: str,
        worker_id: str,
        worker_caps: Sequence[str] | None = None,
        lease_seconds: int = LEASE_SECONDS,
        connection: Connection[Any] | None = None,
    ) -> Lease:
        """Lease this one job, whatever stands before it: for people, who choose. Its lapse counts as no crash.

        JobStateError: it is not runnable, or its need is not among `worker_caps`. KeyHeldError: its key is taken.
        """
        statement = _calls.lease_job(job_id, worker_id, worker_caps, lease_seconds=lease_seconds)
        return Lease(self, self._database.run(statement, connection), worker_id)

    def extend_lease(
        self,
        *,
        job_id: str,
        lease_id: str,
        worker_id: str,
        additional_seconds: int = LEASE_SECONDS,
        connection: Connection[Any] | None = None,
    ) -> datetime:
        """Hold a job for `additional_seconds` from now, if that is longer than before; returns the new end.

        LeaseLostError: the lease is not this worker's any more. JobCancelledError: it can only be completed.
        """
        statement = _calls.extend_lease(job_id, lease_id, worker_id, additional_seconds=additional_seconds)
        return self._database.run(statement, connection)

    def extend_leases(
        self,
        *,
        worker_id: str,
        leases: Sequence[HeldJob],
        additional_seconds: float = LEASE_SECONDS,
        busy_ok: bool = False,
        connection: Connection[Any] | None = None,
    ) -> tuple[JobOutcome, ...]:
        """Extend many leases. Statuses: ok, lease_lost, cancelled, invalid, duplicate, busy."""
        statement = _calls.extend_leases(worker_id, leases, additional_seconds=additional_seconds, busy_ok=busy_ok)
        return self._database.run(statement, connection)

    def reschedule_job(
        self,
        *,
        job_id: str,
        lease_id: str,
        worker_id: str,
        next_need: str,
        wait_for: Sequence[str] = (),
        singleton_key: str | None = None,
        available_at: datetime | None = None,
        connection: Connection[Any] | None = None,
    ) -> RescheduledJob:
        """Give a leased job to whoever offers `next_need`, once `wait_for` is over and `available_at` has come.

        `singleton_key` None keeps the job's key, '' takes it away. DependencyCycleError: it would wait for itself.
        """
        place = place_of(next_need, wait_for, singleton_key, available_at)
        return self._database.run(_calls.reschedule_job(job_id, lease_id, worker_id, place), connection)

    def reschedule_jobs(
        self,
        *,
        worker_id: str,
        jobs: Sequence[Reschedule],
        busy_ok: bool = False,
        connection: Connection[Any] | None = None,
    ) -> tuple[JobOutcome, ...]:
        """Give many leased jobs back; one that cannot be stays leased.

        Statuses: ok, lease_lost, cancelled, unknown (dependency), cycle, invalid, duplicate, busy.
        """
        return self._database.run(_calls.reschedule_jobs(worker_id, jobs, busy_ok=busy_ok), connection)

    def reschedule_unheld_job(
        self,
        *,
        job_id: str,
        worker_id: str,
        next_need: str,
        wait_for: Sequence[str] = (),
        singleton_key: str | None = None,
        available_at: datetime | None = None,
        connection: Connection[Any] | None = None,
    ) -> RescheduledJob:
        """Like reschedule_job, for a job nobody holds: runnable, expired or in crash concern. Else JobStateError."""
        place = place_of(next_need, wait_for, singleton_key, available_at)
        return self._database.run(_calls.reschedule_unheld_job(job_id, worker_id, place), connection)

    def release_job(
        self,
        *,
        job_id: str,
        lease_id: str,
        worker_id: str,
        error: str | None = None,
        delay_seconds: float = 0.0,
        connection: Connection[Any] | None = None,
    ) -> datetime | None:
        """Give a leased job back as it is; returns when it is runnable, None if it was cancelled and is archived.

        `error` is kept on the job.
        """
        statement = _calls.release_job(job_id, lease_id, worker_id, error=error, delay_seconds=delay_seconds)
        return self._database.run(statement, connection)

    def complete_job(
        self, *, job_id: str, lease_id: str, worker_id: str, connection: Connection[Any] | None = None
    ) -> None:
        """End a leased job; whoever waits for it is released. LeaseLostError: it is not this worker's any more."""
        self._database.run(_calls.complete_job(job_id, lease_id, worker_id), connection)

    def complete_jobs(
        self,
        *,
        worker_id: str,
        leases: Sequence[HeldJob],
        busy_ok: bool = False,
        connection: Connection[Any] | None = None,
    ) -> tuple[JobOutcome, ...]:
        """End many leased jobs. Statuses: ok, lease_lost, invalid, duplicate, busy."""
        return self._database.run(_calls.complete_jobs(worker_id, leases, busy_ok=busy_ok), connection)

    def complete_unheld_job(self, *, job_id: str, worker_id: str, connection: Connection[Any] | None = None) -> None:
        """End a job nobody holds: runnable, expired or in crash concern. Else JobStateError."""
        self._database.run(_calls.complete_unheld_job(job_id, worker_id), connection)

    def wake_jobs(
        self, *, worker_id: str, job_ids: Sequence[str], connection: Connection[Any] | None = None
    ) -> tuple[JobOutcome, ...]:
        """Make sleeping jobs runnable now. Statuses: woken, unchanged (it did not sleep), finished, unknown."""
        return self._database.run(_calls.wake_jobs(worker_id, job_ids), connection)

    def set_priority(
        self, *, job_id: str, worker_id: str, priority: int, connection: Connection[Any] | None = None
    ) -> None:
        """Change how urgent a job is, from 1 (most) to 4."""
        self._database.run(_calls.set_priority(job_id, worker_id, priority), connection)

    def cancel_job(
        self, *, job_id: str, worker_id: str, reason: str | None = None, connection: Connection[Any] | None = None
    ) -> CancelledJob:
        """Cancel a job: nobody leases it again; who holds it may complete it. The first canceller is kept."""
        return self._database.run(_calls.cancel_job(job_id, worker_id, reason), connection)

    def archive_cancelled_jobs(
        self, *, worker_id: str, limit: int = 100, connection: Connection[Any] | None = None
    ) -> int:
        """Archive up to `limit` cancelled jobs that nobody holds; returns how many."""
        return self._database.run(_calls.archive_cancelled_jobs(worker_id, limit), connection)

    def sweep(self, *, worker_id: str, limit: int = 500, connection: Connection[Any] | None = None) -> int:
        """Do what only time does: end lapsed leases, wake timers, archive; returns how many jobs moved."""
        return self._database.run(_calls.sweep(worker_id, limit), connection)

    def clear_crash_concern(
        self, *, job_id: str, worker_id: str, reason: str | None = None, connection: Connection[Any] | None = None
    ) -> int:
        """Let a job that kept losing its workers be leased again; returns how many lapses in a row it had."""
        return self._database.run(_calls.clear_crash_concern(job_id, worker_id, reason), connection)

    def job_dependencies(self, *, job_id: str, connection: Connection[Any] | None = None) -> tuple[Dependency, ...]:
        """What a job was last told to wait for, in that order, and how each ended. Empty for an unknown job."""
        return self._database.run(_calls.job_dependencies(job_id), connection)

    def pause_need(self, *, need: str, worker_id: str) -> None:
        """Hand out no jobs of a need until resume_need; leases go on."""
        self._database.run(_calls.pause_need(need, worker_id))

    def resume_need(self, *, need: str, worker_id: str) -> None:
        """Hand out jobs of a paused need again."""
        self._database.run(_calls.resume_need(need, worker_id))

    def limit_need(
        self,
        *,
        need: str,
        worker_id: str,
        max_active: int | None = None,
        rate: float | None = None,
        burst: float | None = None,
    ) -> None:
        """Let at most `max_active` jobs of a need be leased at once, and `rate` a second start, `burst` at once.

        None: no such limit. psycopg.errors.LockNotAvailable: others kept leases locked for five seconds, which a first
        limit has to count; nothing is changed.
        """
        self._database.run(_calls.limit_need(need, worker_id, max_active=max_active, rate=rate, burst=burst))

    def limit_key(
        self,
        *,
        key: str,
        worker_id: str,
        max_active: int | None = None,
        rate: float | None = None,
        burst: float | None = None,
    ) -> None:
        """Let up to `max_active` jobs of a singleton key be leased at once (None: one, as of a key nobody limited), and
        `rate` a second start, `burst` at once (None: as often as there is room).
        """
        self._database.run(_calls.limit_key(key, worker_id, max_active=max_active, rate=rate, burst=burst))

    def worker_heartbeat(
        self,
        *,
        worker_id: str,
        capabilities: Sequence[str],
        build: str | None = None,
        slots: int | None = None,
        slots_used: int | None = None,
        details: Mapping[str, object] | None = None,
    ) -> bool:
        """Say that a worker is alive and what it offers; returns whether it is to drain: finish and take no more."""
        statement = _calls.worker_heartbeat(
            worker_id, capabilities, build=build, slots=slots, slots_used=slots_used, details=details
        )
        return self._database.run(statement)

    def drain_worker(self, *, worker_id: str, draining: bool = True) -> bool:
        """Ask a worker to drain, or to go on; it learns so from its next heartbeat. False: nobody knows it."""
        return self._database.run(_calls.drain_worker(worker_id, draining=draining))

    def forget_worker(self, *, worker_id: str) -> bool:
        """Forget a worker that has left; its leases, if any, go on. False: nobody knew it."""
        return self._database.run(_calls.forget_worker(worker_id))

    def check(self) -> tuple[BrokenRule, ...]:
        """Invariants that do not hold: none, ever. It reads whole tables."""
        return self._database.run(_calls.check())

    def overdue(self) -> tuple[BrokenRule, ...]:
        """What a sweep should have done by now and has not; empty soon after one. It reads whole tables."""
        return self._database.run(_calls.overdue())

    def add_partitions(self) -> int:
        """Make the partitions that will be needed next; returns how many. Workers of the SDK do so by themselves."""
        return self._database.run(_calls.add_partitions())

    def retain(self, *, keep: timedelta, limit: int = 10_000) -> int:
        """Forget at most `limit` jobs that ended longer than `keep` ago; returns how many rows went. Call it again
        while it returns `limit` or more.
        """
        return self._database.run(_calls.retain(keep, limit))

    def set_crash_concern_threshold(self, *, threshold: int) -> int:
        """Set how many lapses in a row are allowed; one more, and the job is leased no more. Returns the threshold."""
        return self._database.run(_calls.set_crash_concern_threshold(threshold))

    def crash_concern_threshold(self) -> int:
        """How many lapses in a row are allowed."""
        return int(self._database.run(_calls.setting("pgwf_crash_concern_threshold")))

    def set_priority_aging(self, *, aging: timedelta) -> timedelta:
        """Set how much waiting a priority level is worth: 0 is first come, first served. Returns it."""
        return self._database.run(_calls.set_span("priority_aging", "aging", aging))

    def priority_aging(self) -> timedelta:
        """How much waiting a priority level is worth."""
        return self._database.run(_calls.span("priority_aging"))

    def set_expired_grace(self, *, grace: timedelta) -> timedelta:
        """Set how long an expired job that nobody waits for stays before it is archived. Returns it."""
        return self._database.run(_calls.set_span("expired_grace", "grace", grace))

    def expired_grace(self) -> timedelta:
        """How long an expired job that nobody waits for stays before it is archived."""
        return self._database.run(_calls.span("expired_grace"))

    def set_worker_grace(self, *, grace: timedelta) -> timedelta:
        """Set how long a worker that sends no heartbeat stays known. Returns it."""
        return self._database.run(_calls.set_span("worker_grace", "grace", grace))

    def worker_grace(self) -> timedelta:
        """How long a worker that sends no heartbeat stays known."""
        return self._database.run(_calls.span("worker_grace"))

    def set_trace(self, *, enabled: bool) -> None:
        """Have every change of a job written to pgwf.jobs_trace, or not."""
        self._database.run(_calls.set_switch("trace", enabled=enabled))

    def is_trace_enabled(self) -> bool:
        """Whether changes are traced."""
        return bool(self._database.run(_calls.setting("pgwf_is_trace_enabled")))

    def set_notify(self, *, enabled: bool) -> None:
        """Have runnable work announced on the channels pgwf.need.<need>, or not. await_work needs no such thing."""
        self._database.run(_calls.set_switch("notify", enabled=enabled))

    def is_notify_enabled(self) -> bool:
        """Whether runnable work is announced on the public channels."""
        return bool(self._database.run(_calls.setting("pgwf_is_notify_enabled")))

    def close(self) -> None:
        """Close all connections and keep no lease alive any more; idempotent. Leases run out by themselves."""
        self.keepalive.close()
        self._listener.close()
        self._database.close()

    def _forget(self, listener: str) -> None:
        try:
            self._database.run(_calls.wake_up(listener))
        except psycopg.Error:
            # A row that stays behind costs one empty notification; it must not hide why the wait ended.
            return
