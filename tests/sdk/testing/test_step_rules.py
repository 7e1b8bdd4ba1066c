"""Steps that fail and are tried again, each run replayed from its journal at each commit."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import TYPE_CHECKING

import psycopg
import pytest

from pgwf_sdk import (
    Context,
    NonRetryable,
    RetryAfter,
    RetryPolicy,
    RunFailedError,
    current_step,
    step,
    workflow,
)
from pgwf_sdk.testing import ReplayDifferenceError

if TYPE_CHECKING:
    from pgwf_sdk.testing import Environment

HOURLY = RetryPolicy(max_attempts=3, initial=timedelta(hours=1), factor=1.0, max_interval=timedelta(hours=1))


def next_at(env: Environment) -> datetime:
    """When the only step that failed is tried again."""
    with psycopg.connect(env.dsn) as connection:
        rows = connection.execute("select next_at from pgwf_sdk.attempt").fetchall()
    ((instant,),) = rows
    return instant  # type: ignore[no-any-return]


def last_note(error: BaseException | None) -> str:
    """What the SDK says about the last attempt."""
    notes = getattr(error, "__notes__", [])
    (found,) = [note for note in notes if note.startswith("step ")]
    return str(found)


def test_a_step_that_fails_twice_succeeds_in_its_third_attempt_and_holds_no_worker_meanwhile(env: Environment) -> None:
    attempts: list[int] = []

    @step(retry=HOURLY)
    def flaky() -> str:
        attempts.append(current_step().attempt)
        if current_step().attempt < 3:
            raise ConnectionError(f"attempt {current_step().attempt}")
        return "done"

    @workflow
    def program(ctx: Context) -> str:
        return ctx.step(flaky)

    run = env.start(program())
    for failed in (1, 2):
        assert run.details().attempts == failed
        assert (run.status(), run.details().worker_id) == ("waiting", None)
        assert timedelta(0) <= next_at(env) - env.now() <= timedelta(hours=1)
        env.advance(next_at(env) - env.now())

    assert env.result(run) == "done"
    assert attempts == [1, 2, 3]
    assert run.details().attempts == 0


def test_retry_after_overrides_the_pause_of_the_policy(env: Environment) -> None:
    attempts: list[datetime] = []

    @step(retry=HOURLY)
    def busy() -> str:
        attempts.append(env.now())
        if len(attempts) == 1:
            raise RetryAfter(timedelta(seconds=3), "busy")
        return "served"

    @workflow
    def program(ctx: Context) -> str:
        return ctx.step(busy)

    run = env.start(program())
    assert next_at(env) == env.now() + timedelta(seconds=3)
    env.advance(timedelta(seconds=2.9))
    assert len(attempts) == 1

    assert env.result(run) == "served"
    assert attempts[1] - attempts[0] == timedelta(seconds=3)


class RefusedError(Exception):
    pass


class DeclinedError(RefusedError):
    pass


@pytest.mark.parametrize(
    ("policy", "raised", "attempts", "said"),
    [
        (HOURLY, LookupError("x"), 3, "attempt 3, the last: its retry policy allows 3 attempts"),
        (HOURLY, NonRetryable("x"), 1, "attempt 1, the last: its retry policy allows none after NonRetryable"),
        (RetryPolicy(no_retry_on=(RefusedError,)), DeclinedError("x"), 1, "allows none after DeclinedError"),
        (RetryPolicy(retry_on=(OSError,)), LookupError("x"), 1, "allows none after LookupError"),
        (RetryPolicy(max_attempts=2, retry_on=(RefusedError,)), DeclinedError("x"), 2, "allows 2 attempts"),
        (
            RetryPolicy(retry_on=(OSError,), no_retry_on=(FileNotFoundError,)),
            FileNotFoundError(2, "x"),
            1,
            "none after",
        ),
    ],
)
def test_a_step_that_fails_for_good_says_in_which_attempt_and_why_it_was_the_last(
    env: Environment, policy: RetryPolicy, raised: Exception, attempts: int, said: str
) -> None:
    seen: list[int] = []

    @step(retry=policy)
    def refuse() -> None:
        seen.append(current_step().attempt)
        raise raised

    @workflow
    def program(ctx: Context) -> None:
        ctx.step(refuse)

    with pytest.raises(RunFailedError) as failed:
        env.run(program())

    error = failed.value.__cause__
    assert (type(error), str(error)) == (type(raised), str(raised))
    assert last_note(error).startswith("step 'refuse': ")
    assert said in last_note(error)
    assert seen == list(range(1, attempts + 1))


def test_no_attempt_begins_after_the_time_that_a_step_may_take_in_all(env: Environment) -> None:
    seen: list[int] = []

    def refuse() -> None:
        seen.append(current_step().attempt)
        raise RetryAfter(timedelta(minutes=50), "later")

    hour = timedelta(hours=1)
    limited = {
        "total_timeout": step(name="refuse", retry=RetryPolicy(max_attempts=9), total_timeout=hour)(refuse),
        "max_elapsed": step(name="refuse", retry=RetryPolicy(max_attempts=9, max_elapsed=hour))(refuse),
    }

    @workflow
    def program(ctx: Context, limit: str) -> None:
        ctx.step(limited[limit])

    for limit in limited:
        seen.clear()
        with pytest.raises(RunFailedError) as failed:
            env.run(program(limit))
        assert isinstance(failed.value.__cause__, RetryAfter)
        assert "attempt 2, the last: another would begin after its time of 1 hour" in last_note(failed.value.__cause__)
        assert seen == [1, 2]


@pytest.mark.parametrize("count", [1, 3])
def test_calls_of_one_name_in_a_loop_are_numbered_and_code_that_makes_fewer_or_more_is_noticed(
    env: Environment, count: int
) -> None:
    is_changed: list[bool] = []

    @step
    def work(number: int) -> int:
        return number

    @workflow
    def program(ctx: Context) -> list[int]:
        done = [ctx.step(work, number) for number in range(count if is_changed else 2)]
        ctx.wait_signal("go", bool)
        return done

    run = env.start(program())
    assert [entry.key for entry in env.journal(run)][1:3] == ["/step:work#1", "/step:work#2"]
    is_changed.append(True)
    run.signal("go", True)
    with pytest.raises(ReplayDifferenceError, match="/step:work#" if count == 3 else "/step:work#2"):
        env.settle()

    assert run.status() == "blocked"
