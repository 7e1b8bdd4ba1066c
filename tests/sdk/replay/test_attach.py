"""Attaching to other runs: what the code gets of how they ended, the first time and in every replay."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import pytest

from pgwf_journal import Kind, Phase
from pgwf_sdk import (
    AsyncContext,
    Context,
    DefinitionError,
    RunCancelledError,
    RunFailedError,
    RunNotFoundError,
    RunTerminatedError,
    WaitTimeoutError,
    Workflow,
    _failure,
    step,
    workflow,
)
from pgwf_sdk._errors import RunCancelled
from pgwf_sdk.replay import Abandon, AttachRun, Completed
from tests.sdk.replay.driver import Answer, Driver


@dataclass
class Receipt:
    cents: int


@workflow
def checkout(ctx: Context) -> Receipt:
    return Receipt(1)


@step
def work(number: int) -> int:
    return number * 10


@workflow(name="waiting")
def waiting(ctx: Context, run_id: str, seconds: float | None = None) -> Any:
    timeout = None if seconds is None else timedelta(seconds=seconds)
    try:
        return ctx.attach(run_id, checkout, timeout=timeout)
    except Exception as error:  # noqa: BLE001 - what the code sees is what is asked for here
        return [type(error).__name__, str(error), getattr(error, "run_id", None), repr(error.__cause__)]


@workflow(name="waiting")
async def awaiting(ctx: AsyncContext, run_id: str, seconds: float | None = None) -> Any:
    timeout = None if seconds is None else timedelta(seconds=seconds)
    try:
        return await ctx.attach(run_id, checkout, timeout=timeout)
    except Exception as error:  # noqa: BLE001 - what the code sees is what is asked for here
        return [type(error).__name__, str(error), getattr(error, "run_id", None), repr(error.__cause__)]


both = pytest.mark.parametrize("definition", [waiting, awaiting], ids=["sync", "async"])


def played(driver: Driver) -> Any:
    """What the run returns, which is the same when its journal is replayed."""
    outcome = driver.run()
    assert isinstance(outcome, Completed), outcome
    assert driver.run() == outcome
    return driver.workflow.codec.decode(outcome.payload, outcome.encoding)


ENDS: dict[str, tuple[Answer, Any]] = {
    "completed": ((Phase.COMPLETED, b'{"cents":7}', 1), Receipt(7)),
    "failed": (
        (Phase.FAILED, _failure.describe(LookupError("no stock")), 1),
        [
            RunFailedError.__name__,
            "run failed failed with LookupError: no stock; see",
            "failed",
            "LookupError('no stock')",
        ],
    ),
    "cancelled": (
        (Phase.CANCELLED, _failure.describe(RunCancelled("by ann")), 1),
        [RunCancelledError.__name__, "by ann", "cancelled", "StepFailedError("],
    ),
    "terminated": (
        (Phase.FAILED, b'{"type":"pgwf_sdk:RunTerminatedError","message":"terminated by ann: enough"}', 1),
        [RunTerminatedError.__name__, "run terminated was terminated by ann: enough; ", "terminated", "None"],
    ),
    "failed by another's end": (
        (Phase.FAILED, _failure.describe(RunTerminatedError("run x was terminated", run_id="x")), 1),
        [
            RunFailedError.__name__,
            "run failed by another's end failed with RunTerminatedError: run x",
            None,
            "RunTerminated",
        ],
    ),
    "failed to attach": (
        (Phase.FAILED, _failure.describe(RunNotFoundError("no run 'x'")), 1),
        [RunFailedError.__name__, "run failed to attach failed with RunNotFoundError: no run 'x'", None, "RunNotFound"],
    ),
}


@both
@pytest.mark.parametrize("ended", ENDS)
def test_the_code_gets_the_value_of_the_run_or_how_it_ended(definition: Workflow[..., Any], ended: str) -> None:
    answer, expected = ENDS[ended]
    driver = Driver(definition(ended), ends={ended: answer})

    found = played(driver)

    if isinstance(expected, Receipt):
        assert found == {"cents": 7} or found == expected
    else:
        name, message, run_id, cause = expected
        assert (found[0], found[2]) == (name, ended if run_id is None else run_id)
        assert found[1].startswith(message)
        assert found[3].startswith(cause)
    assert [(entry.kind, entry.phase) for entry in driver.journal[1:]] == [
        (Kind.ATTACH, Phase.OPENED),
        (Kind.ATTACH, answer[0]),
    ]


@both
def test_a_run_that_is_not_there_is_an_error_where_it_is_asked_for(definition: Workflow[..., Any]) -> None:
    driver = Driver(definition("nobody"))

    assert played(driver)[:2] == [RunNotFoundError.__name__, "nobody"]
    assert [entry.phase for entry in driver.journal[1:]] == [Phase.FAILED]


@both
def test_a_run_that_is_not_over_in_time_is_left_alone(definition: Workflow[..., Any]) -> None:
    driver = Driver(definition("long", 5.0), ends={"long": (Phase.OPENED, None, 0)})

    name, message, *_ = played(driver)

    assert (name, message) == (WaitTimeoutError.__name__, "run 'long' was not over within 5 seconds")


def test_the_call_is_named_after_the_workflow_or_run() -> None:
    @workflow
    def two(ctx: Context) -> list[Any]:
        return [ctx.attach("a", checkout).cents, ctx.attach("a"), ctx.attach("b")]

    driver = Driver(two(), ends={"a": (Phase.COMPLETED, b'{"cents":7}', 1), "b": (Phase.COMPLETED, None, 0)})

    assert played(driver) == [7, {"cents": 7}, None]
    assert driver.keys() == ["/attach:checkout#1", "/attach:run#1", "/attach:run#2"]


def test_the_first_of_two_wins_and_the_other_wait_is_given_up() -> None:
    @workflow
    async def first_of(ctx: AsyncContext) -> Any:
        other = asyncio.create_task(ctx.attach("long"))
        done, _ = await asyncio.wait({other, asyncio.create_task(ctx.step(work, 1))}, return_when="FIRST_COMPLETED")
        other.cancel()
        await asyncio.sleep(1)
        return [task.result() for task in done]

    driver = Driver(first_of(), ends={"long": (Phase.OPENED, None, 0)})

    assert played(driver) == [10]
    (attach,) = (one for one in driver.commands if isinstance(one, AttachRun))
    assert attach.id in [one.id for one in driver.commands if isinstance(one, Abandon)]


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ((checkout(),), TypeError, "found a call of a workflow; expected the id of a run"),
        ((checkout,), TypeError, "expected the id of a run"),
        (("a", checkout()), TypeError, "expected the workflow that the run is of, uncalled"),
        (("",), DefinitionError, "is 0 bytes long"),
        (("x" * 600,), DefinitionError, "is 600 bytes long"),
    ],
)
def test_what_is_no_id_of_a_run_is_refused_where_it_is_given(
    arguments: tuple[Any, ...], error: type[Exception], message: str
) -> None:
    @workflow
    def mistaken(ctx: Context) -> str:
        with pytest.raises(error, match=message):
            ctx.attach(*arguments)
        return str(ctx.attach("a"))

    assert played(Driver(mistaken(), ends={"a": (Phase.COMPLETED, b"1", 1)})) == "1"
