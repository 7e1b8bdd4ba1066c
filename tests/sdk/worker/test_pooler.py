"""A worker and a client behind a pooler in transaction mode, which has another server session for each transaction."""

from __future__ import annotations

from contextlib import ExitStack
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from pgwf_sdk import Client, Context, step, workflow
from tests.pooler import PROGRAM_VARIABLE, pooler_program

if TYPE_CHECKING:
    from tests.sdk.worker.conftest import StartWorker
    from tests.support import Connect

SOON = timedelta(seconds=20)
FAR = timedelta(seconds=60)
SESSIONS = 8
LEFT_IN_THE_SESSION = """
    select 'listens', c from pg_listening_channels() as c
    union all select 'holds a lock', l.objid::text
    from pg_locks as l where l.pid = pg_backend_pid() and l.locktype = 'advisory'
    union all select 'prepared', p.name from pg_prepared_statements as p
    union all select 'temporary', c.relname from pg_class as c where c.relnamespace = pg_my_temp_schema()
    union all select 'set', s.name from pg_settings as s where s.source = 'session'
        and s.name not in ('application_name', 'client_encoding', 'TimeZone', 'DateStyle')
"""

pytestmark = pytest.mark.skipif(pooler_program() is None, reason=f"{PROGRAM_VARIABLE} names no PgBouncer")


@step
def double(x: int) -> int:
    return 2 * x


@workflow
def doubled(ctx: Context, x: int) -> int:
    ctx.sleep(timedelta(seconds=0))
    return ctx.step(double, x)


@pytest.fixture
def client(database: str, dsn: str) -> Client:
    return Client(dsn, listen_dsn=database)


def test_a_worker_is_woken_past_the_pooler_long_before_its_poll(client: Client, start_worker: StartWorker) -> None:
    with client:
        start_worker(doubled, poll=FAR, lease=3 * FAR)

        results = [client.start(doubled(x)).result(SOON) for x in range(3)]

    assert results == [0, 2, 4]


def test_nothing_stays_in_the_sessions_behind_the_pooler(
    client: Client, start_worker: StartWorker, connect: Connect
) -> None:
    with client:
        start_worker(doubled)
        assert client.start(doubled(21)).result(SOON) == 42

        left: list[Any] = []
        with ExitStack() as transactions:  # Open at the same time, so that each has a server session of its own.
            for _ in range(SESSIONS):
                conn = connect()
                transactions.enter_context(conn.transaction())
                left += conn.execute(LEFT_IN_THE_SESSION).fetchall()
    assert left == []
