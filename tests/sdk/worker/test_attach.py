"""Runs that wait for runs they do not own, on real workers: values, errors, time, chains, and what becomes of both."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from pgwf_sdk import (
    AsyncContext,
    Client,
    Context,
    RetryPolicy,
    RunCancelledError,
    RunCycleError,
    RunFailedError,
    RunNotFoundError,
    RunTerminatedError,
    WaitTimeoutError,
    ops,
    step,
    workflow,
)
from pgwf_sdk.ops import RowState
from tests.support import wait_for_status, wait_until

if TYPE_CHECKING:
    import psycopg

    from pgwf_sdk import Run, Workflow
    from tests.sdk.worker.conftest import StartWorker
    from tests.support import Clock

SOON = timedelta(seconds=30)


class OutOfStockError(Exception):
    pass


@dataclass
class Receipt:
    cents: int


@step(retry=RetryPolicy(max_attempts=1))
def sell(cents: int) -> Receipt:
    if cents < 0:
        raise OutOfStockError(cents)
    return Receipt(cents)


@workflow
def order(ctx: Context) -> Receipt:
    return ctx.step(sell, ctx.wait_signal("pay", int))


@workflow
def counting(ctx: Context, left: int) -> int:
    number = ctx.wait_signal("on", int)
    if left:
        ctx.continue_as_new(counting(left - 1))
    return number


@workflow
def watch(ctx: Context, run_id: str) -> list[str]:
    try:
        return ["sold", str(ctx.attach(run_id, order).cents)]
    except RunFailedError as error:
        return [type(error).__name__, type(error.__cause__).__name__]
    except (RunCancelledError, RunTerminatedError, RunNotFoundError, RunCycleError) as error:
        return [type(error).__name__, str(error)]


@workflow
async def awatch(ctx: AsyncContext, run_id: str) -> list[str]:
    try:
        return ["sold", str((await ctx.attach(run_id, order)).cents)]
    except RunFailedError as error:
        return [type(error).__name__, type(error.__cause__).__name__]
    except (RunCancelledError, RunTerminatedError, RunNotFoundError, RunCycleError) as error:
        return [type(error).__name__, str(error)]


@workflow
def patient(ctx: Context, run_id: str) -> str:
    try:
        return str(ctx.attach(run_id, timeout=timedelta(seconds=1.5)))
    except WaitTimeoutError as error:
        return str(error)


@workflow
async def first_of(ctx: AsyncContext, run_id: str) -> list[Any]:
    waiting = [asyncio.create_task(ctx.attach(run_id)), asyncio.create_task(ctx.wait_signal("go", str))]
    done, left = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
    for task in left:
        task.cancel()
    await ctx.wait_signal("end", str)
    return [task.result() for task in done]


@workflow
def last(ctx: Context, run_id: str) -> int:
    number: int = ctx.attach(run_id, counting)
    return number


@workflow
def crossed(ctx: Context, run_id: str) -> str:
    try:
        return f"heard {ctx.attach(run_id, crossed)}"
    except RunCycleError:
        return "refused"


@workflow
def itself(ctx: Context) -> str:
    try:
        return str(ctx.attach(ctx.run_id))
    except RunCycleError as error:
        return str(error)


@workflow
def renewed(ctx: Context, run_id: str) -> str:
    if ctx.run_id == run_id:
        ctx.continue_as_new(renewed(run_id))
    try:
        return str(ctx.attach(run_id))
    except RunCycleError as error:
        return str(error)


both = pytest.mark.parametrize("watching", [watch, awatch], ids=["sync", "async"])


def attached_count(db: psycopg.Connection[Any]) -> int:
    row = db.execute("select count(*) from pgwf_sdk.attachment").fetchone()
    assert row is not None
    return int(row[0])


def waits(run: Run[Any]) -> None:
    wait_for_status(run, "waiting")


@both
def test_a_run_gets_what_another_returns_or_how_it_ended(
    client: Client, start_worker: StartWorker, watching: Workflow[[str], list[str]]
) -> None:
    start_worker(order, watching)
    orders = {name: client.start(order(), run_id=name) for name in ("sold", "failing", "cancelled", "terminated")}
    watchers = {name: client.start(watching(name)) for name in orders}
    for run in (*orders.values(), *watchers.values()):
        waits(run)

    orders["sold"].signal("pay", 7)
    orders["failing"].signal("pay", -1)
    orders["cancelled"].cancel(by="ann", reason="changed her mind")
    orders["terminated"].terminate(by="ann")

    found = {name: run.result(SOON) for name, run in watchers.items()}
    assert found["sold"] == ["sold", "7"]
    assert found["failing"] == ["RunFailedError", "OutOfStockError"]
    assert found["cancelled"][0] == "RunCancelledError"
    assert "changed her mind" in found["cancelled"][1]
    assert found["terminated"][0] == "RunTerminatedError"


@both
def test_a_run_that_was_over_before_answers_at_once_and_a_client_that_attaches_sees_the_same(
    client: Client, start_worker: StartWorker, watching: Workflow[[str], list[str]]
) -> None:
    start_worker(order, watching)
    client.start(order(), run_id="over").signal("pay", 7)
    assert client.get("over", order).result(SOON) == Receipt(7)

    assert client.start(watching("over")).result(SOON) == ["sold", "7"]


@both
def test_a_run_that_is_not_there_or_is_oneself_is_an_error(
    client: Client, start_worker: StartWorker, watching: Workflow[[str], list[str]]
) -> None:
    start_worker(watching, itself)

    name, message = client.start(watching("nobody")).result(SOON)

    assert (name, message[:31]) == ("RunNotFoundError", "ctx.attach: no run 'nobody'; ex")
    own = client.start(itself(), run_id="me").result(SOON)
    assert own.startswith("ctx.attach: run 'me' is this run itself, and cannot wait for its own end; attach to another")


def test_a_run_that_went_on_is_told_that_its_chain_is_itself(client: Client, start_worker: StartWorker) -> None:
    start_worker(renewed)

    said = client.start(renewed("me"), run_id="me").result(SOON)

    assert said.startswith("ctx.attach: run 'me' is this run itself")


def test_of_two_runs_that_attach_to_each_other_the_second_is_refused_and_the_first_hears_of_its_end(
    client: Client, start_worker: StartWorker
) -> None:
    one, two = client.start(crossed("two"), run_id="one"), client.start(crossed("one"), run_id="two")
    start_worker(crossed)

    assert sorted(run.result(SOON) for run in (one, two)) == ["heard refused", "refused"]


def test_cancelling_who_waits_leaves_the_other_run_alone(
    client: Client, start_worker: StartWorker, db: psycopg.Connection[Any]
) -> None:
    start_worker(order, watch)
    target, watcher = client.start(order(), run_id="target"), client.start(watch("target"))
    waits(target)
    waits(watcher)

    watcher.cancel()

    with pytest.raises(RunCancelledError):
        watcher.result(SOON)
    assert (target.status(), attached_count(db)) == ("waiting", 0)
    target.signal("pay", 3)
    assert target.result(SOON) == Receipt(3)


def test_a_wait_ends_after_its_timeout_and_the_run_goes_on(
    client: Client, start_worker: StartWorker, db: psycopg.Connection[Any]
) -> None:
    start_worker(order, patient)
    target = client.start(order(), run_id="target")

    assert client.start(patient("target")).result(SOON) == "run 'target' was not over within 1.5 seconds"

    assert (target.status(), attached_count(db)) == ("waiting", 0)


def test_a_wait_that_lost_a_race_hears_nothing_more(
    client: Client, start_worker: StartWorker, db: psycopg.Connection[Any]
) -> None:
    start_worker(order, first_of)
    target, run = client.start(order(), run_id="target"), client.start(first_of("target"))
    waits(run)
    run.signal("go", "now")
    wait_until(lambda: attached_count(db) == 0, "the wait is given up")

    target.signal("pay", 3)
    assert target.result(SOON) == Receipt(3)
    run.signal("end", "")

    assert run.result(SOON) == ["now"]


def test_a_chain_is_followed_to_its_end_by_a_run_and_by_a_client(client: Client, start_worker: StartWorker) -> None:
    start_worker(counting, last)
    chain = client.start(counting(2), run_id="chain")
    watcher = client.start(last("chain"))
    waits(watcher)

    for number in range(3):
        client.signal("chain", "on", number)

    assert (watcher.result(SOON), chain.result(SOON), client.get("chain~2", counting).result(SOON)) == (2, 2, 2)


def test_a_waiting_run_says_what_it_waits_for(client: Client, start_worker: StartWorker) -> None:
    start_worker(order, watch)
    client.start(order(), run_id="target")
    watcher = client.start(watch("target"), run_id="watcher")
    waits(watcher)

    words = ops.why_not_running(client, "watcher")

    assert "It waits for run 'target' to be over, since" in words
    assert "`pgwf why target`" in words
    (row,) = (row for row in ops.timeline(client, "watcher").rows if row.kind == "attach")
    assert (row.label, row.state) == ("other run order", RowState.OPEN)


def test_a_run_that_was_forgotten_after_its_end_is_no_trouble_for_who_was_attached(
    client: Client, start_worker: StartWorker, db: psycopg.Connection[Any], clock: Clock
) -> None:
    running = start_worker(order, watch)
    target, watcher = client.start(order(), run_id="target"), client.start(watch("target"))
    waits(watcher)
    running.stop()
    start_worker(order)  # Nobody here works on the run that is attached.
    target.signal("pay", 5)
    assert target.result(SOON) == Receipt(5)
    clock.advance(days=2)
    db.execute("select pgwf_sdk.retain('1 day', 100, '0')")
    with pytest.raises(RunNotFoundError):
        client.get("target")

    start_worker(watch)

    assert watcher.result(SOON) == ["sold", "5"]
    assert client.start(watch("target")).result(SOON)[0] == "RunNotFoundError"
