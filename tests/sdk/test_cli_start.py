"""`pgwf start`: what its arguments become, and when the run begins and is over at the latest."""

from __future__ import annotations

import re
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

import psycopg
import pytest

from pgwf_sdk import ops
from tests.sdk.cli_shop import Line, Order, Parcel
from tests.sdk.test_cli_commands import SHOP, Pgwf, pgwf, worker

Conn = psycopg.Connection[Any]

__all__ = ["pgwf", "worker"]

ORDER = [
    "-P",
    "order.total=9.90",
    "-P",
    "order.due=2026-12-24",
    "-P",
    "order.lines.0.sku=7",
    "-P",
    "order.lines.0.count=2",
]


@pytest.mark.usefixtures("worker")
def test_texts_inside_an_object_become_what_its_fields_declare(pgwf: Pgwf) -> None:
    more = [
        "order.cents=990",
        "order.parcel.weight=1.5",
        "order.parcel.code=9000",
        "order.is_gift:=true",
        "order.note=1",
    ]
    named = [word for parameter in more for word in ("-P", parameter)]

    said = pgwf("start", f"{SHOP}:ordering", *ORDER, *named, "--wait", "--timeout", "20s")

    order = Order(
        990, Decimal("9.90"), date(2026, 12, 24), [Line(sku="7", count=2)], Parcel(1.5, "9000"), is_gift=True, note="1"
    )
    assert (said.code, said.out and said.json) == (0, repr(order)), said.err


@pytest.mark.parametrize("workflow", ["doubling", f"{SHOP}:doubling"])
def test_a_run_is_started_with_a_time_to_begin_and_a_deadline(pgwf: Pgwf, db: Conn, workflow: str) -> None:
    times = ["--start-at", "2099-12-01T09:00+01:00", "--deadline", "2099-12-02T09:00Z"]
    said = pgwf("start", workflow, "-P", "number:=1", "--id", "order-1", *times)

    assert said.code == 0
    run = ops.get_run(db, "order-1")
    assert run.available_at == datetime(2099, 12, 1, 8, tzinfo=UTC)
    assert run.deadline == datetime(2099, 12, 2, 9, tzinfo=UTC)


def test_a_deadline_may_be_said_as_how_long_from_now(pgwf: Pgwf, db: Conn) -> None:
    before = datetime.now(UTC)
    said = pgwf("start", "doubling", "-P", "number:=1", "--id", "order-1", "--deadline", "2h")

    assert said.code == 0
    deadline = ops.get_run(db, "order-1").deadline
    assert deadline is not None
    assert before <= deadline - timedelta(hours=2) <= datetime.now(UTC)


@pytest.mark.parametrize(
    ("option", "told"),
    [
        (["--deadline", "soon"], "'soon': expected a time with its zone, such as 2026-12-01T09:00Z, or how long from"),
        (["--start-at", "2099-12-01T09:00"], "'2099-12-01T09:00' has no time zone; expected one, such as 2099-"),
        (["--deadline", "100000w"], "or how long from now, such as 2h"),
    ],
)
def test_a_time_that_is_none_is_a_usage_error(pgwf: Pgwf, db: Conn, option: list[str], told: str) -> None:
    said = pgwf("start", "doubling", "-P", "number:=1", *option)

    assert said.code == 2
    assert told in said.err
    assert ops.list_runs(db).runs == ()


@pytest.mark.parametrize("text", ["2099-12-01", "2099-12-01T09:00", "2099-12-01 09:00", "20991201"])
def test_a_time_that_is_proposed_for_one_without_a_zone_is_taken(pgwf: Pgwf, text: str) -> None:
    proposed = re.findall(r"such as (\S+) or (\S+)", pgwf("start", "doubling", "--start-at", text).err)

    for each in proposed[0]:
        assert pgwf("start", "doubling", "--start-at", each).code == 0


@pytest.mark.parametrize(
    ("parameters", "told"),
    [
        ([*ORDER, "-P", "order.cents=x"], "argument order: Expected `int`, got `str` - at `$.cents`"),
        (["-P", "order.cents=1"], "argument order: Object missing required field `total`"),
    ],
)
def test_what_a_field_does_not_take_is_named_with_its_place(
    pgwf: Pgwf, db: Conn, parameters: list[str], told: str
) -> None:
    said = pgwf("start", f"{SHOP}:ordering", *parameters)

    assert said.code == 6
    assert told in said.err
    assert ops.list_runs(db).runs == ()
