"""A map over very many child runs: what it costs its parent does not grow with every child.

PGWF_TEST_CHILDREN says how many; the default keeps the suite quick.
"""

from __future__ import annotations

import os
from datetime import timedelta
from typing import Any

import psycopg
import pytest

from pgwf_sdk import AllSettled, AsyncContext, BranchFailed, Client, Context, NonRetryable, step, workflow
from tests.sdk.worker.conftest import StartWorker

CHILDREN = int(os.environ.get("PGWF_TEST_CHILDREN", "300"))
PATIENCE = timedelta(seconds=60 + CHILDREN // 10)


@step
async def weigh(number: int) -> int:
    if number % 10 == 9:
        raise NonRetryable(f"{number} is too heavy")
    return number


@workflow
async def one(_ctx: AsyncContext, number: int) -> int:
    return number


@workflow
async def heavy(ctx: AsyncContext, number: int) -> int:
    return await ctx.step(weigh, number)


@workflow
def all_of(ctx: Context, count: int, width: int | None) -> int:
    return sum(ctx.map(one, list(range(count)), max_concurrency=width))


@workflow
def all_settled(ctx: Context, count: int) -> list[int]:
    results = ctx.map(heavy, list(range(count)), policy=AllSettled())
    return [sum(results.values), sum(isinstance(result, BranchFailed) for result in results)]


def cost(db: psycopg.Connection[Any], run_id: str) -> tuple[int, int]:
    """How often the run was leased, and how many commits wrote its journal."""
    leases = db.execute(
        "select count(*) from pgwf.jobs_trace where job_id = %s and event_type = 'get_work'", [run_id]
    ).fetchone()
    commits = db.execute(
        "select count(distinct e.recorded_at) from pgwf_journal.entries e where e.journal_id = %s", [run_id]
    ).fetchone()
    assert leases is not None
    assert commits is not None
    return leases[0], commits[0]


@pytest.mark.timeout(60 + 2 * PATIENCE.total_seconds())
def test_a_map_over_many_children_wakes_its_parent_when_it_can_end(
    client: Client, start_worker: StartWorker, db: psycopg.Connection[Any]
) -> None:
    start_worker(all_of, one)

    run = client.start(all_of(CHILDREN, None), run_id="many")

    assert run.result(PATIENCE) == sum(range(CHILDREN))
    leases, commits = cost(db, "many")
    pages = CHILDREN // 500 + 1
    assert leases <= 5
    assert commits <= 3 * pages + 5


@pytest.mark.timeout(60 + 2 * PATIENCE.total_seconds())
def test_a_map_with_a_bound_wakes_its_parent_by_the_quarter_of_the_bound(
    client: Client, start_worker: StartWorker, db: psycopg.Connection[Any]
) -> None:
    width = max(CHILDREN // 5, 4)
    start_worker(all_of, one)

    run = client.start(all_of(CHILDREN, width), run_id="bounded")

    assert run.result(PATIENCE) == sum(range(CHILDREN))
    leases, _ = cost(db, "bounded")
    assert leases <= 4 * CHILDREN // width + 5


@pytest.mark.timeout(60 + 2 * PATIENCE.total_seconds())
def test_children_that_fail_do_not_wake_a_parent_that_lets_all_of_them_end(
    client: Client, start_worker: StartWorker, db: psycopg.Connection[Any]
) -> None:
    start_worker(all_settled, heavy)

    run = client.start(all_settled(CHILDREN), run_id="settled")

    failed = CHILDREN // 10
    assert run.result(PATIENCE) == [sum(n for n in range(CHILDREN) if n % 10 != 9), failed]
    leases, _ = cost(db, "settled")
    assert leases <= 5
