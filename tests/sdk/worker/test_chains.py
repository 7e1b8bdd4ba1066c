"""Runs that go on as other runs, and what a parked run says of itself."""

from __future__ import annotations

import asyncio
import threading
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest

from pgwf_sdk import (
    AsyncClient,
    AsyncContext,
    Client,
    Context,
    RetryPolicy,
    RunCancelledError,
    RunFailedError,
    RunNotFoundError,
    step,
    workflow,
)
from pgwf_sdk.ops import why_not_running
from tests.support import wait_until

if TYPE_CHECKING:
    from psycopg import Connection

    from tests.sdk.worker.conftest import StartWorker

SOON = timedelta(seconds=30)
ONCE = RetryPolicy(max_attempts=1)


def is_waiting(client: Client, run_id: str) -> bool:
    try:
        return client.get(run_id).status() == "waiting"
    except RunNotFoundError:
        return False


def test_the_retry_of_a_parent_starts_its_child_under_an_id_of_its_own_although_the_first_was_given_one(
    client: Client, start_worker: StartWorker
) -> None:
    is_mended: list[bool] = []

    @step(retry=ONCE)
    def fragile() -> str:
        if not is_mended:
            raise ValueError("not yet")
        return "done"

    @workflow
    def part(ctx: Context) -> str:
        return ctx.step(fragile)

    @workflow
    def whole(ctx: Context) -> str:
        return ctx.call(part(), run_id="part-17")

    start_worker(whole, part)
    with pytest.raises(RunFailedError):
        client.start(whole(), run_id="whole").result(timeout=SOON)
    is_mended.append(True)

    again = client.retry("whole", whole)

    assert again.result(timeout=SOON) == "done"
    assert client.get("part-17").status() == "failed"
    assert client.get("part-17~2").status() == "completed"


def test_a_run_that_waits_for_a_signal_without_a_deadline_says_so(client: Client, start_worker: StartWorker) -> None:
    @workflow
    def waiting(ctx: Context) -> int:
        return ctx.wait_signal("go", int)

    start_worker(waiting)
    run = client.start(waiting(), run_id="w")
    wait_until(lambda: is_waiting(client, run.run_id), "the run waits")

    with client.connection() as conn:
        said = why_not_running(conn, "w")
    client.signal("w", "go", 1)

    assert "It waits for signal 'go'" in said
    assert run.result(timeout=SOON) == 1


@workflow
def countdown(ctx: Context, left: int, seen: list[int]) -> list[int]:
    seen = [*seen, ctx.wait_signal("tick", int)]
    if left > 1:
        ctx.continue_as_new(countdown(left - 1, seen))
    return seen


@workflow
async def async_countdown(ctx: AsyncContext, left: int, seen: list[int]) -> list[int]:
    seen = [*seen, await ctx.wait_signal("tick", int)]
    if left > 1:
        await ctx.continue_as_new(async_countdown(left - 1, seen))
    return seen


@pytest.mark.parametrize("definition", [countdown, async_countdown], ids=["sync", "async"])
def test_a_run_that_continues_takes_over_what_nobody_received_and_its_first_id_leads_to_its_result(
    client: Client, start_worker: StartWorker, db: Connection[Any], definition: Any
) -> None:
    deadline = datetime(2100, 1, 1, tzinfo=UTC)
    run = client.start(definition(3, []), run_id="c", priority=2, deadline=deadline)
    for number in (1, 2):
        run.signal("tick", number, dedup_id=f"d{number}")
    start_worker(definition)
    wait_until(lambda: is_waiting(client, "c~3"), "the third run of the chain waits")

    assert run.signal("tick", 2, dedup_id="d2") is False
    assert run.signal("tick", 3) is True

    assert run.result(timeout=SOON) == [1, 2, 3]
    assert client.get("c").run_id == "c~3"
    assert client.get("c~2").result() == [1, 2, 3]
    assert db.execute(
        "select run_id, status, successor_run_id, priority, deadline from pgwf_sdk.runs order by n"
    ).fetchall() == [
        ("c", "continued", "c~2", 2, deadline),
        ("c~2", "continued", "c~3", 2, deadline),
        ("c~3", "completed", None, 2, deadline),
    ]
    last = db.execute(
        "select key, phase, payload from pgwf_journal.entries where journal_id = 'c' order by seq"
    ).fetchall()
    assert last[-1] == (f"/run:{definition.name}#1", "continued", '{"args":[2,[1]],"kwargs":{}}')


def test_an_async_client_follows_a_chain(client: Client, start_worker: StartWorker) -> None:
    async def follow() -> tuple[list[int], str]:
        async with AsyncClient(client.dsn) as asynchronous:
            run = await asynchronous.start(countdown(2, []), run_id="c")
            await run.signal("tick", 1)
            await run.signal("tick", 2)
            return await run.result(timeout=SOON), (await asynchronous.get("c")).run_id

    start_worker(countdown)

    assert asyncio.run(follow()) == ([1, 2], "c~2")


def test_a_chain_may_change_its_workflow_and_its_need(client: Client, start_worker: StartWorker) -> None:
    @workflow(need="python")
    def second(ctx: Context, word: str) -> str:
        return word.upper()

    @workflow
    def first(ctx: Context) -> str:
        ctx.continue_as_new(second("done"))

    start_worker(first, second)
    start_worker(second, capabilities=["python"])

    run: Any = client.start(first(), run_id="c")

    assert run.result(timeout=SOON) == "DONE"
    assert client.get("c").details().workflow == "second"


def test_a_cancel_reaches_the_live_end_of_a_chain(client: Client, start_worker: StartWorker) -> None:
    start_worker(countdown)
    run = client.start(countdown(2, []), run_id="c")
    run.signal("tick", 1)
    wait_until(lambda: is_waiting(client, "c~2"), "the second run waits")

    assert client.cancel("c") == "requested"

    with pytest.raises(RunCancelledError):
        run.result(timeout=SOON)


def test_a_parent_hears_of_the_end_of_the_chain_and_children_go_over_to_the_successor(
    client: Client, start_worker: StartWorker, db: Connection[Any]
) -> None:
    @workflow
    def idle(ctx: Context) -> str:
        return ctx.wait_signal("go", str)

    @workflow
    def chained(ctx: Context, turn: int) -> int:
        if turn == 1:
            ctx.spawn(idle(), run_id="idle-1")
            ctx.continue_as_new(chained(2))
        ctx.wait_signal("end", bool)
        return turn

    @workflow
    def parent(ctx: Context) -> int:
        return ctx.call(chained(1))

    start_worker(idle, chained, parent)
    run = client.start(parent(), run_id="p")
    wait_until(lambda: is_waiting(client, "p/chained#1~2"), "the child's second run waits")

    assert client.get("idle-1").details().parent_run_id == "p/chained#1~2"
    client.signal("p/chained#1", "end", True)

    assert run.result(timeout=SOON) == 2
    with pytest.raises(RunCancelledError):
        client.get("idle-1").result(timeout=SOON)


def test_a_run_whose_last_call_is_a_spawn_ends_without_waiting_for_the_child(
    client: Client, start_worker: StartWorker
) -> None:
    @workflow
    def idle(ctx: Context) -> str:
        return ctx.wait_signal("go", str)

    @workflow
    def parent(ctx: Context) -> str:
        ctx.spawn(idle())
        return "done"

    start_worker(idle, parent)

    assert client.start(parent()).result(timeout=SOON) == "done"


def test_steps_in_finally_run_before_a_run_continues(client: Client, start_worker: StartWorker) -> None:
    done: list[int] = []

    @step
    def clean(turn: int) -> None:
        done.append(turn)

    @workflow
    def tidy(ctx: Context, turn: int) -> int:
        try:
            if turn < 3:
                ctx.continue_as_new(tidy(turn + 1))
            return turn
        finally:
            ctx.step(clean, turn)

    start_worker(tidy)

    assert client.start(tidy(1)).result(timeout=SOON) == 3
    assert done == [1, 2, 3]


def test_signals_sent_while_a_run_continues_again_and_again_are_all_received_in_order(
    client: Client, start_worker: StartWorker
) -> None:
    count = 60

    @workflow
    def collector(ctx: Context, seen: list[int]) -> list[int]:
        seen += [ctx.wait_signal("n", int) for _ in range(3)]
        if len(seen) < count:
            ctx.continue_as_new(collector(seen))
        return seen

    start_worker(collector)
    start_worker(collector)
    run = client.start(collector([]), run_id="c")

    def send() -> None:
        for number in range(count):
            client.signal("c", "n", number)

    sender = threading.Thread(target=send)
    sender.start()
    result = run.result(timeout=SOON)
    sender.join()

    assert result == list(range(count))
    assert client.get("c").run_id == f"c~{count // 3}"


@workflow
def travelling(ctx: Context) -> list[str]:
    ctx.hop("gpu")
    ctx.wait_signal("go", bool)
    ctx.hop("home")
    return ["done"]


@workflow
async def async_travelling(ctx: AsyncContext) -> list[str]:
    await ctx.hop("gpu")
    await ctx.wait_signal("go", bool)
    await ctx.hop("home")
    return ["done"]


@pytest.mark.parametrize("definition", [travelling, async_travelling], ids=["sync", "async"])
def test_a_hop_changes_where_a_run_is_at_home_until_the_next(
    client: Client, start_worker: StartWorker, db: Connection[Any], definition: Any
) -> None:
    start_worker(definition)
    run = client.start(definition(), run_id="t")
    wait_until(lambda: client.get("t").details().current_need == "gpu", "the run needs a gpu")
    assert client.get("t").status() == "ready"
    gpu = start_worker(definition, capabilities=["gpu"])
    wait_until(lambda: is_waiting(client, "t"), "the run waits at its new home")
    assert (client.get("t").details().need, client.get("t").details().current_need) == ("gpu", "gpu")

    client.signal("t", "go", True)
    wait_until(lambda: client.get("t").details().need == "home", "the run has hopped again")
    gpu.stop()
    start_worker(definition, capabilities=["home"])

    assert run.result(timeout=SOON) == ["done"]
    hops = db.execute(
        "select key, payload, lease_no from pgwf_journal.entries where kind = 'hop' order by seq"
    ).fetchall()
    assert [hop[:2] for hop in hops] == [("/hop:gpu#1", '"gpu"'), ("/hop:home#1", '"home"')]
    assert hops[0][2] != hops[1][2]


def test_a_hop_while_steps_run_beside_it_waits_for_them(client: Client, start_worker: StartWorker) -> None:
    entered, released = threading.Event(), threading.Event()

    @step
    def slow() -> str:
        entered.set()
        released.wait(20)
        return "kept"

    @workflow
    async def beside(ctx: AsyncContext) -> str:
        working = ctx.step(slow)
        hopping = ctx.hop("gpu")
        await hopping
        return await working

    start_worker(beside)
    run = client.start(beside(), run_id="b")
    assert entered.wait(20)
    assert client.get("b").details().need == "beside"
    released.set()
    start_worker(beside, capabilities=["gpu"])

    assert run.result(timeout=SOON) == "kept"


@pytest.mark.parametrize("use", ["hop", "continue"])
def test_what_concerns_the_whole_run_is_refused_in_a_branch(
    client: Client, start_worker: StartWorker, use: str
) -> None:
    @workflow
    def branching(ctx: Context) -> None:
        def branch(ctx: Context) -> None:
            if use == "hop":
                ctx.hop("gpu")
            ctx.continue_as_new(branching())

        ctx.parallel(branch)

    start_worker(branching)

    with pytest.raises(RunFailedError, match=r"concerns the whole run; expected it outside of parallel and map"):
        client.start(branching()).result(timeout=SOON)
