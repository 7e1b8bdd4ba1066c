"""A past: very many runs that are over or that wait, written by SQL as the product would have left them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import psycopg

CHUNK = 100_000

# Numbers are drawn as for any run, so that what comes later is newer. Two entries each: the input and the result, or
# the input and the signal that is waited for.
_RUNS = """
create temporary table past as
select nextval('pgwf.pos') as n, 'past-' || gen_random_uuid() as run_id, clock_timestamp() as at
from generate_series(1, %(count)s)
"""
_NAMES = "insert into pgwf.name (job_id, n) select run_id, n from past"
_JOURNALS = "insert into pgwf_journal.journal (journal_id, n) select run_id, n from past"
_ENTRIES = """
insert into pgwf_journal.entry (n, seq, call, kind, phase, scope, name, occurrence, payload, encoding, recorded_at)
select p.n, e.seq, e.call, e.kind, e.phase, '', e.name, 1, e.payload, 1, p.at
from past as p
cross join (values
  (1, 0, 1, 1, 'awaited', '{"args":[],"kwargs":{}}'::bytea),
  (2, %(call)s, %(kind)s, %(phase)s, %(name)s, '1'::bytea)
) as e(seq, call, kind, phase, name, payload)
"""
_RUN_ROWS = """
insert into pgwf_sdk.run (n, run_id, workflow, need, seed, root, status, created_at, finished_at)
select n, run_id, 'awaited', 'awaited', n, n, %(status)s::text, at, case when %(status)s::text is not null then at end
from past
"""
_ARCHIVE = """
insert into pgwf.archive (
  n, job_id, outcome, need, priority, available_at, lapses, lease_no, worker_id, created_at, archived_at)
select n, run_id, 'completed', 'awaited', 3, at, 0, 1, 'past', at, at from past
"""
_WAITING_JOBS = """
insert into pgwf.job (n, job_id, need, priority, available_at, created_at)
select n, run_id, 'awaited', 3, 'infinity', at from past
"""
_FINISHED = {"call": 0, "kind": 1, "phase": 2, "name": "awaited", "status": "completed"}
_WAITING = {"call": 1, "kind": 4, "phase": 1, "name": "go", "status": None}


def write_finished(connection: psycopg.Connection[Any], count: int) -> None:
    """Have `count` runs that completed."""
    _write(connection, count, _FINISHED, _ARCHIVE)


def write_waiting(connection: psycopg.Connection[Any], count: int) -> None:
    """Have `count` runs that wait for a signal."""
    _write(connection, count, _WAITING, _WAITING_JOBS)


def _write(connection: psycopg.Connection[Any], count: int, values: dict[str, Any], jobs: str) -> None:
    for start in range(0, count, CHUNK):
        parameters = values | {"count": min(CHUNK, count - start)}
        with connection.transaction():
            for statement in (_RUNS, _NAMES, _JOURNALS, _ENTRIES, _RUN_ROWS, jobs):
                connection.execute(statement.encode(), parameters)
            connection.execute("drop table past")
    connection.execute("analyze")
