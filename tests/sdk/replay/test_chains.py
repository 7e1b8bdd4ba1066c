"""Going on as another run, and elsewhere: what a replay makes of it."""

from __future__ import annotations

from typing import Any

import pytest

from pgwf_sdk import AsyncContext, Context, RunContinued, step, workflow
from pgwf_sdk.replay import Completed, Continued, Hop
from tests.sdk.replay.driver import Driver


@step
def work(number: int) -> int:
    return number * 10


@workflow
def program(ctx: Context, turn: int) -> int:
    ctx.hop("gpu")
    done = ctx.step(work, turn)
    if turn == 1:
        ctx.continue_as_new(program(2))
    return done


@workflow
async def async_program(ctx: AsyncContext, turn: int) -> int:
    await ctx.hop("gpu")
    done = await ctx.step(work, turn)
    if turn == 1:
        await ctx.continue_as_new(async_program(2))
    return done


@pytest.mark.parametrize("definition", [program, async_program], ids=["sync", "async"])
def test_a_run_that_continues_ends_with_the_call_of_its_successor_from_every_cut(definition: Any) -> None:
    whole = Driver(definition(1))
    outcome = whole.run()

    assert isinstance(outcome, Continued)
    assert outcome.payload == b'{"args":[2],"kwargs":{}}'
    assert whole.keys() == ["/hop:gpu#1", "/step:work#1"]
    for cut in range(1, len(whole.journal) + 1):
        resumed = Driver(definition(1))
        resumed.journal[1:] = whole.journal[1:cut]
        again = resumed.run()
        assert isinstance(again, Continued)
        assert again.payload == outcome.payload
        assert sum(isinstance(command, Hop) for command in resumed.commands) == (cut == 1)
    assert Driver(outcome.call).run() == Completed(b"20", 1)


def test_code_that_catches_the_end_of_its_run_goes_on() -> None:
    @workflow
    def stubborn(ctx: Context) -> int:
        try:
            ctx.continue_as_new(program(2))
        except RunContinued:
            return ctx.step(work, 1)

    assert Driver(stubborn()).run() == Completed(b"10", 1)


def test_a_call_that_cannot_be_stored_is_refused_where_it_is_made() -> None:
    @workflow
    def program(ctx: Context, thing: object) -> str:
        try:
            ctx.continue_as_new(program(object()))
        except Exception as error:  # noqa: BLE001 - its class is the point of the test
            return type(error).__name__

    assert Driver(program(1)).run() == Completed(b'"SerialisationError"', 1)
