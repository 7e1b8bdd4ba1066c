"""ctx.patched and ctx.deprecate_patch: new runs take the new way at once and everywhere, older ones keep the old."""

from __future__ import annotations

import asyncio
import logging
from datetime import timedelta
from itertools import pairwise
from random import Random
from typing import TYPE_CHECKING

import msgspec
import pytest

from pgwf_journal import Kind
from pgwf_sdk import AsyncContext, Context, Workflow, step, workflow
from pgwf_sdk.replay import Blocked, Completed
from pgwf_sdk.replay._calls import TimerCall
from pgwf_sdk.replay._core import ContextCore
from tests.sdk.replay.driver import Driver

if TYPE_CHECKING:
    from collections.abc import Callable

    from pgwf_journal import Entry

Version = str
"""old: without the patch · new: with it · deprecated: the old way is gone · removed: the patch too."""


@step
def first(x: int) -> int:
    return x


@step
def extra(x: int) -> int:
    return x


@step
def last(x: int) -> int:
    return x


def is_new_way(ctx: Context | AsyncContext, version: Version) -> bool:
    if version == "deprecated":
        ctx.deprecate_patch("extra")
    return version == "removed" or version == "deprecated" or (version == "new" and ctx.patched("extra"))


def straight(version: Version) -> Workflow[[], list[str]]:
    @workflow(name="program")
    def program(ctx: Context) -> list[str]:
        return [branch(ctx, version, 0)]

    return program


def parallel(version: Version) -> Workflow[[], list[str]]:
    @workflow(name="program")
    def program(ctx: Context) -> list[str]:
        ctx.step(first, 7)
        return list(
            ctx.parallel(
                lambda c: branch(c, version, 0),
                lambda c: branch(c, version, 1),
                lambda c: ",".join(c.map(lambda cc, i: branch(cc, version, i), [2, 3])),
            )
        )

    return program


def mapped(version: Version) -> Workflow[[], list[str]]:
    @workflow(name="program")
    def program(ctx: Context) -> list[str]:
        return ctx.map(lambda c, i: branch(c, version, i), range(4), max_concurrency=2)

    return program


def branch(ctx: Context, version: Version, i: int) -> str:
    ctx.step(first, i)
    way = "old"
    if is_new_way(ctx, version):
        ctx.step(extra, i)
        way = "new"
    ctx.sleep(timedelta(hours=1 + i))
    ctx.step(last, i)
    return way


def gathered(version: Version) -> Workflow[[], list[str]]:
    async def part(ctx: AsyncContext, i: int) -> str:
        way = "old"
        await ctx.step(first, i)
        if is_new_way(ctx, version):
            await ctx.step(extra, i)
            way = "new"
        await ctx.sleep(timedelta(hours=1 + i))
        await ctx.step(last, i)
        return way

    @workflow(name="program")
    async def program(ctx: AsyncContext) -> list[str]:
        parallel = await ctx.map(part, [0, 1, 2], max_concurrency=2)
        async with asyncio.timeout(10 * 3600):
            return [*parallel, await part(ctx, 3)]

    return program


PROGRAMS: dict[str, Callable[[Version], Workflow[[], list[str]]]] = {
    "straight": straight,
    "parallel": parallel,
    "mapped": mapped,
    "gathered": gathered,
}


def ways(driver: Driver) -> set[str]:
    outcome = driver.run()
    assert isinstance(outcome, Completed), outcome
    found: list[str] = msgspec.json.decode(outcome.payload or b"")
    return set(",".join(found).split(","))


def on(journal: list[Entry], workflow: Workflow[[], list[str]], seed: int) -> Driver:
    return Driver(workflow(), journal=list(journal), shuffle=Random(seed))


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_new_run_takes_the_new_way_everywhere_however_often_it_is_cut_off(program: str) -> None:
    new = PROGRAMS[program]("new")
    for seed in range(8):
        fresh = Driver(new(), shuffle=Random(seed) if seed else None)
        assert ways(fresh) == {"new"}
        for cut in range(1, len(fresh.journal)):
            assert ways(on(fresh.journal[:cut], new, seed)) == {"new"}, (seed, cut)
        assert [entry.key for entry in fresh.journal if entry.kind is Kind.PATCH] == ["/patch:extra#1"]


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_run_of_the_old_code_goes_on_wherever_the_deploy_meets_it(program: str) -> None:
    old, new = PROGRAMS[program]("old"), PROGRAMS[program]("new")
    for seed in range(8):
        before = Driver(old(), shuffle=Random(seed) if seed else None)
        before.run()
        for cut in range(1, len(before.journal)):
            upgraded = on(before.journal[:cut], new, seed)
            met = ways(upgraded)
            # One decision holds for the whole run, in this activation and in all that follow.
            assert len(met) == 1, (seed, cut)
            assert ways(on(upgraded.journal, new, seed)) == met
            for later in range(cut, len(upgraded.journal)):
                assert ways(on(upgraded.journal[:later], new, seed + 1)) == met, (seed, cut, later)


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_patch_is_deprecated_and_then_removed_while_new_runs_go_on(program: str) -> None:
    versions = [PROGRAMS[program](version) for version in ("new", "deprecated", "removed")]
    for first_version, next_version in pairwise(versions):
        started = Driver(first_version(), shuffle=Random(3))
        assert ways(started) == {"new"}
        for cut in range(1, len(started.journal) + 1):
            assert ways(on(started.journal[:cut], next_version, 5)) == {"new"}


def test_a_run_started_under_deprecate_patch_can_still_be_worked_on_by_the_code_before() -> None:
    deprecated = Driver(straight("deprecated")())
    assert ways(deprecated) == {"new"}

    assert ways(on(deprecated.journal[:4], straight("new"), 1)) == {"new"}


def test_a_run_of_the_old_way_is_blocked_once_the_old_way_is_gone() -> None:
    before = Driver(straight("old")())
    before.run()

    outcome = on(before.journal, straight("deprecated"), 1).run()

    assert isinstance(outcome, Blocked)
    assert outcome.report["class"] == "inserted_or_renamed"
    assert outcome.report["actual"]["key"] == "/step:extra#1"


def test_a_line_logged_in_a_branch_is_said_when_results_of_several_branches_come_at_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    @workflow
    def program(ctx: Context) -> None:
        def each(ctx: Context, x: int) -> None:
            ctx.step(first, x)
            ctx.log.info("branch %d", x)
            ctx.step(last, x)

        ctx.map(each, [0, 1, 2])

    driver = Driver(program())
    with caplog.at_level(logging.INFO, logger="pgwf_sdk.run"):
        driver.run()
        driver.run()

    assert sorted(record.getMessage() for record in caplog.records) == ["branch 0", "branch 1", "branch 2"]


def test_a_change_of_the_sdk_itself_is_a_patch_with_a_name_that_workflows_cannot_use() -> None:
    @workflow
    def program(ctx: Context) -> None:
        for use in (ctx.patched, ctx.deprecate_patch):
            with pytest.raises(ValueError, match="names that begin with 'sdk:' are the SDK's own"):
                use("sdk:order")

    assert Driver(program()).run() == Completed(None, 0)


@pytest.mark.parametrize("is_new", [False, True])
def test_a_run_keeps_the_behaviour_of_the_sdk_it_met_first(monkeypatch: pytest.MonkeyPatch, is_new: bool) -> None:
    """A release in which a sleep is called otherwise in journals, as a real change of the SDK would be made."""
    recorded = straight("old")
    before = Driver(recorded(), suspend_after=None if is_new else 3)
    open_sleep = ContextCore._open_sleep  # pyright: ignore[reportPrivateUsage]

    def changed(self: ContextCore, duration: timedelta) -> TimerCall:
        if not self._machine.patched("sdk:nap"):  # pyright: ignore[reportPrivateUsage]
            return open_sleep(self, duration)
        call = TimerCall(self._scope, "nap", duration=duration)  # pyright: ignore[reportPrivateUsage]
        self._machine.open(call)  # pyright: ignore[reportPrivateUsage]
        return call

    if not is_new:
        before.run()
    monkeypatch.setattr(ContextCore, "_open_sleep", changed)
    after = Driver(recorded(), journal=before.journal)

    assert ways(after) == {"old"}
    assert ways(Driver(recorded(), journal=after.journal)) == {"old"}
    names = [entry.name for entry in after.journal if entry.kind is Kind.TIMER]
    assert set(names) == ({"nap"} if is_new else {"sleep"})
