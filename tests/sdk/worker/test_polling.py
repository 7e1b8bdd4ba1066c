"""ctx.poll: asked until the answer will do, in one entry of the journal, and in no worker meanwhile."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import psycopg
import pytest

from pgwf_sdk import AsyncContext, Client, Context, RetryPolicy, WaitTimeoutError, step, workflow
from pgwf_sdk.replay import Completed
from tests.sdk.replay.driver import Driver
from tests.sdk.worker.conftest import StartWorker
from tests.support import wait_for_status

SOON = timedelta(seconds=30)
MOMENT = timedelta(milliseconds=20)
ANSWERS: list[Any] = []


def next_answer() -> str:
    answer = ANSWERS.pop(0)
    if isinstance(answer, Exception):
        raise answer
    return str(answer)


@step(retry=RetryPolicy(max_attempts=1, no_retry_on=(LookupError,)))
def status(order: str) -> str:
    return f"{order} {next_answer()}"


@step
async def astatus(order: str) -> str:
    return f"{order} {next_answer()}"


@workflow
def ship(ctx: Context, every: timedelta, timeout: timedelta) -> str:
    try:
        return ctx.poll(status, "17", until=lambda found: found.endswith("done"), every=every, timeout=timeout)
    except (WaitTimeoutError, LookupError, RuntimeError) as error:
        return f"{type(error).__name__}: {error}"


@workflow
async def aship(ctx: AsyncContext, every: timedelta, timeout: timedelta) -> str:  # noqa: ASYNC109 - the poll's
    try:
        return await ctx.poll(astatus, "17", until=lambda found: found.endswith("done"), every=every, timeout=timeout)
    except (WaitTimeoutError, LookupError, RuntimeError) as error:
        return f"{type(error).__name__}: {error}"


BOTH = pytest.mark.parametrize("program", [ship, aship])


def keys(db: psycopg.Connection[Any], run_id: str) -> list[str]:
    found = db.execute("select key from pgwf_journal.entries where journal_id = %s and kind = 'step'", [run_id])
    return [key for (key,) in found.fetchall()]


@BOTH
def test_a_poll_gives_the_first_answer_that_will_do_in_one_entry(
    client: Client, start_worker: StartWorker, db: psycopg.Connection[Any], program: Any
) -> None:
    ANSWERS[:] = ["new", "paid", RuntimeError("down for a moment"), "done", "never asked for"]
    start_worker(program)
    run = client.start(program(MOMENT, SOON))

    assert run.result(SOON) == "17 done"
    assert ANSWERS == ["never asked for"]
    assert len(keys(db, run.run_id)) == 1
    assert db.execute("select from pgwf_sdk.attempt").fetchall() == []


@BOTH
def test_a_poll_that_finds_nothing_in_time_says_what_it_saw_last(
    client: Client, start_worker: StartWorker, program: Any
) -> None:
    ANSWERS[:] = ["new"] * 1000
    start_worker(program)

    result = client.start(program(MOMENT, timedelta(milliseconds=200))).result(SOON)

    assert result.startswith("WaitTimeoutError: ")
    assert "did not give what is waited for within 0.2 seconds; its last answer: '17 new'" in result
    assert len(ANSWERS) > 980


def test_an_error_that_the_retry_policy_does_not_allow_ends_a_poll(client: Client, start_worker: StartWorker) -> None:
    ANSWERS[:] = ["new", LookupError("no such order"), "done"]
    start_worker(ship)

    assert client.start(ship(MOMENT, SOON)).result(SOON) == "LookupError: no such order"


def test_a_run_that_polls_is_in_no_worker_between_two_looks(
    client: Client, start_worker: StartWorker, db: psycopg.Connection[Any]
) -> None:
    ANSWERS[:] = ["new", "done"]
    start_worker(ship)
    run = client.start(ship(timedelta(hours=1), timedelta(days=1)))

    wait_for_status(run, "waiting")
    assert db.execute(
        "select a.next_at - a.first_at between interval '59 minutes' and interval '61 minutes' from pgwf_sdk.attempt a"
    ).fetchall() == [(True,)]
    assert keys(db, run.run_id) == []


@BOTH
def test_a_poll_is_replayed_from_its_one_entry(program: Any) -> None:
    ANSWERS[:] = ["done"]
    driver = Driver(program(MOMENT, SOON))

    outcome = driver.run()

    assert outcome == Completed(b'"17 done"', 1)
    assert driver.run() == outcome
    assert ANSWERS == []


@pytest.mark.parametrize(
    ("every", "timeout", "error"),
    [
        (timedelta(0), SOON, "ValueError: ctx.poll(every=0:00:00): expected longer than nothing"),
        (MOMENT, timedelta(0), "ValueError: ctx.poll(timeout=0:00:00): expected longer than nothing"),
        (1, SOON, "TypeError: ctx.poll(every=…): found 1; expected a timedelta"),
    ],
)
def test_a_poll_without_a_pace_or_an_end_is_refused(every: Any, timeout: Any, error: str) -> None:
    @workflow
    def program(ctx: Context) -> str:
        try:
            return ctx.poll(status, "17", until=bool, every=every, timeout=timeout)
        except (TypeError, ValueError) as refused:
            return f"{type(refused).__name__}: {refused}"

    driver = Driver(program())
    outcome = driver.run()

    assert isinstance(outcome, Completed)
    assert error in (outcome.payload or b"").decode()
    assert len(driver.journal) == 1
