"""What steps, workflows and the database do wrong stays with the run it belongs to: it ends, and the worker goes on."""

from __future__ import annotations

import asyncio
import contextlib
import sys
import threading
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Literal

import psycopg
import pytest

from pgwf_sdk import (
    AsyncContext,
    Client,
    Context,
    RetryPolicy,
    RunFailedError,
    StepFailedError,
    StepTimeoutError,
    step,
    workflow,
)
from pgwf_sdk._telemetry import Telemetry
from pgwf_sdk.worker._session import Session
from pgwf_sdk.worker._settings import Settings, by_name, offered
from pgwf_sql.database import AsyncDatabase
from tests.support import wait_for_status, wait_until

if TYPE_CHECKING:
    from tests.sdk.worker.conftest import StartWorker

SOON = timedelta(seconds=30)
ONCE = RetryPolicy(max_attempts=1)
SLOW_CLAIMS = """
create table slow (is_slow boolean not null);
create function wait_while_slow() returns trigger language plpgsql as $$
begin
  while exists (select from public.slow) loop
    perform pg_sleep(0.01);
  end loop;
  return new;
end
$$;
create trigger slow before insert on pgwf.lease for each row execute function wait_while_slow();
"""
TOO_LARGE = """
create function refuse_large() returns trigger language plpgsql as $$
begin
  if new.name = 'large' then
    raise exception using errcode = '54000', message = 'too large';
  end if;
  return new;
end
$$;
create trigger large before insert on pgwf_journal.entry for each row execute function refuse_large();
"""


class Alarm(BaseException):
    """Neither an Exception nor known to anybody."""


@step(retry=ONCE)
def exits() -> None:
    sys.exit(3)


@step(retry=ONCE)
def interrupts() -> None:
    raise KeyboardInterrupt


@step(retry=ONCE)
def alarms() -> None:
    raise Alarm("fire")


@step(retry=ONCE)
def runs_dry() -> int:
    return next(iter(()))


@step(retry=ONCE)
async def exits_async() -> None:
    sys.exit(3)


@step(retry=ONCE)
async def alarms_async() -> None:
    raise Alarm("fire")


@step(retry=ONCE)
async def awaits_what_was_cancelled() -> None:
    task = asyncio.create_task(asyncio.Event().wait())
    task.cancel()
    await task


STEPS = {
    one.name: one for one in (exits, interrupts, alarms, runs_dry, exits_async, alarms_async, awaits_what_was_cancelled)
}


@step
def fine() -> str:
    return "fine"


@workflow
def harmless(ctx: Context) -> str:
    return ctx.step(fine)


@workflow
def calls(ctx: Context, name: str) -> str:
    try:
        ctx.step(STEPS[name])
    except (StepFailedError, RuntimeError) as error:
        return f"{type(error).__name__}: {error}"
    return "nothing was raised"


@pytest.mark.parametrize(
    ("name", "raised"),
    [
        ("exits", "StepFailedError: builtins:SystemExit: 3"),
        ("interrupts", "StepFailedError: builtins:KeyboardInterrupt: "),
        ("alarms", f"StepFailedError: {__name__}:Alarm: fire"),
        ("runs_dry", "RuntimeError: coroutine raised StopIteration"),
        ("exits_async", "StepFailedError: builtins:SystemExit: 3"),
        ("alarms_async", f"StepFailedError: {__name__}:Alarm: fire"),
        ("awaits_what_was_cancelled", "StepFailedError: asyncio.exceptions:CancelledError: "),
    ],
)
def test_whatever_a_step_raises_is_its_failure_and_the_worker_goes_on(
    name: str, raised: str, client: Client, start_worker: StartWorker
) -> None:
    start_worker(calls, harmless)

    assert client.start(calls(name)).result(timeout=SOON) == raised
    assert client.start(harmless()).result(timeout=SOON) == "fine"


@workflow
def leaves(_ctx: Context) -> None:
    sys.exit(3)


@workflow
def leaves_in_a_branch(ctx: Context) -> None:
    def leave(_ctx: Context) -> None:
        sys.exit(3)

    ctx.parallel(leave)


@workflow
async def leaves_async(_ctx: AsyncContext) -> None:
    sys.exit(3)


@pytest.mark.parametrize("leaving", [leaves, leaves_in_a_branch, leaves_async], ids=lambda one: one.name)
def test_a_workflow_that_exits_has_failed_and_the_worker_goes_on(
    leaving: Any, client: Client, start_worker: StartWorker
) -> None:
    start_worker(leaving, harmless)

    with pytest.raises(RunFailedError, match="SystemExit: 3"):
        client.start(leaving()).result(timeout=SOON)
    assert client.start(harmless()).result(timeout=SOON) == "fine"


def test_a_step_that_got_no_thread_before_its_time_was_up_does_not_begin_later(
    client: Client, start_worker: StartWorker
) -> None:
    may_end = threading.Event()
    begun: list[str] = []

    @step
    def long() -> None:
        begun.append("long")
        may_end.wait(SOON.total_seconds())

    @step(timeout=timedelta(milliseconds=50), retry=ONCE)
    def short() -> None:
        begun.append("short")

    @workflow
    async def both(ctx: AsyncContext) -> bool:
        first = ctx.step(long)
        try:
            await ctx.step(short)
        except StepTimeoutError:
            may_end.set()
        await first
        return await ctx.step(fine) == "fine"

    start_worker(both, step_threads=1)

    assert client.start(both()).result(timeout=SOON)
    assert begun == ["long"]


@dataclass
class Card:
    number: str

    def __getattribute__(self, name: str) -> Any:
        if name == "number":
            raise PermissionError("nobody may read this")
        return super().__getattribute__(name)


class DeclinedError(Exception):
    def __init__(self, card: Card) -> None:
        super().__init__("declined")
        self.card = card


def test_a_failure_is_recorded_although_what_it_carries_cannot_be_read(
    client: Client, start_worker: StartWorker
) -> None:
    @step(retry=ONCE)
    def pay() -> None:
        raise DeclinedError(Card("4242"))

    @workflow
    def buy(ctx: Context) -> str:
        try:
            ctx.step(pay)
        except DeclinedError as error:
            return str(error)
        return "?"

    start_worker(buy)

    assert client.start(buy()).result(timeout=SOON) == "declined"


Flaw = Literal["child", "long child", "title", "assign", "exclude", "need", "notify", "escalate"]
NUL = "a\0b"


@workflow
def asks_for_what_cannot_be(ctx: Context, flaw: Flaw) -> str:
    whom: dict[str, dict[str, Any]] = {
        "title": {"title": NUL},
        "assign": {"assign": NUL},
        "exclude": {"exclude": [NUL]},
        "need": {"need": "human." + "x" * 600},
        "notify": {"notify": ["#channel"]},
        "escalate": {"escalate": "human." + "x" * 600, "due": timedelta(hours=1)},
    }
    try:
        if flaw in ("child", "long child"):
            ctx.call(harmless(), run_id=NUL if flaw == "child" else "x" * 600)
        else:
            ctx.human("sure", "?", str, on_expire="expired", **{"need": "human.any", **whom[flaw]})
    except Exception as error:  # noqa: BLE001 - its class is what the test asks for
        return type(error.__cause__ or error).__name__
    return "nothing was raised"


@pytest.mark.parametrize("flaw", ["child", "long child", "title", "assign", "exclude", "need", "notify", "escalate"])
def test_a_workflow_hears_at_once_of_what_the_database_could_not_hold(
    flaw: Flaw, client: Client, start_worker: StartWorker
) -> None:
    start_worker(asks_for_what_cannot_be, harmless)

    assert client.start(asks_for_what_cannot_be(flaw)).result(timeout=SOON) == "DefinitionError"


def test_a_question_of_a_run_with_a_long_id_can_be_answered(client: Client, start_worker: StartWorker) -> None:
    @workflow
    def asking(ctx: Context) -> str:
        return ctx.human("sure", "?", str, need="human.any").value

    start_worker(asking)
    run = client.start(asking(), run_id="x" * 512)
    wait_until(lambda: client.human.list(need="human.any"), "the task is open")

    client.human.decide(client.human.list(need="human.any")[0].task_id, "yes", by="ada")

    assert run.result(timeout=SOON) == "yes"


def test_what_is_too_large_for_the_database_is_refused_and_not_sent_for_ever(
    client: Client, start_worker: StartWorker, db: psycopg.Connection[Any]
) -> None:
    db.execute(TOO_LARGE)

    @step
    def large() -> int:
        return 1

    @workflow
    def heavy(ctx: Context) -> int:
        return ctx.step(large)

    start_worker(heavy, harmless)
    client.start(heavy(), run_id="heavy")

    note = "select note from pgwf_sdk.runs where run_id = 'heavy' and note like 'refused by the database: too large%'"
    wait_until(lambda: db.execute(note).fetchone(), "the run is given back")
    assert client.start(harmless()).result(timeout=SOON) == "fine"
    client.terminate("heavy")


class Parcel:
    """Its class can no longer read what it wrote."""

    is_broken = False

    def __init__(self, weight: int) -> None:
        self.weight = weight

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Parcel) and other.weight == self.weight

    def __hash__(self) -> int:
        return self.weight

    def model_dump(self, *, mode: str) -> dict[str, int]:
        return {"weight": self.weight}

    @classmethod
    def model_validate(cls, value: dict[str, int]) -> Parcel:
        if cls.is_broken:
            raise LookupError("no such weight")
        return cls(value["weight"])


@workflow
def ships(_ctx: Context, parcel: Parcel) -> int:
    return parcel.weight


@workflow
async def ships_async(_ctx: AsyncContext, parcel: Parcel) -> int:
    return parcel.weight


@pytest.mark.parametrize("shipping", [ships, ships_async], ids=lambda one: one.name)
def test_a_run_whose_input_its_class_cannot_read_is_blocked_until_that_is_mended(
    shipping: Any, client: Client, start_worker: StartWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = client.start(shipping(Parcel(7)), run_id="p")
    monkeypatch.setattr(Parcel, "is_broken", True)
    start_worker(ships, ships_async)

    wait_for_status(run, "blocked")

    monkeypatch.setattr(Parcel, "is_broken", False)
    client.resume("p")
    assert run.result(timeout=SOON) == 7


def test_an_entry_that_finds_no_room_again_and_again_keeps_no_new_run_from_being_taken(
    client: Client, start_worker: StartWorker, db: psycopg.Connection[Any], caplog: pytest.LogCaptureFixture
) -> None:
    db.execute(TOO_LARGE.replace("54000", "53100"))

    @step
    def large() -> int:
        return 1

    @workflow
    def heavy(ctx: Context) -> int:
        return ctx.step(large)

    start_worker(heavy, harmless)
    run = client.start(heavy())
    wait_until(lambda: caplog.text.count("cannot take a call") >= 3, "the entry found no room")

    assert client.start(harmless()).result(timeout=SOON) == "fine"
    db.execute("drop trigger large on pgwf_journal.entry")
    assert run.result(timeout=SOON) == 1


def test_a_worker_that_cannot_say_that_it_sleeps_tries_again(
    client: Client, start_worker: StartWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_statement = AsyncDatabase.run
    faults: list[str] = []

    async def run(self: AsyncDatabase, statement: Any, connection: Any = None) -> Any:
        if statement.query == "sdk_sleep_in_turn" and not faults:
            faults.append(statement.query)
            raise psycopg.OperationalError("the database system is in recovery mode")
        return await run_statement(self, statement, connection)

    monkeypatch.setattr(AsyncDatabase, "run", run)
    running = start_worker(harmless)
    wait_until(lambda: faults, "the worker met the fault")

    assert client.start(harmless()).result(timeout=SOON) == "fine"
    running.stop()


def test_a_worker_stops_although_a_statement_swallows_that_its_task_is_cancelled(
    client: Client, start_worker: StartWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_statement = AsyncDatabase.run
    swallowed: list[str] = []

    async def run(self: AsyncDatabase, statement: Any, connection: Any = None) -> Any:
        answer = await run_statement(self, statement, connection)
        if statement.query == "sdk_horizon" and not swallowed:
            # As asyncio.wait_for does in Python 3.11 when its future is done at the moment of the cancellation.
            swallowed.append("")
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.Event().wait()
        return answer

    monkeypatch.setattr(AsyncDatabase, "run", run)
    running = start_worker(harmless)
    wait_until(lambda: swallowed, "the worker looks whether it may sleep")

    running.stop()


def session_for(dsn: str) -> Session:
    workflows = by_name([harmless])
    settings = Settings(
        dsn=dsn,
        worker_id="w",
        workflows=workflows,
        capabilities=offered(workflows, (), ""),
        concurrency=4,
        step_threads=1,
        lease=timedelta(seconds=15),
        poll=timedelta(seconds=1),
        grace=timedelta(seconds=1),
        build="",
    )
    return Session(settings, Telemetry())


async def until(condition: Any) -> None:
    async with asyncio.timeout(SOON.total_seconds()):
        while not condition():  # noqa: ASYNC110 - the state is the database's
            await asyncio.sleep(0.01)


def test_a_worker_told_to_stop_while_it_asks_for_work_gives_back_what_it_is_handed(
    dsn: str, client: Client, db: psycopg.Connection[Any]
) -> None:
    db.execute(f"{SLOW_CLAIMS}; insert into slow values (true)")
    client.start(harmless(), run_id="h")
    claiming = "select pid from pg_stat_activity where application_name = 'pgwf worker' and wait_event = 'PgSleep'"

    async def stop_while_claiming() -> None:
        running = asyncio.create_task((session := session_for(dsn)).run())
        await until(lambda: db.execute(claiming).fetchone())
        session.stop()
        db.execute("delete from slow")
        await running

    asyncio.run(stop_while_claiming())

    seen = db.execute("select status, lapses, (select count(*) from pgwf.lease) from pgwf_sdk.runs").fetchone()
    assert seen == ("ready", 0, 0)
