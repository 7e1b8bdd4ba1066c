"""Code and types that change while runs are open: what a journal bears, and what blocks its run."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import pytest
from msgspec import Struct

from pgwf_sdk import AsyncContext, Context, RunCancelled, Workflow, step, workflow
from pgwf_sdk._errors import Suspend
from pgwf_sdk.replay import Blocked, Completed, Suspended
from tests.sdk.replay.driver import Driver


@step
def weigh(parcel: int) -> int:
    return 10 * parcel


def looping(form: str, count: int) -> Workflow[[], int]:
    @workflow(name="looping")
    def program(ctx: Context) -> int:
        return sum(ctx.step(weigh, number) for number in range(count))

    @workflow(name="looping")
    async def async_program(ctx: AsyncContext) -> int:
        return sum([await ctx.step(weigh, number) for number in range(count)])

    return program if form == "sync" else async_program


@pytest.mark.parametrize("form", ["sync", "async"])
def test_calls_of_one_name_in_a_loop_are_counted_and_one_fewer_is_noticed(form: str) -> None:
    before = Driver(looping(form, 4)())
    before.run()
    assert before.keys() == [f"/step:weigh#{number}" for number in (1, 2, 3, 4)]

    fewer = Driver(looping(form, 3)(), journal=list(before.journal)).run()
    more = Driver(looping(form, 5)(), journal=list(before.journal))

    assert isinstance(fewer, Blocked)
    assert fewer.report["class"] == "returned_early"
    assert fewer.report["expected"]["key"] == "/step:weigh#4"
    assert isinstance(more.run(), Completed)
    assert more.keys()[-1] == "/step:weigh#5"


class First(Struct, tag="Parcel"):
    code: str
    grams: int
    colour: str = "brown"


class WithMore(Struct, tag="Parcel"):
    code: str
    grams: int
    colour: str
    stamps: tuple[str, ...] = ()


class WithLess(Struct, tag="Parcel"):
    code: str


class Wider(Struct, tag="Parcel"):
    code: str
    grams: float | str


class WithMissing(Struct, tag="Parcel"):
    code: str
    price: int


class Narrower(Struct, tag="Parcel"):
    code: str
    grams: bool


@dataclass
class AsDataclass:
    code: str
    grams: int
    tags: list[str] = field(default_factory=list[str])


def packing(kind: Any) -> Workflow[[], str]:
    def pack() -> Any:
        return First("a", 7)

    pack.__annotations__["return"] = kind
    packed = step(name="pack")(pack)

    @workflow(name="packing")
    def program(ctx: Context) -> str:
        found = ctx.step(packed)
        ctx.sleep(timedelta(days=1))
        return str(found.code)

    return program


@pytest.mark.parametrize("kind", [WithMore, WithLess, Wider, AsDataclass])
def test_a_type_may_gain_fields_with_defaults_lose_fields_and_widen(kind: Any) -> None:
    before = Driver(packing(First)(), suspend_after=2)
    assert isinstance(before.run(), Suspended)

    after = Driver(packing(kind)(), journal=list(before.journal))

    assert after.run() == Completed(b'"a"', 1)


@pytest.mark.parametrize("kind", [WithMissing, Narrower])
def test_a_value_that_no_longer_fits_blocks_its_run_until_a_type_that_fits_is_back(kind: Any) -> None:
    before = Driver(packing(First)(), suspend_after=2)
    before.run()

    blocked = Driver(packing(kind)(), journal=list(before.journal)).run()

    assert isinstance(blocked, Blocked)
    assert blocked.report["class"] == "undecodable"
    assert blocked.report["expected"]["key"] == "/step:pack#1"
    assert Driver(packing(WithMore)(), journal=list(before.journal)).run() == Completed(b'"a"', 1)


def test_the_arguments_of_a_run_may_gain_parameters_with_defaults_and_nothing_else() -> None:
    @workflow(name="taking")
    def taking(ctx: Context, number: int) -> int:
        return ctx.step(weigh, number)

    @workflow(name="taking")
    def taking_more(ctx: Context, number: int, factor: int = 2) -> int:
        return factor * ctx.step(weigh, number)

    @workflow(name="taking")
    def taking_another(ctx: Context, amount: int, *, unit: str) -> int:
        return amount

    before = Driver(taking(number=3), suspend_after=1)
    before.run()

    assert Driver(taking_more(3), journal=list(before.journal)).run() == Completed(b"60", 1)
    blocked = Driver(taking_another(3, unit="g"), journal=list(before.journal)).run()
    assert isinstance(blocked, Blocked)
    assert blocked.report["class"] == "undecodable"
    assert "missing a required argument: 'amount'" in blocked.report["detail"]


def test_a_gather_that_returns_exceptions_never_gets_hold_of_a_suspension() -> None:
    seen: list[Any] = []

    @workflow
    async def program(ctx: AsyncContext) -> None:
        try:
            seen.append(await asyncio.gather(ctx.step(weigh, 1), ctx.wait_signal("go", int), return_exceptions=True))
        except BaseException as error:
            seen.append(error)
            raise

    driver = Driver(program())

    assert isinstance(driver.run(), Suspended)
    assert not [one for one in seen if isinstance(one, Suspend | RunCancelled | list)]
    driver.signals["go"] = [7]
    assert isinstance(driver.run(), Completed)
    assert seen[-1] == [10, 7]
