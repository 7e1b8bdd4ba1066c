"""A spawned child's handle knows the child's id, in every replay and in runs that took its journal over."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from pgwf_sdk import AsyncContext, Context, NonRetryable, RunFailedError, current_step, step, workflow

if TYPE_CHECKING:
    from uuid import UUID

    from pgwf_sdk import Workflow
    from pgwf_sdk.testing import Environment


@workflow
def ship(ctx: Context, parcel: str) -> str:
    return f"{ctx.run_id} ships {parcel}"


@step
def pay() -> None:
    raise AssertionError("it is mocked")


def branch(ctx: Context) -> str:
    child = ctx.spawn(ship("c"))
    child.result()
    return child.run_id


@workflow
def order(ctx: Context) -> list[str]:
    first, named = ctx.spawn(ship("a")), ctx.spawn(ship("b"), run_id="parcel-b")
    (branched,) = ctx.parallel(branch)
    results = [first.result(), named.result()]
    ctx.step(pay)
    return [first.run_id, named.run_id, branched, *results]


async def async_branch(ctx: AsyncContext) -> str:
    child = ctx.spawn(ship("c"))
    await child.result()
    return child.run_id


@workflow
async def async_order(ctx: AsyncContext) -> list[str]:
    first, named = ctx.spawn(ship("a")), ctx.spawn(ship("b"), run_id="parcel-b")
    (branched,) = await ctx.parallel(async_branch)
    results = [await first.result(), await named.result()]
    await ctx.step(pay)
    return [first.run_id, named.run_id, branched, *results]


@pytest.mark.parametrize("definition", [order, async_order], ids=lambda definition: definition.name)
def test_a_spawned_child_is_called_as_its_handle_says(env: Environment, definition: Workflow[[], list[str]]) -> None:
    env.mock(pay, returns=None)
    run = env.start(definition(), run_id="order-2")

    first, named, branched, *results = env.result(run)
    assert (first, named, branched) == ("order-2/ship#1", "parcel-b", "order-2/branch:parallel#1[0]/ship#1")
    assert results == ["order-2/ship#1 ships a", "parcel-b ships b"]
    assert {child.run_id for child in env.client.list(parent_run_id="order-2")} == {first, named, branched}


@pytest.mark.parametrize("definition", [order, async_order], ids=lambda definition: definition.name)
def test_a_retry_and_a_fork_name_the_children_whose_results_they_took_over(
    env: Environment, definition: Workflow[[], list[str]]
) -> None:
    env.mock(pay, outcomes=[NonRetryable("no money"), None, None])
    run = env.start(definition(), run_id="order-2")
    with pytest.raises(RunFailedError):
        env.result(run)

    retried = env.result(env.client.retry("order-2", definition))
    forked = env.result(env.client.fork("order-2~2", definition, before="/step:pay#1"))

    names = ["order-2/ship#1", "parcel-b", "order-2/branch:parallel#1[0]/ship#1"]
    assert retried[:3] == forked[:3] == names


def test_a_child_of_a_chains_second_run_is_called_as_its_handle_says(env: Environment) -> None:
    @workflow
    def chain(ctx: Context, is_first: bool) -> list[str]:
        if is_first:
            ctx.continue_as_new(chain(False))
        spawned = ctx.spawn(ship("a")), ctx.spawn(ship("b"), run_id="parcel-b")
        return [word for child in spawned for word in (child.run_id, child.result().partition(" ")[0])]

    told = env.run(chain(True), run_id="order-2")

    assert told == ["order-2~2/ship#1"] * 2 + ["parcel-b~2"] * 2


def test_a_retry_and_a_fork_have_new_idempotency_keys(env: Environment) -> None:
    seen: list[UUID] = []

    @step
    def charge() -> None:
        seen.append(current_step().idempotency_key)
        if len(seen) <= 2:
            raise OSError("the bank does not answer") if len(seen) == 1 else NonRetryable("given up")

    @workflow
    def paying(ctx: Context) -> Any:
        ctx.step(charge)

    with pytest.raises(RunFailedError):
        env.run(paying(), run_id="order-17")
    env.result(env.client.retry("order-17", paying))
    env.result(env.client.fork("order-17", paying, before="/step:charge#1"))

    first, again, retried, forked = seen
    assert first == again, "attempts of one run"
    assert len({again, retried, forked}) == 3
