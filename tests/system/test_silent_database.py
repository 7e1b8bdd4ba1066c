"""A database that does not answer any more, and keeps its connections: nobody waits for it for ever."""

from __future__ import annotations

import threading
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from pgwf_sdk import AsyncContext, Client, Worker, step, workflow
from tests.support import short_folder, wait_until
from tests.system.proxy import Proxy

if TYPE_CHECKING:
    from collections.abc import Iterator

SOON = timedelta(seconds=60)
STOP_SECONDS_MAX = 40.0  # Each thing that is closed has 5 s.


@pytest.fixture
def proxy(dsn: str) -> Iterator[Proxy]:
    with short_folder() as folder, Proxy(dsn, folder) as proxy:
        yield proxy


@pytest.mark.parametrize("told_count", [1, 2], ids=["once", "twice"])
def test_a_worker_whose_database_does_not_answer_any_more_stops_when_it_is_told_to(
    proxy: Proxy, dsn: str, db: psycopg.Connection[Any], told_count: int
) -> None:
    has_begun = threading.Event()

    @step
    async def working() -> None:
        has_begun.set()

    @workflow
    async def once(ctx: AsyncContext) -> None:
        await ctx.step(working)

    grace = timedelta(seconds=0.1 if told_count == 1 else 300)
    with Client(proxy.dsn) as client, Client(dsn) as starter:
        worker = Worker(client, workflows=[once], grace=grace)
        thread = threading.Thread(target=worker.run, daemon=True)
        thread.start()
        starter.start(once()).result(timeout=SOON)
        wait_until(lambda: db.execute("select from pgwf.sleeper").rowcount, "the worker sleeps")
        has_begun.clear()

        starter.start(once())
        assert has_begun.wait(SOON.total_seconds())
        proxy.flows.clear()
        for _ in range(told_count):
            worker.stop()

        thread.join(STOP_SECONDS_MAX)
        assert not thread.is_alive()
