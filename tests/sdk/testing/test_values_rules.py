"""Every kind of value through every place: code sees the same value, of the same class, first and in each replay."""

from __future__ import annotations

import enum
import math
import uuid
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from typing import TYPE_CHECKING, Any, NamedTuple

import attrs
import msgspec
import pydantic
import pytest

from pgwf_sdk import AsyncContext, Context, current_step, step, workflow
from pgwf_sdk.ops import DecisionError, DecisionForm
from tests.sdk.test_serial import same

if TYPE_CHECKING:
    from collections.abc import Callable

    from pgwf_sdk import Workflow
    from pgwf_sdk.testing import Environment


class Colour(enum.Enum):
    RED = "red"


class Level(enum.IntEnum):
    HIGH = 3


class Point(NamedTuple):
    x: int
    y: Decimal


@dataclass
class Line:
    sku: str
    price: Decimal
    at: datetime


class Parcel(msgspec.Struct):
    code: str
    tags: frozenset[str]


@attrs.define
class Stop:
    place: str
    codes: tuple[str, ...]


class Customer(pydantic.BaseModel):
    name: str
    born: date


ZONE = timezone(timedelta(hours=5, minutes=30))
AT = datetime(2026, 8, 30, 10, 2, 11, 123456, tzinfo=ZONE)
VALUES: dict[str, tuple[Any, Any]] = {
    "none": (None, None),
    "zero": (0, int),
    "large": (2**70, int),
    "float": (0.1, float),
    "infinite": (math.inf, float),
    "false": (False, bool),
    "empty text": ("", str),
    "empty list": ([], list[int]),
    "empty object": ({}, dict[str, int]),
    "bytes": (b"\x00\xff", bytes),
    "decimal": (Decimal("1.50"), Decimal),
    "zoned datetime": (AT, datetime),
    "naive datetime": (datetime(2026, 8, 30, 1), datetime),  # noqa: DTZ001 - what is naive stays naive
    "date": (date(2026, 8, 30), date),
    "time": (time(10, 2, tzinfo=UTC), time),
    "timedelta": (timedelta(days=-1, microseconds=1), timedelta),
    "uuid": (uuid.UUID(int=17), uuid.UUID),
    "enum": (Colour.RED, Colour),
    "int enum": (Level.HIGH, Level),
    "tuple": ((1, "a"), tuple[int, str]),
    "set": ({1, 2}, set[int]),
    "frozenset": (frozenset({"a"}), frozenset[str]),
    "named tuple": (Point(1, Decimal("2.0")), Point),
    "dataclass": (Line("a", Decimal("9.90"), AT), Line),
    "struct": (Parcel("p", frozenset({"a"})), Parcel),
    "attrs": (Stop("Ghent", ("a", "b")), Stop),
    "pydantic": (Customer(name="Ann", born=date(1990, 1, 2)), Customer),
    "nested": ({"lines": [Line("a", Decimal(1), AT)]}, dict[str, list[Line]]),
}


def typed(fn: Callable[..., Any], annotation: Any, *parameters: str) -> Callable[..., Any]:
    """The function with annotations as if they were written, for values of one type; Any: without."""
    if annotation is not Any:
        fn.__annotations__ = {**dict.fromkeys((*parameters, "return"), annotation), **fn.__annotations__}
    return fn


def flows(annotation: Any, seen: list[Any], tokens: list[str]) -> list[Workflow[..., Any]]:
    """One workflow of each kind that sees a value at each place that gives it one."""

    def give(value: Any) -> Any:
        return value

    def report(value: Any) -> Any:
        attempt = current_step()
        if attempt.attempt == 1:
            attempt.heartbeat(value)
            raise ConnectionError
        return attempt.last_heartbeat

    def child(ctx: Context, value: Any) -> Any:
        seen.append(value)
        return value

    given = step(name="give")(typed(give, annotation, "value"))
    reported = step(name="report")(typed(report, annotation, "value"))
    called = workflow(name="child")(typed(child, annotation, "value"))
    send = step(name="send")(tokens.append)
    read = Any if annotation is None else annotation

    def program(ctx: Context, value: Any) -> Any:
        seen.append(value)
        seen.append(ctx.step(given, value))
        seen.append(ctx.step(reported, value))
        seen.append(ctx.side_effect(lambda: value))
        seen.append(ctx.call(called(value)))
        seen.extend(ctx.map(given, [value]))
        seen.append(ctx.wait_signal("value", read))
        seen.append(ctx.human("value", value, read, need="human.any").value)
        seen.append(ctx.wait_for_callback(send, read))
        return value

    async def async_program(ctx: AsyncContext, value: Any) -> Any:
        seen.append(value)
        seen.append(await ctx.step(given, value))
        seen.append(await ctx.step(reported, value))
        seen.append(await ctx.side_effect(lambda: value))
        seen.append(await ctx.call(called(value)))
        seen.extend(await ctx.map(given, [value]))
        seen.append(await ctx.wait_signal("value", read))
        seen.append((await ctx.human("value", value, read, need="human.any")).value)
        seen.append(await ctx.wait_for_callback(send, read))
        return value

    return [workflow(name="program")(typed(fn, annotation, "value")) for fn in (program, async_program)]


@pytest.mark.parametrize("name", VALUES)
@pytest.mark.parametrize("is_async", [False, True], ids=["def without annotations", "async def with annotations"])
def test_code_sees_an_equal_value_of_the_same_class_at_every_place_and_in_every_replay(
    env: Environment, name: str, is_async: bool
) -> None:
    value, annotation = VALUES[name]
    seen: list[Any] = []
    tokens: list[str] = []
    program = flows(annotation if is_async else Any, seen, tokens)[is_async]
    run = env.start(program(value))
    env.advance(timedelta(seconds=1))
    run.signal("value", value)
    env.settle()
    (task,) = env.client.human.list()
    env.client.human.decide(task.task_id, value, by="ann")
    env.settle()
    env.client.complete_awakeable(tokens[-1], value)

    result = env.result(run)

    assert same(result, value)
    assert len(seen) > 10, "it was replayed"
    assert [found for found in seen if not same(found, value)] == []


class Basket(pydantic.BaseModel):
    """What a customer takes."""

    customer: Customer
    count: int = 1


def test_people_are_asked_for_pydantic_models_by_a_form(env: Environment) -> None:
    @workflow
    def program(ctx: Context) -> str:
        chosen = ctx.human("choose", None, list[Basket], need="human.any").value
        return f"{chosen[0].customer.name} {chosen[0].count}"

    run = env.start(program())
    (task,) = env.client.human.list()
    form = DecisionForm(task.decision_schema or "")
    with pytest.raises(DecisionError, match="expected"):
        form.check([{"customer": {"name": "Ann"}}])
    decided = form.check([{"customer": {"name": "Ann", "born": "1990-01-02"}}])
    env.client.human.decide(task.task_id, decided, by="ann")

    assert env.result(run) == "Ann 1"
