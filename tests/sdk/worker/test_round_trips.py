"""How many statements a run costs on the worker's hot connection, read from the server's own log of statements."""

from __future__ import annotations

import os
import shutil
import tempfile
import threading
from collections import Counter
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import psycopg
import pytest

import pgwf_sql
from pgwf_journal import Kind, Phase
from pgwf_sdk import AsyncContext, Client, Context, Worker, step, workflow
from pgwf_sdk.embedded import EmbeddedServer
from tests.support import wait_for_status

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pgwf_sdk import Workflow

HOT = "pgwf worker"
SIDE = "pgwf worker side"
SOON = timedelta(seconds=30)
# Every statement is a transaction of its own there, so statements are round trips and commits alike.
LOGGED = {"log_statement": "all", "log_line_prefix": "%a|", "logging_collector": "off"}


@step
def plain(x: int) -> int:
    return x + 1


@step
async def quick(x: int) -> int:
    return x + 1


@workflow
def sync_steps(ctx: Context, count: int) -> int:
    x = 0
    for _ in range(count):
        x = ctx.step(plain, x)
    return x


@workflow
async def async_steps(ctx: AsyncContext, count: int) -> int:
    x = 0
    for _ in range(count):
        x = await ctx.step(quick, x)
    return x


@workflow
async def side_by_side(ctx: AsyncContext, count: int) -> int:
    return sum(await ctx.map(quick, list(range(count))))


@workflow
def deferred_steps(ctx: Context, count: int) -> int:
    x = 0
    for _ in range(count):
        x = ctx.step(plain.options(durability="deferred"), x)
    return x


@workflow
async def async_deferred_steps(ctx: AsyncContext, count: int) -> int:
    x = 0
    for _ in range(count):
        x = await ctx.step(quick.options(durability="deferred"), x)
    return x


@workflow
def waits_for_signal(ctx: Context) -> int:
    return ctx.wait_signal("go", int)


class LoggedServer:
    """A server that logs each statement with the name of the connection it came on."""

    def __init__(self, dsn: str, log: Path) -> None:
        self.dsn = dsn
        self._log = log

    def statements(self) -> Counter[str]:
        """Statements so far, by connection name."""
        text = self._log.read_text(errors="replace")
        names = [line.partition("|")[0] for line in text.splitlines() if "execute" in line or "statement:" in line]
        return Counter(names)

    def claims(self) -> int:
        """Calls so far that only claim; their commits do not wait for the disk."""
        return sum("'synchronous_commit', 'off'" in line for line in self._log.read_text(errors="replace").splitlines())


@pytest.fixture(scope="module")
def logged_server() -> Iterator[LoggedServer]:
    programs = os.environ.get("PGWF_TEST_PG_BIN")
    home = Path(tempfile.mkdtemp(prefix="pgwf-", dir="/tmp"))
    home.chmod(0o755)
    with EmbeddedServer(home, binaries=Path(programs) if programs else None, settings=LOGGED) as server:
        with psycopg.connect(server.dsn) as conn:
            pgwf_sql.install(conn)
        yield LoggedServer(server.dsn, home / "server.log")
    shutil.rmtree(home, ignore_errors=True)


@contextmanager
def working(client: Client, *workflows: Workflow[..., int]) -> Iterator[None]:
    """A worker with a poll so long that only work and wake-ups make it ask."""
    worker = Worker(client, workflows=workflows, poll=timedelta(minutes=5))
    thread = threading.Thread(target=worker.run, daemon=True)
    thread.start()
    try:
        yield
    finally:
        worker.stop()
        thread.join(30)


@pytest.mark.parametrize("definition", [sync_steps, async_steps], ids=["sync", "async"])
@pytest.mark.parametrize("count", [1, 10])
def test_a_lone_run_costs_a_statement_a_step_one_for_its_claim_and_one_for_its_end(
    logged_server: LoggedServer, definition: Workflow[[int], int], count: int
) -> None:
    """Ten steps are twelve round trips; the disk is waited for eleven times, because a claim does not."""
    runs_count = 9
    spent: list[int] = []
    claims: list[int] = []
    with Client(logged_server.dsn) as client, working(client, definition):
        client.start(definition(count)).result(timeout=SOON)  # by now lines are numbered and the worker is warm
        for _ in range(runs_count):
            before, claims_before = logged_server.statements()[HOT], logged_server.claims()
            assert client.start(definition(count)).result(timeout=SOON) == count
            spent.append(logged_server.statements()[HOT] - before)
            claims.append(logged_server.claims() - claims_before)

    # Now and then a claim that the machine made slow is followed by one that looks at everything.
    assert sorted(spent)[runs_count // 2] == count + 2
    assert max(spent) <= count + 4
    assert sorted(claims)[runs_count // 2] == 1


def test_a_run_that_comes_while_another_is_worked_on_is_claimed_at_once_and_for_no_further_statement(
    logged_server: LoggedServer,
) -> None:
    inside, let_out = threading.Event(), threading.Event()

    @step
    def stay() -> int:
        inside.set()
        assert let_out.wait(60)
        return 1

    @workflow
    def staying(ctx: Context) -> int:
        return ctx.step(stay)

    with Client(logged_server.dsn) as client, working(client, staying, sync_steps):
        client.start(sync_steps(1)).result(timeout=SOON)
        first = client.start(staying())
        assert inside.wait(60)
        before = logged_server.statements()

        assert client.start(sync_steps(1)).result(timeout=SOON) == 1

        spent = logged_server.statements() - before
        let_out.set()
        assert first.result(timeout=SOON) == 1
    assert spent[HOT] <= 4
    assert spent[SIDE] == 0, "it asks for nothing that it has asked for"


@pytest.mark.parametrize("definition", [deferred_steps, async_deferred_steps], ids=["sync", "async"])
def test_a_lone_run_of_deferred_steps_costs_a_statement_for_its_claim_and_one_for_its_end(
    logged_server: LoggedServer, definition: Workflow[[int], int]
) -> None:
    runs_count, steps_count = 5, 10
    with Client(logged_server.dsn) as client, working(client, definition):
        client.start(definition(steps_count)).result(timeout=SOON)
        before = logged_server.statements()[HOT]

        run_ids: list[str] = []
        for _ in range(runs_count):
            run = client.start(definition(steps_count))
            assert run.result(timeout=SOON) == steps_count
            run_ids.append(run.run_id)

        spent = logged_server.statements()[HOT] - before
    with psycopg.connect(logged_server.dsn) as db:
        commits = db.execute(
            "select count(distinct e.xmin::text) from pgwf_journal.entry e join pgwf_sdk.run r on r.n = e.n"
            " where r.run_id = any (%s) group by e.n",
            [run_ids],
        ).fetchall()
    assert commits == [(2,)] * runs_count, "the start, and ten steps with the end"
    assert spent <= runs_count * 5  # As above, without the steps.


def test_steps_that_run_side_by_side_share_their_commits(logged_server: LoggedServer) -> None:
    count = 50
    with Client(logged_server.dsn) as client, working(client, side_by_side):
        client.start(side_by_side(count)).result(timeout=SOON)
        before = logged_server.statements()[HOT]

        assert client.start(side_by_side(count)).result(timeout=SOON) == sum(range(1, count + 1))

        spent = logged_server.statements()[HOT] - before
    assert spent < count / 2


def test_starting_a_run_is_one_statement(logged_server: LoggedServer) -> None:
    with Client(f"{logged_server.dsn}&application_name=starter") as client:
        client.start(sync_steps(1))
        before = logged_server.statements()["starter"]

        client.start(sync_steps(1))

        assert logged_server.statements()["starter"] - before == 1


def test_naming_what_a_parked_run_waits_for_costs_no_statement(logged_server: LoggedServer) -> None:
    with Client(logged_server.dsn) as client, working(client, waits_for_signal):
        run = client.start(waits_for_signal())
        wait_for_status(run, "waiting")

        with psycopg.connect(logged_server.dsn) as db:
            naming, parking = db.execute(
                "select e.xmin::text, j.xmin::text from pgwf_journal.entry e join pgwf.job j on j.n = e.n"
                " where e.kind = %s and e.phase = %s",
                [Kind.SIGNAL, Phase.OPENED],
            ).fetchone() or (None, None)
        run.signal("go", 7)

        assert run.result(timeout=SOON) == 7
    assert naming == parking, "written by one transaction"
