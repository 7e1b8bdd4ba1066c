"""The environment of tests: time, mocks, what comes from outside, and what is found wrong."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import pytest

from pgwf_sdk import AsyncContext, Context, RetryPolicy, RunFailedError, WaitTimeoutError, step, workflow
from pgwf_sdk.testing import Recording, ReplayDifferenceError, RunStuckError

if TYPE_CHECKING:
    from pathlib import Path

    from pgwf_sdk.testing import Environment


@dataclass
class Receipt:
    reference: str


@step(retry=RetryPolicy(max_attempts=3, initial=timedelta(hours=1), max_interval=timedelta(days=1)))
def charge(amount: int) -> Receipt:
    return Receipt(f"bank-{amount}")


@workflow
def checkout(ctx: Context, amount: int) -> str:
    receipt = ctx.step(charge, amount)
    ctx.sleep(timedelta(days=30))
    return receipt.reference


@workflow
async def async_checkout(ctx: AsyncContext, amount: int) -> str:
    receipt = await ctx.step(charge, amount)
    await ctx.sleep(timedelta(days=30))
    return receipt.reference


@workflow
def deliver(ctx: Context) -> str:
    try:
        return ctx.wait_signal("delivered", str, timeout=timedelta(days=14))
    except WaitTimeoutError:
        return "lost"


@workflow
def approve(ctx: Context) -> str:
    decision = ctx.human("approve", "an order", bool, need="human.risk", expires=timedelta(days=2), on_expire=False)
    return f"{decision.value} {decision.by}"


@workflow
def family(ctx: Context) -> list[str]:
    return [ctx.call(checkout(1)), *ctx.map(checkout, [2, 3])]


def test_a_month_passes_at_once(env: Environment) -> None:
    before = env.now()

    assert env.run(checkout(17)) == "bank-17"
    assert env.now() - before == timedelta(days=30)
    assert env.run(async_checkout(18)) == "bank-18"


def test_time_stands_still_until_it_is_moved(env: Environment) -> None:
    before = env.now()
    run = env.start(checkout(17))

    assert (run.status(), env.now()) == ("waiting", before)
    env.advance(timedelta(days=29))
    assert run.status() == "waiting"
    env.advance(timedelta(days=1))
    assert run.status() == "completed"


def test_a_reset_sets_the_clock(env: Environment) -> None:
    instant = datetime(2031, 2, 3, tzinfo=UTC)

    env.reset(instant)

    assert env.now() == instant
    assert env.run(checkout(1)) == "bank-1"


def test_a_mock_answers_for_a_step_by_definition_or_by_name(env: Environment) -> None:
    by_definition = env.mock(charge, returns=Receipt("mocked"))
    assert env.run(checkout(17)) == "mocked"
    assert [call.args for call in by_definition.calls] == [(17,)]

    def doubled(amount: int) -> Receipt:
        return Receipt(f"double {2 * amount}")

    env.mock("charge", doubled)
    assert env.run(checkout(4)) == "double 8"


def test_outcomes_of_a_mock_are_retried_as_those_of_the_step_without_waiting(env: Environment) -> None:
    mock = env.mock(charge, outcomes=[OSError("down"), OSError("still down"), Receipt("third")])

    assert env.run(checkout(17)) == "third"
    assert [call.attempt for call in mock.calls] == [1, 2, 3]


def test_a_step_that_never_succeeds_fails_the_run(env: Environment) -> None:
    env.mock(charge, outcomes=[OSError("down")] * 3)

    with pytest.raises(RunFailedError, match="OSError: down"):
        env.run(checkout(17))


def test_an_answer_of_another_type_than_the_steps_is_refused_at_once(env: Environment) -> None:
    by_name = env.mock("charge", returns="bank-17")

    with pytest.raises(RunFailedError, match="mock of step 'charge': 'bank-17' is no Receipt"):
        env.run(checkout(17))
    assert by_name.call_count == 1


@step
def measure() -> float:
    return 1.5


@workflow
def survey(ctx: Context) -> bool:
    return math.isnan(ctx.step(measure))


def test_an_answer_that_is_not_equal_to_itself_is_of_its_type(env: Environment) -> None:
    env.mock(measure, returns=math.nan)

    assert env.run(survey())


def test_more_calls_than_outcomes_are_an_error_that_says_so(env: Environment) -> None:
    env.mock(charge, outcomes=[])

    with pytest.raises(RunFailedError, match="is call 1, but given: 0 outcomes"):
        env.run(checkout(17))


def test_signals_are_sent_by_the_client_and_waits_end_by_the_clock(env: Environment) -> None:
    run = env.start(deliver())
    env.client.signal(run.run_id, "delivered", "Ann")
    assert env.result(run) == "Ann"

    assert env.run(deliver()) == "lost"


def test_people_decide_by_the_client(env: Environment) -> None:
    run = env.start(approve())
    (task,) = env.client.human.list(need="human.risk")
    env.client.human.decide(task.task_id, True, by="ann")
    assert env.result(run) == "True ann"

    assert env.run(approve()) == "False "


def test_children_are_known_without_being_named(env: Environment) -> None:
    assert env.run(family()) == ["bank-1", "bank-2", "bank-3"]


def test_a_run_that_no_clock_brings_further_says_what_it_waits_for(env: Environment) -> None:
    @workflow
    def patient(ctx: Context) -> str:
        return ctx.wait_signal("go", str)

    with pytest.raises(RunStuckError, match="signal"):
        env.run(patient())


def test_tests_do_not_see_each_others_runs_and_ids(env: Environment) -> None:
    for amount in (1, 2):
        env.reset()
        assert env.client.list() == ()
        assert env.run(checkout(amount), run_id="order-17") == f"bank-{amount}"


def test_code_that_draws_without_the_context_is_found_by_the_replay(env: Environment) -> None:
    @workflow
    def gambling(ctx: Context) -> int:
        ctx.step(charge, random.randrange(10**9))
        return 1

    with pytest.raises(ReplayDifferenceError, match="not deterministic"):
        env.run(gambling())


def test_another_call_in_a_replay_is_reported_as_a_blocked_run_would_be(env: Environment) -> None:
    turns: list[int] = []

    @workflow
    async def moody(ctx: AsyncContext) -> None:
        turns.append(1)
        await (ctx.step(charge, 1) if len(turns) == 1 else ctx.sleep(timedelta(1)))
        await ctx.step(charge, 2)

    with pytest.raises(ReplayDifferenceError) as found:
        env.run(moody())
    assert "asked for /step:charge#1(1) the first time" in str(found.value)


def test_a_journal_is_recorded_and_replayed_by_later_code(env: Environment, tmp_path: Path) -> None:
    run = env.start(checkout(17))
    env.result(run)
    env.record(run).save(tmp_path / "checkout.json")
    recording = Recording.load(tmp_path / "checkout.json")

    @workflow(name="checkout")
    def changed(ctx: Context, amount: int) -> str:
        ctx.sleep(timedelta(days=30))
        return ctx.step(charge, amount).reference

    assert list(recording.entries) == list(env.journal(run))
    recording.replay(checkout)
    with pytest.raises(ReplayDifferenceError) as found:
        recording.replay(changed)
    assert found.value.report["scope"] == "/"
    assert "step:charge#1" in str(found.value)


def test_what_a_run_hops_to_is_offered_without_being_named(env: Environment) -> None:
    @workflow(build="b1")
    def moving(ctx: Context) -> str:
        ctx.hop("elsewhere")
        return "there"

    assert env.run(moving()) == "there"


def test_a_run_that_was_cancelled_before_it_began_is_replayed_without_its_code(env: Environment) -> None:
    @workflow(name="checkout")
    def hasty(ctx: Context, amount: int) -> str:
        return "done"

    run = env.client.start(checkout(17))
    run.cancel(reason="changed her mind")
    env.settle()

    recording = env.record(run)

    assert [entry.key for entry in recording.entries] == ["/run:checkout#1", "/cancel:cancel#1", "/run:checkout#1"]
    recording.replay(hasty)


def test_where_an_object_is_in_memory_makes_no_difference_to_a_replay(env: Environment) -> None:
    @workflow
    def names_an_object(_ctx: Context) -> None:
        raise ValueError(f"the owner is {object()!r}")

    with pytest.raises(RunFailedError, match="the owner is <object object at"):
        env.run(names_an_object())
