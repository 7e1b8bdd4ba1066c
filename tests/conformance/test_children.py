"""Requirements 3-1 to 3-18, child contexts, and 5-1 to 5-16, invoked functions: both are child runs here."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from pgwf_sdk import ChildFailedError, Context, RetryPolicy, RunFailedError, step, workflow
from tests.conformance.flows import EXECUTED, TransientError, add_one, greet, keys, refuse

if TYPE_CHECKING:
    from pgwf_sdk import Run
    from pgwf_sdk.testing import Environment

LARGE = 1_000_000


@pytest.fixture(autouse=True)
def _counting() -> None:
    EXECUTED.clear()


@workflow
def echo(ctx: Context, value: Any) -> Any:
    return value


@workflow
def greeting(ctx: Context, name: str) -> str:
    return ctx.step(greet, name)


@workflow
def refusing(ctx: Context, reason: str) -> str:
    return ctx.step(refuse, reason)


@workflow
def calling(ctx: Context, name: str) -> str:
    return ctx.call(greeting(name))


def test_a_child_runs_a_step(env: Environment) -> None:
    run = env.start(calling("World"))

    assert env.result(run) == "Hello, World!"
    assert keys(env, run) == ["/child:greeting#1"]
    child: Run[Any] = env.client.get(f"{run.run_id}/greeting#1")
    assert keys(env, child) == ["/step:greet#1"]
    assert child.details().parent_run_id == run.run_id


def test_a_child_can_be_given_an_id(env: Environment) -> None:
    @workflow
    def program(ctx: Context, name: str) -> str:
        return ctx.call(greeting(name), run_id=f"greeting-{name}")

    assert env.run(program("Ann")) == "Hello, Ann!"
    assert env.client.get("greeting-Ann").status() == "completed"


def test_a_child_runs_steps_that_depend_on_each_other(env: Environment) -> None:
    @workflow
    def adding(ctx: Context, number: int) -> int:
        return ctx.step(add_one, ctx.step(add_one, number))

    @workflow
    def program(ctx: Context) -> int:
        return ctx.call(adding(1))

    assert env.run(program()) == 3


def test_the_failure_of_a_child_fails_the_parent_unless_its_code_handles_it(env: Environment) -> None:
    @workflow
    def program(ctx: Context, is_caught: bool) -> str:
        try:
            return ctx.call(refusing("bad"))
        except ChildFailedError as error:
            if not is_caught:
                raise
            return ctx.step(greet, str(error.__cause__))

    assert env.run(program(True)) == "Hello, bad!"
    with pytest.raises(RunFailedError) as failed:
        env.run(program(False))
    assert isinstance(failed.value.__cause__, ChildFailedError)


def test_a_child_has_children_of_its_own(env: Environment) -> None:
    @workflow
    def program(ctx: Context) -> str:
        return f"{ctx.step(greet, 'outer')} {ctx.call(calling('inner'))}"

    run = env.start(program())

    assert env.result(run) == "Hello, outer! Hello, inner!"
    assert keys(env, run) == ["/step:greet#1", "/child:calling#1"]


@pytest.mark.parametrize("failures", [1, 2])
def test_a_step_in_a_child_is_tried_again_until_its_attempts_are_used_up(env: Environment, failures: int) -> None:
    @step(retry=RetryPolicy(max_attempts=2))
    def unreliable() -> str:
        EXECUTED["unreliable"] += 1
        if EXECUTED["unreliable"] <= failures:
            raise TransientError("down")
        return "done"

    @workflow
    def trying(ctx: Context) -> str:
        return ctx.step(unreliable)

    @workflow
    def program(ctx: Context) -> str:
        try:
            return ctx.call(trying())
        except ChildFailedError as error:
            return f"failed: {error.__cause__}"

    assert env.run(program()) == ("done" if failures == 1 else "failed: down")
    assert EXECUTED["unreliable"] == 2


def test_a_child_that_ended_is_not_run_again_after_a_wait(env: Environment) -> None:
    @workflow
    def program(ctx: Context) -> str:
        said = ctx.call(greeting("World"))
        ctx.sleep(timedelta(seconds=2))
        return said

    assert env.run(program()) == "Hello, World!"
    assert EXECUTED["World"] == 1


def test_a_child_waits_between_its_steps_and_its_parent_goes_on_after_it(env: Environment) -> None:
    @workflow
    def waiting(ctx: Context) -> str:
        said = ctx.step(greet, "inside")
        ctx.sleep(timedelta(seconds=2))
        return said

    @workflow
    def sleeping(ctx: Context) -> str:
        ctx.sleep(timedelta(seconds=2))
        return "slept"

    @workflow
    def program(ctx: Context) -> list[str]:
        first, second = ctx.call(waiting()), ctx.call(sleeping())
        third = ctx.step(greet, "after")
        ctx.sleep(timedelta(seconds=2))
        return [first, second, third]

    assert env.run(program()) == ["Hello, inside!", "slept", "Hello, after!"]
    assert (EXECUTED["inside"], EXECUTED["after"]) == (1, 1)


def test_large_values_go_into_a_child_and_come_back(env: Environment) -> None:
    @workflow
    def program(ctx: Context) -> int:
        value: str = ctx.call(echo("x" * LARGE))
        ctx.sleep(timedelta(seconds=2))
        return len(value)

    assert env.run(program()) == LARGE


def test_a_child_whose_worker_is_killed_anywhere_ends_as_if_nothing_had_happened(env: Environment) -> None:
    report = env.crash_everywhere(lambda env: env.run(calling("World")))

    assert report.append_count > 0


def test_a_child_fails_without_any_step(env: Environment) -> None:
    @workflow
    def raising(ctx: Context) -> None:
        raise ValueError("directly")

    @workflow
    def program(ctx: Context) -> None:
        ctx.call(raising())

    with pytest.raises(RunFailedError, match="ValueError: directly"):
        env.run(program())


@pytest.mark.parametrize("value", [None, {"a": {"b": [1, None]}}, [], "text", 7])
def test_a_child_gives_back_what_it_was_given(env: Environment, value: Any) -> None:
    @workflow
    def program(ctx: Context) -> Any:
        return ctx.call(echo(value))

    run = env.start(program())

    assert env.result(run) == value
    assert keys(env, run) == ["/child:echo#1"]


def test_a_child_logs_each_line_once(env: Environment, caplog: pytest.LogCaptureFixture) -> None:
    @workflow
    def logging_child(ctx: Context, text: str) -> str:
        ctx.log.warning("said %s", text)
        return text

    @workflow
    def program(ctx: Context) -> str:
        said = ctx.call(logging_child("this"))
        ctx.sleep(timedelta(seconds=2))
        return said

    with caplog.at_level("WARNING", logger="pgwf_sdk.run"):
        assert env.run(program()) == "this"
    assert "said this" in [record.getMessage() for record in caplog.records]


def test_the_failure_of_a_child_is_raised_again_in_a_replay(env: Environment) -> None:
    @workflow
    def program(ctx: Context) -> str:
        try:
            said = ctx.call(refusing("bad"))
        except ChildFailedError as error:
            said = f"caught {error.__cause__}"
        ctx.sleep(timedelta(seconds=2))
        return said

    assert env.run(program()) == "caught bad"
    assert EXECUTED["bad"] == 1


def test_steps_and_children_use_each_others_results(env: Environment) -> None:
    @workflow
    def program(ctx: Context) -> str:
        first = ctx.call(echo(ctx.step(greet, "a")))
        second = ctx.call(greeting(first))
        return ctx.step(greet, second)

    assert env.run(program()) == "Hello, Hello, Hello, a!!!"


def test_a_child_is_called_in_a_branch(env: Environment) -> None:
    @workflow
    def program(ctx: Context) -> str:
        (said,) = ctx.map(lambda ctx, name: ctx.call(greeting(name)), ["World"])
        return said

    run = env.start(program())

    assert env.result(run) == "Hello, World!"
    assert keys(env, run) == ["/branch:map#1[0]/child:greeting#1"]
