"""How a fleet behaves as work grows: what waits costs rows only, what is due together is done in few calls.

PGWF_TEST_SCALE multiplies the number of runs; at 50 there are 50,000 that sleep and 10,000 that wake together.
"""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections import Counter
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from pgwf_sdk import AsyncContext, Client, Context, Worker, current_step, step, workflow
from tests.sdk.worker.conftest import StartWorker, client, start_worker
from tests.sdk.worker.test_round_trips import HOT, LoggedServer, logged_server, working
from tests.support import wait_until

if TYPE_CHECKING:
    from psycopg import Connection

__all__ = ["client", "logged_server", "start_worker"]

SCALE = int(os.environ.get("PGWF_TEST_SCALE", "1"))
SLEEPING_COUNT = 1_000 * SCALE
DUE_COUNT = 200 * SCALE
DUE_SECONDS_MAX = 10
SOON = timedelta(seconds=60)
TENDER = "pgwf worker tender"


@workflow
def nap(_ctx: Context) -> int:
    return 1


def start_later(db: psycopg.Connection[Any], prefix: str, count: int, delay: str) -> None:
    """Start runs that sleep: a run that is to start later and one that parked for a timer are the same to the core."""
    db.execute(
        "select pgwf_sdk.start_run(%s || x, 'nap', 'nap', '{\"args\":[],\"kwargs\":{}}', 1, "
        "p_start_at => now() + %s::interval) from generate_series(1, %s) x",
        [prefix, delay, count],
    )


def spent(server: LoggedServer) -> Counter[str]:
    return Counter({name: count for name, count in server.statements().items() if name.startswith("pgwf worker")})


def test_an_idle_worker_costs_less_than_a_statement_a_second_however_many_runs_sleep(
    logged_server: LoggedServer,
) -> None:
    with (
        psycopg.connect(logged_server.dsn, autocommit=True) as db,
        Client(logged_server.dsn) as client,
    ):
        start_later(db, "sleeping-", SLEEPING_COUNT, "1 day")
        worker = Worker(client, workflows=[nap])
        thread = threading.Thread(target=worker.run, daemon=True)
        thread.start()
        wait_until(lambda: db.execute("select 1 from pgwf.sleeper").fetchone(), "the worker sleeps")
        wait_until(lambda: spent(logged_server)[TENDER] >= 5, "it has tended twice and has settled", seconds=60)
        before, began = spent(logged_server), time.monotonic()

        wait_until(lambda: spent(logged_server)[TENDER] >= before[TENDER] + 3, "three rounds", seconds=120)

        calls = spent(logged_server) - before
        elapsed_seconds = time.monotonic() - began
        assert worker.health().runs == 0
        worker.stop()
        thread.join(30)
        assert calls.total() / elapsed_seconds < 1, f"{dict(calls)} in {elapsed_seconds:.1f} s"


def test_runs_that_are_due_together_wake_together_in_few_calls(logged_server: LoggedServer) -> None:
    with (
        psycopg.connect(logged_server.dsn, autocommit=True) as db,
        Client(logged_server.dsn) as client,
        working(client, nap),
    ):
        client.start(nap()).result(timeout=SOON)
        start_later(db, "due-", DUE_COUNT, f"{1 + SCALE} seconds")
        soon = "from pgwf.timer where due < now() + interval '1 hour'"  # Others may sleep for longer.
        due_in = f"select extract(epoch from max(due) - clock_timestamp())::float {soon}"
        due_seconds, asked_time = db.execute(due_in).fetchone(), time.monotonic()
        left = "select 1 from pgwf_sdk.run where run_id like 'due-%' and finished_at is null limit 1"
        before = spent(logged_server)

        assert due_seconds is not None
        wait_until(
            lambda: not db.execute(f"select 1 {soon} limit 1").fetchone(),
            "all have fired",
            seconds=asked_time + due_seconds[0] + DUE_SECONDS_MAX - time.monotonic(),
        )
        wait_until(lambda: not db.execute(left).fetchone(), "all are over", seconds=60 + 10 * SCALE)

        calls = spent(logged_server) - before
        # They come in sweeps of 2,000 and claims of 64, and each call that ends some claims the next.
        assert calls[HOT] <= DUE_COUNT / 10 + 20
        assert calls[TENDER] <= DUE_COUNT / 50 + 20 + 2 * SCALE


def test_runs_that_wait_hold_no_place_no_thread_and_no_connection(
    client: Client, start_worker: StartWorker, db: Connection[Any]
) -> None:
    @workflow
    def told(ctx: Context) -> str:
        return ctx.wait_signal("told", str)

    @workflow
    async def napping(ctx: AsyncContext) -> str:
        await ctx.sleep(timedelta(hours=1))
        return "up"

    @workflow
    def asking(ctx: Context) -> str:
        return ctx.call(told())

    concurrency = 4
    before = set(threading.enumerate())
    running = start_worker(told, napping, asking, concurrency=concurrency, step_threads=2)
    runs = [client.start(one()) for one in (told, napping, asking) for _ in range(20)]
    waiting = "select count(*) from pgwf_sdk.runs where status = 'waiting'"
    wait_until(lambda: db.execute(waiting).fetchone() == (80,), "all wait, the children too", seconds=60)

    assert db.execute("select count(*) from pgwf.lease").fetchone() == (0,)
    assert running.worker.health().runs == 0
    names = Counter(thread.name.rpartition("_")[0] for thread in threading.enumerate() if thread not in before)
    assert names["pgwf-workflow"] <= concurrency
    assert names["pgwf-step"] <= 2
    connections = db.execute(
        "select count(*) from pg_stat_activity where datname = current_database() and application_name ~ '^pgwf worker'"
    ).fetchone()
    assert connections is not None
    assert connections[0] <= 7
    for run in runs:
        client.terminate(run.run_id)


def test_nobody_waits_for_a_lease_to_end_because_the_wrong_worker_took_the_job(
    client: Client, start_worker: StartWorker, db: Connection[Any]
) -> None:
    @step(need="left")
    def lefts(x: int) -> int:
        return x

    @step(need="right")
    def rights(x: int) -> int:
        return x

    @workflow(need="left")
    def starting_left(ctx: Context, x: int) -> int:
        return ctx.step(rights, x) + ctx.step(lefts, x)

    @workflow(need="right")
    def starting_right(ctx: Context, x: int) -> int:
        return ctx.step(lefts, x) + ctx.step(rights, x)

    for name in ("left", "right"):
        start_worker(starting_left, starting_right, capabilities=[name], worker_id=name, poll=timedelta(seconds=30))
    runs = [client.start(one(x)) for x in range(4) for one in (starting_left, starting_right)]

    assert [run.result(timeout=SOON) for run in runs] == [2 * x for x in range(4) for _ in range(2)]
    assert db.execute("select sum(lapses) from pgwf_sdk.runs").fetchone() == (0,)
    assert db.execute("select count(*) from pgwf.trace where event_type = 'lease_lapsed'").fetchone() == (0,)


def test_steps_that_compute_and_block_everything_lose_no_lease(
    client: Client, start_worker: StartWorker, db: Connection[Any]
) -> None:
    @step
    async def block(seconds: float) -> str:
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            pass
        return "done"

    @workflow
    def blocking(ctx: Context) -> str:
        return ctx.step(block, 4.0)

    start_worker(blocking, lease=timedelta(seconds=2))

    assert client.start(blocking()).result(timeout=SOON) == "done"
    assert db.execute("select lapses from pgwf_sdk.runs").fetchone() == (0,)


def test_a_lost_lease_cancels_what_is_being_done_at_once(
    client: Client, start_worker: StartWorker, db: Connection[Any]
) -> None:
    entered, cancelled = threading.Event(), threading.Event()
    found: list[bool] = []

    @step
    async def stay() -> None:
        entered.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            found.append(current_step().lease_lost)
            cancelled.set()
            raise

    @workflow
    def staying(ctx: Context) -> None:
        ctx.step(stay)

    start_worker(staying, lease=timedelta(seconds=2))
    run = client.start(staying())
    assert entered.wait(60)

    db.execute("select pgwf_sdk.pause_run(%s, 'test')", [run.run_id])
    db.execute("delete from pgwf.lease")

    assert cancelled.wait(30)
    assert found == [True]


@pytest.mark.parametrize(
    ("dsn", "said"),
    [
        ("host=nowhere.invalid connect_timeout=5", "nowhere.invalid"),
        ("host=/nowhere", "No such file or directory"),
        ("port=nonsense", "nonsense"),
    ],
)
def test_a_database_that_cannot_be_reached_is_said_when_the_worker_starts(
    dsn: str, said: str, capfd: pytest.CaptureFixture[str]
) -> None:
    from pgwf_sdk.cli._app import run_command

    code = run_command(["worker", "run", "tests.sdk.cli_shop", "--dsn", dsn])

    err = capfd.readouterr().err
    assert code == 1
    assert "no connection to the database" in err
    assert said in err
    assert "check --dsn, PGWF_DSN or DATABASE_URL" in err


def test_a_role_that_is_not_let_in_is_said_when_the_worker_starts(dsn: str, capfd: pytest.CaptureFixture[str]) -> None:
    from pgwf_sdk.cli._app import run_command

    stranger = psycopg.conninfo.make_conninfo(dsn, user="stranger")
    code = run_command(["worker", "run", "tests.sdk.cli_shop", "--dsn", stranger])

    err = capfd.readouterr().err
    assert code == 1
    assert 'role "stranger" does not exist' in err
