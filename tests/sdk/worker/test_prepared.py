"""A worker keeps its hot call prepared, and goes on when the schema is upgraded under it."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from pgwf_sdk import Client, Context, Worker, step, workflow
from pgwf_sql.database import SchemaMismatchError, prepare_if_direct
from tests.sdk.worker.conftest import Running

if TYPE_CHECKING:
    from tests.sdk.worker.conftest import StartWorker

SOON = timedelta(seconds=30)


@step
def double(x: int) -> int:
    return 2 * x


@workflow
def doubled(ctx: Context, x: int) -> int:
    return ctx.step(double, x)


@pytest.mark.own_session
def test_a_connection_without_a_pooler_prepares(dsn: str) -> None:
    async def threshold() -> int | None:
        async with await psycopg.AsyncConnection.connect(dsn, prepare_threshold=None) as connection:
            await prepare_if_direct(connection)
            return connection.prepare_threshold

    assert asyncio.run(threshold()) == 0


def test_a_worker_goes_on_when_the_answer_of_its_prepared_call_has_changed(
    client: Client, start_worker: StartWorker, db: psycopg.Connection[Any]
) -> None:
    start_worker(doubled)
    assert client.start(doubled(1)).result(timeout=SOON) == 2

    (definition,) = db.execute("select pg_get_functiondef('pgwf_sdk.advance'::regproc)").fetchone() or ("",)
    renamed = definition.replace("deadline timestamp with time zone", "ends_by timestamp with time zone")
    assert renamed != definition
    with db.transaction():
        db.execute("drop function pgwf_sdk.advance")
        db.execute(renamed.encode())

    assert client.start(doubled(2)).result(timeout=SOON) == 4


def test_a_worker_goes_on_when_the_answer_of_its_short_call_has_changed(
    client: Client, start_worker: StartWorker, db: psycopg.Connection[Any]
) -> None:
    start_worker(doubled)
    assert client.start(doubled(1)).result(timeout=SOON) == 2

    (definition,) = db.execute("select pg_get_functiondef('pgwf_sdk.append'::regproc)").fetchone() or ("",)
    retyped = definition.replace("RETURNS timestamp with time zone", "RETURNS instant")
    assert retyped != definition
    with db.transaction():
        db.execute("drop function pgwf_sdk.append")
        db.execute("create domain instant as timestamptz")
        db.execute(retyped.encode())

    assert client.start(doubled(2)).result(timeout=SOON) == 4


def test_a_worker_goes_on_with_its_long_call_when_another_release_has_taken_away_its_short_one(
    client: Client, start_worker: StartWorker, db: psycopg.Connection[Any]
) -> None:
    begun: list[int] = []

    @step
    def count(number: int) -> int:
        begun.append(number)
        return number

    @workflow
    def counting(ctx: Context) -> int:
        return ctx.step(count, 1) + ctx.step(count, 2)

    start_worker(counting)
    assert client.start(counting()).result(timeout=SOON) == 3
    begun.clear()

    db.execute("drop function pgwf_sdk.append")

    assert client.start(counting()).result(timeout=SOON) == 3
    assert begun == [1, 2]


def test_a_worker_whose_calls_another_release_has_taken_away_ends_and_names_the_versions(
    client: Client, db: psycopg.Connection[Any]
) -> None:
    """It could record nothing of what its steps return, and would run them again and again."""
    running = Running(Worker(client, workflows=[doubled]))
    assert client.start(doubled(1)).result(timeout=SOON) == 2

    db.execute("alter function pgwf_sdk.advance rename to advance_of_another_release")
    client.start(doubled(2))

    said = r"has version \d+, and was installed by another release .* needs version \d+: function pgwf_sdk.advance"
    with pytest.raises(SchemaMismatchError, match=said):
        running.join()


@step(name="größe €")
def sized(text: str) -> str:
    return text


@workflow
def named(ctx: Context) -> list[str]:
    return [ctx.step(sized, "ä"), *ctx.map(sized, ["€", "ß"])]


@pytest.mark.parametrize("encoding", ["LATIN1", "SQL_ASCII"])
def test_names_arrive_as_they_are_whatever_encoding_clients_speak_by_default(
    encoding: str,
    client: Client,
    start_worker: StartWorker,
    db: psycopg.Connection[Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PGCLIENTENCODING", encoding)
    start_worker(named)

    assert client.start(named()).result(timeout=SOON) == ["ä", "€", "ß"]

    names = db.execute("select distinct name from pgwf_journal.entries where kind = 'step'").fetchall()
    assert names == [("größe €",)]
