"""What is asked of a run in hand is heard at once: the workers here would otherwise hear of it after 100 seconds."""

from __future__ import annotations

import threading
import time
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from pgwf_sdk import (
    Client,
    Context,
    RunCancelledError,
    RunTerminatedError,
    current_step,
    step,
    workflow,
)
from tests.support import wait_until

if TYPE_CHECKING:
    from psycopg import Connection

    from tests.sdk.worker.conftest import StartWorker

SOON = timedelta(seconds=30)
FAR: dict[str, Any] = {"lease": timedelta(minutes=5), "poll": timedelta(minutes=5)}

pytestmark = pytest.mark.own_session  # A pooler carries no notifications.


class Stage:
    """A run whose step goes on until it is told to stop, or let out."""

    def __init__(self) -> None:
        self.inside, self.let_out = threading.Event(), threading.Event()
        self.is_told = self.is_draining = False

        @step
        def stay() -> str:
            self.inside.set()
            wait_until(self._is_over, "the step is to end", seconds=60)
            return "stayed"

        @workflow
        def staying(ctx: Context) -> str:
            return ctx.step(stay) + ctx.step(stay)

        @workflow
        def hearing(ctx: Context) -> list[str]:
            return list(ctx.parallel(lambda ctx: ctx.step(stay), lambda ctx: self._heard(ctx)))

        self.staying, self.hearing = staying, hearing

    def _is_over(self) -> bool:
        self.is_told = self.is_told or current_step().cancelled
        self.is_draining = current_step().draining
        return self.is_told or self.let_out.is_set()

    def _heard(self, ctx: Context) -> str:
        name = ctx.wait_signal("go", str)
        self.let_out.set()
        return name


@pytest.fixture
def stage() -> Stage:
    return Stage()


def test_a_cancel_request_reaches_a_step_at_once(client: Client, start_worker: StartWorker, stage: Stage) -> None:
    start_worker(stage.staying, **FAR)
    run = client.start(stage.staying())
    assert stage.inside.wait(60)

    run.cancel()

    with pytest.raises(RunCancelledError):
        run.result(timeout=SOON)
    wait_until(lambda: stage.is_told, "its step is told")


def test_a_cancel_request_in_a_transaction_that_ends_later_is_heard_when_it_does(
    client: Client, start_worker: StartWorker, stage: Stage, db: Connection[Any]
) -> None:
    start_worker(stage.staying, **FAR)
    run = client.start(stage.staying())
    assert stage.inside.wait(60)

    with db.transaction():
        db.execute("select pgwf_sdk.cancel_run(%s, 'ann')", [run.run_id])
        assert not stage.is_told

    with pytest.raises(RunCancelledError):
        run.result(timeout=SOON)
    wait_until(lambda: stage.is_told, "its step is told")


def test_a_cancel_request_is_heard_when_the_connection_that_hears_was_just_lost(
    client: Client, start_worker: StartWorker, stage: Stage, db: Connection[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    for bound in ("MIN", "MAX"):
        monkeypatch.setattr(f"pgwf_sql.database._listener._RECONNECT_SECONDS_{bound}", 600.0)
    start_worker(stage.staying, **FAR)
    run = client.start(stage.staying())
    assert stage.inside.wait(60)

    def is_lost() -> bool:
        lost = db.execute(
            "select count(pg_terminate_backend(pid)) from pg_stat_activity"
            " where datname = current_database() and application_name = 'pgwf worker side' and query ilike 'listen %'"
        ).fetchone()
        return lost is not None and lost[0] > 0

    wait_until(is_lost, "a connection that hears is lost")

    run.cancel()

    wait_until(lambda: stage.is_told, "its step is told")
    with pytest.raises(RunCancelledError):
        run.result(timeout=SOON)


def test_a_terminated_run_stops_its_step_at_once(client: Client, start_worker: StartWorker, stage: Stage) -> None:
    start_worker(stage.staying, **FAR)
    run = client.start(stage.staying())
    assert stage.inside.wait(60)

    run.terminate()

    wait_until(lambda: stage.is_told, "the step is told")
    with pytest.raises(RunTerminatedError):
        run.result(timeout=SOON)


def test_a_paused_run_is_given_back_after_the_step_it_is_at(
    client: Client, start_worker: StartWorker, stage: Stage, db: Connection[Any]
) -> None:
    start_worker(stage.staying, **FAR)
    run = client.start(stage.staying(), run_id="p")
    assert stage.inside.wait(60)

    run.pause()
    wait_until(lambda: stage.is_draining, "the worker has heard of it")
    stage.let_out.set()

    wait_until(lambda: db.execute("select 1 from pgwf.lease").fetchone() is None, "the run is given back")
    keys = db.execute("select key from pgwf_journal.entries where journal_id = 'p' order by seq").fetchall()
    assert ("/step:stay#2",) not in keys


def test_a_signal_is_heard_beside_a_step_at_once(client: Client, start_worker: StartWorker, stage: Stage) -> None:
    start_worker(stage.hearing, **FAR)
    run = client.start(stage.hearing())
    assert stage.inside.wait(60)

    run.signal("go", "gone")

    assert run.result(timeout=SOON) == ["stayed", "gone"]


def test_a_worker_that_is_told_to_drain_begins_at_once(
    client: Client, start_worker: StartWorker, stage: Stage, db: Connection[Any]
) -> None:
    running = start_worker(stage.staying, worker_id="w", **FAR)
    wait_until(lambda: db.execute("select 1 from pgwf.sleeper").fetchone(), "the worker sleeps")
    wait_until(lambda: db.execute("select 1 from pgwf.worker").fetchone(), "the worker has said that it is there")
    began = time.monotonic()

    db.execute("select pgwf.drain_worker('w')")

    running.join()
    assert time.monotonic() - began < SOON.total_seconds()
