"""Deferred steps in whole workflows: what is recorded with what, and that a crash repeats them and loses nothing."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest
from psycopg import Connection

from pgwf_sdk import (
    AsyncContext,
    Context,
    DefinitionError,
    RetryPolicy,
    RunCancelled,
    RunCancelledError,
    RunFailedError,
    step,
    workflow,
)

if TYPE_CHECKING:
    from pgwf_sdk import Workflow
    from pgwf_sdk.testing import Environment

ONCE = RetryPolicy(max_attempts=1)


@step(durability="deferred")
def grow(number: int) -> int:
    return number + 1


@step(durability="deferred")
async def agrow(number: int) -> int:
    return number + 1


@step(durability="deferred", retry=ONCE)
def refuse(number: int) -> int:
    raise ValueError(number)


@step
def book(number: int) -> int:
    return number * 10


def refused(ctx: Context) -> str:
    try:
        ctx.step(refuse, 7)
    except ValueError as error:
        return f"refused {error}"
    return "taken"


@workflow
def sync_mixed(ctx: Context, count: int) -> list[Any]:
    number = 0
    for _ in range(count):
        number = ctx.step(grow, number)
    booked = ctx.step(book, number)
    side = ctx.parallel(
        lambda ctx: ctx.step(agrow, booked),
        lambda ctx: ctx.step(book, ctx.step(grow, 1)),
        lambda ctx: ctx.step(grow, 5),
    )
    ctx.sleep(timedelta(hours=1))
    late = refused(ctx)
    return [number, side, late, ctx.map(grow, [1, 2, 3]), ctx.call(child(ctx.step(grow, 1))), ctx.random.random()]


@workflow
def child(ctx: Context, number: int) -> int:
    return ctx.step(grow, number) + ctx.step(grow, number)


@workflow
async def async_mixed(ctx: AsyncContext, count: int) -> list[Any]:
    number = 0
    for _ in range(count):
        number = await ctx.step(agrow, number)
    booked = await ctx.step(book, number)
    side = await ctx.parallel(
        lambda ctx: ctx.step(agrow, booked), lambda ctx: ctx.step(book, 2), lambda ctx: ctx.step(grow, 5)
    )
    await ctx.sleep(timedelta(hours=1))
    return [number, side, await ctx.map(grow, [1, 2, 3]), await ctx.call(child(1)), ctx.random.random()]


def commits(env: Environment, run_id: str) -> list[list[str]]:
    """The keys of a run's entries by the transaction that wrote them, in order."""
    with env.client.connection() as connection:
        rows = connection.execute(
            "select e.xmin::text, pgwf_journal.entry_key(e.scope, e.kind, e.name, e.occurrence)"
            " from pgwf_journal.entry e join pgwf_sdk.run r on r.n = e.n where r.run_id = %s order by e.seq",
            [run_id],
        ).fetchall()
    grouped: dict[str, list[str]] = {}
    for transaction, key in rows:
        grouped.setdefault(transaction, []).append(key)
    return list(grouped.values())


@pytest.mark.parametrize("mixed", [sync_mixed, async_mixed], ids=["sync", "async"])
def test_a_story_with_deferred_steps_ends_alike_wherever_its_worker_is_killed(
    env: Environment, mixed: Workflow[[int], list[Any]]
) -> None:
    report = env.crash_everywhere(mixed(4))

    assert len(report.cuts) == 2 * report.append_count >= 10


def test_deferred_steps_share_the_commit_of_the_step_or_the_end_that_comes_next(env: Environment) -> None:
    @workflow
    def ten(ctx: Context) -> int:
        number = 0
        for _ in range(5):
            number = ctx.step(grow, number)
        ctx.step(book, number)
        for _ in range(5):
            number = ctx.step(grow, number)
        return number

    assert env.run(ten(), run_id="ten") == 10

    first = [f"/step:grow#{i}" for i in range(1, 6)]
    second = [f"/step:grow#{i}" for i in range(6, 11)]
    name = ten.name
    assert commits(env, "ten") == [
        [f"/run:{name}#1"],
        [*first, "/step:book#1"],
        [*second, f"/run:{name}#1"],
    ]


@workflow
def goes_on(ctx: Context, number: int) -> int:
    number = ctx.step(grow, number)
    if number < 3:
        ctx.continue_as_new(goes_on(number))
    return number


@workflow
def fails(ctx: Context, number: int) -> int:
    raise LookupError(ctx.step(grow, number))


@workflow
def waits(ctx: Context, number: int) -> int:
    number = ctx.step(grow, number)
    return number + ctx.wait_signal("more", int)


@workflow
def cleans_up(ctx: Context, number: int) -> int:
    try:
        ctx.wait_signal("never", int)
    except RunCancelled:
        ctx.step(grow, number)
        raise
    return number


@workflow(need="home")
def hops(ctx: Context, number: int) -> int:
    number = ctx.step(grow, number)
    ctx.hop("gpu")
    return ctx.step(grow, number)


def test_a_run_that_goes_on_as_another_takes_its_deferred_steps_into_the_commit_that_ends_it(env: Environment) -> None:
    run = env.start(goes_on(0), run_id="chain")

    assert env.result(run) == 3
    assert commits(env, "chain")[-1] == ["/step:grow#1", "/run:goes_on#1"]


def test_a_run_that_fails_has_its_deferred_steps_in_its_journal(env: Environment) -> None:
    with pytest.raises(RunFailedError, match="1"):
        env.run(fails(0), run_id="failing")

    assert commits(env, "failing")[-1] == ["/step:grow#1", "/run:fails#1"]


def test_a_run_that_waits_has_its_deferred_steps_in_its_journal_and_does_not_do_them_again(env: Environment) -> None:
    mock = env.mock(grow, lambda number: number + 1)
    run = env.start(waits(0), run_id="waiting")
    assert commits(env, "waiting")[-1] == ["/step:grow#1", "/signal:more#1"]

    run.signal("more", 41)

    assert (env.result(run), mock.call_count) == (42, 1)


def test_a_run_that_is_cancelled_has_its_deferred_cleanup_in_its_journal(env: Environment) -> None:
    run = env.start(cleans_up(0), run_id="cancelled")

    run.cancel(reason="changed her mind")

    with pytest.raises(RunCancelledError):
        env.result(run)
    assert commits(env, "cancelled")[-1] == ["/step:grow#1", "/run:cleans_up#1"]


def test_a_run_that_hops_takes_its_deferred_steps_into_the_commit_of_the_hop(env: Environment) -> None:
    env.start(hops(0), run_id="hopping")

    assert ["/step:grow#1", "/hop:gpu#1"] in commits(env, "hopping")


def insert(connection: Connection[Any], number: int) -> int:
    connection.execute("create table if not exists public.noted (number int)")
    connection.execute("insert into public.noted values (%s)", [number])
    return number


def test_a_transaction_takes_the_deferred_steps_before_it_into_its_commit(env: Environment) -> None:
    @workflow(name="booking")
    def booking(ctx: Context) -> int:
        return ctx.transaction(insert, ctx.step(grow, 0))

    assert env.run(booking(), run_id="booked") == 1

    assert commits(env, "booked")[1] == ["/step:grow#1", "/step:insert#1"]


def test_a_deferred_step_is_refused_where_its_end_must_be_recorded(env: Environment) -> None:
    @workflow
    def in_a_transaction(ctx: Context) -> int:
        return ctx.transaction(step(durability="deferred")(insert), 1)

    @workflow
    def at_the_end(ctx: Context) -> None:
        ctx.on_exit(grow, 1)

    for call, expected in (
        (in_a_transaction(), "step 'insert' has durability=\"deferred\" and is run in a transaction"),
        (at_the_end(), "ctx.on_exit: step 'grow' has durability"),
    ):
        with pytest.raises(RunFailedError, match=expected) as failed:
            env.run(call)
        assert isinstance(failed.value.__cause__, DefinitionError)
