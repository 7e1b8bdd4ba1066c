"""Clocks, randomness, files and pauses in workflow code are warned of, at the line of the user."""

from __future__ import annotations

import gc
import os
import random
import sys
import tempfile
import threading
import time
import uuid
import warnings
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pgwf_sdk import AsyncContext, Context, DeterminismWarning, step, workflow

if TYPE_CHECKING:
    from collections.abc import Callable

    from pgwf_sdk.testing import Environment


@step
def stamp(number: int) -> float:
    return time.time() + number


def read_file() -> int:
    with tempfile.TemporaryFile() as file:
        return file.fileno()


OFFENCES: list[tuple[Callable[[], Any], str]] = [
    (time.time, "time.time() is called by a workflow: it reads the clock; use ctx.now()"),
    (lambda: datetime.now(UTC), "datetime.now() is called by a workflow: it reads the clock"),
    (random.random, "draws at random; use ctx.random"),
    (lambda: random.randint(1, 6), "draws at random"),
    (uuid.uuid4, "os.urandom() is called by a workflow: it draws at random; use ctx.random or ctx.uuid4()"),
    (read_file, "does input or output; do it in a step"),
    (lambda: os.listdir("."), "os.listdir() is called by a workflow: it does input or output"),
    (lambda: time.sleep(0), "blocks its worker; use ctx.sleep"),
]


def test_what_the_garbage_collector_calls_is_nobodys_offence(env: Environment) -> None:
    def look_at_the_clock(_phase: str, _info: dict[str, int]) -> None:
        time.perf_counter()

    @workflow
    def collecting(ctx: Context) -> float:
        gc.collect()
        return ctx.step(stamp, 1)

    gc.callbacks.append(look_at_the_clock)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", DeterminismWarning)
            env.run(collecting())
    finally:
        gc.callbacks.remove(look_at_the_clock)


@pytest.mark.parametrize(("offence", "said"), OFFENCES)
def test_an_offence_is_warned_of_at_its_line(env: Environment, offence: Callable[[], Any], said: str) -> None:
    @workflow
    def direct(ctx: Context) -> None:
        offence()

    @workflow
    async def async_direct(ctx: AsyncContext) -> None:
        offence()

    @workflow
    def in_branches(ctx: Context) -> None:
        def branch(ctx: Context) -> None:
            ctx.step(stamp, 1)
            offence()

        ctx.parallel(branch, branch)

    for call in (direct(), async_direct(), in_branches()):
        with pytest.warns(DeterminismWarning) as warned:
            env.run(call)
        assert said in str(warned[0].message)
        assert Path(warned[0].filename) == Path(__file__)


def test_steps_side_effects_and_what_the_context_does_are_not_warned_of(env: Environment) -> None:
    @workflow
    def fine(ctx: Context) -> float:
        ctx.log.warning("at %s", ctx.now())
        ctx.side_effect(lambda: time.time())
        ctx.side_effect(uuid.uuid4)
        return ctx.random.random() + ctx.uuid4().int + ctx.step(stamp, 1) + sum(ctx.map(stamp, [1, 2]))

    with warnings.catch_warnings(record=True) as warned:
        env.run(fine())

    assert [one for one in warned if issubclass(one.category, DeterminismWarning)] == []


def test_threads_that_run_no_workflow_are_left_alone(env: Environment) -> None:
    profilers: list[object] = []

    @step
    def look() -> int:
        thread = threading.Thread(target=lambda: profilers.append(sys.getprofile()))
        thread.start()
        thread.join()
        profilers.append(sys.getprofile())
        return 1

    @workflow
    def looking(ctx: Context) -> int:
        return ctx.step(look)

    env.run(looking())

    assert profilers == [None, None]
