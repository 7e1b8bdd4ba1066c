"""What a client sees of runs that a real worker executes: human tasks, spans of a whole run."""

from __future__ import annotations

import asyncio
import threading
from datetime import timedelta
from typing import Any

import pytest
from msgspec import Struct
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from pgwf_sdk import (
    Client,
    Context,
    RetryPolicy,
    Run,
    TaskForbiddenError,
    TaskNotHeldError,
    TaskUnavailableError,
    Worker,
    step,
    workflow,
)
from pgwf_sdk._telemetry import Telemetry
from tests.sdk.worker.conftest import Running, StartWorker
from tests.support import wait_until

SOON = timedelta(seconds=30)


class Approve(Struct, frozen=True, tag="approve"):
    cents: int


class Reject(Struct, frozen=True, tag="reject"):
    reason: str


@workflow
def ask(ctx: Context) -> str:
    decision = ctx.human("payment", {"order": 17}, Approve | Reject, need="human.risk", exclude=["ann"])
    return f"{decision.by}: {decision.value}"


@workflow
def confirm(ctx: Context) -> bool:
    return ctx.human("read", "the terms", bool | None, need="human.any").value is None


def task_of(client: Client, need: str) -> str:
    (task,) = wait_until(lambda: client.human.list(need=need), "the task is open")
    return task.task_id


def test_a_claimed_task_is_its_holder_s_until_it_is_released(client: Client, start_worker: StartWorker) -> None:
    start_worker(ask)
    run = client.start(ask())
    task_id = task_of(client, "human.risk")

    client.human.claim(task_id, by="kim", duration=timedelta(minutes=5))
    with pytest.raises(TaskUnavailableError, match="kim"):
        client.human.claim(task_id, by="lee")
    with pytest.raises(TaskUnavailableError, match="kim"):
        client.human.decide(task_id, Approve(5), by="lee")
    with pytest.raises(TaskNotHeldError, match="kim"):
        client.human.release(task_id, by="lee")
    assert client.human.list(need="human.risk") == ()
    assert [task.holder for task in client.human.list(states=["claimed"], holder="kim")] == ["kim"]
    client.human.release(task_id, by="kim")
    client.human.decide(task_id, Reject("too much"), by="lee")

    assert run.result(SOON) == "lee: Reject(reason='too much')"
    with pytest.raises(TaskUnavailableError, match="decided"):
        client.human.decide(task_id, Approve(5), by="kim")


def test_a_person_the_task_excludes_can_neither_claim_nor_decide_it(client: Client, start_worker: StartWorker) -> None:
    start_worker(ask)
    client.start(ask())
    task_id = task_of(client, "human.risk")

    with pytest.raises(TaskForbiddenError, match="ann"):
        client.human.claim(task_id, by="ann")
    with pytest.raises(TaskForbiddenError, match="ann"):
        client.human.decide(task_id, Approve(5), by="ann")


def test_nothing_is_a_decision_where_the_type_allows_it(client: Client, start_worker: StartWorker) -> None:
    start_worker(confirm)
    run = client.start(confirm())

    client.human.decide(task_of(client, "human.any"), None, by="kim")

    assert run.result(SOON)


def test_the_spans_of_a_run_are_one_tree_without_a_span_twice(dsn: str) -> None:
    kept = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(kept))
    failures = [ValueError("declined")]

    @step(retry=RetryPolicy(max_attempts=2, initial=timedelta(milliseconds=10)))
    def charge() -> str:
        if failures:
            raise failures.pop()
        return "paid"

    @workflow
    def pay(ctx: Context) -> str:
        paid = ctx.step(charge)
        ctx.sleep(timedelta(milliseconds=20))
        return paid + ctx.wait_signal("delivered", str)

    with Client(dsn, telemetry=Telemetry(tracer_provider=provider)) as client:
        running = Running(Worker(client, workflows=[pay], poll=timedelta(seconds=1)))
        run: Run[str] = client.start(pay())
        wait_until(lambda: run.status() == "waiting" and run.details().available_at is None, "it waits for its signal")
        run.signal("delivered", " at the door")
        assert run.result(SOON) == "paid at the door"
        running.stop()

    spans = kept.get_finished_spans()
    by_name: dict[str, list[ReadableSpan]] = {}
    for span in spans:
        by_name.setdefault(span.name, []).append(span)
    ids = [span.context.span_id for span in spans if span.context]
    assert len(set(ids)) == len(ids)
    assert len({span.context.trace_id for span in spans if span.context}) == 1
    assert {name: len(found) for name, found in by_name.items() if not name.startswith("run ")} == {
        "start pay": 1,
        "workflow pay": 1,
        "step charge": 1,
        "attempt charge": 2,
        f"sleep {by_name_starting(by_name, 'sleep')}": 1,
        "wait delivered": 1,
    }
    (root,) = [span for span in spans if span.parent is None]
    assert root.name == "start pay"
    assert all(span.parent.span_id in ids for span in spans if span.parent)


def test_runs_side_by_side_in_one_worker_never_share_a_trace_and_leave_no_context_behind(dsn: str) -> None:
    kept = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(kept))
    tracer = provider.get_tracer("shop")
    both_are_in = threading.Barrier(2)
    left: list[bool] = []

    @step
    def plain(run_id: str) -> str:
        both_are_in.wait(20)
        with tracer.start_as_current_span(f"plain of {run_id}"):
            return run_id

    @step
    async def asynchronous(run_id: str) -> str:
        await asyncio.sleep(0)
        with tracer.start_as_current_span(f"asynchronous of {run_id}"):
            await asyncio.sleep(0)
            return run_id

    @workflow
    def program(ctx: Context) -> None:
        ctx.parallel(lambda ctx: ctx.step(asynchronous, ctx.run_id), lambda ctx: ctx.step(plain, ctx.run_id))

    with Client(dsn, telemetry=Telemetry(tracer_provider=provider)) as client:
        worker = Worker(client, workflows=[program], poll=timedelta(seconds=1))

        async def work() -> None:
            await worker.run_async()
            left.append(trace.get_current_span().get_span_context().is_valid)

        thread = threading.Thread(target=lambda: asyncio.run(work()), daemon=True)
        thread.start()
        for run in [client.start(program(), run_id=run_id) for run_id in ("a", "b")]:
            run.result(SOON)
        worker.stop()
        thread.join(30)

    traces: dict[str, set[int]] = {}
    for span in kept.get_finished_spans():
        run_id = str((span.attributes or {}).get("pgwf.run.id") or span.name.rpartition(" of ")[2])
        if span.context is not None:
            traces.setdefault(run_id, set()).add(span.context.trace_id)
    assert {run_id: len(found) for run_id, found in traces.items()} == {"a": 1, "b": 1}
    assert traces["a"] != traces["b"]
    assert left == [False]


def by_name_starting(by_name: dict[str, Any], verb: str) -> str:
    (found,) = [name.split(" ", 1)[1] for name in by_name if name.startswith(f"{verb} ")]
    return found
