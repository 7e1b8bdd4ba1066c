"""Runs that are stopped, and what becomes of their children and of what their workers have in hand."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import pytest

from pgwf_sdk import ChildFailedError, Client, Context, RunCancelledError, RunTerminatedError, step, workflow
from tests.sdk.worker.test_cancelling import LEASE, SOON, ends, idle
from tests.support import wait_for_status, wait_until

if TYPE_CHECKING:
    from psycopg import Connection

    from tests.sdk.worker.conftest import StartWorker


def test_a_parent_that_is_cancelled_takes_its_children_along_but_for_those_it_has_let_go(
    client: Client, start_worker: StartWorker, db: Connection[Any]
) -> None:
    @workflow
    def parent(ctx: Context) -> None:
        ctx.spawn(idle(), run_id="spawned")
        ctx.spawn(idle(), run_id="let-go", on_close="abandon")
        ctx.call(idle(), run_id="called")

    start_worker(idle, parent)
    run = client.start(parent(), run_id="p")
    waiting = "select from pgwf_sdk.runs where status = 'waiting'"
    wait_until(lambda: db.execute(waiting).rowcount == 4, "the parent and its children wait")

    run.cancel()

    with pytest.raises(RunCancelledError):
        run.result(timeout=SOON)
    wait_for_status(client.get("spawned"), "cancelled")
    assert ends(db)[:2] == [("called", "cancelled"), ("p", "cancelled")]
    client.signal("let-go", "go", "on")
    assert client.get("let-go", idle).result(timeout=SOON) == "on"


def test_a_child_whose_parent_is_cancelled_before_a_worker_had_it_runs_none_of_its_code(
    client: Client, start_worker: StartWorker, db: Connection[Any]
) -> None:
    ran: list[str] = []

    @workflow
    def child(ctx: Context) -> None:
        ran.append("child")

    @workflow
    def parent(ctx: Context) -> None:
        try:
            ctx.call(child())
        finally:
            ran.append(f"parent {ctx.is_replaying}")

    start_worker(parent)
    run = client.start(parent(), run_id="p")
    wait_for_status(client.get("p"), "waiting")
    assert client.get("p/child#1").status() == "ready"
    run.cancel()
    wait_until(lambda: db.execute("select from pgwf_sdk.inbox where kind = 11").rowcount == 1, "the child is asked")

    start_worker(child)

    with pytest.raises(RunCancelledError):
        run.result(timeout=SOON)
    assert ends(db) == [("p/child#1", "cancelled"), ("p", "cancelled")]
    assert "child" not in ran


def test_a_child_that_is_cancelled_before_a_worker_had_it_lets_its_parent_go_on_with_the_failure(
    client: Client, start_worker: StartWorker
) -> None:
    @workflow
    def nobody_offers_it(ctx: Context) -> None:
        raise AssertionError

    @workflow
    def parent(ctx: Context) -> tuple[str, str]:
        try:
            ctx.call(nobody_offers_it(), run_id="c")
        except ChildFailedError as error:
            return error.status, str(error)
        return "completed", ""

    start_worker(parent)
    run = client.start(parent(), run_id="p")
    wait_for_status(client.get("p"), "waiting")

    assert client.cancel("c", by="ann") == "cancelled"

    status, said = run.result(timeout=SOON)
    assert status == "cancelled"
    assert "c was cancelled by ann" in said


def test_a_run_that_is_terminated_runs_no_more_code_and_what_its_worker_has_done_is_not_recorded(
    client: Client, start_worker: StartWorker, db: Connection[Any]
) -> None:
    entered, released = threading.Event(), threading.Event()
    ran: list[str] = []

    @step(undo=ran.append)
    def slow() -> str:
        entered.set()
        released.wait(20)
        return "returned"

    @workflow
    def program(ctx: Context) -> None:
        ctx.on_exit(ran.append, "exit")
        try:
            ctx.step(slow)
            ran.append("after")
        except Exception:
            ran.append("handler")
            raise

    worker = start_worker(program, lease=LEASE)
    run = client.start(program(), run_id="t")
    assert entered.wait(20)

    assert run.terminate(by="ann", reason="it is wrong") == "terminated"
    released.set()
    wait_until(lambda: worker.worker.health().runs == 0, "the worker has let it go")

    with pytest.raises(RunTerminatedError, match="run t was terminated by ann: it is wrong; "):
        run.result(timeout=SOON)
    assert ran == []
    keys = db.execute("select key, phase from pgwf_journal.entries where journal_id = 't' order by seq").fetchall()
    assert keys == [("/run:program#1", "opened"), ("/run:program#1", "terminated")]
