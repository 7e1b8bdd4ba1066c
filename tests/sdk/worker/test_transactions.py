"""Steps whose own SQL commits together with the record of their result."""

from __future__ import annotations

import asyncio
import threading
from datetime import timedelta
from typing import TYPE_CHECKING, Any, cast

import psycopg
import pytest
from psycopg.rows import dict_row

from pgwf_sdk import AsyncContext, Client, Context, RetryPolicy, step, workflow
from tests.support import wait_for_status, wait_until

if TYPE_CHECKING:
    from pgwf_sdk import Workflow
    from tests.sdk.worker.conftest import StartWorker
    from tests.support import Connect

SOON = timedelta(seconds=30)
OPEN_TRANSACTIONS = (
    "select pid from pg_stat_activity where application_name = 'pgwf worker transactions' and xact_start is not null"
    " and pid <> pg_backend_pid()"  # Behind a pooler it may be the one that a worker had before.
)
WAITING = (
    "select pid from pg_stat_activity where application_name = 'pgwf worker transactions' and wait_event_type = 'Lock'"
    " and clock_timestamp() > query_start + interval '200 ms'"  # longer than `advance` waits for a row
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

    wait_for_status(run, "terminated")
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


ONCE = RetryPolicy(max_attempts=1)


def pids(db: psycopg.Connection[Any]) -> list[int]:
    """The sessions that are in the transaction of a step."""
    return [pid for (pid,) in db.execute(OPEN_TRANSACTIONS).fetchall()]


class Held:
    """Lets a step's function wait in its first attempt until the test says go on."""

    def __init__(self) -> None:
        self.is_begun = threading.Event()
        self.may_end = threading.Event()
        self.attempts_count = 0

    def move(self, conn: psycopg.Connection[Any]) -> int:
        self.attempts_count += 1
        moved = move(conn, 10)
        if self.attempts_count == 1:
            self.is_begun.set()
            self.may_end.wait(SOON.total_seconds())
        conn.execute("select 1")
        return moved


def transferring(held: Held) -> Workflow[[], int]:
    @workflow
    def once(ctx: Context) -> int:
        return ctx.transaction(step(retry=ONCE)(held.move))

    return once


def test_a_connection_that_breaks_is_no_failure_of_the_step(
    client: Client, start_worker: StartWorker, db: psycopg.Connection[Any]
) -> None:
    held = Held()
    once = transferring(held)
    start_worker(once)
    run = client.start(once())
    assert held.is_begun.wait(SOON.total_seconds())

    db.execute("select pg_terminate_backend(pid) from pg_stat_activity where pid = any (%s)", [pids(db)])
    held.may_end.set()

    assert run.result(timeout=SOON) == 10
    assert held.attempts_count == 2
    assert balances(db) == {"a": 90, "b": 10}


class Breaks:
    """A step's function that does something to its connection."""

    def __init__(self, how: str) -> None:
        self.how = how
        self.calls_count = 0

    def __call__(self, conn: psycopg.Connection[Any]) -> str:
        self.calls_count += 1
        move(conn, 10)
        match self.how:
            case "close":
                conn.close()
            case "close and use":
                conn.close()
                conn.execute("select 1")
            case "raise Rollback":
                raise psycopg.Rollback
            case "kill":
                conn.execute("select pg_terminate_backend(pg_backend_pid())")
            case _:
                conn.execute(self.how)
        return self.how

    async def call(self, conn: psycopg.AsyncConnection[Any]) -> str:
        self.calls_count += 1
        await move_async(conn, 10)
        match self.how:
            case "close":
                await conn.close()
            case "close and use":
                await conn.close()
                await conn.execute("select 1")
            case "raise Rollback":
                raise psycopg.Rollback
            case "kill":
                await conn.execute("select pg_terminate_backend(pg_backend_pid())")
            case _:
                await conn.execute(self.how)
        return self.how


def breaking(breaks: Breaks, *, is_async: bool) -> Workflow[[], str]:
    fn: Any = breaks.call if is_async else breaks.__call__
    named: Any = step(name="breaks", retry=RetryPolicy(max_attempts=2, initial=timedelta(0)))(fn)

    @workflow
    def once(ctx: Context) -> str:
        try:
            return cast("str", ctx.transaction(named))
        except Exception as error:  # noqa: BLE001 - which one it is, the test says
            return f"{type(error).__name__}: {error}"

    return once


@pytest.mark.parametrize("is_async", [False, True], ids=["plain", "async"])
@pytest.mark.parametrize(
    ("how", "said", "calls_count", "balance"),
    [
        ("close", "ContextError: step 'breaks': the function closed its connection", 1, 0),
        ("close and use", "OperationalError: the connection is closed", 2, 0),
        ("rollback", "ContextError: step 'breaks': the function ended its transaction", 1, 0),
        ("commit", "ContextError: step 'breaks': the function ended its transaction", 1, 10),
        ("raise Rollback", "ContextError: step 'breaks': the function rolled its transaction back", 1, 0),
        ("kill", "AdminShutdown: terminating connection", 6, 0),  # thrice each attempt
    ],
)
def test_a_step_that_breaks_its_connection_whenever_it_runs_has_failed(
    client: Client,
    start_worker: StartWorker,
    db: psycopg.Connection[Any],
    how: str,
    said: str,
    calls_count: int,
    balance: int,
    is_async: bool,
) -> None:
    breaks = Breaks(how)
    once = breaking(breaks, is_async=is_async)
    start_worker(once)

    assert client.start(once()).result(timeout=SOON).startswith(said)
    assert breaks.calls_count == calls_count
    assert balances(db)["b"] == balance


def test_a_step_gets_a_connection_as_it_was_made_however_others_wanted_their_rows(
    client: Client, start_worker: StartWorker
) -> None:
    def by_name(conn: psycopg.Connection[Any]) -> str:
        conn.row_factory = dict_row
        row: Any = conn.execute("select 'by name' as found").fetchone()
        return cast("str", row["found"])

    def by_place(conn: psycopg.Connection[Any]) -> str:
        (found,) = conn.execute("select 'by place' as found").fetchall()[0]
        return cast("str", found)

    @workflow
    def both(ctx: Context) -> list[str]:
        return [ctx.transaction(by_name), ctx.transaction(by_place)]

    start_worker(both)

    assert client.start(both()).result(timeout=SOON) == ["by name", "by place"]


def test_a_lease_that_somebody_holds_for_a_while_is_no_failure_of_the_step(
    client: Client, start_worker: StartWorker, db: psycopg.Connection[Any], connect: Connect
) -> None:
    held = Held()
    once = transferring(held)
    start_worker(once)
    run = client.start(once())
    assert held.is_begun.wait(SOON.total_seconds())

    holder = connect()
    holder.execute("begin")
    holder.execute("select from pgwf.lease for update")
    held.may_end.set()
    wait_until(lambda: db.execute(WAITING).fetchall(), "the step waits for the lease, longer than others would")
    holder.execute("rollback")

    assert run.result(timeout=SOON) == 10
    assert held.attempts_count == 1
    assert balances(db) == {"a": 90, "b": 10}


def test_transactions_that_have_to_wait_for_a_connection_hold_up_no_other_run(
    client: Client, start_worker: StartWorker, db: psycopg.Connection[Any]
) -> None:
    may_end = asyncio.Event()
    loops: list[asyncio.AbstractEventLoop] = []

    async def wait_in_transaction(conn: psycopg.AsyncConnection[Any]) -> int:
        loops.append(asyncio.get_running_loop())
        await may_end.wait()
        return await move_async(conn, 1)

    patient: Any = step(retry=ONCE)(wait_in_transaction)

    @workflow
    async def waiting(ctx: AsyncContext) -> int:
        moved: int = await ctx.transaction(patient)
        return moved

    @workflow
    def other(ctx: Context) -> int:
        return ctx.step(len, "abc")

    start_worker(waiting, other)
    runs = [client.start(waiting()) for _ in range(5)]
    wait_until(lambda: len(pids(db)) == 4, "all connections are in use")

    assert client.start(other()).result(timeout=SOON) == 3
    loops[0].call_soon_threadsafe(may_end.set)
    assert [run.result(timeout=SOON) for run in runs] == [1] * 5
