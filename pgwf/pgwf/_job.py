"""What goes into the leasing core and what comes out of it, as frozen values."""

from collections.abc import Sequence
from datetime import datetime

from msgspec import Struct

PRIORITY_DEFAULT = 3
"""Priorities go from 1, the most urgent, to 4."""


class NewJob(Struct, frozen=True, kw_only=True):
    """A job for `submit_jobs`; the fields are the parameters of `submit_job`."""

    job_id: str
    next_need: str
    wait_for: tuple[str, ...] = ()
    singleton_key: str | None = None
    available_at: datetime | None = None
    expires_at: datetime | None = None
    priority: int = PRIORITY_DEFAULT


class SubmittedJob(Struct, frozen=True, kw_only=True):
    """A job as it was taken in. `n` is its number; `wait_for` lacks what was over already."""

    job_id: str
    n: int
    next_need: str
    wait_for: tuple[str, ...]
    available_at: datetime


class HeldJob(Struct, frozen=True, kw_only=True):
    """A job and the lease it is held by, for the calls that take many."""

    job_id: str
    lease_id: str


class Place(Struct, frozen=True, kw_only=True):
    """Where a job goes when it is given back: what it needs next, what it waits for, and from when on.

    `singleton_key` None keeps the job's key, '' takes it away; `available_at` None means at once.
    """

    next_need: str
    wait_for: tuple[str, ...] = ()
    singleton_key: str | None = None
    available_at: datetime | None = None


def place_of(
    next_need: str, wait_for: Sequence[str], singleton_key: str | None, available_at: datetime | None
) -> Place:
    """A Place from arguments as callers give them."""
    return Place(next_need=next_need, wait_for=tuple(wait_for), singleton_key=singleton_key, available_at=available_at)


class Reschedule(Place, frozen=True, kw_only=True):
    """A leased job to give back, for `reschedule_jobs`."""

    job_id: str
    lease_id: str


class RescheduledJob(Struct, frozen=True, kw_only=True):
    """A job as it waits for its next worker."""

    job_id: str
    next_need: str
    wait_for: tuple[str, ...]
    singleton_key: str | None
    available_at: datetime


class CancelledJob(Struct, frozen=True, kw_only=True):
    """A job whose cancellation is recorded, with who asked first, when and why."""

    job_id: str
    cancelled_at: datetime
    cancelled_by: str
    cancel_reason: str | None


class JobOutcome(Struct, frozen=True, kw_only=True):
    """What became of one job of a call that takes many. `status` is `ok`, or the reason why nothing was done with it.

    `n` is the number of the job that has the id, where the call tells it; `lease_expires_at` the new end of a lease.
    """

    job_id: str
    status: str
    n: int | None = None
    lease_expires_at: datetime | None = None


class Dependency(Struct, frozen=True, kw_only=True):
    """A job that another waits or waited for. `outcome`: completed, cancelled, expired, forgotten; None: it goes on."""

    job_id: str | None
    outcome: str | None
    ended_at: datetime | None


class BrokenRule(Struct, frozen=True, kw_only=True):
    """An invariant of the schema that does not hold, and for what."""

    rule: str
    subject: str


class Grant(Struct, frozen=True, kw_only=True):
    """What a claim hands out: the job and its lease. `lease_no` counts a job's leases, from 1 up."""

    job_id: str
    lease_id: str
    next_need: str
    lease_expires_at: datetime
    n: int
    lease_no: int
    singleton_key: str | None = None
    wait_for: tuple[str, ...] = ()
    available_at: datetime | None = None
    priority: int = PRIORITY_DEFAULT


class Asleep(Struct, frozen=True, kw_only=True):
    """A request to be woken: the channels to listen on, and the transaction that made it."""

    xid: str
    channels: tuple[str, ...]


class Outlook(Struct, frozen=True, kw_only=True):
    """How long a worker that found nothing may sleep.

    Until `is_seen_by_all`, a transaction older than the request to be woken may still commit work without a word.
    `wakeup_seconds` is when time alone may bring work, None when nothing is in sight.
    """

    is_seen_by_all: bool
    wakeup_seconds: float | None
