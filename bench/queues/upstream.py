"""The SQL-only pgwf that this project's leasing core follows, installed from a checkout."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING

from bench.queues._queue import Connection, QueueSystem, count

if TYPE_CHECKING:
    from pathlib import Path

SQL_FILE = "pgwf.sql"
BACKLOG_MAX = 10_000
WORKER = "bench"
NEED = "noop"

# It has no call for many jobs.
_SUBMIT = "select count(*) from unnest(%s::text[]) as j(id) cross join lateral pgwf.submit_job(j.id, %s, %s)"
_CLAIM = "select job_id, lease_id from pgwf.get_work(%s, %s, 60, %s)"
_COMPLETE = "select pgwf.complete_job(j.id, j.lease_id, %s) from unnest(%s::text[], %s::text[]) as j(id, lease_id)"


class TwoCalls:
    """get_work, then complete_job for each of the batch in one statement."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def submit(self, count: int) -> None:
        ids = [os.urandom(16).hex() for _ in range(count)]
        row = self._connection.execute(_SUBMIT, [ids, WORKER, NEED]).fetchone()
        assert row == (count,), row

    def take(self, limit: int) -> int:
        claimed = self._connection.execute(_CLAIM, [WORKER, [NEED], limit]).fetchall()
        if not claimed:
            return 0
        job_ids, lease_ids = (list(column) for column in zip(*claimed, strict=True))
        return len(self._connection.execute(_COMPLETE, [WORKER, job_ids, lease_ids]).fetchall())

    def finish(self) -> int:
        return 0

    def left(self) -> int:
        return count(self._connection, "select count(*) from pgwf.jobs")

    def fill(self, count: int) -> None:
        self.submit(count)


def systems(checkout: Path) -> list[QueueSystem]:
    """As it is installed, but without two extensions: pg_cron, which it uses where it finds it, for a schedule; and
    pgcrypto, which it needs for a function that PostgreSQL now has itself and the embedded server does not bring."""
    script = (checkout / SQL_FILE).read_text(encoding="utf-8")
    script = re.sub(r"(?im)^create extension .*pgcrypto.*$", "", script).replace("name = 'pg_cron'", "name = ''")

    def install(connection: Connection) -> None:
        connection.execute(script.encode())

    return [QueueSystem("upstream pgwf", install=install, connect=TwoCalls, backlog_max=BACKLOG_MAX)]
