"""Requirements 2-1 to 2-5, waits for a time, and 6-1 to 6-13, waits for a condition that a step looks at."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

import pytest
from msgspec import Struct

from pgwf_sdk import Context, RunFailedError, WaitTimeoutError, step, workflow
from tests.conformance.flows import EXECUTED, add_one, greet, keys, refuse

if TYPE_CHECKING:
    from pgwf_sdk.testing import Environment


class Job(Struct):
    status: str
    attempts: int


@pytest.fixture(autouse=True)
def _counting() -> None:
    EXECUTED.clear()


def test_a_run_sleeps_and_goes_on(env: Environment) -> None:
    @workflow
    def program(ctx: Context) -> str:
        ctx.sleep(timedelta(seconds=5))
        return "awake"

    run = env.start(program())
    assert run.status() == "waiting"
    assert env.result(run) == "awake"
    assert keys(env, run) == ["/timer:sleep#1"]


def test_a_run_sleeps_several_times(env: Environment) -> None:
    @workflow
    def program(ctx: Context) -> str:
        ctx.sleep(timedelta(seconds=2))
        ctx.sleep(timedelta(seconds=3))
        return "awake"

    began = env.now()
    run = env.start(program())

    assert env.result(run) == "awake"
    assert keys(env, run) == ["/timer:sleep#1", "/timer:sleep#2"]
    assert env.now() - began >= timedelta(seconds=5)


@pytest.mark.parametrize("duration", [timedelta(minutes=1), timedelta(hours=1), timedelta(days=1)])
def test_a_run_sleeps_as_long_as_it_says_in_whatever_unit(env: Environment, duration: timedelta) -> None:
    @workflow
    def program(ctx: Context, seconds: float) -> str:
        ctx.sleep(timedelta(seconds=seconds))
        return "awake"

    run = env.start(program(duration.total_seconds()))
    env.advance(duration - timedelta(seconds=2))
    assert run.status() == "waiting"
    env.advance(timedelta(seconds=3))
    assert env.result(run) == "awake"


def test_a_condition_is_polled_until_it_holds(env: Environment) -> None:
    @workflow
    def program(ctx: Context, state: int, threshold: int) -> int:
        while (state := ctx.step(add_one, state)) < threshold:
            ctx.sleep(timedelta(seconds=2))
        return state

    run = env.start(program(0, 3))

    assert run.status() == "waiting"
    assert env.result(run) == 3
    assert keys(env, run).count("/timer:sleep#1") == 1
    assert [key for key in keys(env, run) if "step" in key] == [f"/step:add_one#{number}" for number in (1, 2, 3)]
    assert env.run(program(5, 8)) == 8


def test_a_condition_that_holds_at_once_waits_for_nothing(env: Environment) -> None:
    @workflow
    def program(ctx: Context) -> int:
        return ctx.poll(add_one, 4, until=lambda state: state == 5, every=timedelta(hours=1), timeout=timedelta(days=1))

    began = env.now()

    assert env.run(program()) == 5
    assert env.now() - began < timedelta(seconds=1)


def test_a_poll_has_the_name_of_its_step(env: Environment) -> None:
    @workflow
    def program(ctx: Context) -> int:
        named = add_one.options(name="poll-status")
        return ctx.poll(named, 1, until=bool, every=timedelta(seconds=1), timeout=timedelta(minutes=1))

    run = env.start(program())

    assert env.result(run) == 2
    assert keys(env, run) == ["/step:poll-status#1"]


def test_a_poll_looks_again_after_each_pause(env: Environment) -> None:
    began = env.now()
    at: list[float] = []

    @step
    def look() -> int:
        at.append(round((env.now() - began).total_seconds()))
        return len(at)

    @workflow
    def program(ctx: Context) -> int:
        return ctx.poll(look, until=lambda n: n == 4, every=timedelta(seconds=20), timeout=timedelta(minutes=5))

    assert env.run(program()) == 4
    assert at == [0, 20, 40, 60]


def test_a_poll_whose_condition_never_holds_fails_the_run(env: Environment) -> None:
    @workflow
    def program(ctx: Context) -> int:
        return ctx.poll(add_one, 1, until=lambda _: False, every=timedelta(seconds=20), timeout=timedelta(minutes=1))

    with pytest.raises(RunFailedError) as failed:
        env.run(program())
    assert isinstance(failed.value.__cause__, WaitTimeoutError)
    assert EXECUTED["add_one(1)"] == 3


def test_an_error_of_the_condition_fails_the_run_unless_its_code_handles_it(env: Environment) -> None:
    @workflow
    def program(ctx: Context, is_caught: bool) -> str:
        try:
            return ctx.poll(refuse, "down", until=bool, every=timedelta(seconds=1), timeout=timedelta(minutes=1))
        except LookupError:
            if not is_caught:
                raise
            return "fallback"

    assert env.run(program(True)) == "fallback"
    with pytest.raises(RunFailedError, match="LookupError: down"):
        env.run(program(False))


def test_a_polled_state_can_be_an_object(env: Environment) -> None:
    @step
    def advanced(job: Job) -> Job:
        return Job("DONE" if job.attempts == 2 else "PENDING", job.attempts + 1)

    @workflow
    def program(ctx: Context) -> Job:
        job = Job("NEW", 0)
        while job.status != "DONE":
            job = ctx.step(advanced, job)
            ctx.sleep(timedelta(seconds=1))
        return job

    assert env.run(program()) == Job("DONE", 3)


def test_a_polled_state_can_be_nothing(env: Environment) -> None:
    @step
    def look() -> int | None:
        return None

    @workflow
    def program(ctx: Context) -> str:
        every, timeout = timedelta(seconds=1), timedelta(hours=1)
        return repr(ctx.poll(look, until=lambda state: state is None, every=every, timeout=timeout))

    assert env.run(program()) == "None"


def test_what_was_polled_is_used_by_later_calls_and_not_polled_again(env: Environment) -> None:
    @workflow
    def program(ctx: Context) -> str:
        found = ctx.poll(add_one, 1, until=bool, every=timedelta(seconds=1), timeout=timedelta(minutes=1))
        ctx.sleep(timedelta(seconds=2))
        return ctx.step(greet, str(found))

    assert env.run(program()) == "Hello, 2!"
    assert EXECUTED["add_one(1)"] == 1


def test_two_polls_follow_each_other(env: Environment) -> None:
    @workflow
    def program(ctx: Context) -> int:
        pace = {"every": timedelta(seconds=1), "timeout": timedelta(minutes=1)}
        first = ctx.poll(add_one, 1, until=bool, **pace)
        return ctx.poll(add_one, first, until=bool, **pace)

    run = env.start(program())

    assert env.result(run) == 3
    assert keys(env, run) == ["/step:add_one#1", "/step:add_one#2"]
