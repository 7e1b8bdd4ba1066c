"""What a context gives at once, without a wait: time, chance, logs, attributes, patches; and who may use it."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

import pytest

from pgwf_journal import Kind
from pgwf_sdk import AsyncContext, Context, ContextError, DefinitionError, step, workflow
from pgwf_sdk.replay import Completed, Failed, RecordValue, RunStep
from tests.sdk.replay.driver import EPOCH, Driver


@dataclass
class Order:
    id: str
    tags: tuple[str, ...] = ()


@step
def charge(order: Order) -> Order:
    return Order(order.id, ("paid",))


@step
async def ship(order: Order) -> str:
    return f"shipped {order.id}"


@workflow
def child(ctx: Context, order: Order) -> Order:
    return ctx.step(charge, order)


def test_a_side_effect_is_made_once_and_its_failure_is_repeated() -> None:
    made: list[int] = []

    def look(number: int) -> int:
        made.append(number)
        if number < 0:
            raise ValueError(number)
        return number

    @workflow
    def program(ctx: Context) -> str:
        found = ctx.side_effect(look, 4)
        try:
            ctx.side_effect(look, -1)
        except ValueError as error:
            return f"{found} {error}"
        return ""

    driver = Driver(program())

    assert driver.run() == driver.run() == Completed(b'"4 -1"', 1)
    assert made == [4, -1]
    assert all(isinstance(command, RecordValue) and command.id.kind is Kind.VALUE for command in driver.commands)


def test_now_is_the_time_of_what_happened_last_and_stands_still_between_calls() -> None:
    seen: list[datetime] = []

    @workflow
    def program(ctx: Context) -> None:
        seen.append(ctx.now())
        ctx.sleep(timedelta(days=1))
        seen.extend((ctx.now(), ctx.now()))

    driver = Driver(program())
    driver.run()

    assert seen[0] == EPOCH
    assert seen[1] == seen[2] == driver.journal[-1].recorded_at > EPOCH + timedelta(days=1)


def test_random_numbers_and_uuids_are_the_same_in_a_replay_and_differ_between_runs_and_branches() -> None:
    seen: list[tuple[float, UUID]] = []

    @workflow
    def program(ctx: Context) -> None:
        def draw(ctx: Context) -> None:
            seen.append((ctx.random.random(), ctx.uuid4()))

        draw(ctx)
        ctx.parallel(draw, draw)
        ctx.sleep(timedelta(1))

    first, other = Driver(program()), Driver(program(), seed=18)
    first.run()
    first.run()
    other.run()

    assert seen[0:3] == seen[3:6]
    assert len({number for number, _ in seen}) == 6
    assert all(drawn.version == 4 for _, drawn in seen)


def test_a_line_is_logged_once_however_often_the_run_is_replayed(caplog: pytest.LogCaptureFixture) -> None:
    @workflow
    def program(ctx: Context) -> None:
        ctx.log.info("before")
        ctx.step(charge, Order("1"))
        ctx.log.info("between")
        ctx.sleep(timedelta(1))
        ctx.log.info("after")

    driver = Driver(program(), suspend_after=3)
    with caplog.at_level(logging.INFO):
        driver.run()
        driver.suspend_after = None
        driver.run()

    assert [record.getMessage() for record in caplog.records] == ["before", "between", "after"]
    assert caplog.records[0].__dict__["run_id"] == "run-1"


def test_attributes_are_recorded_with_the_next_commit_and_before_the_end() -> None:
    @workflow
    def program(ctx: Context) -> None:
        ctx.set_attribute("stage", "started")
        ctx.step(charge, Order("1"))
        ctx.set_attribute("stage", "done")

    driver = Driver(program())
    driver.run()

    assert [type(command) for command in driver.commands] == [RecordValue, RunStep, RecordValue]
    assert driver.keys() == ["/attribute:stage#1", "/step:charge#1", "/attribute:stage#2"]
    assert driver.run() == Completed(None, 0)
    assert len(driver.commands) == 3


def test_patched_takes_the_new_way_in_new_runs_and_the_old_in_runs_that_had_passed() -> None:
    def version(*, is_new: bool) -> Any:
        @workflow(name="program")
        def program(ctx: Context) -> str:
            way = "old"
            if is_new and ctx.patched("coupon"):
                ctx.step(charge, Order("coupon"))
                way = "new"
            ctx.step(ship, Order("1"))
            ctx.sleep(timedelta(1))
            return f"{way} {is_new and ctx.patched('coupon')}"

        return program()

    before = Driver(version(is_new=False), suspend_after=3)
    before.run()
    upgraded = Driver(version(is_new=True), journal=before.journal)
    fresh = Driver(version(is_new=True))

    assert upgraded.run() == Completed(b'"old False"', 1)
    assert fresh.run() == fresh.run() == Completed(b'"new True"', 1)
    assert [entry.key for entry in fresh.journal if entry.kind is Kind.PATCH] == ["/patch:coupon#1"]


def test_a_step_called_directly_in_a_workflow_is_an_error_and_elsewhere_calls_its_function() -> None:
    @workflow
    def program(ctx: Context) -> None:
        charge(Order("1"))

    outcome = Driver(program()).run()

    assert isinstance(outcome, Failed)
    assert b"expected ctx.step(charge" in outcome.payload
    assert charge(Order("1")) == Order("1", ("paid",))


def test_step_refuses_what_is_no_step() -> None:
    for mistake in (child, charge(Order("1")), lambda: 1):

        @workflow
        def program(ctx: Context, mistake: Any = mistake) -> None:
            ctx.step(mistake)

        outcome = Driver(program()).run()

        assert isinstance(outcome, Failed)
        assert DefinitionError.__qualname__.encode() in outcome.payload


def test_a_context_is_refused_after_its_run_has_ended() -> None:
    kept: list[Any] = []

    @workflow
    def program(ctx: Context) -> None:
        kept.append(ctx)

    @workflow
    async def async_program(ctx: AsyncContext) -> None:
        kept.append(ctx)

    Driver(program()).run()
    Driver(async_program()).run()

    for ctx in kept:
        with pytest.raises(ContextError):
            ctx.step(charge, Order("1"))
        with pytest.raises(ContextError):
            ctx.now()
