"""What the tests of the Python clients share."""

from collections.abc import Callable
from typing import Any

import psycopg

from pgwf import (
    Client,
    Lease,
)

WORKER = "worker-1"
CAPS = ["python"]


def submit(client: Client, job_id: str = "job-1", **options: Any) -> None:
    client.submit_job(job_id=job_id, worker_id="shop", next_need=options.pop("next_need", "python"), **options)


def take(client: Client, **options: Any) -> Lease:
    (lease,) = client.get_work(worker_id=options.pop("worker_id", WORKER), worker_caps=CAPS, **options)
    return lease


def forget_sleepers(db: psycopg.Connection[Any]) -> None:
    """What a crash of the server leaves of those who sleep: neither their requests nor their connections."""
    db.execute("delete from pgwf.sleeper")
    db.execute(
        "select pg_terminate_backend(pid, 10000) from pg_stat_activity"
        " where datname = current_database() and pid <> pg_backend_pid()"
    )


def asleep(db: psycopg.Connection[Any]) -> Callable[[], bool]:
    return lambda: db.execute("select count(*) > 0 from pgwf.sleeper").fetchone() == (True,)


def has_looked(db: psycopg.Connection[Any]) -> Callable[[], bool]:
    """Whether the one that waits for work sleeps, and its last look is over: a claim that is cut off is an error."""
    looked = """
        select count(*) > 0 from pg_stat_activity
        where datname = current_database() and pid <> pg_backend_pid() and state = 'idle'
          and query like '%pgwf.get_work%'
    """
    return lambda: asleep(db)() and db.execute(looked).fetchone() == (True,)
