"""Many workers that sleep: few are woken for one run, enough for many, and nobody's turn is lost."""

from __future__ import annotations

import threading
from contextlib import ExitStack
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from pgwf_sdk import Client, Context, step, workflow
from tests.sdk.worker.test_round_trips import HOT, LoggedServer, logged_server, plain, sync_steps, working
from tests.support import wait_until

if TYPE_CHECKING:
    from psycopg import Connection

    from tests.sdk.worker.conftest import StartWorker

__all__ = ["logged_server"]

pytestmark = pytest.mark.own_session  # A pooler carries no notifications.

SOON = timedelta(seconds=60)
TENDER = "pgwf worker tender"
LONG_POLL = timedelta(minutes=5)


def asleep(db: Connection[Any]) -> int:
    row = db.execute("select count(distinct listener) from pgwf.sleeper where since is not null").fetchone()
    assert row is not None
    return int(row[0])


def test_two_hundred_sleeping_workers_cost_a_submission_two_claims(logged_server: LoggedServer) -> None:
    """Four of them are there; the others are rows of workers that died and whom nobody has forgotten yet."""
    runs_count, workers_count = 20, 4
    with (
        Client(logged_server.dsn) as client,
        psycopg.connect(logged_server.dsn, autocommit=True) as db,
        ExitStack() as at_work,
    ):
        db.execute("select pgwf.sleep_in_turn('dead-' || x, array['sync_steps']) from generate_series(1, 196) x")
        for _ in range(workers_count):
            at_work.enter_context(working(client, sync_steps))
        wait_until(lambda: asleep(db) == 200, "all sleep")
        client.start(sync_steps(1)).result(timeout=SOON)
        before = logged_server.statements()[HOT]

        for _ in range(runs_count):
            wait_until(lambda: asleep(db) == 200, "all sleep again")
            assert client.start(sync_steps(1)).result(timeout=SOON) == 1

        spent = logged_server.statements()[HOT] - before
        db.execute("delete from pgwf.sleeper")
    # A claim, a step and an end; the other who was woken looks once.
    assert spent <= runs_count * 5, f"{spent / runs_count} calls a run"


@workflow
def mailed(ctx: Context, x: int) -> int:
    return x


def test_a_token_of_a_limited_need_costs_no_round_of_every_worker(logged_server: LoggedServer) -> None:
    runs_count, workers_count = 12, 16
    with (
        Client(logged_server.dsn) as client,
        psycopg.connect(logged_server.dsn, autocommit=True) as db,
        ExitStack() as at_work,
    ):
        db.execute("select pgwf.limit_need('mailed', 'ann', p_rate => 4, p_burst => 1)")
        for _ in range(workers_count):
            at_work.enter_context(working(client, mailed))
        wait_until(lambda: asleep(db) == workers_count, "all sleep")
        runs = [client.start(mailed(x)) for x in range(3 + runs_count)]
        for run in runs[:3]:
            run.result(timeout=SOON)
        before = logged_server.statements()

        for run in runs[3:]:
            run.result(timeout=SOON)

        spent = logged_server.statements() - before
    assert spent[TENDER] <= runs_count * workers_count / 2, f"{spent[TENDER] / runs_count} rounds a token"
    assert spent[HOT] <= runs_count * workers_count / 2, f"{spent[HOT] / runs_count} calls a token"


def test_workers_with_one_place_each_are_all_woken_for_what_one_transaction_brings(
    client: Client, start_worker: StartWorker, db: Connection[Any], dsn: str
) -> None:
    workers_count = 6
    together = threading.Barrier(workers_count)

    @step
    def meet() -> None:
        together.wait(60)

    @workflow
    def meeting(ctx: Context) -> str:
        ctx.step(meet)
        return "met"

    for _ in range(workers_count):
        start_worker(meeting, concurrency=1, poll=LONG_POLL)
    wait_until(lambda: asleep(db) == workers_count, "all sleep")

    with psycopg.connect(dsn) as conn:
        runs = [client.start(meeting(), connection=conn) for _ in range(workers_count)]

    assert [run.result(timeout=SOON) for run in runs] == ["met"] * workers_count


def test_who_is_woken_and_has_no_room_hands_it_on(
    client: Client, start_worker: StartWorker, db: Connection[Any], dsn: str
) -> None:
    inside, let_out = threading.Event(), threading.Event()

    @step
    def stay(name: str) -> str:
        if name == "first":
            inside.set()
            assert let_out.wait(60)
        return name

    @workflow
    def staying(ctx: Context, name: str) -> str:
        return ctx.step(stay, name)

    start_worker(staying, worker_id="full", concurrency=1, poll=LONG_POLL)
    first = client.start(staying("first"))
    assert inside.wait(60)
    start_worker(staying, worker_id="free", concurrency=1, poll=LONG_POLL)
    wait_until(lambda: asleep(db) == 1, "the other sleeps")
    with psycopg.connect(dsn) as conn:
        conn.execute("set local pgwf.notify = off")
        second = client.start(staying("second"), connection=conn)

    db.execute("select pg_notify(pgwf.channel('turn.full'), '')")

    assert second.result(timeout=SOON) == "second"
    let_out.set()
    assert first.result(timeout=SOON) == "first"


def test_a_worker_asks_to_be_woken_while_it_has_room_and_no_longer(
    client: Client, start_worker: StartWorker, db: Connection[Any]
) -> None:
    inside, let_out = threading.Semaphore(0), threading.Event()

    @step
    def stay() -> None:
        inside.release()
        assert let_out.wait(60)

    @workflow
    def staying(ctx: Context) -> str:
        ctx.step(stay)
        return "out"

    running = start_worker(staying, concurrency=2, poll=LONG_POLL)
    runs = [client.start(staying())]
    assert inside.acquire(timeout=60)
    wait_until(lambda: asleep(db) == 1, "there is room for another")
    runs.append(client.start(staying()))
    assert inside.acquire(timeout=60)
    wait_until(lambda: asleep(db) == 0, "it withdraws when it is full")

    let_out.set()
    assert [run.result(timeout=SOON) for run in runs] == ["out", "out"]
    wait_until(lambda: asleep(db) == 1, "it asks again when it has room")
    let_out.clear()
    runs.append(client.start(staying()))
    assert inside.acquire(timeout=60)
    running.worker.stop()
    wait_until(lambda: asleep(db) == 0, "a worker that drains is not to be woken")
    let_out.set()


def test_who_finds_work_by_its_poll_is_the_next_to_be_told(
    client: Client, start_worker: StartWorker, db: Connection[Any]
) -> None:
    start_worker(sync_steps, worker_id="alive", poll=timedelta(milliseconds=200))
    wait_until(lambda: asleep(db) == 1, "it sleeps")
    db.execute("select pgwf.sleep_in_turn('dead', array['sync_steps'])")
    db.execute("set pgwf.notify = off")

    def is_next() -> bool:
        assert client.start(sync_steps(1), connection=db).result(timeout=SOON) == 1
        row = db.execute("select listener from pgwf.sleeper order by since desc limit 1").fetchone()
        return row == ("alive",)

    wait_until(is_next, "it has registered anew, behind the dead one")


def test_work_that_nobody_was_told_of_is_found_by_the_poll(
    client: Client, start_worker: StartWorker, db: Connection[Any], dsn: str
) -> None:
    @workflow
    def quiet(ctx: Context) -> int:
        return ctx.step(plain, 1)

    start_worker(quiet, poll=timedelta(milliseconds=200))
    wait_until(lambda: asleep(db) == 1, "it sleeps")

    with psycopg.connect(dsn) as conn:
        conn.execute("set local pgwf.notify = off")
        run = client.start(quiet(), connection=conn)

    assert run.result(timeout=SOON) == 2


def test_a_worker_whose_listening_connection_is_lost_finds_work_all_the_same(
    client: Client, start_worker: StartWorker, db: Connection[Any]
) -> None:
    @workflow
    def quiet(ctx: Context) -> int:
        return ctx.step(plain, 1)

    start_worker(quiet, poll=timedelta(milliseconds=500))
    wait_until(lambda: asleep(db) == 1, "it sleeps")
    lost = db.execute(
        "select count(pg_terminate_backend(pid)) from pg_stat_activity"
        " where datname = current_database() and application_name = 'pgwf worker side'"
    ).fetchone()
    assert lost is not None
    assert lost[0] >= 1

    assert client.start(quiet()).result(timeout=SOON) == 2


def test_a_worker_whom_the_server_has_forgotten_registers_again_when_it_listens_again(
    client: Client, start_worker: StartWorker, db: Connection[Any]
) -> None:
    """A crash of PostgreSQL empties the table of sleepers and ends all connections; so does this."""
    start_worker(sync_steps, poll=LONG_POLL)
    wait_until(lambda: asleep(db) == 1, "the worker sleeps")

    with db.transaction():
        db.execute("delete from pgwf.sleeper")
        db.execute(
            """
            select pg_terminate_backend(pid) from pg_stat_activity
            where datname = current_database() and application_name like 'pgwf worker%' and query ilike 'listen %'
            """
        )

    wait_until(lambda: asleep(db) == 1, "the worker is registered again")
    client.start(sync_steps(1)).result(timeout=SOON)
