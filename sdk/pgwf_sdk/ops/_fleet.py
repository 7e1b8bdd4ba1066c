"""Steering the fleet: which needs are handed out, how much of them at once, and which workers are to leave.

All of it is stored in the database and holds for workers everywhere, also for those that start later.
"""

from pgwf_sdk._errors import InvalidArgumentError
from pgwf_sdk.ops._source import Source
from pgwf_sdk.ops._writes import write
from pgwf_sql.database import BITS_OF_INT, Statement, read_nothing, read_value, whole_numbers


def drain_worker(source: Source, worker_id: str) -> bool:
    """Ask a worker to end what it executes, give its runs back and stop; False when nobody has heard of it.

    It learns so from its next heartbeat, a third of its lease away at most. Asking twice is asking once.
    """
    is_known: bool = write(
        source,
        Statement("pgwf_drain_worker", {"worker_id": worker_id, "draining": True}, read_value, is_repeatable=True),
    )
    return is_known


def pause_need(source: Source, need: str, *, by: str) -> None:
    """Hand out no run that asks for `need` until `resume_need`; runs that are with a worker go on."""
    write(source, Statement("pgwf_pause_need", {"need": need, "worker_id": by}, read_nothing, is_repeatable=True))


def resume_need(source: Source, need: str, *, by: str) -> None:
    """Hand out runs that ask for `need` again; nothing happens when it was not paused."""
    write(source, Statement("pgwf_resume_need", {"need": need, "worker_id": by}, read_nothing, is_repeatable=True))


def limit_need(
    source: Source,
    need: str,
    *,
    max_active: int | None = None,
    rate: float | None = None,
    burst: float | None = None,
    by: str,
) -> None:
    """Bound how many runs are with workers for `need` at once (`max_active`, 0 or more), and how often one is handed
    out (`rate` per second; up to `burst` of them at once after a quiet time, default the rate, at least 1).

    Replaces the limits there were; None stands for no such limit. Runs that are with a worker are left alone.
    psycopg.errors.LockNotAvailable: others kept leases locked for five seconds, which a first limit has to count;
    nothing is changed.
    """
    parameters = {"need": need, "worker_id": by, **_ints(max_active=max_active), "rate": rate, "burst": burst}
    write(source, Statement("pgwf_limit_need", parameters, read_nothing, is_repeatable=True))


def limit_key(
    source: Source,
    key: str,
    *,
    max_active: int | None = None,
    rate: float | None = None,
    burst: float | None = None,
    by: str,
) -> None:
    """Bound how many runs with a singleton key are with workers at once (`max_active`, 1 or more; None: one), and how
    often one is handed out (`rate` and `burst` as of `limit_need`). None in both: one at a time, as of any other key.

    Runs that are with a worker are left alone; runs that waited for the key and have room now are handed out.
    """
    parameters = {"key": key, "worker_id": by, **_ints(max_active=max_active), "rate": rate, "burst": burst}
    write(source, Statement("pgwf_limit_key", parameters, read_nothing, is_repeatable=True))


def _ints(**numbers: int | None) -> dict[str, object]:
    return whole_numbers(numbers, bits=BITS_OF_INT, refusal=InvalidArgumentError)
