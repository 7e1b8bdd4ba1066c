"""The functions of schema pgwf as tests call them: by name, with the seed's parameter names."""

from __future__ import annotations

import os
import subprocess
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from psycopg import sql
from psycopg.rows import dict_row

from pgwf_sdk.embedded import find_binaries

if TYPE_CHECKING:
    from collections.abc import Generator, Sequence


class Leasing:
    """One connection to the leasing core. Arguments are passed by name, without their `p_`."""

    def __init__(self, conn: psycopg.Connection[Any]) -> None:
        self.conn = conn

    def call(self, function: str, **arguments: Any) -> list[dict[str, Any]]:
        """Call a function and return its rows."""
        named = sql.SQL(", ").join(
            sql.SQL("{} => {}{}").format(
                sql.Identifier(f"p_{name}"),
                sql.Placeholder(name),
                sql.SQL(
                    "::text[]"
                    if isinstance(value, list) and all(isinstance(item, str | None) for item in value)
                    else ""
                ),
            )
            for name, value in arguments.items()
        )
        statement = sql.SQL("select * from {}({})").format(sql.Identifier("pgwf", function), named)
        with self.conn.cursor(row_factory=dict_row) as cursor:
            return cursor.execute(statement, arguments).fetchall()

    def value(self, function: str, **arguments: Any) -> Any:
        """Call a function that returns one value."""
        (row,) = self.call(function, **arguments)
        (value,) = row.values()
        return value

    def submit(self, job_id: str, need: str = "python", **arguments: Any) -> dict[str, Any]:
        (row,) = self.call("submit_job", job_id=job_id, worker_id="client", next_need=need, **arguments)
        return row

    def submit_all(self, *job_ids: str, need: str = "python", **arguments: Any) -> None:
        for job_id in job_ids:
            self.submit(job_id, need, **arguments)

    def submit_keyed(self, *job_ids: str, key: str = "K", **arguments: Any) -> None:
        self.submit_all(*job_ids, singleton_key=key, **arguments)

    def get_work(
        self, *caps: str, limit: int = 1, seconds: int = 60, worker_id: str = "worker"
    ) -> list[dict[str, Any]]:
        return self.call(
            "get_work",
            worker_id=worker_id,
            worker_caps=list(caps or ("python",)),
            lease_seconds=seconds,
            limit_jobs=limit,
        )

    def take(self, *caps: str, seconds: int = 60, worker_id: str = "worker") -> dict[str, Any]:
        """Lease exactly one job."""
        (row,) = self.get_work(*caps, seconds=seconds, worker_id=worker_id)
        return row

    def complete(self, lease: dict[str, Any]) -> bool:
        return bool(self.value("complete_job", **held(lease)))

    def extend(self, lease: dict[str, Any], seconds: int = 60) -> Any:
        return self.value("extend_lease", **held(lease), additional_seconds=seconds)

    def reschedule(self, lease: dict[str, Any], need: str = "python", **arguments: Any) -> dict[str, Any]:
        (row,) = self.call("reschedule_job", **held(lease), next_need=need, **arguments)
        return row

    def cancel(self, job_id: str, **arguments: Any) -> dict[str, Any]:
        (row,) = self.call("cancel_job", job_id=job_id, worker_id="operator", **arguments)
        return row

    def limit_need(self, need: str, **limits: Any) -> None:
        self.call("limit_need", need=need, worker_id="operator", **limits)

    def pause_need(self, need: str) -> None:
        self.call("pause_need", need=need, worker_id="operator")

    def resume_need(self, need: str) -> None:
        self.call("resume_need", need=need, worker_id="operator")

    def limit_key(self, key: str = "K", **limits: Any) -> None:
        self.call("limit_key", key=key, worker_id="operator", **limits)

    def sweep(self) -> int:
        moved: int = self.value("sweep", worker_id="sweeper")
        return moved

    def job(self, job_id: str) -> dict[str, Any]:
        """The row of a live job in jobs_with_status."""
        (row,) = self.rows("select * from pgwf.jobs_with_status where job_id = %s", job_id)
        return row

    def archived(self, job_id: str) -> dict[str, Any]:
        (row,) = self.rows("select * from pgwf.jobs_archive where job_id = %s", job_id)
        return row

    def status(self, job_id: str) -> str | None:
        """The status of a live job; of a finished one its outcome; None when there is no such job."""
        rows = self.rows(
            "select status from pgwf.jobs_with_status where job_id = %(id)s"
            " union all select outcome from pgwf.jobs_archive where job_id = %(id)s",
            {"id": job_id},
        )
        assert len(rows) <= 1, rows
        return rows[0]["status"] if rows else None

    def events(self, job_id: str | None = None) -> list[str]:
        """The trace's event types, oldest first."""
        return [
            row["event_type"]
            for row in self.rows(
                "select event_type from pgwf.jobs_trace"
                " where %(id)s::text is null or job_id = %(id)s order by trace_id",
                {"id": job_id},
            )
        ]

    def rows(self, statement: Any, parameters: Any = None) -> list[dict[str, Any]]:
        with self.conn.cursor(row_factory=dict_row) as cursor:
            if parameters is not None and not isinstance(parameters, dict | list | tuple):
                parameters = [parameters]
            return cursor.execute(statement, parameters).fetchall()

    def broken(self) -> list[tuple[Any, ...]]:
        """Rows that break an invariant."""
        return self.conn.execute("select * from pgwf.check()").fetchall()


def held(lease: dict[str, Any]) -> dict[str, Any]:
    """The arguments that prove a lease."""
    return {"job_id": lease["job_id"], "lease_id": lease["lease_id"], "worker_id": "worker"}


def job_ids(rows: Sequence[dict[str, Any]]) -> list[str]:
    return [row["job_id"] for row in rows]


@contextmanager
def refused(sqlstate: str, message: str = "") -> Generator[pytest.ExceptionInfo[psycopg.Error]]:
    """The block's statement must be refused with that SQLSTATE, in a message that contains `message`."""
    with pytest.raises(psycopg.Error) as caught:
        yield caught
    assert (caught.value.sqlstate, message in str(caught.value)) == (sqlstate, True), str(caught.value)


def run_psql(dsn: str, file: Path, *options: str) -> str:
    """Run a file with the psql of the test run's PostgreSQL; it must succeed and say nothing on stderr."""
    folder = os.environ.get("PGWF_TEST_PG_BIN")
    program = find_binaries(Path(folder) if folder else None).folder / "psql"
    result = subprocess.run(
        [program, "-X", "-q", *options, "-d", dsn, "-f", file],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert (result.returncode, result.stderr) == (0, "")
    return result.stdout
