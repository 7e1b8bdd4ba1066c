"""Steps whose own SQL commits together with the record of their result."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from pgwf_sdk import AsyncContext, Client, Context, workflow
from tests.support import wait_until

if TYPE_CHECKING:
    from tests.sdk.worker.conftest import StartWorker

SOON = timedelta(seconds=30)
OPEN_TRANSACTIONS = (
    "select pid from pg_stat_activity where application_name = 'pgwf worker transactions' and xact_start is not null"
)


@pytest.fixture(autouse=True)
def _accounts(db: psycopg.Connection[Any]) -> None:
    db.execute("create table account (name text primary key, cents int not null check (cents >= 0))")
    db.execute("insert into account values ('a', 100), ('b', 0)")


def balances(db: psycopg.Connection[Any]) -> dict[str, int]:
    return dict(db.execute("select name, cents from account").fetchall())


def move(conn: psycopg.Connection[Any], cents: int) -> int:
    conn.execute("update account set cents = cents + %s where name = 'b'", [cents])
    conn.execute("update account set cents = cents - %s where name = 'a'", [cents])
    return cents


async def move_async(conn: psycopg.AsyncConnection[Any], cents: int) -> int:
    await conn.execute("update account set cents = cents + %s where name = 'b'", [cents])
    await conn.execute("update account set cents = cents - %s where name = 'a'", [cents])
    return cents


@workflow
def transfer(ctx: Context, cents: int) -> int:
    return ctx.transaction(move, cents) + ctx.transaction(move_async, cents)


@workflow
async def async_transfer(ctx: AsyncContext, cents: int) -> int:
    return await ctx.transaction(move, cents) + await ctx.transaction(move_async, cents)


@pytest.mark.parametrize("definition", [transfer, async_transfer], ids=["sync", "async"])
def test_the_steps_sql_and_its_record_commit_together(
    client: Client, start_worker: StartWorker, db: psycopg.Connection[Any], definition: Any
) -> None:
    start_worker(definition)

    assert client.start(definition(10), run_id="t").result(timeout=SOON) == 20

    assert balances(db) == {"a": 80, "b": 20}
    recorded = db.execute(
        "select count(distinct e.xmin::text) from pgwf_journal.entry e join account a on a.xmin = e.xmin"
        " where e.kind = 2"
    ).fetchone()
    assert recorded == (1,), "the last transfer and its entry are of one transaction"


def test_a_step_that_fails_leaves_nothing_of_its_sql(
    client: Client, start_worker: StartWorker, db: psycopg.Connection[Any]
) -> None:
    @workflow
    def overdrawn(ctx: Context) -> str:
        try:
            ctx.transaction(move, 1_000)
        except psycopg.errors.CheckViolation:
            return "refused"
        return "moved"

    start_worker(overdrawn)

    assert client.start(overdrawn()).result(timeout=timedelta(seconds=110)) == "refused"
    assert balances(db) == {"a": 100, "b": 0}


def test_what_a_worker_that_lost_its_run_did_in_a_transaction_is_undone(
    client: Client, start_worker: StartWorker, db: psycopg.Connection[Any]
) -> None:
    @workflow
    def terminated_meanwhile(ctx: Context) -> int:
        def move_and_lose(conn: psycopg.Connection[Any]) -> int:
            moved = move(conn, 10)
            client.terminate("lost")
            return moved

        return ctx.transaction(move_and_lose)

    start_worker(terminated_meanwhile)
    run = client.start(terminated_meanwhile(), run_id="lost")

    wait_until(lambda: run.status() == "terminated", "the run is terminated")
    wait_until(
        lambda: not db.execute(OPEN_TRANSACTIONS).fetchall(),
        "the transaction has ended",
    )
    assert balances(db) == {"a": 100, "b": 0}


def test_transactions_of_branches_take_turns_at_the_journal(
    client: Client, start_worker: StartWorker, db: psycopg.Connection[Any]
) -> None:
    @workflow
    async def many(ctx: AsyncContext) -> int:
        async def one(c: AsyncContext, cents: int) -> int:
            return await c.transaction(move_async, cents) + await c.step(len, [cents])

        return sum(await ctx.map(one, [1] * 8))

    start_worker(many)

    assert client.start(many(), run_id="m").result(timeout=SOON) == 16
    assert balances(db) == {"a": 92, "b": 8}
