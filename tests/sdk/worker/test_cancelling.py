"""Runs that are asked to cancel, on real workers: who hears of it, in which order, and how long they may take."""

from __future__ import annotations

import asyncio
import threading
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from pgwf_sdk import (
    AsyncContext,
    Client,
    Context,
    RetryPolicy,
    RunCancelled,
    RunCancelledError,
    RunFailedError,
    RunTerminatedError,
    current_step,
    step,
    workflow,
)
from tests.support import Clock, wait_for_status, wait_until

if TYPE_CHECKING:
    from psycopg import Connection

    from tests.sdk.worker.conftest import StartWorker

SOON = timedelta(seconds=30)
LEASE = timedelta(seconds=3)  # A worker hears of a cancel request within a third of it.
QUICK = RetryPolicy(max_attempts=4, initial=timedelta(milliseconds=10))


def ends(db: Connection[Any]) -> list[tuple[str, str]]:
    return db.execute("select run_id, status from pgwf_sdk.runs order by finished_at").fetchall()


@workflow
def idle(ctx: Context) -> str:
    return ctx.wait_signal("go", str)


def test_a_run_that_is_cancelled_before_it_began_runs_none_of_its_code(
    client: Client, start_worker: StartWorker, db: Connection[Any]
) -> None:
    ran: list[str] = []

    @workflow
    def program(ctx: Context) -> None:
        ran.append("code")
        ctx.sleep(timedelta(days=1))

    run = client.start(program(), run_id="c")
    assert run.cancel(by="ann", reason="not needed") == "cancelled"
    start_worker(program)

    with pytest.raises(RunCancelledError) as caught:
        run.result(timeout=SOON)
    assert "cancelled by ann: not needed" in str(caught.value.__cause__)
    assert ran == []
    keys = db.execute("select key, phase from pgwf_journal.entries where journal_id = 'c' order by seq").fetchall()
    assert keys == [("/run:program#1", "opened"), ("/cancel:cancel#1", "completed"), ("/run:program#1", "cancelled")]


def test_a_run_whose_first_step_was_tried_hears_of_the_cancel_in_its_code(
    client: Client, start_worker: StartWorker
) -> None:
    heard: list[str] = []

    @step(retry=RetryPolicy(initial=timedelta(minutes=1)))
    def fails() -> None:
        raise OSError

    @workflow
    def program(ctx: Context) -> None:
        try:
            ctx.step(fails)
        except RunCancelled as request:
            ctx.step(heard.append, str(request.by))
            raise

    start_worker(program)
    run = client.start(program())
    wait_for_status(run, "waiting")

    assert run.cancel(by="ann") == "requested"

    with pytest.raises(RunCancelledError):
        run.result(timeout=SOON)
    assert heard == ["ann"]


def test_a_run_past_its_deadline_before_it_began_runs_none_of_its_code(
    client: Client, start_worker: StartWorker, clock: Clock
) -> None:
    run = client.start(idle(), deadline=clock.START + timedelta(hours=1))
    clock.advance(hours=2)
    start_worker(idle)

    with pytest.raises(RunCancelledError, match=r"cancelled by deadline: not done by [-\d]{10} 13:00:00 UTC$"):
        run.result(timeout=SOON)


def test_a_deadline_cancels_a_waiting_run_in_time_and_its_code_sees_why(
    client: Client, start_worker: StartWorker, clock: Clock
) -> None:
    @workflow
    def program(ctx: Context) -> str:
        try:
            ctx.sleep(timedelta(days=30))
        except RunCancelled as request:
            return f"{request.by} at {ctx.now() - clock.START}"
        return "slept"

    start_worker(program)
    run = client.start(program(), deadline=clock.START + timedelta(hours=1))
    wait_for_status(run, "waiting")
    assert client.get(run.run_id).details().available_at == clock.START + timedelta(hours=1)

    clock.advance(hours=1)

    assert run.result(timeout=SOON) == "deadline at 1:00:00"


def test_a_step_that_runs_is_told_of_the_cancel(client: Client, start_worker: StartWorker) -> None:
    entered = threading.Barrier(3)
    seen: list[str] = []

    @step
    def plain() -> None:
        entered.wait(20)
        wait_until(lambda: current_step().cancelled, "the step is told")
        seen.append("plain")

    @step
    async def asynchronous() -> None:
        await asyncio.to_thread(entered.wait, 20)
        try:
            await asyncio.sleep(60)
        finally:
            seen.append("async")

    @workflow
    def program(ctx: Context) -> None:
        ctx.parallel(lambda ctx: ctx.step(plain), lambda ctx: ctx.step(asynchronous))

    start_worker(program, lease=LEASE)
    run = client.start(program())
    entered.wait(20)

    run.cancel()

    with pytest.raises(RunCancelledError):
        run.result(timeout=SOON)
    wait_until(lambda: sorted(seen) == ["async", "plain"], "both steps have stopped")


def test_a_parent_that_is_cancelled_ends_after_the_child_it_waits_for(
    client: Client, start_worker: StartWorker, db: Connection[Any]
) -> None:
    @step
    def clean() -> None: ...

    @workflow
    def child(ctx: Context) -> None:
        try:
            ctx.sleep(timedelta(days=1))
        finally:
            ctx.step(clean)

    @workflow
    def parent(ctx: Context) -> None:
        ctx.call(child())

    @workflow
    async def grandparent(ctx: AsyncContext) -> None:
        await ctx.call(parent())

    start_worker(child, parent, grandparent)
    run = client.start(grandparent(), run_id="g")
    wait_until(lambda: "child" in str(ends(db)), "the child is there")
    wait_for_status(client.get("g/parent#1/child#1"), "waiting")

    run.cancel()

    with pytest.raises(RunCancelledError):
        run.result(timeout=SOON)
    assert ends(db) == [("g/parent#1/child#1", "cancelled"), ("g/parent#1", "cancelled"), ("g", "cancelled")]


def test_a_child_that_nobody_waits_for_any_more_is_cancelled_at_once(
    client: Client, start_worker: StartWorker, db: Connection[Any]
) -> None:
    @workflow
    async def parent(ctx: AsyncContext) -> str:
        try:
            async with asyncio.timeout(0.2):
                await ctx.call(idle())
        except TimeoutError:
            pass
        return await ctx.wait_signal("end", str)

    start_worker(idle, parent)
    run = client.start(parent(), run_id="p")
    wait_until(lambda: ("p/idle#1", "cancelled") in ends(db), "the child is cancelled")
    wait_for_status(client.get("p"), "waiting")

    run.signal("end", "done")

    assert run.result(timeout=SOON) == "done"


def test_a_child_that_fails_cancels_the_others_of_its_map_before_the_error_is_raised(
    client: Client, start_worker: StartWorker, db: Connection[Any]
) -> None:
    @workflow
    def part(ctx: Context, number: int) -> None:
        if number == 2:
            ctx.wait_signal("fail", bool)
            raise ValueError(number)
        ctx.sleep(timedelta(days=1))

    @workflow
    def whole(ctx: Context) -> None:
        ctx.map(part, [1, 2, 3])

    start_worker(part, whole)
    run = client.start(whole(), run_id="w")
    failing = "w/branch:map#1[1]/part#1"
    wait_until(lambda: len(ends(db)) == 4, "the children are there")

    client.signal(failing, "fail", True)

    with pytest.raises(RunFailedError, match="child run of 'part' failed"):
        run.result(timeout=SOON)
    statuses = ends(db)
    assert statuses[0] == (failing, "failed")
    assert sorted(status for _, status in statuses[1:3]) == ["cancelled", "cancelled"]
    assert statuses[3] == ("w", "failed")


@pytest.mark.parametrize(
    ("on_close", "status"), [("request_cancel", "cancelled"), ("terminate", "terminated"), ("abandon", "waiting")]
)
def test_a_spawned_child_is_closed_as_its_parent_said(
    client: Client, start_worker: StartWorker, on_close: Any, status: str
) -> None:
    @workflow
    def parent(ctx: Context) -> str:
        ctx.spawn(idle(), run_id="child", on_close=on_close)
        return ctx.wait_signal("end", str)

    start_worker(idle, parent)
    run = client.start(parent(), run_id="p")
    wait_for_status(client.get("p"), "waiting")
    wait_for_status(client.get("child"), "waiting")

    run.signal("end", "done")

    assert run.result(timeout=SOON) == "done"
    wait_until(lambda: client.get("child").status() == status, f"the child is {status}")


def test_a_cleanup_beyond_its_grace_period_is_terminated(
    client: Client, start_worker: StartWorker, clock: Clock, db: Connection[Any]
) -> None:
    @workflow
    def program(ctx: Context) -> None:
        try:
            ctx.wait_signal("go", str)
        finally:
            ctx.wait_signal("never", str)

    start_worker(program)
    run = client.start(program(), run_id="g")
    wait_for_status(run, "waiting")
    run.cancel(grace=timedelta(minutes=1))
    cleaning = "select from pgwf_journal.entries where key = '/signal:never#1'"
    wait_until(lambda: db.execute(cleaning).rowcount == 1, "the run cleans up")
    wait_for_status(run, "waiting")

    clock.advance(seconds=59)
    assert run.status() == "waiting"
    clock.advance(seconds=2)

    when = r"[-\d]{10} \d\d:\d\d:\d\d UTC"
    with pytest.raises(RunTerminatedError, match=rf"terminated by .*: its cleanup was not done by {when}, when "):
        run.result(timeout=SOON)


class Hotel:
    """A step with an undo that fails a few times."""

    def __init__(self, failures: int = 0) -> None:
        self.failures = failures
        self.done: list[str] = []

    def book(self, room: str) -> str:
        self.done.append(f"book {room}")
        return room

    def cancel(self, room: str) -> None:
        if self.failures:
            self.failures -= 1
            raise ConnectionError("line is busy")
        self.done.append(f"cancel {room}")


@pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
def test_a_cancelled_saga_takes_back_what_it_did_and_retries_that(
    client: Client, start_worker: StartWorker, db: Connection[Any], is_async: bool
) -> None:
    hotel = Hotel(failures=3)
    book = step(name="book", undo=step(name="cancel", retry=QUICK)(hotel.cancel))(hotel.book)

    @workflow
    def trip(ctx: Context) -> None:
        ctx.step(book, "a")
        ctx.step(book, "b")
        ctx.wait_signal("go", str)

    @workflow
    async def async_trip(ctx: AsyncContext) -> None:
        await ctx.step(book, "a")
        await ctx.step(book, "b")
        await ctx.wait_signal("go", str)

    definition: Any = async_trip if is_async else trip
    start_worker(definition)
    run = client.start(definition(), run_id="s")
    wait_for_status(client.get("s"), "waiting")

    run.cancel()

    with pytest.raises(RunCancelledError):
        run.result(timeout=SOON)
    assert hotel.done == ["book a", "book b", "cancel b", "cancel a"]
    entries = db.execute(
        "select key, phase from pgwf_journal.entries where kind = 'compensation' order by seq"
    ).fetchall()
    assert entries == [
        ("/compensation:cancel#1", "opened"),
        ("/compensation:cancel#1", "completed"),
        ("/compensation:cancel#2", "opened"),
        ("/compensation:cancel#2", "completed"),
    ]


def test_a_step_with_an_undo_ends_before_its_cancelled_run_undoes_it(client: Client, start_worker: StartWorker) -> None:
    entered, released = threading.Event(), threading.Event()
    hotel = Hotel()

    @step(undo=hotel.cancel)
    def slow(room: str) -> str:
        entered.set()
        released.wait(20)
        return hotel.book(room)

    @workflow
    def trip(ctx: Context) -> None:
        ctx.step(slow, "a")

    start_worker(trip, lease=LEASE)
    run = client.start(trip())
    assert entered.wait(20)

    run.cancel()
    wait_until(lambda: run.details().entry_count == 2, "the worker has heard of the cancel")
    released.set()

    with pytest.raises(RunCancelledError):
        run.result(timeout=SOON)
    assert hotel.done == ["book a", "cancel a"]


def test_compensations_take_the_time_they_take_whatever_the_grace_period(
    client: Client, start_worker: StartWorker, clock: Clock
) -> None:
    hotel = Hotel(failures=1)
    patient = RetryPolicy(max_attempts=2, initial=timedelta(hours=1), max_interval=timedelta(hours=1))
    book = step(name="book", undo=step(name="cancel", retry=patient)(hotel.cancel))(hotel.book)

    @workflow
    def trip(ctx: Context) -> None:
        ctx.step(book, "a")
        ctx.wait_signal("go", str)

    start_worker(trip)
    run = client.start(trip(), run_id="s")
    wait_for_status(client.get("s"), "waiting")
    run.cancel(grace=timedelta(minutes=1))
    wait_until(lambda: client.get("s").details().attempts == 1, "the compensation failed once")

    clock.advance(hours=2)

    with pytest.raises(RunCancelledError):
        run.result(timeout=SOON)
    assert hotel.done == ["book a", "cancel a"]


def test_a_retry_begins_again_at_the_first_step_that_was_undone(client: Client, start_worker: StartWorker) -> None:
    hotel = Hotel()
    charged: list[str] = []
    is_mended: list[bool] = []
    book = step(name="book", undo=hotel.cancel)(hotel.book)

    @step(retry=RetryPolicy(max_attempts=1))
    def fragile() -> str:
        if not is_mended:
            raise ValueError("not yet")
        return "done"

    @workflow
    def trip(ctx: Context) -> str:
        ctx.on_exit(tell)
        ctx.step(charge, "before")
        ctx.step(book, "a")
        ctx.step(charge, "a")
        return ctx.step(fragile)

    @step
    def charge(room: str) -> None:
        charged.append(room)

    def tell() -> None:
        charged.append("exit")

    start_worker(trip)
    with pytest.raises(RunFailedError):
        client.start(trip(), run_id="t").result(timeout=SOON)
    is_mended.append(True)

    assert client.retry("t", trip).result(timeout=SOON) == "done"
    assert hotel.done == ["book a", "cancel a", "book a"]
    assert charged == ["before", "a", "exit", "a", "exit"]
