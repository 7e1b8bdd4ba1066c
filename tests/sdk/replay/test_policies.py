"""Policies of parallel and map: who has to succeed, and what becomes known of each branch, whatever it runs."""

from __future__ import annotations

from collections import Counter
from datetime import timedelta
from random import Random
from typing import TYPE_CHECKING, Any

import pytest

from pgwf_sdk import (
    AllSettled,
    AsyncContext,
    BranchCancelled,
    BranchesFailedError,
    BranchFailed,
    BranchResult,
    BranchResults,
    BranchSucceeded,
    BranchUnfinished,
    Context,
    MinSuccessful,
    ToleratedFailures,
    step,
    workflow,
)
from pgwf_sdk.replay import Completed, Outcome
from pgwf_sdk.replay._policy import Tally
from tests.sdk.replay.driver import Driver

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pgwf_sdk import Call

Shown = dict[str, Any]


@step
def work(number: int) -> int:
    if number < 0:
        raise ValueError(number)
    return number * 10


@workflow
def child(ctx: Context, number: int) -> int:
    return ctx.step(work, number)


async def abranch(ctx: AsyncContext, number: int) -> int:
    return await ctx.step(work, number)


def branch(ctx: Context, number: int) -> int:
    return ctx.step(work, number)


def shown(results: Sequence[BranchResult[Any]]) -> list[str]:
    def one(result: BranchResult[Any]) -> str:
        match result:
            case BranchSucceeded(value=value):
                return f"={value}"
            case BranchFailed(error=error):
                return f"!{error}"
            case BranchUnfinished():
                return "-"

    return [one(result) for result in results]


@workflow
def sync_map(ctx: Context, kind: str, items: list[int], policy: Any, width: int | None) -> Any:
    each: Any = {"step": work, "child": child, "function": branch}[kind]
    try:
        return shown(ctx.map(each, items, policy=policy, max_concurrency=width))
    except BranchesFailedError as error:
        return f"{error.failures} failed: {error}"


@workflow
async def async_map(ctx: AsyncContext, kind: str, items: list[int], policy: Any, width: int | None) -> Any:
    each: Any = {"step": work, "child": child, "function": abranch}[kind]
    try:
        return shown(await ctx.map(each, items, policy=policy, max_concurrency=width))
    except BranchesFailedError as error:
        return f"{error.failures} failed: {error}"


EVERY_MAP = pytest.mark.parametrize(
    ("program", "kind"),
    [(sync_map, "step"), (sync_map, "child"), (sync_map, "function"), (async_map, "step"), (async_map, "function")],
)


def value_of(outcome: Outcome, call: Call[Any]) -> Any:
    assert isinstance(outcome, Completed), outcome
    return call.workflow.codec.decode(outcome.payload, outcome.encoding)


def run(call: Call[Any], seed: int | None = None) -> Any:
    """Run, then go on from every cut of the journal: whoever won before wins again."""
    driver = Driver(call, shuffle=None if seed is None else Random(seed))
    outcome = driver.run()
    for cut in range(1, len(driver.journal), 3):
        again = Driver(call, journal=driver.journal[:cut])
        again.run()
        assert again.run() == again.run()
    replayed = Driver(call, journal=list(driver.journal))
    assert replayed.run() == outcome
    assert replayed.commands == []
    return value_of(outcome, call)


@EVERY_MAP
def test_all_settled_tells_what_became_of_each(program: Any, kind: str) -> None:
    found = run(program(kind, [1, -2, 3], AllSettled(), None))

    assert [one if kind != "child" else one[:2] for one in found] == (
        ["=10", "!-2", "=30"] if kind != "child" else ["=1", "!c", "=3"]
    )


@EVERY_MAP
@pytest.mark.parametrize("seed", range(3))
def test_enough_successes_end_the_others(program: Any, kind: str, seed: int) -> None:
    found = run(program(kind, [1, 2, 3, 4, 5], MinSuccessful(2), None), seed)

    assert Counter(one[0] for one in found) == {"=": 2, "-": 3}


@EVERY_MAP
def test_too_few_successes_are_an_error_as_soon_as_that_is_certain(program: Any, kind: str) -> None:
    found = run(program(kind, [-1, -2, -3, 4, 5], MinSuccessful(4), 1))

    assert found.startswith("2 failed: /branch:map#1: 2 of 5 branches failed, expected 4 to succeed; the first with ")


@EVERY_MAP
@pytest.mark.parametrize(
    ("policy", "failures_max"),
    [
        (ToleratedFailures(count=0), 0),
        (ToleratedFailures(count=2), 2),
        (ToleratedFailures(share=0.4), 2),
        (ToleratedFailures(share=0.39), 1),
        (ToleratedFailures(share=1), 5),
    ],
)
def test_as_many_failures_as_are_tolerated_are_and_one_more_is_not(
    program: Any, kind: str, policy: Any, failures_max: int
) -> None:
    for failures in {failures_max, min(failures_max + 1, 5)}:
        items = [-1 if index < failures else 1 for index in range(5)]
        found = run(program(kind, items, policy, 1))
        if failures <= failures_max:
            assert Counter(one[0] for one in found) == Counter({"!": failures, "=": 5 - failures})
        else:
            assert found.startswith(
                f"{failures} failed: /branch:map#1: {failures} of 5 branches failed, expected at most"
            )


@EVERY_MAP
@pytest.mark.parametrize("policy", [None, AllSettled(), ToleratedFailures(count=0), ToleratedFailures(share=0.5)])
def test_no_items_are_done_at_once(program: Any, kind: str, policy: Any) -> None:
    driver = Driver(program(kind, [], policy, None))

    assert value_of(driver.run(), driver.call) == []
    assert driver.commands == []


@EVERY_MAP
def test_more_successes_than_items_begin_nothing(program: Any, kind: str) -> None:
    driver = Driver(program(kind, [1, 2], MinSuccessful(3), None))

    assert "0 of 2 branches failed, expected 3 to succeed" in value_of(driver.run(), driver.call)
    assert driver.commands == []


@pytest.mark.parametrize("width", [1, 2, 3])
@EVERY_MAP
def test_no_more_than_the_bound_are_under_way_with_a_policy(program: Any, kind: str, width: int) -> None:
    class Counting(Driver):
        most = 0

        def _answer_some(self) -> bool:
            self.most = max(self.most, len(self._open))
            return super()._answer_some()

    driver = Counting(program(kind, [1, -2, 3, -4, 5, 6], AllSettled(), width))
    driver.run()

    assert driver.most == width


def test_parallel_takes_policies_and_a_bound_too() -> None:
    @workflow
    def program(ctx: Context) -> Any:
        first, second = ctx.parallel(
            lambda c: c.step(work, 1), lambda c: str(c.step(work, -1)), policy=AllSettled(), max_concurrency=1
        )
        assert isinstance(second, BranchFailed)
        return [first.status, second.status, str(second.error)]

    @workflow
    async def aprogram(ctx: AsyncContext) -> Any:
        first, second = await ctx.parallel(
            lambda c: abranch(c, 1), lambda c: abranch(c, -1), policy=AllSettled(), max_concurrency=1
        )
        assert isinstance(second, BranchFailed)
        return [first.status, second.status, str(second.error)]

    assert run(program()) == run(aprogram()) == ["succeeded", "failed", "-1"]


def test_a_branch_that_is_not_needed_any_more_cleans_up() -> None:
    @workflow
    def program(ctx: Context) -> Any:
        told: list[str] = []

        def slow(ctx: Context, _number: int) -> int:
            try:
                ctx.sleep(timedelta(days=1))
            except BranchCancelled as request:
                told.append(str(request))
                ctx.step(work, 7)
                raise
            return 1

        results = ctx.parallel(lambda c: c.step(work, 1), lambda c: slow(c, 2), policy=MinSuccessful(1))
        return [*shown(results), *told]

    assert run(program()) == ["=10", "-", "enough other branches of /branch:parallel#1 have succeeded"]


def test_results_are_a_sequence_with_what_succeeded_and_what_failed() -> None:
    error = ValueError("no")
    found: list[BranchResult[int]] = [BranchSucceeded(1), BranchFailed(error), BranchUnfinished(), BranchSucceeded(4)]
    results = BranchResults(found)

    assert (results.values, results.errors, results.is_complete, len(results)) == ([1, 4], [error], False, 4)
    assert results[0] == BranchSucceeded(1)
    assert results[1:3] == (BranchFailed(error), BranchUnfinished())
    assert [one.status for one in results] == ["succeeded", "failed", "unfinished", "succeeded"]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: MinSuccessful(0), "expected 1 or more"),
        (lambda: ToleratedFailures(), "either a count or a share"),
        (lambda: ToleratedFailures(count=1, share=0.5), "either a count or a share"),
        (lambda: ToleratedFailures(count=-1), "a count of 0 or more"),
        (lambda: ToleratedFailures(share=1.5), "a share from 0 to 1"),
        (lambda: ToleratedFailures(share=float("nan")), "a share from 0 to 1"),
    ],
)
def test_a_policy_that_makes_no_sense_is_refused(make: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"policy": AllSettled}, r"TypeError: ctx.map(policy=AllSettled): expected AllSettled(), MinSuccessful(2)"),
        ({"policy": 3}, r"TypeError: ctx.map(policy=3): expected"),
        ({"max_concurrency": 0}, r"ValueError: ctx.map(max_concurrency=0): expected 1 or more"),
    ],
)
def test_what_is_no_policy_or_bound_is_refused_before_anything_is_recorded(options: Any, error: str) -> None:
    @workflow
    def program(ctx: Context) -> str:
        try:
            ctx.map(work, [1], **options)
        except (TypeError, ValueError) as refused:
            return f"{type(refused).__name__}: {refused}"
        return "taken"

    driver = Driver(program())

    assert value_of(driver.run(), driver.call).startswith(error)
    assert len(driver.journal) == 1


@pytest.mark.parametrize(
    ("policy", "open_count", "ended", "needed"),
    [
        (None, 10, "", 10),
        (AllSettled(), 10, "", -10),
        (AllSettled(), 7, "=!=", -7),
        (MinSuccessful(3), 10, "", -3),
        (MinSuccessful(3), 8, "==", -1),
        (MinSuccessful(3), 4, "!!!!!!", -2),
        (ToleratedFailures(count=2), 10, "", -3),
        (ToleratedFailures(count=2), 8, "!!", -1),
        (ToleratedFailures(count=2), 2, "========", -2),
    ],
)
def test_a_tally_says_how_many_branches_must_end_before_anything_can_change(
    policy: Any, open_count: int, ended: str, needed: int
) -> None:
    tally = Tally(policy, 10, path="/branch:map#1", shape=list)
    for index, how in enumerate(ended):
        if how == "=":
            tally.succeeded(index, 1)
        else:
            tally.failed(index, ValueError())

    assert tally.ends_needed(open_count) == needed
