"""Steps in transactions that nobody waits for any more, while their statement waits for a row that somebody holds."""

from __future__ import annotations

import threading
from datetime import timedelta
from typing import TYPE_CHECKING, Any, cast

import psycopg
import pytest

from pgwf_sdk import AsyncContext, Client, Context, RetryPolicy, StepTimeoutError, WorkflowError, step, workflow
from tests.support import wait_for_status, wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pgwf_sdk import Run
    from tests.sdk.worker.conftest import Running, StartWorker
    from tests.support import Connect

Conn = psycopg.Connection[Any]
SOON = timedelta(seconds=30)
CONNECTIONS_COUNT = 4
WAITING = (
    "select pid from pg_stat_activity where application_name = 'pgwf worker transactions' and wait_event_type = 'Lock'"
)
IN_TRANSACTION = (
    "select pid from pg_stat_activity where application_name = 'pgwf worker transactions' and xact_start is not null"
    " and pid <> pg_backend_pid()"  # Behind a pooler it may be the one that a worker had before.
)


def waiting_count(db: Conn) -> int:
    return len(db.execute(WAITING).fetchall())


@pytest.fixture(autouse=True)
def accounts(db: Conn) -> None:
    db.execute("create table account (name text primary key, cents int not null)")
    db.execute("insert into account values ('held', 0), ('free', 0)")


@pytest.fixture
def holder(connect: Connect) -> Iterator[Conn]:
    """A session that holds the row of one account until it rolls back."""
    holder = connect()
    holder.execute("begin")
    holder.execute("select from account where name = 'held' for update")
    yield holder
    holder.execute("rollback")


def balances(db: Conn) -> dict[str, int]:
    return dict(db.execute("select name, cents from account").fetchall())


def pay(conn: Conn, name: str) -> str:
    conn.execute("update account set cents = cents + 1 where name = 'free'")
    conn.execute("update account set cents = cents + 1 where name = %s", [name])
    return name


async def pay_async(conn: psycopg.AsyncConnection[Any], name: str) -> str:
    await conn.execute("update account set cents = cents + 1 where name = %s", [name])
    return name


def pay_stubbornly(conn: Conn, name: str) -> str:
    """Undoes what fails and tries it again, whatever it was."""
    for _ in range(100):
        try:
            with conn.transaction():
                return pay(conn, name)
        except psycopg.Error as error:
            last = error
    raise last


ONCE = RetryPolicy(max_attempts=1)
HOW: dict[str, Any] = {"plain": pay, "async": pay_async, "stubborn": pay_stubbornly}


@pytest.mark.parametrize("how", HOW)
def test_transactions_whose_time_is_over_give_their_connections_back(
    client: Client, start_worker: StartWorker, db: Conn, holder: Conn, how: str
) -> None:
    impatient: Any = step(name="pay", retry=ONCE, timeout=timedelta(seconds=1))(HOW[how])

    @workflow
    async def paying(ctx: AsyncContext) -> list[str]:
        async def one(c: AsyncContext, name: str) -> str:
            try:
                return cast("str", await c.transaction(impatient, name))
            except StepTimeoutError:
                return "late"

        late = await ctx.map(one, ["held"] * CONNECTIONS_COUNT)
        return [*late, await ctx.transaction(pay_async, "free")]

    start_worker(paying)
    run = client.start(paying())
    wait_until(lambda: waiting_count(db) == CONNECTIONS_COUNT or run.status() == "completed", "all wait for the row")

    assert run.result(timeout=SOON) == ["late"] * CONNECTIONS_COUNT + ["free"]
    wait_until(lambda: not waiting_count(db), "nobody waits for the row")
    holder.execute("rollback")
    assert balances(db) == {"held": 0, "free": 1}


def cancel(run: Run[str], _running: Running) -> None:
    run.cancel()


def terminate(run: Run[str], _running: Running) -> None:
    run.terminate()


def stop_at_once(_run: Run[str], running: Running) -> None:
    running.worker.stop()
    running.worker.stop()


def stop_in_time(_run: Run[str], running: Running) -> None:
    running.worker.stop()


@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize(
    ("give_up", "status"),
    [(cancel, "cancelled"), (terminate, "terminated"), (stop_at_once, "ready"), (stop_in_time, "ready")],
)
def test_what_a_transaction_did_that_nobody_waits_for_any_more_is_undone_and_its_connection_free(
    client: Client,
    start_worker: StartWorker,
    db: Conn,
    holder: Conn,
    how: str,
    give_up: Callable[[Run[str], Running], None],
    status: str,
) -> None:
    patient: Any = step(name="pay", retry=ONCE)(HOW[how])

    @workflow
    def paying(ctx: Context) -> str:
        return cast("str", ctx.transaction(patient, "held"))

    running = start_worker(paying, grace=timedelta(seconds=1))
    run = client.start(paying())
    wait_until(lambda: waiting_count(db), "the step waits for the row")

    give_up(run, running)

    wait_until(lambda: not db.execute(IN_TRANSACTION).fetchall(), "its transaction has ended")
    wait_for_status(run, status)
    if status == "ready":
        running.join()
    holder.execute("rollback")
    assert balances(db) == {"held": 0, "free": 0}


def test_a_transaction_is_given_up_while_it_waits_to_record_its_result(
    client: Client, start_worker: StartWorker, db: Conn, connect: Connect
) -> None:
    begun, may_end = threading.Event(), threading.Event()

    def wait_and_pay(conn: Conn) -> str:
        paid = pay(conn, "free")
        begun.set()
        may_end.wait(SOON.total_seconds())
        return paid

    late: Any = step(name="pay", retry=ONCE, timeout=timedelta(seconds=3))(wait_and_pay)

    @workflow
    def paying(ctx: Context) -> str:
        try:
            return cast("str", ctx.transaction(late))
        except WorkflowError as error:
            return type(error).__name__

    start_worker(paying)
    run = client.start(paying())
    assert begun.wait(SOON.total_seconds())
    holder = connect()
    holder.execute("begin")
    holder.execute("select from pgwf.lease for update")
    may_end.set()
    wait_until(lambda: waiting_count(db), "the step waits for the lease")

    wait_until(lambda: not db.execute(IN_TRANSACTION).fetchall(), "its transaction has ended")
    holder.execute("rollback")

    assert run.result(timeout=SOON) == "StepTimeoutError"
    assert balances(db) == {"held": 0, "free": 0}
