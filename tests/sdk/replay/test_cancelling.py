"""Cancelling, suspending and putting away: what the code sees, and what it can no longer do."""

from __future__ import annotations

import asyncio
import threading
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from pgwf_sdk import AsyncContext, Context, RunCancelled, step, workflow
from pgwf_sdk._errors import HistoryError, Suspend
from pgwf_sdk.replay import (
    Abandon,
    AsyncActivation,
    Blocked,
    Cancelled,
    Command,
    Completed,
    Failed,
    RunStep,
    Suspended,
    SyncActivation,
)
from tests.sdk.replay.driver import Driver

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pgwf_journal import Entry


@step
def work(number: int) -> int:
    return number * 10


class CancellingDriver(Driver):
    """Asks the run to stop as soon as it waits for the first time."""

    def exchange(self, commands: list[Command]) -> Sequence[Entry]:
        if not self.commands:
            self.commands += commands
            for command in commands:
                self._take(command)
            first = len(self.journal)
            self.cancel()
            return self.journal[first - sum(1 for entry in self.journal[1:first]) :]
        return super().exchange(commands)


def test_an_uncaught_cancel_ends_the_run_as_cancelled_and_says_who_and_why() -> None:
    @workflow
    def program(ctx: Context) -> None:
        ctx.sleep(timedelta(days=1))

    @workflow
    async def async_program(ctx: AsyncContext) -> None:
        await ctx.sleep(timedelta(days=1))

    for call in (program(), async_program()):
        driver = CancellingDriver(call)
        outcome = driver.run()

        assert isinstance(outcome, Cancelled)
        assert b"was cancelled by ann: changed her mind" in outcome.payload
        assert b'"attributes":{"by":"ann","reason":"changed her mind"}' in outcome.payload
        assert driver.run() == outcome


def test_cleanup_after_a_cancel_uses_the_context_as_usual_and_is_replayed() -> None:
    @workflow
    def program(ctx: Context) -> None:
        try:
            ctx.sleep(timedelta(days=1))
        finally:
            ctx.step(work, 1)
            ctx.sleep(timedelta(seconds=1))

    @workflow
    async def async_program(ctx: AsyncContext) -> None:
        try:
            await ctx.sleep(timedelta(days=1))
        finally:
            await ctx.step(work, 1)
            await ctx.sleep(timedelta(seconds=1))

    for call in (program(), async_program()):
        driver = CancellingDriver(call)
        outcome = driver.run()
        wanted = len(driver.commands)

        assert isinstance(outcome, Cancelled)
        assert driver.keys() == ["/step:work#1", "/timer:sleep#2"]
        assert driver.run() == outcome
        assert len(driver.commands) == wanted


def test_a_cancel_that_is_swallowed_lets_the_run_complete() -> None:
    @workflow
    def program(ctx: Context) -> str:
        try:
            ctx.sleep(timedelta(days=1))
        except RunCancelled as request:
            return f"ignored {request.by}"
        return ""

    assert CancellingDriver(program()).run() == Completed(b'"ignored ann"', 1)


def test_except_exception_does_not_catch_a_cancel() -> None:
    @workflow
    def program(ctx: Context) -> str:
        try:
            ctx.sleep(timedelta(days=1))
        except Exception:  # noqa: BLE001 - the point of the test
            return "swallowed"
        return ""

    assert isinstance(CancellingDriver(program()).run(), Cancelled)


def test_a_cancel_reaches_every_branch_once_and_all_are_joined() -> None:
    @workflow
    def program(ctx: Context) -> None:
        def branch(c: Context) -> None:
            try:
                c.sleep(timedelta(days=1))
            finally:
                c.step(work, 1)

        ctx.parallel(branch, lambda c: c.parallel(branch, branch))

    @workflow
    async def async_program(ctx: AsyncContext) -> None:
        async def branch(c: AsyncContext) -> None:
            try:
                await c.sleep(timedelta(days=1))
            finally:
                await c.step(work, 1)

        async def nested(c: AsyncContext) -> None:
            await c.parallel(branch, branch)

        await ctx.parallel(branch, nested)

    for call in (program(), async_program()):
        driver = CancellingDriver(call)

        assert isinstance(driver.run(), Cancelled)
        assert sum(isinstance(command, RunStep) for command in driver.commands) == 3
        assert sum(isinstance(command, Abandon) for command in driver.commands) == 3


def test_a_cancel_that_loses_against_the_end_changes_nothing() -> None:
    @workflow
    def program(ctx: Context) -> int:
        return ctx.step(work, 1)

    driver = Driver(program())
    outcome = driver.run()
    driver.cancel()

    assert driver.run() == outcome == Completed(b"10", 1)


def test_a_workflow_that_cancels_itself_has_failed() -> None:
    @workflow
    async def program(ctx: AsyncContext) -> None:
        raise asyncio.CancelledError

    @workflow
    def sync_program(ctx: Context) -> None:
        raise RunCancelled

    assert isinstance(Driver(program()).run(), Failed)
    assert isinstance(Driver(sync_program()).run(), Failed)


def test_suspending_leaves_no_trace_whatever_the_code_does_with_it() -> None:
    calls: list[str] = []

    @workflow
    def program(ctx: Context) -> str:
        try:
            ctx.sleep(timedelta(days=1))
        except BaseException:  # noqa: BLE001 - the point of the test
            calls.append("caught")
        for attempt in (lambda: ctx.step(work, 1), ctx.now, lambda: ctx.set_attribute("a", 1)):
            try:
                attempt()
            except Suspend:
                calls.append("again")
        return "discarded"

    driver = Driver(program(), suspend_after=2)

    assert driver.run() == Suspended()
    assert calls == ["caught", "again", "again", "again"]
    assert len(driver.journal) == 2


def test_suspending_leaves_the_branches_first_and_ends_their_threads() -> None:
    left: list[str] = []

    @workflow
    def program(ctx: Context) -> None:
        def branch(c: Context, name: str) -> None:
            try:
                c.sleep(timedelta(days=1))
            finally:
                left.append(name)

        try:
            ctx.map(branch, ["a", "b", "c"])
        finally:
            left.append("root")

    before = threading.active_count()
    driver = Driver(program(), suspend_after=4)

    assert driver.run() == Suspended()
    assert left == ["c", "b", "a", "root"]
    for thread in threading.enumerate():
        if thread.name.startswith("pgwf run-1"):
            thread.join(5)
    assert threading.active_count() == before


def test_an_error_of_the_worker_comes_out_of_run_and_not_into_the_code() -> None:
    seen: list[BaseException] = []

    @workflow
    def program(ctx: Context) -> None:
        def branch(c: Context) -> None:
            try:
                c.step(work, 1)
            except BaseException as error:
                seen.append(error)
                raise

        ctx.parallel(branch, branch)

    def lose(_commands: list[Command]) -> Sequence[Entry]:
        raise ConnectionError("lease lost")

    driver = Driver(program())
    with pytest.raises(ConnectionError, match="lease lost"):
        SyncActivation(driver.workflow, driver.info, driver.journal).run(lose)
    assert [type(error) for error in seen] == [Suspend, Suspend]


def test_an_interrupt_of_the_process_is_no_failure_of_the_run() -> None:
    @workflow
    def program(ctx: Context) -> None:
        def branch(_ctx: Context) -> None:
            raise KeyboardInterrupt

        ctx.parallel(branch)

    @workflow
    async def async_program(ctx: AsyncContext) -> None:
        raise SystemExit

    with pytest.raises(KeyboardInterrupt):
        Driver(program()).run()
    with pytest.raises(SystemExit):
        Driver(async_program()).run()


def test_closing_an_async_activation_runs_finally_blocks_without_effect() -> None:
    left: list[str] = []

    @workflow
    async def program(ctx: AsyncContext) -> None:
        async def branch(c: AsyncContext) -> None:
            try:
                await c.sleep(timedelta(days=1))
            except BaseException as error:
                left.append(type(error).__name__)
                await c.step(work, 1)
                left.append("never")
                raise

        try:
            async with asyncio.TaskGroup() as group, asyncio.timeout(5):
                group.create_task(branch(ctx))
                await ctx.parallel(branch, branch)
        finally:
            await ctx.step(work, 2)
            left.append("never")

    driver = Driver(program())
    activation = AsyncActivation(driver.workflow, driver.info, driver.journal)
    commands = activation.start()
    activation.close()
    activation.close()

    assert len(commands) == 4
    assert left == ["GeneratorExit"] * 3
    assert activation.outcome is None


def test_an_activation_runs_once() -> None:
    @workflow
    def program(ctx: Context) -> int:
        return 1

    driver = Driver(program())
    activation = SyncActivation(driver.workflow, driver.info, driver.journal)
    activation.run(driver.exchange)

    with pytest.raises(Exception, match="make a new one"):
        activation.run(driver.exchange)


def test_entries_must_be_fed_without_a_gap() -> None:
    @workflow
    async def program(ctx: AsyncContext) -> Any:
        return await ctx.step(work, 1)

    driver = Driver(program())
    activation = AsyncActivation(driver.workflow, driver.info, list(driver.journal))
    commands = activation.start()
    driver.exchange(commands)
    driver.cancel()
    with pytest.raises(HistoryError) as caught:
        activation.feed(driver.journal[2:])
    activation.close()

    assert (caught.value.expected_seq, caught.value.found_seq) == (2, 3)


def test_a_journal_without_its_first_entry_is_refused() -> None:
    @workflow
    def program(ctx: Context) -> None:
        return None

    with pytest.raises(HistoryError):
        SyncActivation(program, Driver(program()).info, []).run(lambda _commands: [])


def test_input_that_no_longer_fits_blocks_the_run() -> None:
    @workflow(name="program")
    def old(ctx: Context, number: int) -> int:
        return number

    @workflow(name="program")
    def new(ctx: Context, number: int, extra: str) -> int:
        return number

    driver = Driver(old(1))
    outcome = SyncActivation(new, driver.info, driver.journal).run(driver.exchange)

    assert isinstance(outcome, Blocked)
    assert outcome.report["class"] == "undecodable"
    assert "missing a required argument: 'extra'" in outcome.report["text"]
