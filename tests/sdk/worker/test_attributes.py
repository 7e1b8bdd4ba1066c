"""Attributes and starting with a signal, through clients and a real worker."""

from __future__ import annotations

import asyncio
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from enum import Enum
from typing import Any
from uuid import UUID

import psycopg
import pytest

from pgwf_sdk import (
    AsyncClient,
    AsyncContext,
    Client,
    Context,
    DefinitionError,
    Run,
    RunConflictError,
    RunFinishedError,
    SerialisationError,
    step,
    workflow,
)
from tests.sdk.worker.conftest import StartWorker
from tests.support import wait_for_status

SOON = timedelta(seconds=30)


class Phase(Enum):
    PAID = "paid"


@step
def charge(cents: int) -> int:
    return cents


@workflow
def order(ctx: Context, customer: str) -> str:
    ctx.set_attribute("customer", customer)
    ctx.set_attribute("phase", "new")
    cents = ctx.step(charge, 1200)
    ctx.set_attribute("phase", Phase.PAID)
    ctx.set_attribute("note", None)
    ctx.set_attribute("cents", cents)
    return ctx.wait_signal("shipped", str)


@workflow
async def basket(ctx: AsyncContext, customer: str) -> list[str]:
    del customer
    return [await ctx.wait_signal("add", str), await ctx.wait_signal("add", str)]


@workflow
def careless(ctx: Context) -> str:
    try:
        ctx.set_attribute("tags", ["a"])  # type: ignore[arg-type]
    except SerialisationError as error:
        return str(error)
    return "set"


def found(client: Client, **attributes: Any) -> list[str]:
    return [run.run_id for run in client.list(attributes=attributes)]


def test_a_run_is_found_by_what_its_code_says_of_it_before_it_is_over(
    client: Client, start_worker: StartWorker
) -> None:
    start_worker(order)
    run = client.start(order("ann"), run_id="order-1", attributes={"note": "gift", "shop": 3})
    assert found(client, customer="ann", shop=3) in ([], ["order-1"])
    wait_for_status(run, "waiting")

    assert run.details().attributes == {"customer": "ann", "phase": "paid", "cents": 1200, "shop": 3}
    assert found(client, customer="ann", cents=1200) == ["order-1"]
    assert found(client, phase="new") == []
    run.signal("shipped", "yes")
    assert run.result(SOON) == "yes"
    assert found(client, phase=Phase.PAID) == ["order-1"]


@pytest.mark.parametrize(
    "value",
    [
        "x",
        "ü" * 100,
        True,
        7,
        -0.5,
        Decimal("1.50"),
        datetime(2030, 1, 1, tzinfo=UTC),
        date(2030, 1, 1),
        UUID(int=7),
        Phase.PAID,
    ],
)  # fmt: skip
def test_every_kind_of_attribute_is_found_by_its_value(client: Client, value: Any) -> None:
    client.start(order("ann"), run_id="order-1", attributes={"value": value})

    assert found(client, value=value) == ["order-1"]


@pytest.mark.parametrize(
    ("attributes", "error"),
    [
        ({"tags": ["a"]}, SerialisationError),
        ({"note": "x" * 1025}, SerialisationError),
        ({"share": float("nan")}, SerialisationError),
        ({"": 1}, DefinitionError),
    ],
)
def test_what_no_list_could_find_is_refused_where_it_is_written(client: Client, attributes: Any, error: Any) -> None:
    with pytest.raises(error, match=r"client.start\(attributes=…\)"):
        client.start(order("ann"), attributes=attributes)


class Unshown:
    def __repr__(self) -> str:
        raise RuntimeError("not to be shown")


class OwnText(str):
    __slots__ = ()


@pytest.mark.parametrize("value", [Unshown(), OwnText("x"), 10**5_000, [[]]], ids=["unshown", "own", "long", "list"])
def test_whatever_cannot_be_an_attribute_is_named_and_not_shown_at_length(client: Client, value: Any) -> None:
    with pytest.raises(
        SerialisationError, match=r"client.start\(attributes=…\): attribute 'a' is .*expected"
    ) as caught:
        client.start(order("ann"), attributes={"a": value})

    assert len(str(caught.value)) < 600


def test_a_value_that_cannot_be_an_attribute_is_an_error_of_the_code_that_sets_it(
    client: Client, start_worker: StartWorker
) -> None:
    start_worker(careless)

    assert "attribute 'tags' is ['a']; expected a text, number" in client.start(careless()).result(SOON)


def test_a_signal_with_a_start_starts_the_run_once_and_signals_each_time(
    client: Client, start_worker: StartWorker
) -> None:
    first = client.signal_with_start(basket("ann"), "basket-ann", "add", "pen", attributes={"customer": "ann"})
    second = client.signal_with_start(basket("ann"), "basket-ann", "add", "ink", dedup_id="2")
    again = client.signal_with_start(basket("ann"), "basket-ann", "add", "ink", dedup_id="2")
    assert [run.created for run in (first, second, again)] == [True, False, False]
    assert found(client, customer="ann") == ["basket-ann"]
    with pytest.raises(RunConflictError):
        client.signal_with_start(basket("bob"), "basket-ann", "add", "pen")

    start_worker(basket)

    assert first.result(SOON) == ["pen", "ink"]
    with pytest.raises(RunFinishedError):
        client.signal_with_start(basket("ann"), "basket-ann", "add", "pen")


def test_a_signal_with_a_start_takes_what_a_start_takes(client: Client) -> None:
    in_an_hour = datetime.now(UTC) + timedelta(hours=1)
    tomorrow = datetime.now(UTC) + timedelta(days=1)
    options: dict[str, Any] = {"start_at": in_an_hour, "deadline": tomorrow, "priority": 1}
    options |= {"attributes": {"customer": "ann"}, "singleton_key": "ann"}

    runs = [
        client.start(basket("ann"), run_id="alone", **options),
        client.signal_with_start(basket("ann"), "signalled", "add", "pen", **options),
    ]

    for run in map(Run.details, runs):
        assert (run.available_at, run.deadline, run.priority) == (in_an_hour, tomorrow, 1)
        assert (run.attributes, run.singleton_key) == ({"customer": "ann"}, "ann")


def test_a_signal_with_a_start_is_undone_with_the_transaction_of_its_caller(client: Client, dsn: str) -> None:
    with psycopg.connect(dsn) as connection:
        client.signal_with_start(basket("ann"), "basket-ann", "add", "pen", connection=connection)
        connection.rollback()

    assert client.list() == ()


def test_the_async_client_starts_with_attributes_and_signals(dsn: str, start_worker: StartWorker) -> None:
    start_worker(basket)

    async def shop() -> None:
        async with AsyncClient(dsn) as client:
            run = await client.signal_with_start(
                basket("ann"), "basket-ann", "add", "pen", attributes={"customer": "ann"}
            )
            await client.signal_with_start(basket("ann"), "basket-ann", "add", "ink")
            assert await run.result(SOON) == ["pen", "ink"]
            assert [found.run_id for found in await client.list(attributes={"customer": "ann"})] == ["basket-ann"]

    asyncio.run(shop())


def test_a_trigger_starts_a_run_and_signals_it_with_sql_alone(
    client: Client, start_worker: StartWorker, db: psycopg.Connection[Any]
) -> None:
    """What the reference of the SQL functions says works: in the transaction of the row, undone with it."""
    db.execute("create table click (customer text, item text)")
    db.execute(
        """
        create function clicked() returns trigger language plpgsql as $$
        begin
          perform pgwf_sdk.signal_with_start(
            p_workflow => 'basket', p_run_id => 'basket-' || new.customer,
            p_signal => 'add', p_payload => to_jsonb(new.item),
            p_arguments => jsonb_build_object('customer', new.customer),
            p_attributes => jsonb_build_object('customer', new.customer));
          return new;
        end $$;
        create trigger clicked after insert on click for each row execute function clicked()
        """
    )
    with db.transaction(force_rollback=True):
        db.execute("insert into click values ('eve', 'pen')")
    db.execute("insert into click values ('ann', 'pen'), ('ann', 'ink')")

    start_worker(basket)

    wait_for_status(client.get("basket-ann"), "completed")
    result = db.execute("select pgwf_sdk.result('basket-ann')").fetchone()
    assert result == ({"status": "completed", "value": ["pen", "ink"]},)
    assert found(client, customer="ann") == ["basket-ann"]
    assert [run.run_id for run in client.list()] == ["basket-ann"]
