"""Each connection of a worker is cut at each of its statements, before the server has it and after it has done it.

Whether a commit that was not answered took place is found out by reading, never by doing the work again.
"""

from __future__ import annotations

import threading
from collections import Counter
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from pgwf_sdk import Client, Context, Worker, step, workflow
from tests.support import short_folder, wait_until
from tests.system.proxy import Proxy, When

if TYPE_CHECKING:
    from collections.abc import Iterator

Conn = psycopg.Connection[Any]
SOON = timedelta(seconds=60)
STATEMENTS_MAX = 60
LEASE = timedelta(seconds=6)
HOT = "pgwf worker"

executed: Counter[str] = Counter()


@step
def work(name: str) -> str:
    executed[name] += 1
    return name


def book(conn: psycopg.Connection[Any], name: str) -> str:
    conn.execute("insert into booked (name) values (%s)", [name])
    return name


@workflow
def part(ctx: Context, name: str) -> str:
    return ctx.step(work, f"{name}/part")


@workflow
def story(ctx: Context, name: str) -> list[str]:
    first = ctx.step(work, f"{name}/first")
    booked = ctx.transaction(book, name)
    inner = ctx.call(part(name))
    ctx.sleep(timedelta(milliseconds=1))
    told = ctx.wait_signal("told", str)
    return [first, booked, inner, told, ctx.step(work, f"{name}/last")]


@pytest.fixture
def proxy(dsn: str) -> Iterator[Proxy]:
    with short_folder() as folder, Proxy(dsn, folder) as proxy:
        yield proxy


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize(
    "application", ["pgwf worker", "pgwf worker side", "pgwf worker tender", "pgwf worker transactions"]
)
def test_a_run_ends_as_if_nothing_had_happened_whichever_statement_is_cut(
    proxy: Proxy, dsn: str, db: Conn, application: str, when: When
) -> None:
    db.execute("create table booked (name text not null)")
    executed.clear()
    names: list[str] = []
    with Client(dsn) as starter, Client(proxy.dsn) as client:
        for number in range(1, STATEMENTS_MAX):
            names.append(name := f"{application}-{number}")
            worker = Worker(client, workflows=[story, part], lease=LEASE, poll=timedelta(milliseconds=200))
            thread = threading.Thread(target=worker.run, daemon=True)
            if application == HOT:
                thread.start()  # What fails while it starts ends the worker: it may be the wrong address.
                wait_until(lambda: db.execute("select 1 from pgwf.sleeper").fetchone(), "the worker sleeps")
                proxy.cut_at(application, number, when)
            else:
                proxy.cut_at(application, number, when)
                thread.start()
            run = starter.start(story(name), run_id=name)
            run.signal("told", "heard")

            assert run.result(timeout=SOON) == [f"{name}/first", name, f"{name}/part", "heard", f"{name}/last"]

            worker.stop()
            thread.join(30)
            assert not thread.is_alive()
            if not proxy.has_cut.is_set():
                break
        else:
            raise AssertionError(f"{application} sends more than {STATEMENTS_MAX} statements for one run")

    assert len(names) > 1, f"{application} sends nothing"
    assert executed == {f"{name}/{place}": 1 for name in names for place in ("first", "part", "last")}
    assert db.execute("select name, count(*) from booked group by name having count(*) > 1").fetchall() == []
    assert db.execute("select count(*) from booked").fetchone() == (len(names),)
    assert (
        db.execute("select n, key, phase from pgwf_journal.entries group by 1, 2, 3 having count(*) > 1").fetchall()
        == []
    )
    assert db.execute("select run_id, lapses from pgwf_sdk.runs where lapses > 0").fetchall() == []
    assert db.execute("select * from pgwf.check()").fetchall() == []
