"""Sagas and exit steps: what a run does when its code has left, from wherever it is cut off."""

from __future__ import annotations

import asyncio
import inspect
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from pgwf_journal import Kind, Phase
from pgwf_sdk import AsyncContext, Context, DefinitionError, step, workflow
from pgwf_sdk.replay import Abandon, Cancelled, Completed, Continued, Failed, Outcome, RunStep, SyncActivation
from tests.sdk.replay.driver import Driver

if TYPE_CHECKING:
    from pgwf_sdk.replay import Command


@step
def cancel_booking(booking: str) -> None:
    if booking == "stuck":
        raise ValueError("cannot be cancelled")


@step(undo=cancel_booking)
def book(what: str) -> str:
    if what == "sold out":
        raise LookupError(what)
    return what


@step
def tell(what: str) -> str:
    if what == "nobody":
        raise ConnectionError(what)
    return what


@workflow
def trip(ctx: Context, parts: list[str]) -> list[str]:
    ctx.on_exit(tell, "office")
    booked = [ctx.step(book, part) for part in parts]
    ctx.sleep(timedelta(days=1))
    return booked


@workflow
async def async_trip(ctx: AsyncContext, parts: list[str]) -> list[str]:
    ctx.on_exit(tell, "office")
    booked = [await ctx.step(book, part) for part in parts]
    await ctx.sleep(timedelta(days=1))
    return booked


BOTH = pytest.mark.parametrize("definition", [trip, async_trip], ids=["sync", "async"])


def cleanup(driver: Driver) -> list[tuple[str, Phase]]:
    """What was done after the code had left."""
    kinds = (Kind.COMPENSATION, Kind.STEP)
    return [
        (entry.key, entry.phase)
        for entry in driver.journal
        if entry.kind in kinds and entry.phase != Phase.OPENED and "book#" not in entry.key
    ]


def said(outcome: Outcome) -> object:
    return outcome.payload.partition(b'"traceback"')[0] if isinstance(outcome, Failed) else outcome


@BOTH
def test_a_run_that_fails_undoes_what_it_did_last_first_and_then_exits(definition: Any) -> None:
    driver = Driver(definition(["hotel", "flight", "sold out"]))

    outcome = driver.run()

    assert isinstance(outcome, Failed)
    assert b'"builtins:LookupError"' in outcome.payload
    assert cleanup(driver) == [
        ("/compensation:cancel_booking#1", Phase.COMPLETED),
        ("/compensation:cancel_booking#2", Phase.COMPLETED),
        ("/compensation:tell#1", Phase.COMPLETED),
    ]
    undone = [command.args for command in driver.commands if isinstance(command, RunStep) and command.id.call > 3]
    assert undone == [("flight",), ("hotel",), ("office",)]


@BOTH
def test_a_run_that_completes_only_exits(definition: Any) -> None:
    driver = Driver(definition(["hotel"]))

    assert driver.run() == Completed(b'["hotel"]', 1)
    assert cleanup(driver) == [("/compensation:tell#1", Phase.COMPLETED)]


@BOTH
@pytest.mark.parametrize("parts", [["hotel", "flight", "sold out"], ["hotel"], ["hotel", "stuck", "sold out"]])
def test_unwinding_goes_on_from_any_cut_of_the_journal_and_ends_alike(definition: Any, parts: list[str]) -> None:
    whole = Driver(definition(parts))
    outcome = whole.run()

    for cut in range(1, len(whole.journal) + 1):
        resumed = Driver(definition(parts))
        resumed.journal[1:] = whole.journal[1:cut]
        assert said(resumed.run()) == said(outcome)
        assert [entry.key for entry in resumed.journal] == [entry.key for entry in whole.journal]


@BOTH
def test_a_compensation_that_fails_does_not_stop_the_others_and_the_run_says_so(definition: Any) -> None:
    driver = Driver(definition(["hotel", "stuck", "sold out"]))

    outcome = driver.run()

    assert isinstance(outcome, Failed)
    assert cleanup(driver)[:2] == [
        ("/compensation:cancel_booking#1", Phase.FAILED),
        ("/compensation:cancel_booking#2", Phase.COMPLETED),
    ]
    assert b"CleanupFailedError" in outcome.payload
    assert b"/compensation:cancel_booking#1, undoing /step:book#2: ValueError: cannot be cancelled" in outcome.payload
    assert b'"cause":{"type":"builtins:LookupError"' in outcome.payload


def test_an_exit_step_that_fails_fails_the_run_that_had_completed() -> None:
    @workflow
    def program(ctx: Context) -> str:
        ctx.on_exit(tell, "nobody")
        return "done"

    outcome = Driver(program()).run()

    assert isinstance(outcome, Failed)
    assert b'"cause":{"type":"builtins:ConnectionError"' in outcome.payload


@BOTH
@pytest.mark.parametrize("exchange", range(3))
def test_a_cancelled_run_undoes_what_it_did(definition: Any, exchange: int) -> None:
    driver = Driver(definition(["hotel", "flight"]), cancel_at=exchange)

    outcome = driver.run()

    booked = sum(entry.key.startswith("/step:book") for entry in driver.journal)
    undone = sum(entry.key.startswith("/compensation:cancel") for entry in driver.journal)
    assert isinstance(outcome, Cancelled)
    assert undone == booked
    assert cleanup(driver)[-1] == ("/compensation:tell#1", Phase.COMPLETED)
    assert driver.run() == outcome


def test_branches_are_undone_in_the_order_in_which_they_ended_backwards() -> None:
    @workflow
    def program(ctx: Context) -> None:
        ctx.map(book, ["hotel", "flight", "train"])
        ctx.step(book, "sold out")

    driver = Driver(program())
    driver.run()

    commands = [command for command in driver.commands if isinstance(command, RunStep)]
    assert [command.args for command in commands if command.id.kind is Kind.COMPENSATION] == [
        ("train",),
        ("flight",),
        ("hotel",),
    ]


class SlowDriver(Driver):
    """Answers a step called `flight` only when nothing else is left to do."""

    def _is_timed(self, command: Command) -> bool:
        others = any(one is not command and not super(SlowDriver, self)._is_timed(one) for one in self._open.values())
        return (isinstance(command, RunStep) and command.args == ("flight",) and others) or super()._is_timed(command)


def test_a_step_under_way_when_its_run_fails_ends_and_is_undone() -> None:
    @workflow
    async def program(ctx: AsyncContext) -> None:
        await asyncio.gather(ctx.step(book, "flight"), ctx.step(book, "sold out"))

    driver = SlowDriver(program())

    assert isinstance(driver.run(), Failed)
    assert [key for key, _ in cleanup(driver)] == ["/compensation:cancel_booking#1"]
    assert not any(isinstance(command, Abandon) for command in driver.commands)


def test_what_is_undone_is_not_carried_over_to_a_successor_but_exit_steps_run() -> None:
    @workflow
    def program(ctx: Context) -> None:
        ctx.on_exit(tell, "office")
        ctx.step(book, "hotel")
        ctx.continue_as_new(program())

    driver = Driver(program())

    assert isinstance(driver.run(), Continued)
    assert cleanup(driver) == [("/compensation:tell#1", Phase.COMPLETED)]


def test_an_undo_takes_the_result_alone_and_has_no_undo_itself() -> None:
    def takes_two(_a: str, _b: str) -> None: ...

    with pytest.raises(DefinitionError, match="its undo is called with its result alone"):
        step(name="s", undo=takes_two)(tell.fn)
    with pytest.raises(DefinitionError, match="has one itself"):
        step(name="s", undo=book)(tell.fn)
    with pytest.raises(DefinitionError, match="expected 'abort' or 'finish'"):
        step(name="s", on_cancel="stop")(tell.fn)  # type: ignore[call-overload]


def test_a_shielded_part_is_not_told_of_a_cancel_which_comes_when_it_has_ended() -> None:
    @workflow
    def program(ctx: Context) -> None:
        def part(ctx: Context) -> None:
            ctx.step(tell, "a")
            ctx.parallel(lambda ctx: ctx.step(tell, "b"), lambda ctx: ctx.step(tell, "c"))

        ctx.shield(part)
        ctx.step(tell, "never")

    @workflow
    async def async_program(ctx: AsyncContext) -> None:
        async def leaf(ctx: AsyncContext) -> None:
            await ctx.step(tell, "b")

        async def part(ctx: AsyncContext) -> None:
            await ctx.step(tell, "a")
            await ctx.parallel(leaf, leaf)

        await ctx.shield(part)
        await ctx.step(tell, "never")

    for call in (program(), async_program()):
        for exchange in range(2):
            driver = Driver(call, cancel_at=exchange)
            outcome = driver.run()

            assert isinstance(outcome, Cancelled)
            assert len(driver.keys()) == 3
            assert driver.run() == outcome


def test_a_step_that_finishes_on_cancel_is_recorded_before_the_code_hears_of_it() -> None:
    finishing = tell.options(on_cancel="finish", name="finishing")

    @workflow
    def program(ctx: Context) -> None:
        ctx.map(finishing, ["a", "b"])

    @workflow
    async def async_program(ctx: AsyncContext) -> None:
        await ctx.map(finishing, ["a", "b"])

    for call in (program(), async_program()):
        driver = Driver(call, cancel_at=0)
        outcome = driver.run()

        assert isinstance(outcome, Cancelled)
        assert len(driver.keys()) == 2
        assert driver.run() == outcome


def test_a_run_that_was_cancelled_before_it_began_is_replayed_without_its_code() -> None:
    @workflow
    def program(ctx: Context) -> None:
        raise AssertionError

    driver = Driver(program())
    driver.cancel()
    driver._append(0, Kind.RUN, Phase.CANCELLED, "", "program", 1, b"{}", 1)
    outcome = SyncActivation(program, driver.info, driver.journal).run(driver.exchange)

    assert isinstance(outcome, Cancelled)
    assert b"changed her mind" in outcome.payload


@workflow
def outing(ctx: Context) -> None:
    ctx.on_exit(tell, "office")
    ctx.step(book, "hotel")
    ctx.map(book, ["flight"])
    raise LookupError("the code has left")


@pytest.mark.parametrize("cut", [1, 2, 3], ids=["at once", "after a step", "when all is done"])
def test_what_is_done_at_the_end_names_the_line_that_planned_it_also_in_a_replay(cut: int) -> None:
    whole = Driver(outing())
    whole.run()
    resumed = Driver(outing())
    resumed.journal[1:] = whole.journal[1:cut]
    resumed.run()

    _, first = inspect.getsourcelines(outing.fn)
    lines = [command.id.code for command in resumed.commands if command.id.kind == Kind.COMPENSATION]
    assert lines == [(__file__, first + line) for line in (4, 3, 2)]


@BOTH
def test_a_run_whose_result_cannot_be_stored_fails_and_undoes_what_it_did(definition: Any) -> None:
    def unstorable(ctx: Context, parts: list[str]) -> object:
        trip.fn(ctx, parts)
        return open

    async def async_unstorable(ctx: AsyncContext, parts: list[str]) -> object:
        await async_trip.fn(ctx, parts)
        return open

    driver = Driver(workflow(async_unstorable if definition.is_async else unstorable)(["hotel", "flight"]))

    outcome = driver.run()

    assert isinstance(outcome, Failed)
    assert b"result: builtin_function_or_method cannot be stored" in outcome.payload
    assert cleanup(driver) == [
        ("/compensation:cancel_booking#1", Phase.COMPLETED),
        ("/compensation:cancel_booking#2", Phase.COMPLETED),
        ("/compensation:tell#1", Phase.COMPLETED),
    ]
