"""What is paused or limited for all workers together also holds for steps of runs that a worker has in hand already."""

from __future__ import annotations

import threading
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from pgwf_sdk import Client, Context, Run, step, workflow
from tests.support import wait_for_status, wait_until

if TYPE_CHECKING:
    from tests.sdk.worker.conftest import StartWorker

SOON = timedelta(seconds=30)
WAITS_FOR_GPU = "select 1 from pgwf.ready r join pgwf.name m on m.n = r.n where r.need = 'gpu' and m.job_id = %s"
HEARD_OF_THE_PAUSE = """
select 1 from pgwf.worker
where heartbeat_at > (select max(event_at) from pgwf.jobs_trace where event_type = 'pause_need')
"""


class Stage:
    """What the steps of a test do and see."""

    def __init__(self) -> None:
        self.go = threading.Event()
        self.lock = threading.Lock()
        self.at_work = self.at_work_max = self.done = 0


stage = Stage()


@pytest.fixture(autouse=True)
def _fresh_stage() -> None:
    global stage
    stage = Stage()


@step
def prepare() -> None:
    assert stage.go.wait(30)


@step(need="gpu")
def train(x: int) -> int:
    with stage.lock:
        stage.at_work += 1
        stage.at_work_max = max(stage.at_work, stage.at_work_max)
    threading.Event().wait(0.02)  # Long enough for others to begin, if they may.
    with stage.lock:
        stage.at_work -= 1
        stage.done += 1
    return x + 1


@workflow(need="gpu")
def rendered(ctx: Context, x: int) -> int:
    return x + 1


@workflow
def trained(ctx: Context, x: int) -> int:
    ctx.step(prepare)
    return ctx.step(train, ctx.step(train, x))


def ends_once_the_need_is_resumed(run: Run[int], db: psycopg.Connection[Any]) -> None:
    """The run queues for its need, none of whose steps was begun, and goes on when it may have it again."""
    wait_until(lambda: db.execute(WAITS_FOR_GPU, [run.run_id]).fetchone(), "the run queues for the need")
    assert stage.done == 0
    db.execute("select pgwf.resume_need('gpu', 'ann')")
    assert run.result(timeout=SOON) == 3


def test_a_worker_with_runs_in_hand_begins_no_step_of_a_need_that_is_paused(
    client: Client, start_worker: StartWorker, db: psycopg.Connection[Any]
) -> None:
    start_worker(trained, capabilities=["gpu"])
    run = client.start(trained(1))
    wait_for_status(run, "running")

    db.execute("select pgwf.pause_need('gpu', 'ann')")
    wait_until(lambda: db.execute(HEARD_OF_THE_PAUSE).fetchone(), "the worker has heard of it")
    stage.go.set()

    ends_once_the_need_is_resumed(run, db)


def test_workers_that_come_later_know_what_is_paused_from_their_first_run_on(
    client: Client, start_worker: StartWorker, db: psycopg.Connection[Any]
) -> None:
    stage.go.set()
    db.execute("select pgwf.pause_need('gpu', 'ann')")
    run = client.start(trained(1))
    start_worker(trained, capabilities=["gpu"])

    ends_once_the_need_is_resumed(run, db)


def test_all_workers_together_do_no_more_at_once_than_the_limit_of_a_need(
    client: Client, start_worker: StartWorker, db: psycopg.Connection[Any]
) -> None:
    stage.go.set()
    db.execute("select pgwf.limit_need('gpu', 'ann', 1)")
    for _ in range(2):
        start_worker(trained, capabilities=["gpu"])

    runs = [client.start(trained(x)) for x in range(6)]

    assert [run.result(timeout=SOON) for run in runs] == [2, 3, 4, 5, 6, 7]
    assert stage.at_work_max == 1
    assert stage.done == 12


@pytest.mark.own_session  # A pooler carries no notifications.
def test_a_rate_is_used_up_whatever_the_poll(
    client: Client, start_worker: StartWorker, db: psycopg.Connection[Any]
) -> None:
    """Nobody commits anything when a token comes: the workers themselves know when to look again."""
    db.execute("select pgwf.limit_need('gpu', 'ann', p_rate => 20, p_burst => 1)")
    for _ in range(2):
        start_worker(rendered, capabilities=["gpu"], poll=timedelta(hours=1), lease=timedelta(hours=1))

    runs = [client.start(rendered(x)) for x in range(10)]

    assert [run.result(timeout=SOON) for run in runs] == list(range(1, 11))
