"""Awakeables in replay: tokens, order, what is sent when, and every way they end, in both kinds of workflow."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import pytest

from pgwf_journal import Phase
from pgwf_sdk import (
    AsyncContext,
    AwakeableFailedError,
    Call,
    Context,
    ContextError,
    WaitTimeoutError,
    _failure,
    step,
    workflow,
)
from pgwf_sdk.replay import (
    Abandon,
    Command,
    Completed,
    Failed,
    OpenAwakeable,
    Outcome,
    RunInfo,
    RunStep,
    Suspended,
)
from tests.sdk.replay.driver import EPOCH, Driver

HOUR = timedelta(hours=1)
SENT: list[str] = []


@dataclass
class Verdict:
    approved: bool


@step
def send(token: str, to: str = "bank") -> str:
    SENT.append(token)
    return to


@step
def refuse_to_send(_token: str) -> None:
    raise ValueError("no route to the bank")


@workflow(name="ask")
def ask(ctx: Context, timeout: timedelta | None = None) -> Any:
    promise = ctx.awakeable(Verdict, timeout=timeout)
    ctx.step(send, promise.token)
    return promise.wait()


@workflow(name="ask")
async def aask(ctx: AsyncContext, timeout: timedelta | None = None) -> Any:  # noqa: ASYNC109 - the awakeable's
    promise = ctx.awakeable(Verdict, timeout=timeout)
    await ctx.step(send, promise.token)
    return await promise.wait()


@workflow(name="call_back")
def call_back(ctx: Context) -> Any:
    try:
        return ctx.wait_for_callback(send, Verdict, "the bank", timeout=HOUR)
    except (WaitTimeoutError, AwakeableFailedError, ValueError) as error:
        return f"{type(error).__name__}: {error}"


@workflow(name="call_back")
async def acall_back(ctx: AsyncContext) -> Any:
    try:
        return await ctx.wait_for_callback(send, Verdict, "the bank", timeout=HOUR)
    except (WaitTimeoutError, AwakeableFailedError, ValueError) as error:
        return f"{type(error).__name__}: {error}"


BOTH = pytest.mark.parametrize("program", [ask, aask])
CALLS_BACK = pytest.mark.parametrize("program", [call_back, acall_back])


def said(outcome: Outcome) -> Any:
    """What an outcome says, without the traceback of an error, which tells of the way it was come by."""
    return repr(_failure.rebuild(outcome.payload)) if isinstance(outcome, Failed) else outcome


def run(call: Call[Any], **options: Any) -> tuple[Driver, Outcome]:
    """Run, then replay from every cut of the journal: the outcome is the same, and nothing recorded is asked for."""
    SENT.clear()
    given = {name: list(values) for name, values in options.pop("completions", {}).items()}
    driver = Driver(call, completions={name: list(values) for name, values in given.items()}, **options)
    outcome = driver.run()
    tokens = set(SENT)
    for cut in range(1, len(driver.journal)):
        again = Driver(
            call,
            completions={name: list(values) for name, values in given.items()},
            journal=driver.journal[:cut],
            **options,
        )
        assert said(again.run()) == said(outcome)
        assert again.keys() == driver.keys()
    assert set(SENT) == tokens, "a replay gives away the token that the run gave away before"
    return driver, outcome


@BOTH
def test_the_value_of_an_awakeable_is_of_its_type(program: Any) -> None:
    driver, outcome = run(program(), completions={"awakeable": [{"approved": True}]})

    assert isinstance(outcome, Completed)
    assert program.codec.decode(outcome.payload, outcome.encoding) == Verdict(approved=True)
    assert [entry.key for entry in driver.journal if entry.phase is Phase.OPENED and entry.call] == [
        "/awakeable:awakeable#1"
    ]


@BOTH
def test_an_awakeable_nobody_completes_in_time_raises(program: Any) -> None:
    _, outcome = run(program(HOUR))

    assert isinstance(outcome, Failed)
    assert b"awakeable 'awakeable' was not completed within 1 hour" in outcome.payload


@BOTH
def test_an_awakeable_that_is_failed_raises_what_it_was_failed_with(program: Any) -> None:
    _, outcome = run(program(), completions={"awakeable": [ValueError("insufficient funds")]})

    assert isinstance(outcome, Failed)
    assert b'"builtins:ValueError"' in outcome.payload


@BOTH
def test_a_step_that_is_called_after_an_awakeable_begins_when_that_is_recorded(program: Any) -> None:
    """Otherwise whoever the step tells may answer before there is anything to answer."""
    exchanged: list[list[Command]] = []

    class Watched(Driver):
        def exchange(self, commands: list[Command]) -> Any:
            exchanged.append(commands)
            return super().exchange(commands)

    Watched(program(), completions={"awakeable": [{"approved": True}]}, suspend_after=2).run()
    (opening,) = exchanged[0]
    assert isinstance(opening, OpenAwakeable)
    assert opening.has_followers

    exchanged.clear()
    Watched(program(), completions={"awakeable": [{"approved": True}]}).run()
    assert [type(command) for command in exchanged[1]] == [RunStep]


def test_an_awakeable_that_nothing_follows_lets_the_run_be_given_back() -> None:
    @workflow
    def program(ctx: Context) -> Any:
        return ctx.awakeable(int).wait()

    driver = Driver(program())
    driver.run()

    (opening,) = driver.commands
    assert isinstance(opening, OpenAwakeable)
    assert not opening.has_followers


def test_tokens_differ_by_call_run_and_installation_and_are_not_in_the_journal() -> None:
    @workflow
    def program(ctx: Context) -> list[str]:
        promises = [ctx.awakeable(int), ctx.awakeable(int), ctx.awakeable(int, name="other")]
        tokens = [promise.token for promise in promises]
        ctx.parallel(lambda c: tokens.append(c.awakeable(int).token))
        return tokens

    class Installed(Driver):
        where = ("run-1", b"a")

        @property
        def info(self) -> RunInfo:
            return RunInfo(self.where[0], self.workflow.name, self.seed, EPOCH, token_key=self.where[1])

    found: set[str] = set()
    for where in (("run-1", b"a"), ("run-1", b"b"), ("run-2", b"a")):
        driver = Installed(program())
        driver.where = where
        outcome = driver.run()
        assert isinstance(outcome, Completed)
        tokens: list[str] = program.codec.decode(outcome.payload, outcome.encoding)
        assert all(len(token) == 28 and token.startswith("awk_") for token in tokens)
        assert not any(token.encode() in (entry.payload or b"") for token in tokens for entry in driver.journal)
        found |= set(tokens)

    assert len(found) == 12


@pytest.mark.parametrize("order", [("a", "b"), ("b", "a")])
def test_two_awakeables_may_be_completed_in_either_order(order: tuple[str, str]) -> None:
    @workflow
    def program(ctx: Context) -> list[int]:
        first, second = ctx.awakeable(int, name="a"), ctx.awakeable(int, name="b")
        ctx.step(send, first.token)
        return [second.wait(), first.wait(), first.wait()]

    driver, outcome = run(program(), completions={name: [ord(name)] for name in order})

    assert outcome == Completed(b"[98,97,97]", 1)
    assert len(driver.keys()) == 3


@CALLS_BACK
def test_a_callback_is_the_answer_to_what_the_step_sent(program: Any) -> None:
    driver, outcome = run(program(), completions={"send": [{"approved": False}]})

    assert isinstance(outcome, Completed)
    assert sorted(driver.keys()) == ["/awakeable:send#1", "/step:send#1"]


@CALLS_BACK
@pytest.mark.parametrize(
    ("completions", "told"),
    [
        ({}, b"WaitTimeoutError: awakeable 'send' was not completed within 1 hour"),
        ({"send": [AwakeableFailedError("out of office")]}, b"AwakeableFailedError: out of office"),
    ],
)
def test_a_callback_that_does_not_come_or_fails_raises(program: Any, completions: Any, told: bytes) -> None:
    _, outcome = run(program(), completions=completions)

    assert isinstance(outcome, Completed)
    assert told in (outcome.payload or b"")


def test_a_callback_whose_step_fails_is_not_waited_for() -> None:
    @workflow
    def program(ctx: Context) -> str:
        try:
            ctx.wait_for_callback(refuse_to_send, Verdict)
        except ValueError as error:
            ctx.sleep(HOUR)
            return str(error)
        return "answered"

    @workflow
    async def aprogram(ctx: AsyncContext) -> str:
        try:
            await ctx.wait_for_callback(refuse_to_send, Verdict)
        except ValueError as error:
            await ctx.sleep(HOUR)
            return str(error)
        return "answered"

    for each in (program, aprogram):
        driver, outcome = run(each())
        assert outcome == Completed(b'"no route to the bank"', 1)
        assert [one.id.key for one in driver.commands if isinstance(one, Abandon)] == ["/awakeable:refuse_to_send#1"]
        assert "/awakeable:refuse_to_send#1" in driver.keys(Phase.CANCELLED)


def test_an_awakeable_is_asked_for_in_its_own_code_only() -> None:
    kept: list[Any] = []

    @workflow
    def program(ctx: Context) -> None:
        kept.append(ctx.awakeable(int))

    Driver(program()).run()

    with pytest.raises(ContextError, match="an awakeable's value was asked for outside"):
        kept[0].wait()


def test_a_run_that_is_given_up_waits_for_its_awakeable_again() -> None:
    driver = Driver(ask(), suspend_after=3)
    assert driver.run() == Suspended()
    driver.suspend_after = None
    driver.completions["awakeable"] = [{"approved": True}]

    assert isinstance(driver.run(), Completed)
    assert driver.executed["/step:send#1"] == 1
