"""Requirements 4-1 to 4-19, callbacks, and 7-1 to 7-15, waits for a callback: awakeables."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest
from msgspec import Struct

from pgwf_sdk import Awakeable, AwakeableFailedError, Context, RunFailedError, WaitTimeoutError, step, workflow
from tests.conformance.flows import EXECUTED, ONCE, greet, keys

if TYPE_CHECKING:
    from pgwf_sdk import Call
    from pgwf_sdk.testing import Environment

MINUTE = timedelta(minutes=1)
THEN = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
TOKENS: dict[str, str] = {}


@pytest.fixture(autouse=True)
def _counting() -> None:
    EXECUTED.clear()
    TOKENS.clear()


@step
def pass_on(token: str, name: str) -> None:
    TOKENS[name] = token


@step
def submit(token: str) -> None:
    TOKENS["answer"] = token


class Answer(Struct):
    name: str
    at: datetime


@workflow
def asking(ctx: Context, between: str, is_caught: bool = False, timeout_seconds: float | None = None) -> str:
    """Makes a promise, does something, and waits for it."""
    timeout = None if timeout_seconds is None else timedelta(seconds=timeout_seconds)
    answer = ctx.awakeable(str, timeout=timeout, name="approval")
    ctx.step(pass_on, answer.token, "answer")
    if between == "step":
        ctx.step(greet, "between")
    elif between == "wait":
        ctx.sleep(MINUTE)
    try:
        said = answer.wait()
    except (AwakeableFailedError, WaitTimeoutError) as error:
        if not is_caught:
            raise
        said = type(error).__name__
    if is_caught:
        ctx.sleep(MINUTE)
    return said


@pytest.mark.parametrize("between", ["nothing", "step", "wait"])
def test_a_promise_is_completed_from_outside_by_its_token(env: Environment, between: str) -> None:
    run = env.start(asking(between))
    env.client.complete_awakeable(TOKENS["answer"], "yes")

    assert env.result(run) == "yes"
    assert "/awakeable:approval#1" in keys(env, run)


@pytest.mark.parametrize("between", ["nothing", "step", "wait"])
@pytest.mark.parametrize("is_caught", [True, False])
def test_a_promise_that_fails_raises_in_the_run(env: Environment, between: str, is_caught: bool) -> None:
    run = env.start(asking(between, is_caught))
    env.client.fail_awakeable(TOKENS["answer"], "refused")

    if is_caught:
        assert env.result(run) == "AwakeableFailedError"
    else:
        with pytest.raises(RunFailedError, match="refused"):
            env.result(run)


@pytest.mark.parametrize("between", ["nothing", "step", "wait"])
@pytest.mark.parametrize("is_caught", [True, False])
def test_a_promise_that_nobody_completes_in_time_times_out(env: Environment, between: str, is_caught: bool) -> None:
    run = env.start(asking(between, is_caught, timeout_seconds=3))

    if is_caught:
        assert env.result(run) == "WaitTimeoutError"
    else:
        with pytest.raises(RunFailedError) as failed:
            env.result(run)
        assert isinstance(failed.value.__cause__, WaitTimeoutError)


def test_a_promise_that_was_completed_stays_so_over_later_waits(env: Environment) -> None:
    @workflow
    def program(ctx: Context) -> str:
        answer = ctx.awakeable(str)
        ctx.step(pass_on, answer.token, "answer")
        said = answer.wait()
        ctx.sleep(MINUTE)
        return said

    run = env.start(program())
    env.client.complete_awakeable(TOKENS["answer"], "yes")

    assert env.result(run) == "yes"


@pytest.mark.parametrize(
    ("kind", "sent", "read"),
    [
        (
            Answer,
            {"name": "ann", "at": "2026-01-02T03:04:05Z"},
            Answer("ann", THEN),
        ),
        (int, 42, 42),
    ],
)
def test_a_promise_is_read_as_the_type_it_declares(env: Environment, kind: Any, sent: Any, read: Any) -> None:
    found: list[Any] = []

    @workflow
    def program(ctx: Context) -> None:
        answer = ctx.awakeable(kind)
        ctx.step(pass_on, answer.token, "answer")
        found.append(answer.wait())

    run = env.start(program())
    env.client.complete_awakeable(TOKENS["answer"], sent)
    env.result(run)

    assert {type(value) for value in found} == {type(read)}
    assert all(value == read for value in found)


@workflow
def two_promises(ctx: Context, order: str) -> list[str]:
    answers: dict[str, Awakeable[str]] = {}
    for name in ("a", "b"):
        answers[name] = ctx.awakeable(str, name=name)
        ctx.step(pass_on, answers[name].token, name)
    return [answers[name].wait() for name in order]


@pytest.mark.parametrize("order", ["ab", "ba"])
@pytest.mark.parametrize("completed", ["ab", "ba"])
def test_two_promises_are_completed_in_either_order(env: Environment, order: str, completed: str) -> None:
    run = env.start(two_promises(order))
    for name in completed:
        env.client.complete_awakeable(TOKENS[name], name.upper())
        env.settle()

    assert env.result(run) == [name.upper() for name in order]


def test_two_promises_follow_each_other(env: Environment) -> None:
    @workflow
    def program(ctx: Context) -> list[str]:
        return [ctx.wait_for_callback(submit, str), ctx.wait_for_callback(submit, str)]

    run = env.start(program())
    for said in ("A", "B"):
        env.client.complete_awakeable(TOKENS["answer"], said)
        env.settle()

    assert env.result(run) == ["A", "B"]
    assert keys(env, run, "opened") == ["/awakeable:submit#1", "/awakeable:submit#2"]


def called_back(env: Environment, call: Call[Any], *, value: Any = "yes", error: str | None = None) -> Any:
    """The result of a run that passes its token on, after the answer."""
    run = env.start(call)
    env.advance(timedelta(seconds=2))
    if error is None:
        env.client.complete_awakeable(TOKENS["answer"], value)
    else:
        env.client.fail_awakeable(TOKENS["answer"], error)
    return env.result(run)


@workflow
def waiting(ctx: Context, is_caught: bool = False) -> str:
    try:
        return ctx.wait_for_callback(submit, str, timeout=MINUTE)
    except (AwakeableFailedError, WaitTimeoutError) as error:
        if not is_caught:
            raise
        return f"recovered from {type(error).__name__}"


def test_a_run_asks_with_a_step_and_waits_for_the_answer(env: Environment) -> None:
    run = env.start(waiting())
    env.client.complete_awakeable(TOKENS["answer"], "yes")

    assert env.result(run) == "yes"
    assert keys(env, run) == ["/step:submit#1", "/awakeable:submit#1"]


def test_what_asks_can_be_given_a_name(env: Environment) -> None:
    @workflow
    def program(ctx: Context) -> str:
        return ctx.wait_for_callback(submit.options(name="approval"), str)

    run = env.start(program())
    env.client.complete_awakeable(TOKENS["answer"], "yes")

    assert env.result(run) == "yes"
    assert keys(env, run) == ["/step:approval#1", "/awakeable:approval#1"]


@pytest.mark.parametrize("is_caught", [True, False])
def test_a_refusal_or_silence_fails_the_run_unless_its_code_handles_it(env: Environment, is_caught: bool) -> None:
    if is_caught:
        assert called_back(env, waiting(True), error="refused") == "recovered from AwakeableFailedError"
        assert env.run(waiting(True)) == "recovered from WaitTimeoutError"
        return
    with pytest.raises(RunFailedError, match="refused"):
        called_back(env, waiting(), error="refused")
    with pytest.raises(RunFailedError) as failed:
        env.run(waiting())
    assert isinstance(failed.value.__cause__, WaitTimeoutError)


def test_a_run_that_could_not_ask_waits_for_nothing(env: Environment) -> None:
    @step(retry=ONCE)
    def broken(token: str) -> None:
        raise OSError("no connection")

    @workflow
    def program(ctx: Context) -> str:
        return ctx.wait_for_callback(broken, str)

    with pytest.raises(RunFailedError, match="OSError: no connection"):
        env.run(program())


def test_a_child_and_a_branch_wait_for_callbacks(env: Environment) -> None:
    @workflow
    def program(ctx: Context) -> str:
        return ctx.call(waiting())

    @workflow
    def branched(ctx: Context) -> list[str]:
        return ctx.map(lambda ctx, _: ctx.wait_for_callback(submit, str), [1])

    assert called_back(env, program()) == "yes"
    assert called_back(env, branched()) == ["yes"]


def test_a_callback_goes_with_waits_and_steps(env: Environment) -> None:
    @workflow
    def program(ctx: Context) -> str:
        ctx.sleep(timedelta(seconds=1))
        said = ctx.step(greet, "step")
        return f"{said} {ctx.wait_for_callback(submit, str)}"

    assert called_back(env, program()) == "Hello, step! yes"
    assert EXECUTED["step"] == 1


@pytest.mark.parametrize(("kind", "value"), [(dict[str, int], {"a": 1}), (str | None, None)])
def test_an_answer_can_be_an_object_or_nothing(env: Environment, kind: Any, value: Any) -> None:
    @workflow
    def program(ctx: Context) -> Any:
        return ctx.wait_for_callback(submit, kind)

    assert called_back(env, program(), value=value) == value
