"""Runs on real workers at the edges: limits, times, control from outside, code that changed."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest

from pgwf_sdk import (
    AsyncContext,
    ChildFailedError,
    Client,
    Context,
    DefinitionError,
    RetryPolicy,
    RunCancelledError,
    RunConflictError,
    StepTimeoutError,
    WaitTimeoutError,
    current_step,
    step,
    workflow,
)
from tests.support import Clock, wait_for_status, wait_until

if TYPE_CHECKING:
    from psycopg import Connection

    from tests.sdk.worker.conftest import StartWorker

SOON = timedelta(seconds=30)


@step
def double(x: int) -> int:
    return 2 * x


@workflow
def two_waits(ctx: Context) -> str:
    return ctx.wait_signal("first", str) + ctx.wait_signal("second", str)


def test_a_paused_run_takes_no_notice_of_signals_until_it_is_resumed(
    client: Client, start_worker: StartWorker, db: Connection[Any]
) -> None:
    start_worker(two_waits)
    run = client.start(two_waits(), run_id="p")
    wait_for_status(client.get("p"), "waiting")

    assert client.pause("p") == "paused"
    client.signal("p", "first", "a")
    client.signal("p", "second", "b")
    assert db.execute("select count(*) from pgwf_sdk.inbox").fetchone() == (2,)
    assert client.get("p").status() == "paused"
    assert client.resume("p") == "resumed"

    assert run.result(timeout=SOON) == "ab"


def test_a_run_that_is_not_done_by_its_deadline_is_cancelled(client: Client, start_worker: StartWorker) -> None:
    start_worker(two_waits)

    run = client.start(two_waits(), deadline=datetime.now(UTC) + timedelta(seconds=1))

    with pytest.raises(RunCancelledError):
        run.result(timeout=SOON)


def test_a_step_that_takes_too_long_is_a_timeout_in_the_workflow(client: Client, start_worker: StartWorker) -> None:
    @step(timeout=timedelta(milliseconds=50), retry=RetryPolicy(max_attempts=1))
    async def slow() -> None:
        await asyncio.Event().wait()

    @workflow
    def patient(ctx: Context) -> str:
        try:
            ctx.step(slow)
        except StepTimeoutError as error:
            return str(error)
        return "?"

    start_worker(patient)

    assert "did not end within 0.05 s" in client.start(patient()).result(timeout=SOON)


def test_a_long_pause_between_attempts_is_waited_for_in_the_database(
    client: Client, start_worker: StartWorker, clock: Clock, db: Connection[Any]
) -> None:
    tries: list[int] = []

    @step(retry=RetryPolicy(max_attempts=2, initial=timedelta(hours=24), max_interval=timedelta(hours=24)))
    def fails_once() -> str:
        tries.append(1)
        if len(tries) == 1:
            raise OSError("not yet")
        return "done"

    @workflow
    def retried(ctx: Context) -> str:
        return ctx.step(fails_once)

    start_worker(retried)
    run = client.start(retried(), run_id="r")
    wait_until(lambda: tries, "the first attempt")
    wait_for_status(run, "waiting")
    assert db.execute("select no, key from pgwf_sdk.attempt").fetchall() == [(1, "/step:fails_once#1")]

    clock.advance(days=2)

    assert run.result(timeout=SOON) == "done"
    assert db.execute("select count(*) from pgwf_sdk.attempt").fetchone() == (0,)


def test_a_question_nobody_answers_in_time_is_closed_and_the_run_goes_on(
    client: Client, start_worker: StartWorker, clock: Clock, db: Connection[Any]
) -> None:
    @workflow
    def asking(ctx: Context) -> str:
        try:
            return ctx.human("sure", "?", str, need="human.any", expires=timedelta(hours=1)).value
        except WaitTimeoutError:
            return "nobody"

    start_worker(asking)
    run = client.start(asking())
    wait_until(lambda: client.human.list(need="human.any"), "the task is open")

    clock.advance(hours=2)

    assert run.result(timeout=SOON) == "nobody"
    assert db.execute("select state from pgwf_sdk.tasks").fetchall() == [("expired",)]


def test_a_question_that_nobody_answers_in_time_is_handed_on_by_the_workers_sweep(
    client: Client, start_worker: StartWorker
) -> None:
    @workflow
    async def asking(ctx: AsyncContext) -> str:
        soon = timedelta(seconds=1)
        return (await ctx.human("sure", "?", str, need="human.any", due=soon, escalate="human.lead")).by

    start_worker(asking, lease=timedelta(seconds=3))
    run = client.start(asking())

    (task,) = wait_until(lambda: client.human.list(need="human.lead"), "the task is handed on")
    client.human.decide(task.task_id, "yes", by="lia")

    assert run.result(timeout=SOON) == "lia"


def test_cancelling_a_run_withdraws_its_question(
    client: Client, start_worker: StartWorker, db: Connection[Any]
) -> None:
    @workflow
    def asking(ctx: Context) -> str:
        return ctx.human("sure", "?", str, need="human.any").value

    start_worker(asking)
    run = client.start(asking())
    wait_until(lambda: client.human.list(need="human.any"), "the task is open")

    client.cancel(run.run_id)

    with pytest.raises(RunCancelledError):
        run.result(timeout=SOON)
    assert db.execute("select state from pgwf_sdk.tasks").fetchall() == [("cancelled",)]
    assert db.execute("select count(*) from pgwf.job").fetchone() == (0,)


def test_a_child_whose_id_is_taken_fails_where_it_was_called(client: Client, start_worker: StartWorker) -> None:
    @workflow
    def child(ctx: Context, x: int) -> int:
        return ctx.step(double, x)

    @workflow
    def parent(ctx: Context) -> str:
        try:
            ctx.call(child(2), run_id="taken")
        except ChildFailedError as error:
            return type(error.__cause__).__name__
        return "?"

    start_worker(parent, child)
    client.start(child(1), run_id="taken").result(timeout=SOON)

    assert client.start(parent()).result(timeout=SOON) == RunConflictError.__name__


def test_a_journal_longer_than_one_answer_is_replayed_whole(client: Client, start_worker: StartWorker) -> None:
    count = 1_500

    @workflow
    async def long(ctx: AsyncContext) -> int:
        values = await ctx.map(double, list(range(count)), max_concurrency=100)
        await ctx.wait_signal("go", int)
        return sum(values)

    start_worker(long)
    run = client.start(long())
    wait_for_status(run, "waiting", seconds=60)

    client.signal(run.run_id, "go", 1)

    assert run.result(timeout=SOON) == sum(2 * x for x in range(count))


def test_a_failing_branch_of_a_map_over_people_withdraws_the_other_questions(
    client: Client, start_worker: StartWorker, db: Connection[Any]
) -> None:
    @step(retry=RetryPolicy(max_attempts=1))
    def explode() -> None:
        raise ValueError("boom")

    @workflow
    def asking(ctx: Context) -> str:
        def ask(c: Context) -> str:
            return c.human("sure", "?", str, need="human.any").value

        def wait_then_explode(c: Context) -> None:
            c.wait_signal("explode", bool)
            c.step(explode)

        try:
            ctx.parallel(ask, wait_then_explode)
        except ValueError:
            ctx.wait_signal("end", bool)
        return "ended"

    start_worker(asking)
    run = client.start(asking())
    wait_until(lambda: client.human.list(need="human.any"), "the task is open")

    client.signal(run.run_id, "explode", True)

    wait_until(
        lambda: db.execute("select state from pgwf_sdk.tasks").fetchall() == [("cancelled",)], "the task is withdrawn"
    )
    client.signal(run.run_id, "end", True)
    assert run.result(timeout=SOON) == "ended"


def test_a_run_pinned_to_a_build_goes_only_to_workers_of_that_build(client: Client, start_worker: StartWorker) -> None:
    built: list[str] = []

    @step(need="gpu")
    def compute() -> str:
        return "computed"

    @workflow(name="pinned", build="b1")
    def first_build(ctx: Context) -> str:
        built.append("b1")
        return ctx.step(compute)

    @workflow(name="pinned", build="b2")
    def second_build(ctx: Context) -> str:
        built.append("b2")
        return "wrong"

    start_worker(second_build, build="b2", capabilities=["gpu"])
    run = client.start(first_build())
    assert client.list()[0].need == "pinned@b1"

    start_worker(first_build, build="b1", capabilities=["gpu"])

    assert run.result(timeout=SOON) == "computed"
    assert built == ["b1"]


REFUSED = b"14"


def refuse(db: Connection[Any], sqlstate: str) -> None:
    """Let the database refuse an entry with the payload REFUSED."""
    db.execute(
        "create function refuse() returns trigger language plpgsql as"
        f" $$ begin raise exception 'no more of this' using errcode = '{sqlstate}'; end $$"
    )
    db.execute(
        "create trigger refuse before insert on pgwf_journal.entry_0 for each row"
        f" when (new.payload = '{REFUSED.decode()}'::bytea) execute function refuse()"
    )


@workflow
def recording(ctx: Context, x: int) -> int:
    return ctx.step(double, x)


def test_a_run_whose_records_the_database_refuses_is_given_back_for_a_while_and_others_go_on(
    client: Client, start_worker: StartWorker, db: Connection[Any]
) -> None:
    refuse(db, "P0001")
    start_worker(recording)

    refused = client.start(recording(7), run_id="refused")

    assert client.start(recording(1)).result(timeout=SOON) == 2
    wait_until(
        lambda: db.execute("select from pgwf_sdk.runs where run_id = 'refused' and note ~ 'no more'").fetchall(),
        "the run is given back with the reason",
    )
    db.execute("drop trigger refuse on pgwf_journal.entry_0")
    assert refused.result(timeout=SOON) == int(REFUSED)


def test_an_entry_the_database_has_no_room_for_is_sent_until_it_has_and_others_go_on(
    client: Client, start_worker: StartWorker, db: Connection[Any]
) -> None:
    refuse(db, "53100")
    start_worker(recording)

    waiting = client.start(recording(7))

    assert client.start(recording(1)).result(timeout=SOON) == 2
    db.execute("drop trigger refuse on pgwf_journal.entry_0")
    assert waiting.result(timeout=SOON) == int(REFUSED)


def test_what_an_attempt_reported_is_known_to_the_next_one(
    client: Client, start_worker: StartWorker, db: Connection[Any]
) -> None:
    @step(retry=RetryPolicy(max_attempts=2, initial=timedelta(0)))
    def copy_pages() -> int:
        me = current_step()
        if me.last_heartbeat is None:
            me.heartbeat({"page": 41})
            wait_until(
                lambda: db.execute("select from pgwf_sdk.attempt where heartbeat is not null").fetchall(),
                "it is written",
            )
            raise OSError("the connection broke")
        page: int = me.last_heartbeat["page"]
        return page + 1

    @workflow
    def copying(ctx: Context) -> int:
        return ctx.step(copy_pages)

    start_worker(copying)

    assert client.start(copying()).result(timeout=SOON) == 42
    assert db.execute("select count(*) from pgwf_sdk.attempt").fetchone() == (0,)


@step(retry=RetryPolicy(initial=timedelta(days=1), max_interval=timedelta(days=1)))
def report_and_fail() -> object:
    me = current_step()
    if me.attempt > 1:
        return me.last_heartbeat
    me.heartbeat({"page": 41})
    raise OSError("the connection broke")


@workflow
def retrying(ctx: Context) -> object:
    return ctx.step(report_and_fail)


@workflow
async def retrying_async(ctx: AsyncContext) -> object:
    return await ctx.step(report_and_fail)


@pytest.mark.parametrize("definition", [retrying, retrying_async], ids=["plain", "async"])
def test_a_step_begins_also_when_what_its_last_attempt_reported_cannot_be_read(
    client: Client, start_worker: StartWorker, db: Connection[Any], definition: Any
) -> None:
    first = start_worker(definition)
    run = client.start(definition())
    wait_until(
        lambda: db.execute("select no from pgwf_sdk.attempt where heartbeat is not null").fetchone(), "it failed"
    )
    first.worker.stop()
    first.join()
    gone = '{"$dataclass":["gone:Page",{"number":41}]}'
    db.execute("update pgwf_sdk.attempt set heartbeat = %s, next_at = now()", [gone])
    db.execute("select pgwf.wake_jobs('operator', array(select job_id from pgwf.jobs))")

    start_worker(definition)

    assert run.result(timeout=SOON) is None


def test_a_step_that_falls_silent_has_timed_out_and_one_that_reports_has_not(
    client: Client, start_worker: StartWorker
) -> None:
    @step(heartbeat_timeout=timedelta(seconds=1), retry=RetryPolicy(max_attempts=1))
    async def talk(count: int) -> str:
        for _ in range(count):
            current_step().heartbeat()
            await asyncio.sleep(0.3)
        if not count:
            await asyncio.Event().wait()
        return "talked"

    @workflow
    def listening(ctx: Context, count: int) -> str:
        try:
            return ctx.step(talk, count)
        except StepTimeoutError as error:
            return str(error)

    start_worker(listening)

    assert client.start(listening(6)).result(timeout=SOON) == "talked"
    assert "was silent for 0:00:01" in client.start(listening(0)).result(timeout=SOON)


def test_a_question_that_cannot_be_asked_is_an_error_where_it_is_asked(
    client: Client, start_worker: StartWorker
) -> None:
    @workflow
    def asking(ctx: Context) -> str:
        try:
            return ctx.human("sure", "?", str, need="boss").value
        except DefinitionError as error:
            return str(error)

    start_worker(asking)

    assert "expected one that begins with 'human.'" in client.start(asking()).result(timeout=SOON)
