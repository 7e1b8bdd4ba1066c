"""pgwf's leasing core through its public SQL functions: two calls a batch, or one that completes and claims."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pgwf_sql
from bench.queues._queue import Connection, QueueSystem, count

if TYPE_CHECKING:
    from collections.abc import Sequence

NEED = "noop"
WORKER = "bench"
FILL_BATCH = 10_000

_SUBMIT = "select count(*) from pgwf.submit_jobs(%s, %s, %s) as s where s.status = 'ok'"
_CLAIM = "select job_id, lease_id from pgwf.get_work(%s, %s, 60, %s)"
_COMPLETE = "select count(*) from pgwf.complete_jobs(%s, %s, %s) as c where c.status = 'ok'"
# One statement and one commit; the claim follows the completion because its limit is computed from it.
_COMPLETE_AND_CLAIM = """
select c.done, g.job_id, g.lease_id
from (
  select count(*) as done from pgwf.complete_jobs(%s, %s, %s) as c where c.status = 'ok' offset 0
) as c
left join lateral pgwf.get_work(%s, %s, 60, case when c.done >= 0 then %s end) as g on true
"""


class _Submitting:
    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def submit(self, count: int) -> None:
        ids = [os.urandom(16).hex() for _ in range(count)]
        row = self._connection.execute(_SUBMIT, [WORKER, ids, [NEED] * count]).fetchone()
        assert row == (count,), row

    def left(self) -> int:
        return count(self._connection, "select count(*) from pgwf.jobs")

    def fill(self, count: int) -> None:
        traced = self._connection.execute("select pgwf.is_trace_enabled()").fetchone()
        self._connection.execute("select pgwf.set_trace(false)")
        for start in range(0, count, FILL_BATCH):
            self.submit(min(FILL_BATCH, count - start))
        self._connection.execute("select pgwf.set_trace(%s)", traced)


class TwoCalls(_Submitting):
    """get_work, then complete_jobs: each a commit of its own."""

    def take(self, limit: int) -> int:
        claimed = self._connection.execute(_CLAIM, [WORKER, [NEED], limit]).fetchall()
        return self._complete(claimed) if claimed else 0

    def finish(self) -> int:
        return 0

    def _complete(self, claimed: Sequence[tuple[str, str]]) -> int:
        job_ids, lease_ids = (list(column) for column in zip(*claimed, strict=True))
        row = self._connection.execute(_COMPLETE, [WORKER, job_ids, lease_ids]).fetchone()
        assert row == (len(claimed),), row
        return len(claimed)


class OneCall(TwoCalls):
    """complete_jobs of the last batch and get_work for the next in one statement."""

    def __init__(self, connection: Connection) -> None:
        super().__init__(connection)
        self._claimed: list[tuple[str, str]] = []

    def take(self, limit: int) -> int:
        job_ids, lease_ids = [claim[0] for claim in self._claimed], [claim[1] for claim in self._claimed]
        parameters = [WORKER, job_ids, lease_ids, WORKER, [NEED], limit]
        rows = self._connection.execute(_COMPLETE_AND_CLAIM, parameters).fetchall()
        done = int(rows[0][0])
        assert done == len(self._claimed), (done, len(self._claimed))
        self._claimed = [(row[1], row[2]) for row in rows if row[1] is not None]
        return done

    def finish(self) -> int:
        claimed, self._claimed = self._claimed, []
        return self._complete(claimed) if claimed else 0


def _install(connection: Connection, *, traced: bool) -> None:
    pgwf_sql.install(connection)
    connection.execute("select pgwf.set_trace(%s)", [traced])


def systems() -> list[QueueSystem]:
    """pgwf with its trace on, as installed, and off."""
    return [
        QueueSystem("pgwf", install=lambda c: _install(c, traced=True), connect=TwoCalls),
        QueueSystem("pgwf, no trace", install=lambda c: _install(c, traced=False), connect=TwoCalls),
        QueueSystem("pgwf, one call", install=lambda c: _install(c, traced=True), connect=OneCall),
        QueueSystem("pgwf, one call, no trace", install=lambda c: _install(c, traced=False), connect=OneCall),
    ]
