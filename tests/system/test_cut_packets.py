"""The hot connection is cut amid each of a run's statements, and amid the answer to each, at several places.

What a half message leaves is either nothing, or a commit that nobody was told of: the journal says which.
"""

from __future__ import annotations

import threading
from collections import Counter
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from pgwf_sdk import AsyncContext, Client, Context, Worker, step, workflow
from tests.support import short_folder, wait_until
from tests.system.proxy import Proxy

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.system.proxy import When

Conn = psycopg.Connection[Any]
SOON = timedelta(seconds=60)
LEASE = timedelta(seconds=15)
STATEMENTS_MAX = 30
HOT = "pgwf worker"
PARTS = (0.001, 0.3, 0.9, 0.999, 1.0)
"""How much passes; nearly nothing is a lone first byte, nearly all lacks a last one."""

executed: Counter[str] = Counter()


@step
async def work(name: str) -> str:
    executed[name] += 1
    return name


@workflow
async def part(ctx: AsyncContext, name: str) -> str:
    return await ctx.step(work, name)


@workflow
async def story(ctx: AsyncContext, name: str) -> list[str]:
    found = [await ctx.step(work, f"{name}/first"), await ctx.call(part(f"{name}/part"))]
    return [*found, await ctx.step(work, f"{name}/last")]


@workflow
def plain_story(ctx: Context, name: str) -> list[str]:
    found = [ctx.step(work, f"{name}/first"), ctx.call(part(f"{name}/part"))]
    return [*found, ctx.step(work, f"{name}/last")]


@pytest.fixture
def proxy(dsn: str) -> Iterator[Proxy]:
    with short_folder() as folder, Proxy(dsn, folder) as proxy:
        yield proxy


def cut_one_run_after_the_other(proxy: Proxy, starter: Client, telling: Any, when: When) -> list[str]:
    """The names of the runs that were lived through, each with another cut."""
    names: list[str] = []
    for number in range(1, STATEMENTS_MAX):
        for passes in PARTS:
            names.append(name := f"{number}-{passes}")
            proxy.cut_at(HOT, number, when, part=passes)
            run = starter.start(telling(name), run_id=name)
            assert run.result(timeout=SOON) == [f"{name}/first", f"{name}/part", f"{name}/last"]
        if not proxy.has_cut.is_set():
            return names
    raise AssertionError(f"more than {STATEMENTS_MAX} statements for one run")


@pytest.mark.parametrize(("when", "telling"), [("before", plain_story), ("after", story)], ids=["statement", "answer"])
def test_a_run_ends_as_if_nothing_had_happened_wherever_a_message_is_cut(
    proxy: Proxy, dsn: str, db: Conn, when: When, telling: Any
) -> None:
    executed.clear()
    with Client(dsn) as starter, Client(proxy.dsn) as client:
        worker = Worker(client, workflows=[story, plain_story, part], lease=LEASE, poll=timedelta(milliseconds=200))
        thread = threading.Thread(target=worker.run, daemon=True)
        thread.start()
        wait_until(lambda: db.execute("select from pgwf.sleeper").rowcount, "the worker sleeps")

        names = cut_one_run_after_the_other(proxy, starter, telling, when)

        worker.stop()
        thread.join(30)
        assert not thread.is_alive()

    assert len(names) > 3 * len(PARTS), "a run has more statements than that"
    assert executed == {f"{name}/{place}": 1 for name in names for place in ("first", "part", "last")}
    twice = "select n, key, phase from pgwf_journal.entries group by 1, 2, 3 having count(*) > 1"
    assert db.execute(twice).fetchall() == []
    assert db.execute("select run_id, lapses from pgwf_sdk.runs where lapses > 0").fetchall() == []
    assert db.execute("select * from pgwf.check()").fetchall() == []
