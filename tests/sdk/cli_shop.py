"""Workflows that the command line's tests start by name or by module."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import dataclass
from datetime import date, timedelta
from decimal import Decimal
from typing import Annotated, Any, TypedDict

from msgspec import Meta, Struct

from pgwf_sdk import Context, Workflow, step, workflow


class Approve(Struct, tag="approve"):
    """Pay it."""

    cents: Annotated[int, Meta(ge=1)]
    note: str | None = None


class Reject(Struct, tag="reject"):
    """Do not pay it."""

    reason: str


class Parcel(Struct):
    """What a carrier sends."""

    weight: float
    code: str


class Line(TypedDict):
    """A line of an order."""

    sku: str
    count: int


@dataclass
class Order:
    """What a customer wants."""

    cents: int
    total: Decimal
    due: date
    lines: list[Line]
    parcel: Parcel | None = None
    is_gift: bool = False
    note: str = ""


@step
def double(number: int) -> int:
    return 2 * number


@step
def fail(number: int) -> int:
    raise ValueError(f"{number} is too many")


@step
def describe(order: Order) -> str:
    return repr(order)


@workflow
def doubling(ctx: Context, number: int, label: str = "") -> str:
    return f"{label}{ctx.step(double, number)}"


@workflow
def failing(ctx: Context, number: int) -> int:
    return ctx.step(fail.options(name="fail"), number)


@workflow
def ordering(ctx: Context, order: Order) -> str:
    return ctx.step(describe, order)


@workflow
def delivering(ctx: Context) -> float:
    return ctx.wait_signal("delivered", Parcel).weight


@workflow
def refunding(ctx: Context, cents: int) -> str:
    verdict = ctx.human("refund", {"cents": cents}, Approve | Reject, need="human.review", title="Refund it?")
    if isinstance(verdict.value, Approve):
        return f"{verdict.by} paid {verdict.value.cents}"
    return f"{verdict.by} refused: {verdict.value.reason}"


@workflow
def rating(ctx: Context) -> int:
    stars = Annotated[int, Meta(ge=1, le=5)]
    return ctx.human("rate", "the parcel", stars, need="human.review", expires=timedelta(hours=1)).value


@step
async def wait_for_ever() -> None:
    await asyncio.Event().wait()


@workflow
def stuck(ctx: Context) -> None:
    ctx.step(wait_for_ever)


@step
def block_a_thread() -> None:
    threading.Event().wait()


@workflow
def blocked(ctx: Context) -> None:
    ctx.step(block_a_thread)


WORKFLOWS: list[Workflow[..., Any]] = [doubling, failing, ordering, delivering, refunding, rating]
NUMBER = 7
