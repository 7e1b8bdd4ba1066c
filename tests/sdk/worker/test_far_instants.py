"""Deadlines, starts and durations at the ends of time: each is taken, or refused where it was written."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from pgwf_sdk import AsyncContext, Client, Context, RunFailedError, workflow

if TYPE_CHECKING:
    from tests.sdk.worker.conftest import StartWorker

Conn = psycopg.Connection[Any]
SOON = timedelta(seconds=30)
LAST = datetime.max.replace(tzinfo=UTC)


@workflow
def plain(ctx: Context) -> str:
    return "done"


@workflow
def waits_for_ages(ctx: Context, what: str) -> None:
    if what == "signal":
        ctx.wait_signal("told", str, timeout=timedelta.min)
    elif what == "awakeable":
        ctx.awakeable(str, timeout=timedelta.min)
    elif what == "expires":
        ctx.human("ask", None, str, need="human.x", expires=timedelta.min)
    else:
        ctx.human("ask", None, str, need="human.x", due=timedelta.min)


@workflow
async def sleeps_for_ages(ctx: AsyncContext, seconds: float) -> None:
    await asyncio.sleep(seconds)


@workflow
def sleeps_until_long_ago(ctx: Context) -> str:
    ctx.sleep_until(datetime(1, 1, 2, tzinfo=UTC))
    return "awake"


def test_a_deadline_that_never_comes_is_none_and_keeps_no_run_from_being_taken(
    client: Client, start_worker: StartWorker, db: Conn
) -> None:
    never = client.start(plain(), run_id="never", deadline=LAST)
    db.execute("select pgwf_sdk.start('plain', p_run_id => 'infinite', p_deadline => 'infinity')")
    start_worker(plain)

    assert never.result(timeout=SOON) == "done"
    assert client.get("infinite", plain).result(timeout=SOON) == "done"
    assert client.start(plain(), run_id="next").result(timeout=SOON) == "done"


@pytest.mark.parametrize("option", ["p_deadline", "p_start_at"])
@pytest.mark.parametrize("instant", ["9999-12-31 00:00:01+00", "294276-01-01", "0044-03-15 BC"])
def test_an_instant_that_no_client_can_read_is_refused(db: Conn, option: str, instant: str) -> None:
    with pytest.raises(psycopg.Error, match="expected one from 0001-01-02 to 9999-12-31") as caught:
        db.execute(f"select pgwf_sdk.start('plain', {option} => '{instant}')".encode())

    assert caught.value.sqlstate == "WS004"
    assert db.execute("select count(*) from pgwf_sdk.run").fetchone() == (0,)


def test_a_time_zone_that_postgresql_does_not_know_is_refused(client: Client) -> None:
    far = datetime(2031, 1, 1, tzinfo=timezone(timedelta(hours=23)))

    with pytest.raises(ValueError, match=r"client.start\(deadline=…\).*between its time zone and UTC"):
        client.start(plain(), deadline=far)


@pytest.mark.parametrize("what", ["signal", "awakeable", "expires", "due"])
def test_a_wait_that_was_over_before_time_began_fails_its_run(
    client: Client, start_worker: StartWorker, what: str
) -> None:
    start_worker(waits_for_ages)

    with pytest.raises(RunFailedError, match="longer than ten years"):
        client.start(waits_for_ages(what)).result(timeout=SOON)


@pytest.mark.parametrize("seconds", [1e10, 1e300, float("inf")])
def test_a_timer_of_asyncio_beyond_all_time_fails_its_run(
    client: Client, start_worker: StartWorker, seconds: float
) -> None:
    start_worker(sleeps_for_ages)

    with pytest.raises(RunFailedError, match=r"a timer of asyncio: .* is longer than ten years"):
        client.start(sleeps_for_ages(seconds)).result(timeout=SOON)


def test_what_is_long_past_is_not_slept_for(client: Client, start_worker: StartWorker) -> None:
    start_worker(sleeps_until_long_ago)

    assert client.start(sleeps_until_long_ago()).result(timeout=SOON) == "awake"
