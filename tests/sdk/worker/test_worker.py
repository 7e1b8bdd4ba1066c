"""Runs on real workers and a real database: what a workflow's author relies on."""

from __future__ import annotations

import asyncio
import threading
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from pgwf_sdk import (
    AsyncContext,
    ChildFailedError,
    Client,
    Context,
    RetryPolicy,
    RunCancelledError,
    RunFailedError,
    WaitTimeoutError,
    current_step,
    step,
    workflow,
)
from tests.support import Clock, wait_for_status, wait_until

if TYPE_CHECKING:
    from psycopg import Connection

    from tests.sdk.worker.conftest import StartWorker

SOON = timedelta(seconds=20)


@step
def double(x: int) -> int:
    return 2 * x


@step
async def increment(x: int) -> int:
    return x + 1


@workflow
def chain(ctx: Context, x: int) -> int:
    return ctx.step(increment, ctx.step(double, x))


@workflow
async def async_chain(ctx: AsyncContext, x: int) -> int:
    return await ctx.step(increment, await ctx.step(double, x))


@pytest.mark.parametrize("definition", [chain, async_chain], ids=["sync", "async"])
def test_a_run_returns_what_its_code_returns_and_each_step_is_in_the_journal_once(
    client: Client, start_worker: StartWorker, db: Connection[Any], definition: Any
) -> None:
    start_worker(definition)

    result = client.start(definition(20), run_id="r").result(timeout=SOON)

    assert result == 41
    keys = db.execute("select key, phase from pgwf_journal.entries where journal_id = 'r' order by seq").fetchall()
    assert keys == [
        (f"/run:{definition.name}#1", "opened"),
        ("/step:double#1", "completed"),
        ("/step:increment#1", "completed"),
        (f"/run:{definition.name}#1", "completed"),
    ]


def test_a_run_started_before_any_worker_is_taken_up_by_the_first(client: Client, start_worker: StartWorker) -> None:
    run = client.start(chain(1))

    start_worker(chain)

    assert run.result(timeout=SOON) == 3


@workflow
def sleeper(ctx: Context) -> str:
    ctx.sleep(timedelta(days=3))
    return "slept"


def test_a_sleeping_run_is_in_no_worker_and_goes_on_when_its_time_has_come(
    client: Client, start_worker: StartWorker, clock: Clock
) -> None:
    start_worker(sleeper)
    run = client.start(sleeper())
    wait_for_status(run, "waiting")

    clock.advance(days=3, seconds=1)

    assert run.result(timeout=SOON) == "slept"


class Parcel(msgspec.Struct):
    weight: int


@workflow
def delivery(ctx: Context) -> int:
    return ctx.wait_signal("delivered", Parcel).weight + ctx.wait_signal("delivered", Parcel).weight


def test_a_worker_with_one_place_lets_fifty_runs_sleep_at_once(
    client: Client, start_worker: StartWorker, clock: Clock, db: Connection[Any]
) -> None:
    @workflow
    def napping(ctx: Context, number: int) -> int:
        ctx.sleep(timedelta(hours=1))
        return number

    start_worker(napping, concurrency=1)
    runs = [client.start(napping(number)) for number in range(50)]
    asleep = "select count(*) from pgwf_sdk.runs where status = 'waiting' and available_at = %s"
    wait_until(lambda: db.execute(asleep, [clock.START + timedelta(hours=1)]).fetchone() == (50,), "all sleep")

    clock.advance(hours=1)

    assert [run.result(timeout=SOON) for run in runs] == list(range(50))


def test_signals_are_received_in_the_order_they_were_sent_before_or_while_the_run_waits(
    client: Client, start_worker: StartWorker
) -> None:
    run = client.start(delivery())
    client.signal(run.run_id, "delivered", Parcel(1))
    start_worker(delivery)
    wait_for_status(run, "waiting")

    client.signal(run.run_id, "delivered", Parcel(10))

    assert run.result(timeout=SOON) == 11


@workflow
def impatient(ctx: Context) -> str:
    try:
        return ctx.wait_signal("go", str, timeout=timedelta(hours=1))
    except WaitTimeoutError:
        return "gave up"


def test_a_wait_for_a_signal_ends_at_its_timeout(client: Client, start_worker: StartWorker, clock: Clock) -> None:
    start_worker(impatient)
    run = client.start(impatient())
    wait_for_status(run, "waiting")

    clock.advance(hours=2)

    assert run.result(timeout=SOON) == "gave up"


def test_a_signal_that_came_before_the_timeout_wins_however_late_the_run_looks(
    client: Client, start_worker: StartWorker, clock: Clock
) -> None:
    worker = start_worker(impatient)
    run = client.start(impatient())
    wait_for_status(run, "waiting")
    worker.stop()
    clock.advance(minutes=30)
    client.signal(run.run_id, "go", "gone")
    clock.advance(hours=9)

    start_worker(impatient)

    assert run.result(timeout=SOON) == "gone"


@workflow
def parent(ctx: Context, x: int) -> int:
    return ctx.call(chain(x)) + ctx.call(async_chain(x))


def test_a_child_run_returns_its_value_to_its_parent(client: Client, start_worker: StartWorker) -> None:
    start_worker(parent, chain, async_chain)

    run = client.start(parent(1), run_id="p")

    assert run.result(timeout=SOON) == 6
    assert {child.run_id for child in client.list(parent_run_id="p")} == {"p/chain#1", "p/async_chain#1"}


@workflow
async def fan_out(ctx: AsyncContext, count: int) -> list[int]:
    return await ctx.map(chain, list(range(count)))


def test_map_over_a_workflow_starts_a_child_an_item_and_keeps_their_order(
    client: Client, start_worker: StartWorker, db: Connection[Any]
) -> None:
    start_worker(fan_out, chain)

    run = client.start(fan_out(25), run_id="f")

    assert run.result(timeout=SOON) == [2 * x + 1 for x in range(25)]
    leases = db.execute("select count(distinct lease_no) from pgwf_journal.entries where journal_id = 'f'").fetchone()
    assert leases is not None
    assert leases[0] <= 6, "a parent of 25 is woken a few times, not once a child"


@workflow
def side_by_side(ctx: Context) -> list[int]:
    left, right = ctx.parallel(lambda c: c.step(double, 1), lambda c: c.step(increment, 10))
    return [left, right, *ctx.map(double, [1, 2, 3])]


def test_parallel_and_map_over_a_step_give_results_in_the_order_of_their_branches(
    client: Client, start_worker: StartWorker
) -> None:
    start_worker(side_by_side)

    assert client.start(side_by_side()).result(timeout=SOON) == [2, 11, 2, 4, 6]


@step(need="gpu")
def score(x: int) -> str:
    return f"scored {x} in {threading.current_thread().name.partition('_')[0]}"


@workflow(need="python")
def scoring(ctx: Context) -> str:
    first = ctx.step(double, 1)
    scored = ctx.step(score, first)
    return f"{scored}, then {ctx.step(double, 4)}"


def test_a_step_with_a_need_takes_the_run_to_a_worker_that_offers_it_and_back(
    client: Client, start_worker: StartWorker, db: Connection[Any]
) -> None:
    start_worker(scoring, capabilities=["python"], worker_id="home")
    start_worker(scoring, capabilities=["gpu"], worker_id="gpu")

    run = client.start(scoring(), run_id="s")

    assert run.result(timeout=SOON) == "scored 2 in pgwf-step, then 8"
    leases = db.execute(
        "select key, lease_no from pgwf_journal.entries where journal_id = 's' and kind = 'step' order by seq"
    ).fetchall()
    assert [key for key, _ in leases] == ["/step:double#1", "/step:score#1", "/step:double#2"]
    assert len({lease for _, lease in leases}) == 3


@workflow
def visiting(ctx: Context) -> str:
    scored = ctx.step(score, 1)
    ctx.wait_signal("go", bool)
    return scored


def test_a_run_goes_home_after_its_visit_also_from_a_worker_that_knows_it(
    client: Client, start_worker: StartWorker
) -> None:
    gpu = start_worker(visiting, capabilities=["gpu"])
    run = client.start(visiting())
    wait_for_status(run, "waiting")
    gpu.stop()

    start_worker(visiting)
    client.signal(run.run_id, "go", True)

    assert run.result(timeout=SOON).startswith("scored 1")


class Flaky:
    def __init__(self, failures: int) -> None:
        self.failures = failures
        self.attempts: list[int] = []
        self.keys: set[str] = set()

    def __call__(self) -> str:
        self.attempts.append(current_step().attempt)
        self.keys.add(str(current_step().idempotency_key))
        if len(self.attempts) <= self.failures:
            raise ConnectionError(f"attempt {len(self.attempts)}")
        return "ok"


QUICK = RetryPolicy(max_attempts=3, initial=timedelta(milliseconds=10))


def test_a_step_that_fails_is_tried_again_with_the_same_idempotency_key(
    client: Client, start_worker: StartWorker
) -> None:
    flaky = Flaky(2)
    tried = step(name="flaky", retry=QUICK)(flaky)

    @workflow
    def resilient(ctx: Context) -> str:
        return ctx.step(tried)

    start_worker(resilient)

    assert client.start(resilient()).result(timeout=SOON) == "ok"
    assert flaky.attempts == [1, 2, 3]
    assert len(flaky.keys) == 1


def test_a_step_out_of_attempts_raises_its_own_exception_in_the_workflow(
    client: Client, start_worker: StartWorker
) -> None:
    tried = step(name="flaky", retry=QUICK)(Flaky(9))

    @workflow
    def catching(ctx: Context) -> str:
        try:
            return ctx.step(tried)
        except ConnectionError as error:
            return f"caught {error}"

    start_worker(catching)

    assert client.start(catching()).result(timeout=SOON) == "caught attempt 3"


def test_an_exception_nobody_catches_fails_the_run_and_its_parent_sees_which(
    client: Client, start_worker: StartWorker
) -> None:
    @workflow
    def broken(ctx: Context) -> None:
        raise LookupError("nothing there")

    @workflow
    def caller(ctx: Context) -> str:
        try:
            ctx.call(broken())
        except ChildFailedError as error:
            return repr(error.__cause__)
        return "?"

    start_worker(broken, caller)

    with pytest.raises(RunFailedError) as failed:
        client.start(broken()).result(timeout=SOON)
    assert isinstance(failed.value.__cause__, LookupError)
    assert client.start(caller()).result(timeout=SOON) == "LookupError('nothing there')"


def test_a_cancelled_run_may_clean_up_before_it_ends(client: Client, start_worker: StartWorker) -> None:
    cleaned: list[str] = []

    @step
    def clean_up() -> None:
        cleaned.append("done")

    @workflow
    def long(ctx: Context) -> None:
        try:
            ctx.sleep(timedelta(days=1))
        finally:
            ctx.step(clean_up)

    start_worker(long)
    run = client.start(long())
    wait_for_status(run, "waiting")

    assert client.cancel(run.run_id) == "requested"

    with pytest.raises(RunCancelledError):
        run.result(timeout=SOON)
    assert cleaned == ["done"]


class Accept(msgspec.Struct, tag="accept"):
    cents: int


class Reject(msgspec.Struct, tag="reject"):
    reason: str


@workflow
def refund(ctx: Context) -> str:
    decision = ctx.human("refund", {"order": 17}, Accept | Reject, need="human.risk")
    match decision.value:
        case Accept(cents=cents):
            return f"{decision.by} pays {cents}"
        case Reject(reason=reason):
            return f"{decision.by} refuses: {reason}"


def test_a_person_decides_and_the_run_goes_on_with_the_typed_decision(
    client: Client, start_worker: StartWorker
) -> None:
    start_worker(refund)
    run = client.start(refund(), run_id="h")
    (task,) = wait_until(lambda: client.human.list(need="human.risk"), "the task is open")

    client.human.claim(task.task_id, by="kim")
    client.human.decide(task.task_id, Accept(1200), by="kim")

    assert run.result(timeout=SOON) == "kim pays 1200"


def test_gather_runs_steps_side_by_side_in_an_async_workflow(client: Client, start_worker: StartWorker) -> None:
    barrier = threading.Barrier(3, timeout=SOON.total_seconds())

    @step
    def meet(x: int) -> int:
        barrier.wait()
        return x

    @workflow
    async def gathered(ctx: AsyncContext) -> list[int]:
        return await asyncio.gather(*(ctx.step(meet, x) for x in range(3)))

    start_worker(gathered)

    assert client.start(gathered()).result(timeout=SOON) == [0, 1, 2]


def test_a_worker_gives_back_a_run_whose_workflow_it_does_not_know(
    client: Client, start_worker: StartWorker, db: Connection[Any]
) -> None:
    ignorant = start_worker(chain, capabilities=["shared"])

    @workflow(need="shared")
    def foreign(ctx: Context) -> str:
        return "known"

    run = client.start(foreign())
    wait_until(
        lambda: db.execute("select note from pgwf_sdk.runs where note like '%does not know workflow%'").fetchall(),
        "the note says what to do",
    )
    ignorant.stop()

    start_worker(foreign, capabilities=["shared"])

    assert run.result(timeout=SOON) == "known"
