"""Errors whose own class raises while they are told, recorded or made again: their run ends, and the worker goes on."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from pgwf_sdk import AsyncContext, Client, Context, JournalLimits, RetryPolicy, RunFailedError, ops, step, workflow
from tests.support import wait_for_status

if TYPE_CHECKING:
    from tests.sdk.worker.conftest import StartWorker

SOON = timedelta(seconds=30)
ONCE = RetryPolicy(max_attempts=1)


class FragileError(Exception):
    """Cannot be made again with what it holds, nor put into words."""

    def __init__(self, code: int = 0) -> None:
        super().__init__()
        self.__dict__.update(code=code, __notes__=code)

    @property
    def code(self) -> int:
        return 0

    @code.setter
    def code(self, found: int) -> None:
        raise ValueError(f"{found} is no code")

    def __str__(self) -> str:
        raise RuntimeError("no words")


class EmptyError(Exception):
    """As good as False: it has no length."""

    def __len__(self) -> int:
        return 0


@dataclass
class Locked:
    number: int = 0

    def __getattribute__(self, name: str) -> Any:
        if name == "number":
            raise PermissionError("nobody may read this")
        return super().__getattribute__(name)


@step(retry=ONCE)
def fails() -> None:
    raise FragileError(17)


@step(retry=ONCE)
async def fails_async() -> None:
    raise FragileError(17)


@workflow
def breaks(ctx: Context, where: str) -> None:
    if where == "workflow":
        raise FragileError(17)
    ctx.step(fails if where == "step" else fails_async)


@workflow
async def breaks_async(ctx: AsyncContext) -> None:
    raise FragileError(17)


@workflow
def whole(ctx: Context) -> str:
    return "whole"


@pytest.mark.parametrize("where", ["step", "async step", "workflow", "async workflow"])
def test_an_error_that_breaks_whoever_reads_or_makes_it_ends_its_run_and_the_worker_goes_on(
    client: Client, start_worker: StartWorker, where: str
) -> None:
    start_worker(breaks, breaks_async, whole)
    run = client.start(breaks_async() if where == "async workflow" else breaks(where), run_id="breaks")

    with pytest.raises(RunFailedError, match=r"FragileError: \(its message cannot be read: RuntimeError\)") as caught:
        run.result(timeout=SOON)

    assert isinstance(caught.value.__cause__, FragileError)
    assert client.start(whole()).result(timeout=SOON) == "whole"


@workflow
def empty(ctx: Context) -> None:
    raise EmptyError


@workflow
async def empty_async(ctx: AsyncContext) -> None:
    raise EmptyError


@workflow
def locked(ctx: Context) -> Locked:
    return Locked()


@workflow
async def locked_async(ctx: AsyncContext) -> Locked:
    return Locked()


@pytest.mark.parametrize("run", [empty, empty_async], ids=["def", "async def"])
def test_an_error_that_is_as_good_as_false_fails_its_run(client: Client, start_worker: StartWorker, run: Any) -> None:
    start_worker(run)

    with pytest.raises(RunFailedError, match="EmptyError"):
        client.start(run()).result(timeout=SOON)


@pytest.mark.parametrize("run", [locked, locked_async], ids=["def", "async def"])
def test_a_result_that_cannot_be_read_fails_its_run(client: Client, start_worker: StartWorker, run: Any) -> None:
    start_worker(run)

    with pytest.raises(RunFailedError, match="SerialisationError: result: PermissionError when it was read"):
        client.start(run()).result(timeout=SOON)


class BrokenHandler(logging.Handler):
    """Raises for what is said of one run."""

    def __init__(self, said: str) -> None:
        super().__init__()
        self._said = said

    def emit(self, record: logging.LogRecord) -> None:
        if record.getMessage().startswith(self._said):
            raise OSError("the disk of logs is full")


@pytest.mark.parametrize("run", [empty, empty_async], ids=["def", "async def"])
def test_a_handler_of_logs_that_raises_breaks_no_worker(client: Client, start_worker: StartWorker, run: Any) -> None:
    handler = BrokenHandler("run empty failed")
    logger = logging.getLogger("pgwf_sdk.worker")
    logger.addHandler(handler)
    try:
        start_worker(run, whole)
        client.start(run(), run_id="empty")
        wait_for_status(client.get("empty"), "waiting")

        assert client.start(whole()).result(timeout=SOON) == "whole"
        assert "the disk of logs is full" in str(ops.why_not_running(client, "empty"))
    finally:
        logger.removeHandler(handler)


@step(retry=RetryPolicy(max_attempts=2, initial=timedelta(0)))
async def always_fails() -> None:
    raise ValueError("as always")


@workflow
async def failing(ctx: AsyncContext) -> None:
    await ctx.step(always_fails)


@step
async def sound() -> int:
    return 1


@workflow
async def growing(ctx: AsyncContext) -> None:
    for _ in range(3):
        await ctx.step(sound)


@pytest.mark.parametrize(
    ("run", "said"),
    [(failing, "run noisy: /step:always_fails#1: attempt 1 failed"), (growing, "run noisy: its journal has")],
    ids=["at the report of a step", "at the answer of a call"],
)
def test_a_handler_of_logs_that_raises_while_a_run_goes_on_breaks_no_worker(
    client: Client, start_worker: StartWorker, run: Any, said: str
) -> None:
    handler = BrokenHandler(said)
    logger = logging.getLogger("pgwf_sdk.worker")
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        start_worker(run, whole, journal_limits=JournalLimits(entries_warn=3))
        client.start(run(), run_id="noisy")
        wait_for_status(client.get("noisy"), "waiting")

        assert client.start(whole()).result(timeout=SOON) == "whole"
        assert "the disk of logs is full" in str(ops.why_not_running(client, "noisy"))
    finally:
        logger.removeHandler(handler)
        logger.setLevel(logging.NOTSET)
