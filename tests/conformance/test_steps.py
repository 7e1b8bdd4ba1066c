"""Requirements 1-1 to 1-20: steps."""

from __future__ import annotations

import logging
from datetime import timedelta
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pytest

from pgwf_sdk import Context, RetryPolicy, RunFailedError, StepInterruptedError, current_step, step, workflow
from tests.conformance.flows import EXECUTED, TransientError, add_one, greet, keys, nothing, refuse

if TYPE_CHECKING:
    from pgwf_sdk.testing import Environment


@pytest.fixture(autouse=True)
def _counting() -> None:
    EXECUTED.clear()


def test_a_step_gives_its_result(env: Environment) -> None:
    @workflow
    def program(ctx: Context, name: str) -> str:
        return ctx.step(greet, name)

    run = env.start(program("World"))

    assert env.result(run) == "Hello, World!"
    assert keys(env, run) == ["/step:greet#1"]


def test_a_step_can_be_given_a_name(env: Environment) -> None:
    @workflow
    def program(ctx: Context) -> str:
        return ctx.step(greet.options(name="custom_step_name"), "World")

    run = env.start(program())

    assert env.result(run) == "Hello, World!"
    assert keys(env, run) == ["/step:custom_step_name#1"]


def test_a_step_uses_the_result_of_the_one_before(env: Environment) -> None:
    @workflow
    def program(ctx: Context) -> int:
        return ctx.step(add_one, ctx.step(add_one, 1))

    assert env.run(program()) == 3


def test_a_step_returns_a_nested_value(env: Environment) -> None:
    @step
    def built(name: str) -> dict[str, Any]:
        return {"user": {"name": name, "tags": ["a", "b"]}, "count": 2}

    @workflow
    def program(ctx: Context) -> dict[str, Any]:
        return ctx.step(built, "Ann")

    assert env.run(program()) == {"user": {"name": "Ann", "tags": ["a", "b"]}, "count": 2}


def test_a_step_returns_nothing(env: Environment) -> None:
    @workflow
    def program(ctx: Context) -> str:
        return repr(ctx.step(nothing))

    run = env.start(program())

    assert env.result(run) == "None"
    assert env.journal(run)[1].payload is None


def test_a_line_logged_in_a_step_is_said_once_an_execution(env: Environment, caplog: pytest.LogCaptureFixture) -> None:
    @step
    def talkative(name: str) -> str:
        logging.getLogger("shop").warning("greeting %s", name)
        return name

    @workflow
    def program(ctx: Context) -> str:
        name = ctx.step(talkative, "Ann")
        ctx.sleep(timedelta(seconds=2))
        return name

    assert env.run(program()) == "Ann"
    assert [record.getMessage() for record in caplog.records if record.name == "shop"] == ["greeting Ann"]


def test_a_step_that_succeeded_is_not_executed_again_after_a_wait(env: Environment) -> None:
    @workflow
    def program(ctx: Context) -> str:
        said = ctx.step(greet, "World")
        ctx.sleep(timedelta(seconds=2))
        return said

    run = env.start(program())
    assert env.result(run) == "Hello, World!"

    assert EXECUTED["World"] == 1
    assert keys(env, run) == ["/step:greet#1", "/timer:sleep#1"]


def test_a_failure_that_was_caught_is_raised_again_in_a_replay_without_executing(env: Environment) -> None:
    @workflow
    def program(ctx: Context) -> str:
        try:
            said = ctx.step(refuse, "no")
        except LookupError as error:
            said = f"caught {error}"
        ctx.sleep(timedelta(seconds=2))
        return said

    assert env.run(program()) == "caught no"
    assert EXECUTED["no"] == 1


@pytest.mark.parametrize("failures", [1, 3])
def test_a_step_that_fails_at_first_succeeds_in_a_later_attempt(env: Environment, failures: int) -> None:
    attempts: list[int] = []

    @step(retry=RetryPolicy(max_attempts=4, initial=timedelta(minutes=1)))
    def unreliable() -> str:
        attempts.append(current_step().attempt)
        if len(attempts) <= failures:
            raise TransientError
        return "done"

    @workflow
    def program(ctx: Context) -> str:
        return ctx.step(unreliable)

    run = env.start(program())

    assert env.result(run) == "done"
    assert attempts == list(range(1, failures + 2))
    assert keys(env, run) == ["/step:unreliable#1"]


def test_a_step_whose_attempts_are_used_up_fails_the_run(env: Environment) -> None:
    @step(retry=RetryPolicy(max_attempts=4))
    def failing() -> None:
        EXECUTED["failing"] += 1
        raise TransientError("always")

    @workflow
    def program(ctx: Context) -> None:
        ctx.step(failing)

    run = env.start(program())

    with pytest.raises(RunFailedError) as failed:
        env.result(run)
    assert repr(failed.value.__cause__) == "TransientError('always')"
    assert (EXECUTED["failing"], keys(env, run, "failed")) == (4, ["/step:failing#1"])


def test_a_step_without_a_policy_is_tried_six_times_with_growing_pauses(env: Environment) -> None:
    began = env.now()
    at: list[float] = []

    @step
    def failing() -> None:
        at.append((env.now() - began).total_seconds())
        raise TransientError

    @workflow
    def program(ctx: Context) -> None:
        ctx.step(failing)

    with pytest.raises(RunFailedError):
        env.run(program())
    pauses = [after - before for before, after in pairwise(at)]
    assert len(at) == 6
    assert all(0 <= pause <= 2**number + 0.1 for number, pause in enumerate(pauses))


def test_pauses_between_attempts_follow_the_policy(env: Environment) -> None:
    at: list[float] = []
    began = env.now()

    @step(retry=RetryPolicy(max_attempts=5, initial=timedelta(minutes=2), factor=3, max_interval=timedelta(minutes=10)))
    def failing() -> str:
        at.append((env.now() - began).total_seconds())
        if len(at) < 5:
            raise TransientError
        return "done"

    @workflow
    def program(ctx: Context) -> str:
        return ctx.step(failing)

    assert env.run(program()) == "done"
    pauses = [after - before for before, after in pairwise(at)]
    assert all(0 <= pause <= bound * 60 + 1 for pause, bound in zip(pauses, (2, 6, 10, 10), strict=True))


def test_only_the_errors_a_policy_names_are_tried_again(env: Environment) -> None:
    @step(retry=RetryPolicy(max_attempts=3, retry_on=(TransientError,)))
    def step_of(kinds: list[str]) -> str:
        EXECUTED["of"] += 1
        if EXECUTED["of"] <= len(kinds):
            raise TransientError if kinds[EXECUTED["of"] - 1] == "transient" else ValueError("final")
        return "done"

    @workflow
    def program(ctx: Context, kinds: list[str]) -> str:
        return ctx.step(step_of, kinds)

    assert env.run(program(["transient"])) == "done"
    EXECUTED.clear()
    with pytest.raises(RunFailedError, match="ValueError: final"):
        env.run(program(["transient", "other"]))
    assert EXECUTED["of"] == 2


def test_an_error_the_policy_excludes_is_not_tried_again(env: Environment) -> None:
    @step(retry=RetryPolicy(max_attempts=3, no_retry_on=(TransientError,)))
    def failing() -> None:
        EXECUTED["failing"] += 1
        raise TransientError("no more")

    @workflow
    def program(ctx: Context) -> None:
        ctx.step(failing)

    with pytest.raises(RunFailedError, match="TransientError: no more"):
        env.run(program())
    assert EXECUTED["failing"] == 1


@pytest.mark.parametrize("max_attempts", [1, 2])
def test_an_at_most_once_step_whose_worker_died_is_interrupted_and_not_executed_again(
    env: Environment, max_attempts: int
) -> None:
    """Interrupted, its effect is unknown: only the workflow may decide to call it again."""
    outcomes: list[str] = []

    @step(at_most_once=True, retry=RetryPolicy(max_attempts=max_attempts))
    def effect(name: str) -> str:
        EXECUTED[name] += 1
        return "done"

    @workflow
    def program(ctx: Context) -> str:
        try:
            return ctx.step(effect, "first")
        except StepInterruptedError:
            return f"again {ctx.step(effect, 'second')}"

    def story(env: Environment) -> str:
        EXECUTED.clear()
        outcomes.append(env.run(program()))
        assert EXECUTED["first"] <= 1
        return ""

    with pytest.raises(AssertionError):  # The kit says so: after a crash the journal is another one.
        env.crash_everywhere(story)
    assert set(outcomes) == {"done", "again done"}
    env.reset()


def test_a_step_that_fails_for_good_fails_the_run(env: Environment) -> None:
    @workflow
    def program(ctx: Context) -> None:
        ctx.step(refuse, "bad")

    with pytest.raises(RunFailedError, match="LookupError: bad"):
        env.run(program())
    assert EXECUTED["bad"] == 1


def test_a_run_goes_on_after_a_failure_its_code_handles(env: Environment) -> None:
    @workflow
    def program(ctx: Context) -> str:
        try:
            ctx.step(refuse, "bad")
        except LookupError:
            return ctx.step(greet, "fallback")
        return ""

    run = env.start(program())

    assert env.result(run) == "Hello, fallback!"
    assert keys(env, run) == ["/step:refuse#1", "/step:greet#1"]
