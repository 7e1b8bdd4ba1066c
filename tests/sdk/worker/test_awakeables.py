"""Awakeables with a real worker and clients: tokens that steps give away, completed from Python and from SQL."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import psycopg
import pytest
from msgspec import Struct

from pgwf_sdk import (
    AsyncClient,
    AsyncContext,
    AwakeableClosedError,
    AwakeableFailedError,
    AwakeableNotFoundError,
    Client,
    Context,
    RunFinishedError,
    WaitTimeoutError,
    step,
    workflow,
)
from tests.sdk.worker.conftest import StartWorker
from tests.support import wait_for_status, wait_until

SOON = timedelta(seconds=30)
TOKENS: list[str] = []


class Payment(Struct, frozen=True):
    cents: int


@step
def invoice(token: str, customer: str) -> None:
    del customer
    TOKENS.append(token)


@workflow
def pay(ctx: Context, timeout: timedelta | None) -> str:
    try:
        return f"{ctx.wait_for_callback(invoice, Payment, 'ann', timeout=timeout).cents}"
    except (AwakeableFailedError, WaitTimeoutError) as error:
        return f"{type(error).__name__}: {error}"


@workflow
async def apay(ctx: AsyncContext, limit: timedelta | None) -> str:
    promise = ctx.awakeable(Payment, timeout=limit, name="payment")
    await ctx.step(invoice, promise.token, "ann")
    try:
        return f"{(await promise.wait()).cents}"
    except (AwakeableFailedError, WaitTimeoutError) as error:
        return f"{type(error).__name__}: {error}"


@step
def tell(token: str, name: str) -> None:
    TOKENS.append(f"{name} {token}")


@workflow
def first_answer(ctx: Context) -> Any:
    """Two promises; the one that is not needed any more is given up with its branch."""

    def needed(ctx: Context) -> str:
        return ctx.wait_for_callback(tell, str, "needed")

    def lost(ctx: Context) -> str:
        raise LookupError(ctx.wait_for_callback(tell, str, "lost"))

    try:
        return ctx.parallel(needed, lost)
    except LookupError as error:
        ctx.wait_signal("end", bool)
        return str(error)


@pytest.fixture(autouse=True)
def tokens() -> None:
    TOKENS.clear()


def token(count: int = 1) -> str:
    """The token that was given away then, counted from 1."""
    return wait_until(lambda: TOKENS[count - 1 :], "the token is given away")[0]


@pytest.mark.parametrize("program", [pay, apay])
def test_a_promise_is_completed_by_whoever_has_its_token(
    client: Client, start_worker: StartWorker, program: Any
) -> None:
    start_worker(program)
    run = client.start(program(None))
    given = token()
    wait_for_status(run, "waiting")

    assert client.complete_awakeable(given, Payment(1200))
    assert run.result(SOON) == "1200"
    assert not client.complete_awakeable(given, Payment(1)), "a webhook that is sent again is no error"


@pytest.mark.parametrize("program", [pay, apay])
def test_a_promise_may_be_failed(client: Client, start_worker: StartWorker, program: Any) -> None:
    start_worker(program)
    run = client.start(program(None))

    assert client.fail_awakeable(token(), "insufficient funds")

    assert run.result(SOON) == "AwakeableFailedError: insufficient funds"


@pytest.mark.parametrize("program", [pay, apay])
def test_a_promise_that_is_completed_too_late_is_refused(
    client: Client, start_worker: StartWorker, program: Any
) -> None:
    start_worker(program)
    run = client.start(program(timedelta(milliseconds=200)))

    assert "was not completed within 0.2 seconds" in run.result(SOON)

    with pytest.raises((RunFinishedError, AwakeableClosedError)):
        client.complete_awakeable(token(), Payment(1))
    with pytest.raises(AwakeableNotFoundError, match=r"awk_abcd\.\.\."):
        client.complete_awakeable("awk_abcdefgh", Payment(1))


def test_a_webhook_completes_a_promise_with_sql_alone(
    client: Client, start_worker: StartWorker, db: psycopg.Connection[Any]
) -> None:
    """What the reference of the SQL functions says works, in a trigger, in the transaction of the row that tells it."""
    db.execute("create table bank_message (token text, cents int)")
    db.execute(
        """
        create function told() returns trigger language plpgsql as $$
        begin
          perform pgwf_sdk.complete_awakeable(new.token, jsonb_build_object('cents', new.cents));
          return new;
        end $$;
        create trigger told after insert on bank_message for each row execute function told()
        """
    )
    start_worker(pay)
    run = client.start(pay(None))
    given = token()

    with db.transaction(force_rollback=True):
        db.execute("insert into bank_message values (%s, 1)", [given])
    db.execute("insert into bank_message values (%s, 990)", [given])

    assert run.result(SOON) == "990"


def test_a_promise_of_a_branch_that_was_cancelled_is_closed(
    client: Client, start_worker: StartWorker, db: psycopg.Connection[Any]
) -> None:
    start_worker(first_answer)
    run = client.start(first_answer())
    wait_until(lambda: len(TOKENS) == 2, "both are given away")
    given = {name: token for name, _, token in (one.partition(" ") for one in TOKENS)}

    client.complete_awakeable(given["lost"], "that was it")
    given_up = "select from pgwf_sdk.awakeable where state = 'cancelled'"
    wait_until(lambda: db.execute(given_up).fetchall(), "the other branch has ended")

    with pytest.raises(AwakeableClosedError, match="its run waits for it no longer"):
        client.complete_awakeable(given["needed"], "too late")
    run.signal("end", True)
    assert run.result(SOON) == "that was it"


def test_the_async_client_completes_and_fails_promises_too(dsn: str, client: Client, start_worker: StartWorker) -> None:
    start_worker(pay)

    async def answer() -> tuple[bool, bool]:
        async with AsyncClient(dsn) as other:
            run = await other.start(pay(None))
            given = await asyncio.to_thread(token)
            answered = await other.complete_awakeable(given, Payment(5)), await other.fail_awakeable(given, "late")
            assert await run.result(SOON) == "5"
            return answered

    assert asyncio.run(answer()) == (True, False)
