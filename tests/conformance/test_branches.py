"""Requirements 8-1 to 8-22, parallel, and 9-1 to 9-20, map: each rule is tried with both."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from pgwf_sdk import (
    AllSettled,
    BranchesFailedError,
    Context,
    MinSuccessful,
    RunFailedError,
    ToleratedFailures,
    workflow,
)
from tests.conformance.flows import EXECUTED, greet, keys, refuse

if TYPE_CHECKING:
    from collections.abc import Callable

    from pgwf_sdk.testing import Environment

FORMS = ["parallel", "map"]
LARGE = 200_000


@pytest.fixture(autouse=True)
def _counting() -> None:
    EXECUTED.clear()


def branch(ctx: Context, what: str) -> str:
    """One of: a greeting; `fail …`; `wait …`, which greets after a pause."""
    if what.startswith("fail"):
        return ctx.step(refuse, what)
    if what.startswith("wait"):
        ctx.sleep(timedelta(seconds=2))
    return ctx.step(greet, what)


def fan_out(ctx: Context, form: str, what: list[str], **options: Any) -> Any:
    def starting(one: str) -> Callable[[Context], str]:
        return lambda ctx: branch(ctx, one)

    method: Any = getattr(ctx, form)
    return method(branch, what, **options) if form == "map" else method(*map(starting, what), **options)


@workflow
def plain(ctx: Context, form: str, what: list[str], width: int | None = 1) -> list[str]:
    return list(fan_out(ctx, form, what, max_concurrency=width))


def settled(policy: Any) -> Any:
    """A workflow that tells what became of each branch under a policy, or that more failed than it allows."""

    @workflow(name="settled")
    def program(ctx: Context, form: str, what: list[str]) -> list[str]:
        try:
            results: list[Any] = list(fan_out(ctx, form, what, max_concurrency=1, policy=policy))
        except BranchesFailedError as error:
            said = [f"{error.failures} failed", str(error.__cause__)]
        else:
            said = [one.value if one.status == "succeeded" else one.status for one in results]
        ctx.sleep(timedelta(seconds=2))
        return said

    return program


@pytest.mark.parametrize("form", FORMS)
def test_branches_give_their_results_in_order(env: Environment, form: str) -> None:
    run = env.start(plain(form, ["World", "Kiro"]))

    assert env.result(run) == ["Hello, World!", "Hello, Kiro!"]
    scope = f"/branch:{form}" + "#1"
    assert keys(env, run) == [f"{scope}[{index}]/step:greet#1" for index in (0, 1)]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("width", [2, None])
def test_branches_give_their_results_in_order_whichever_ends_first(
    env: Environment, form: str, width: int | None
) -> None:
    assert env.run(plain(form, ["wait a", "b", "c"], width)) == ["Hello, wait a!", "Hello, b!", "Hello, c!"]


def test_branches_give_results_of_different_types(env: Environment) -> None:
    @workflow
    def program(ctx: Context) -> list[Any]:
        return list(ctx.parallel(lambda _: "text", lambda _: 7, lambda _: {"a": [1]}))

    assert env.run(program()) == ["text", 7, {"a": [1]}]


@pytest.mark.parametrize("form", FORMS)
def test_nothing_to_do_is_done_at_once(env: Environment, form: str) -> None:
    run = env.start(plain(form, []))

    assert env.result(run) == []
    assert keys(env, run) == []


@pytest.mark.parametrize("form", FORMS)
def test_the_first_failure_stops_those_that_have_not_begun_and_is_raised(env: Environment, form: str) -> None:
    @workflow
    def program(ctx: Context, form: str) -> str:
        try:
            fan_out(ctx, form, ["a", "fail b", "c"], max_concurrency=1)
        except LookupError as error:
            return str(error)
        return ""

    assert env.run(program(form)) == "fail b"
    assert EXECUTED == {"a": 1, "fail b": 1}


@pytest.mark.parametrize("form", FORMS)
def test_a_failure_that_is_not_handled_fails_the_run(env: Environment, form: str) -> None:
    with pytest.raises(RunFailedError, match="LookupError: fail a"):
        env.run(plain(form, ["fail a", "b"]))


@pytest.mark.parametrize("form", FORMS)
def test_enough_successes_end_it_early(env: Environment, form: str) -> None:
    assert env.run(settled(MinSuccessful(2))(form, ["a", "b", "c", "d"])) == [
        "Hello, a!",
        "Hello, b!",
        "unfinished",
        "unfinished",
    ]
    assert EXECUTED == {"a": 1, "b": 1}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    ("policy", "what"),
    [
        (ToleratedFailures(count=1), ["a", "fail b", "c"]),
        (ToleratedFailures(share=0.25), ["a", "fail b", "c", "d"]),
        (AllSettled(), ["a", "fail b", "c"]),
    ],
    ids=["count", "share", "all"],
)
def test_as_many_failures_as_are_tolerated_let_all_end(
    env: Environment, form: str, policy: Any, what: list[str]
) -> None:
    expected = ["failed" if one.startswith("fail") else f"Hello, {one}!" for one in what]

    assert env.run(settled(policy)(form, what)) == expected
    assert dict.fromkeys(what, 1) == EXECUTED


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("policy", [ToleratedFailures(count=1), ToleratedFailures(share=0.25)], ids=["count", "share"])
def test_one_failure_more_than_is_tolerated_ends_it_early(env: Environment, form: str, policy: Any) -> None:
    what = ["fail a", "fail b", "c", "d"]

    assert env.run(settled(policy)(form, what)) == ["2 failed", "fail a"]
    assert EXECUTED == {"fail a": 1, "fail b": 1}


@pytest.mark.parametrize("form", FORMS)
def test_all_may_fail_where_that_is_tolerated(env: Environment, form: str) -> None:
    assert env.run(settled(ToleratedFailures(count=3))(form, ["fail a", "fail b", "fail c"])) == ["failed"] * 3


@pytest.mark.parametrize("form", FORMS)
def test_results_tell_values_and_errors_apart(env: Environment, form: str) -> None:
    @workflow
    def program(ctx: Context, form: str) -> list[Any]:
        if form == "map":
            results = ctx.map(branch, ["a", "fail b", "c"], policy=AllSettled())
            return [results.values, [str(error) for error in results.errors], results.is_complete]
        both = ctx.parallel(lambda ctx: branch(ctx, "a"), lambda ctx: branch(ctx, "fail b"), policy=AllSettled())
        return [[one.status for one in both]]

    expected = [["Hello, a!", "Hello, c!"], ["fail b"], True] if form == "map" else [["succeeded", "failed"]]
    assert env.run(program(form)) == expected


@pytest.mark.parametrize("form", FORMS)
def test_branches_have_no_entries_of_their_own(env: Environment, form: str) -> None:
    run = env.start(plain(form, ["fa", "fb"]))
    env.result(run)

    assert {entry.kind.label for entry in env.journal(run)} == {"run", "step"}


@pytest.mark.parametrize("form", FORMS)
def test_a_branch_that_waits_parks_the_run_and_the_others_are_not_run_again(env: Environment, form: str) -> None:
    run = env.start(plain(form, ["a", "wait b"]))
    assert run.status() == "waiting"

    assert env.result(run) == ["Hello, a!", "Hello, wait b!"]
    assert EXECUTED == {"a": 1, "wait b": 1}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("is_failing", [True, False])
def test_a_wait_after_the_branches_runs_none_of_them_again(env: Environment, form: str, is_failing: bool) -> None:
    what = ["ok", "fail" if is_failing else "b"]

    assert env.run(settled(AllSettled())(form, what)) == ["Hello, ok!", "failed" if is_failing else "Hello, b!"]
    assert dict.fromkeys(what, 1) == EXECUTED


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("width", [0, -1])
def test_no_branch_at_a_time_is_refused_before_anything_is_recorded(env: Environment, form: str, width: int) -> None:
    run = env.start(plain(form, ["a"], width))

    with pytest.raises(RunFailedError, match="max_concurrency"):
        env.result(run)
    assert keys(env, run) == []


def test_branches_have_branches(env: Environment) -> None:
    @workflow
    def program(ctx: Context) -> list[Any]:
        return list(ctx.parallel(lambda ctx: list(fan_out(ctx, "parallel", ["a", "b"])), lambda ctx: branch(ctx, "c")))

    run = env.start(program())

    assert env.result(run) == [["Hello, a!", "Hello, b!"], "Hello, c!"]
    assert "/branch:parallel#1[0]/branch:parallel#1[1]/step:greet#1" in keys(env, run)


def test_an_item_comes_with_its_index_where_the_code_says_so(env: Environment) -> None:
    @workflow
    def program(ctx: Context) -> list[int]:
        return ctx.map(lambda _, item: item[0] + item[1], list(enumerate([10, 20, 30])))

    assert env.run(program()) == [10, 21, 32]


def test_items_give_results_without_any_step(env: Environment) -> None:
    @workflow
    def program(ctx: Context) -> list[int]:
        return ctx.map(lambda _, item: 2 * item, [1, 2], max_concurrency=1)

    assert env.run(program()) == [2, 4]


def test_large_results_are_put_together(env: Environment) -> None:
    @workflow
    def program(ctx: Context) -> int:
        results = ctx.map(lambda ctx, item: ctx.step(greet, item * LARGE), ["a", "b", "c", "d"], max_concurrency=1)
        ctx.sleep(timedelta(seconds=2))
        return sum(map(len, results))

    assert env.run(program()) == 4 * (LARGE + len("Hello, !"))
