"""A journal that grows long: people are warned, the run is blocked at the limit, and goes on once it is mended."""

from __future__ import annotations

import logging
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from pgwf_sdk import AsyncContext, Client, Context, DefinitionError, JournalLimits, step, workflow
from tests.support import wait_for_status

if TYPE_CHECKING:
    from psycopg import Connection

    from tests.sdk.worker.conftest import StartWorker

SOON = timedelta(seconds=20)
TEN = JournalLimits(entries_warn=5, entries_max=10)


@step
def count(x: int) -> int:
    return x + 1


@step
def blob(size: int) -> str:
    return "x" * size


def counting(form: str, *, until: int | None) -> Any:
    step_of = count.options(durability="deferred") if "deferred" in form else count

    @workflow(name="counting")
    def endless(ctx: Context) -> int:
        x = 0
        while until is None or x < until:
            x = ctx.step(step_of, x)
        return x

    @workflow(name="counting")
    async def async_endless(ctx: AsyncContext) -> int:
        x = 0
        while until is None or x < until:
            x = await ctx.step(step_of, x)
        return x

    return async_endless if form.startswith("async") else endless


def entry_count(db: Connection[Any]) -> int:
    row = db.execute("select entry_count from pgwf_sdk.runs where run_id = 'r'").fetchone()
    assert row is not None
    return int(row[0])


@pytest.mark.parametrize("form", ["sync", "async", "deferred", "async deferred"])
def test_a_run_is_blocked_at_the_limit_and_ends_once_its_code_does(
    client: Client, start_worker: StartWorker, db: Connection[Any], form: str, caplog: pytest.LogCaptureFixture
) -> None:
    endless = start_worker(counting(form, until=None), journal_limits=TEN)
    run = client.start(counting(form, until=None)(), run_id="r")

    with caplog.at_level(logging.WARNING, logger="pgwf_sdk.worker"):
        wait_for_status(run, "blocked")
    assert entry_count(db) == 10
    report = db.execute("select report from pgwf_sdk.blocked").fetchone()
    assert report is not None
    assert report[0]["class"] == "too_long"
    assert "its journal has 10 entries" in report[0]["detail"]
    assert "ctx.continue_as_new" in report[0]["text"]
    warned = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert len(warned) == 1
    assert warned[0].startswith("run r: its journal has 5 entries and ")
    assert warned[0].endswith("it is blocked at 10 entries or 134217728 bytes")

    client.resume("r")  # The same code: it is blocked again, and has added nothing.
    wait_for_status(run, "blocked")
    assert entry_count(db) == 10
    endless.stop()

    start_worker(counting(form, until=9), journal_limits=TEN)
    client.resume("r")
    assert run.result(timeout=SOON) == 9


def test_a_blocked_run_goes_on_under_higher_limits(client: Client, start_worker: StartWorker) -> None:
    low = start_worker(counting("sync", until=20), journal_limits=TEN)
    run = client.start(counting("sync", until=20)(), run_id="r")
    wait_for_status(run, "blocked")
    low.stop()

    start_worker(counting("sync", until=20))
    client.resume("r")

    assert run.result(timeout=SOON) == 20


def test_a_run_that_ends_at_the_limit_ends(client: Client, start_worker: StartWorker) -> None:
    start_worker(counting("sync", until=9), journal_limits=TEN)

    assert client.start(counting("sync", until=9)()).result(timeout=SOON) == 9


def test_what_runs_side_by_side_at_the_limit_is_recorded_before_the_run_is_blocked(
    client: Client, start_worker: StartWorker, db: Connection[Any]
) -> None:
    ran: list[int] = []

    @step
    def noted(x: int) -> int:
        ran.append(x)
        return x

    @workflow(name="wide")
    def wide(ctx: Context) -> int:
        return sum(ctx.map(noted, range(20), max_concurrency=4))

    start_worker(wide, journal_limits=TEN)
    run = client.start(wide(), run_id="r")
    wait_for_status(run, "blocked")

    assert entry_count(db) == 1 + len(ran)
    assert 9 <= len(ran) <= 13


def test_bytes_are_limited_too(client: Client, start_worker: StartWorker, db: Connection[Any]) -> None:
    @workflow
    def heavy(ctx: Context) -> None:
        while True:
            ctx.step(blob, 1000)

    start_worker(heavy, journal_limits=JournalLimits(bytes_warn=2_000, bytes_max=5_000))
    run = client.start(heavy(), run_id="r")
    wait_for_status(run, "blocked")

    assert entry_count(db) == 6


@pytest.mark.parametrize(
    ("limits", "said"),
    [
        ({"entries_warn": 20, "entries_max": 10}, "entries_warn is 20 and entries_max 10"),
        ({"entries_warn": 1, "entries_max": 1}, "expected 2 or more"),
        ({"bytes_warn": 0}, "bytes_warn is 0"),
    ],
)
def test_limits_that_make_no_sense_are_refused(limits: dict[str, int], said: str) -> None:
    with pytest.raises(DefinitionError, match=said):
        JournalLimits(**limits)
