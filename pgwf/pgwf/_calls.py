"""What the clients ask of the database, as values: no I/O, so that the sync and the async client share all of it."""

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, TypeVar

import msgspec
from msgspec import Struct

from pgwf._errors import InvalidArgumentError
from pgwf._job import (
    Asleep,
    BrokenRule,
    CancelledJob,
    Dependency,
    Grant,
    HeldJob,
    JobOutcome,
    NewJob,
    Outlook,
    Place,
    Reschedule,
    RescheduledJob,
    SubmittedJob,
)
from pgwf_sql.database import BITS_OF_INT, Row, Statement, read_nothing, read_value, whole_numbers

S = TypeVar("S", bound=Struct)

_BUSY_OK = {"busy_ok": True}


def submit_job(worker_id: str, job: NewJob) -> Statement[SubmittedJob]:
    parameters = {
        "job_id": job.job_id,
        "worker_id": worker_id,
        "next_need": job.next_need,
        "wait_for": list(job.wait_for),
        "singleton_key": job.singleton_key,
        "available_at": job.available_at,
        "expires_at": job.expires_at,
        **_ints(priority=job.priority),
    }
    return Statement("pgwf_submit_job", parameters, _one(SubmittedJob))


def submit_jobs(worker_id: str, jobs: Sequence[NewJob]) -> Statement[tuple[JobOutcome, ...]]:
    parameters = {
        "worker_id": worker_id,
        "job_ids": [job.job_id for job in jobs],
        "next_needs": [job.next_need for job in jobs],
        "wait_for": _lists([job.wait_for for job in jobs]),
        "singleton_keys": [job.singleton_key for job in jobs],
        "available_at": [job.available_at for job in jobs],
        "expires_at": [job.expires_at for job in jobs],
        "priorities": [_ints(priority=job.priority)["priority"] for job in jobs],
    }
    return Statement("pgwf_submit_jobs", parameters, _many(JobOutcome))


def get_work(
    worker_id: str, worker_caps: Sequence[str], *, lease_seconds: int, limit_jobs: int
) -> Statement[tuple[Grant, ...]]:
    parameters = {
        "worker_id": worker_id,
        "worker_caps": _texts("worker_caps", worker_caps),
        **_ints(lease_seconds=lease_seconds, limit_jobs=limit_jobs),
    }
    return Statement("pgwf_get_work", parameters, _many(Grant))


def lease_job(
    job_id: str, worker_id: str, worker_caps: Sequence[str] | None, *, lease_seconds: int
) -> Statement[Grant]:
    parameters = {
        "job_id": job_id,
        "worker_id": worker_id,
        "worker_caps": None if worker_caps is None else _texts("worker_caps", worker_caps),
        **_ints(lease_seconds=lease_seconds),
    }
    return Statement("pgwf_lease_job", parameters, _one(Grant))


def extend_lease(job_id: str, lease_id: str, worker_id: str, *, additional_seconds: int) -> Statement[datetime]:
    parameters = {**_held(job_id, lease_id, worker_id), **_ints(additional_seconds=additional_seconds)}
    return Statement("pgwf_extend_lease", parameters, read_value, is_repeatable=True)


def extend_leases(
    worker_id: str, leases: Sequence[HeldJob], *, additional_seconds: float, busy_ok: bool = False
) -> Statement[tuple[JobOutcome, ...]]:
    parameters = {
        **_all_held(worker_id, leases),
        "additional_seconds": additional_seconds,
        "busy_ok": busy_ok,
    }
    return Statement("pgwf_extend_leases", parameters, _many(JobOutcome), is_repeatable=True, when_busy=_BUSY_OK)


def reschedule_job(job_id: str, lease_id: str, worker_id: str, place: Place) -> Statement[RescheduledJob]:
    parameters = {**_held(job_id, lease_id, worker_id), **_placing(place)}
    return Statement("pgwf_reschedule_job", parameters, _one(RescheduledJob))


def reschedule_jobs(
    worker_id: str, changes: Sequence[Reschedule], *, busy_ok: bool
) -> Statement[tuple[JobOutcome, ...]]:
    parameters = {
        "worker_id": worker_id,
        "job_ids": [change.job_id for change in changes],
        "lease_ids": [change.lease_id for change in changes],
        "next_needs": [change.next_need for change in changes],
        "wait_for": _lists([change.wait_for for change in changes]),
        "singleton_keys": [change.singleton_key for change in changes],
        "available_at": [change.available_at for change in changes],
        "busy_ok": busy_ok,
    }
    return Statement("pgwf_reschedule_jobs", parameters, _many(JobOutcome), when_busy=_BUSY_OK)


def reschedule_unheld_job(job_id: str, worker_id: str, place: Place) -> Statement[RescheduledJob]:
    parameters = {"job_id": job_id, "worker_id": worker_id, **_placing(place)}
    return Statement("pgwf_reschedule_unheld_job", parameters, _one(RescheduledJob))


def release_job(
    job_id: str, lease_id: str, worker_id: str, *, error: str | None, delay_seconds: float
) -> Statement[datetime | None]:
    parameters = {**_held(job_id, lease_id, worker_id), "error": error, "delay_seconds": delay_seconds}
    return Statement("pgwf_release_job", parameters, read_value)


def complete_job(job_id: str, lease_id: str, worker_id: str) -> Statement[None]:
    return Statement("pgwf_complete_job", _held(job_id, lease_id, worker_id), read_nothing)


def complete_jobs(worker_id: str, leases: Sequence[HeldJob], *, busy_ok: bool) -> Statement[tuple[JobOutcome, ...]]:
    parameters = {**_all_held(worker_id, leases), "busy_ok": busy_ok}
    return Statement("pgwf_complete_jobs", parameters, _many(JobOutcome), when_busy=_BUSY_OK)


def complete_unheld_job(job_id: str, worker_id: str) -> Statement[None]:
    return Statement("pgwf_complete_unheld_job", {"job_id": job_id, "worker_id": worker_id}, read_nothing)


def wake_jobs(worker_id: str, job_ids: Sequence[str]) -> Statement[tuple[JobOutcome, ...]]:
    parameters = {"worker_id": worker_id, "job_ids": _texts("job_ids", job_ids)}
    return Statement("pgwf_wake_jobs", parameters, _many(JobOutcome), is_repeatable=True)


def set_priority(job_id: str, worker_id: str, priority: int) -> Statement[None]:
    parameters = {"job_id": job_id, "worker_id": worker_id, **_ints(priority=priority)}
    return Statement("pgwf_set_priority", parameters, read_nothing, is_repeatable=True)


def cancel_job(job_id: str, worker_id: str, reason: str | None) -> Statement[CancelledJob]:
    parameters = {"job_id": job_id, "worker_id": worker_id, "reason": reason}
    return Statement("pgwf_cancel_job", parameters, _one(CancelledJob), is_repeatable=True)


def archive_cancelled_jobs(worker_id: str, limit: int) -> Statement[int]:
    return Statement("pgwf_archive_cancelled_jobs", {"worker_id": worker_id, **_ints(limit=limit)}, read_value)


def sweep(worker_id: str, limit: int) -> Statement[int]:
    return Statement("pgwf_sweep", {"worker_id": worker_id, **_ints(limit=limit)}, read_value)


def pause_need(need: str, worker_id: str) -> Statement[None]:
    return Statement("pgwf_pause_need", {"need": need, "worker_id": worker_id}, read_nothing, is_repeatable=True)


def resume_need(need: str, worker_id: str) -> Statement[None]:
    return Statement("pgwf_resume_need", {"need": need, "worker_id": worker_id}, read_nothing, is_repeatable=True)


def limit_need(
    need: str, worker_id: str, *, max_active: int | None, rate: float | None, burst: float | None
) -> Statement[None]:
    parameters = {
        "need": need,
        "worker_id": worker_id,
        **_ints(max_active=max_active),
        "rate": rate,
        "burst": burst,
    }
    return Statement("pgwf_limit_need", parameters, read_nothing, is_repeatable=True)


def limit_key(
    key: str, worker_id: str, *, max_active: int | None, rate: float | None, burst: float | None
) -> Statement[None]:
    parameters = {"key": key, "worker_id": worker_id, **_ints(max_active=max_active), "rate": rate, "burst": burst}
    return Statement("pgwf_limit_key", parameters, read_nothing, is_repeatable=True)


def worker_heartbeat(
    worker_id: str,
    capabilities: Sequence[str],
    *,
    build: str | None,
    slots: int | None,
    slots_used: int | None,
    details: Mapping[str, object] | None,
) -> Statement[bool]:
    parameters = {
        "worker_id": worker_id,
        "capabilities": _texts("capabilities", capabilities),
        "build": build,
        **_ints(slots=slots, slots_used=slots_used),
        "details": None if details is None else msgspec.json.encode(details).decode(),
    }
    return Statement("pgwf_worker_heartbeat", parameters, read_value, is_repeatable=True)


def drain_worker(worker_id: str, *, draining: bool) -> Statement[bool]:
    parameters = {"worker_id": worker_id, "draining": draining}
    return Statement("pgwf_drain_worker", parameters, read_value, is_repeatable=True)


def forget_worker(worker_id: str) -> Statement[bool]:
    return Statement("pgwf_forget_worker", {"worker_id": worker_id}, read_value, is_repeatable=True)


def job_dependencies(job_id: str) -> Statement[tuple[Dependency, ...]]:
    return Statement("pgwf_job_dependencies", {"job_id": job_id}, _many(Dependency), is_repeatable=True)


def check() -> Statement[tuple[BrokenRule, ...]]:
    return Statement("pgwf_check", {}, _many(BrokenRule), is_repeatable=True)


def overdue() -> Statement[tuple[BrokenRule, ...]]:
    return Statement("pgwf_overdue", {}, _many(BrokenRule), is_repeatable=True)


def add_partitions() -> Statement[int]:
    return Statement("pgwf_add_partitions", {}, read_value, is_repeatable=True)


def retain(keep: timedelta, limit: int) -> Statement[int]:
    return Statement("pgwf_retain", {"keep": keep, **_ints(limit=limit)}, read_value)


def set_crash_concern_threshold(threshold: int) -> Statement[int]:
    return Statement("pgwf_set_crash_concern_threshold", _ints(threshold=threshold), read_value, is_repeatable=True)


def span(name: str) -> Statement[timedelta]:
    return Statement(f"pgwf_{name}", {}, read_value, is_repeatable=True)


def set_span(name: str, parameter: str, span: timedelta) -> Statement[timedelta]:
    return Statement(f"pgwf_set_{name}", {parameter: span}, read_value, is_repeatable=True)


def clear_crash_concern(job_id: str, worker_id: str, reason: str | None) -> Statement[int]:
    parameters = {"job_id": job_id, "worker_id": worker_id, "reason": reason}
    return Statement("pgwf_clear_crash_concern", parameters, read_value)


def set_switch(name: str, *, enabled: bool) -> Statement[None]:
    return Statement(f"pgwf_set_{name}", {"enabled": enabled}, read_nothing, is_repeatable=True)


def setting(query: str) -> Statement[Any]:
    return Statement(query, {}, read_value, is_repeatable=True)


def sleep_on(listener: str, worker_caps: Sequence[str]) -> Statement[Asleep]:
    parameters = {"listener": listener, "channels": [f"need.{capability}" for capability in worker_caps]}

    def read(rows: Sequence[Row]) -> Asleep:
        return Asleep(xid=rows[0]["xid"], channels=tuple(row["channel"] for row in rows))

    return Statement("pgwf_sleep_on", parameters, read, is_repeatable=True)


def wake_up(listener: str) -> Statement[None]:
    return Statement("pgwf_wake_up", {"listener": listener}, read_nothing, is_repeatable=True)


def outlook(asleep: Asleep, worker_caps: Sequence[str]) -> Statement[Outlook]:
    parameters = {"xid": asleep.xid, "worker_caps": list(worker_caps)}
    return Statement("pgwf_outlook", parameters, _one(Outlook), is_repeatable=True)


def _held(job_id: str, lease_id: str, worker_id: str) -> dict[str, object]:
    return {"job_id": job_id, "lease_id": lease_id, "worker_id": worker_id}


def _all_held(worker_id: str, leases: Sequence[HeldJob]) -> dict[str, object]:
    return {
        "worker_id": worker_id,
        "job_ids": [lease.job_id for lease in leases],
        "lease_ids": [lease.lease_id for lease in leases],
    }


def _placing(place: Place) -> dict[str, object]:
    return {
        "next_need": place.next_need,
        "wait_for": list(place.wait_for),
        "singleton_key": place.singleton_key,
        "available_at": place.available_at,
    }


def _ints(**numbers: int | None) -> dict[str, object]:
    return whole_numbers(numbers, bits=BITS_OF_INT, refusal=InvalidArgumentError)


def _texts(name: str, values: Sequence[str]) -> list[str]:
    # A string is a sequence of strings, and "gpu" for ["gpu"] would be three capabilities.
    if isinstance(values, str):
        raise InvalidArgumentError(f"{name} is the text {values!r}, expected a list of texts: [{values!r}]")
    return list(values)


def _lists(values: Sequence[Sequence[str]]) -> str:
    return msgspec.json.encode([list(value) for value in values]).decode()


def _one(kind: type[S]) -> Callable[[Sequence[Row]], S]:
    return lambda rows: msgspec.convert(rows[0], kind)


def _many(kind: type[S]) -> Callable[[Sequence[Row]], tuple[S, ...]]:
    return lambda rows: tuple(msgspec.convert(row, kind) for row in rows)
