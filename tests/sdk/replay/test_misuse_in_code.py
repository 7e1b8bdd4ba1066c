"""What workflow code gets wrong is told at its line, with the call that should have been made, and records nothing."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest

from pgwf_journal import Kind
from pgwf_sdk import (
    AsyncContext,
    Context,
    MinSuccessful,
    ToleratedFailures,
    Workflow,
    step,
    workflow,
)
from pgwf_sdk.replay import Failed
from tests.sdk.replay.driver import Driver

if TYPE_CHECKING:
    from collections.abc import Callable


@step
def charge(order: str) -> str:
    return order


@workflow
def checkout(ctx: Context, order: str) -> str:
    return order


def successful(count: Any) -> MinSuccessful:
    return MinSuccessful(count)


def tolerated(share: Any) -> ToleratedFailures:
    return ToleratedFailures(share=share)


def both(misuse: Callable[[Any], Any]) -> list[Workflow[..., Any]]:
    """A workflow of either kind whose code does what it must not."""

    @workflow(name="program")
    def program(ctx: Context) -> object:
        return misuse(ctx)

    @workflow(name="program")
    async def async_program(ctx: AsyncContext) -> object:
        return await misuse(ctx)

    return [program, async_program]


MISUSES: list[tuple[Callable[[Any], Any], str]] = [
    (lambda ctx: ctx.parallel([lambda _: 1]), r"ctx.parallel: found [<function.*>], a list; expected functions of a"),
    (lambda ctx: ctx.parallel("order"), "ctx.parallel: found 'order', a str; expected functions of a context,"),
    (lambda ctx: ctx.parallel(charge), "ctx.parallel: found <Step charge>, a Step; expected functions of a context"),
    (lambda ctx: ctx.parallel(checkout), "ctx.parallel: found <Workflow checkout>, a SyncWorkflow; expected functions"),
    (lambda ctx: ctx.parallel(max_concurrency="2"), "ctx.parallel(max_concurrency=…): found '2', a str; expected a"),
    (lambda ctx: ctx.map(charge, 3), "ctx.map: found 3, an int; expected a list of items"),
    (lambda ctx: ctx.map(charge, "ab"), "ctx.map: found 'ab', a str; expected a list of items, such as ['order-17']"),
    (lambda ctx: ctx.map(charge, None), "ctx.map: found None; expected a list of items"),
    (lambda ctx: ctx.map(["a"], charge), "ctx.map: found ['a'], a list; expected what is run for each item, a step"),
    (lambda ctx: ctx.map(checkout("a"), ["a"]), "ctx.map: found <Call of checkout>, a Call; expected what is run for"),
    (lambda ctx: ctx.map(charge, ["a"], max_concurrency=0), "ctx.map(max_concurrency=0): expected 1 or more"),
    (lambda ctx: ctx.shield(3), "ctx.shield: found 3, an int; expected functions of a context"),
    (lambda ctx: ctx.step("order"), "ctx.step: found 'order', a str; expected the step itself, uncalled: its"),
    (lambda ctx: ctx.step(checkout, "a"), "ctx.step: found <Workflow checkout>; expected a step: ctx.call and"),
    (lambda ctx: ctx.step(checkout("a")), "ctx.step: found <Call of checkout>; expected a step: ctx.call and"),
    (lambda ctx: ctx.transaction(3), "ctx.transaction: found 3, an int; expected the step itself, uncalled"),
    (lambda ctx: ctx.on_exit(3), "ctx.on_exit: found 3, an int; expected the step itself, uncalled"),
    (lambda ctx: ctx.side_effect(3), "ctx.side_effect: found 3, an int; expected a function, uncalled, and its"),
    (lambda ctx: ctx.wait_for_callback(3, str), "ctx.wait_for_callback: found 3, an int; expected the step itself"),
    (
        lambda ctx: ctx.poll(3, until=bool, every=timedelta(seconds=1), timeout=timedelta(minutes=1)),
        "ctx.poll: found 3, an int; expected the step itself, uncalled",
    ),
    (
        lambda ctx: ctx.poll(charge, "a", until=3, every=timedelta(seconds=1), timeout=timedelta(minutes=1)),
        "ctx.poll(until=…): found 3, an int; expected a function that accepts an answer",
    ),
    (lambda ctx: ctx.sleep_until(3), "ctx.sleep_until: found 3; expected a datetime, such as datetime(2031, 2, 3"),
    (lambda ctx: ctx.sleep_until(None), "ctx.sleep_until: found None; expected a datetime"),
    (lambda ctx: ctx.sleep_until(timedelta(days=1)), "ctx.sleep_until: found datetime.timedelta(days=1); expected a"),
    (lambda ctx: ctx.sleep_until(datetime(2031, 2, 3)), "which has no time zone; expected one"),  # noqa: DTZ001 - refused
    (lambda ctx: ctx.call(checkout("a"), run_id=3), "ctx.call(run_id=…): found 3, an int; expected a text"),
    (lambda ctx: ctx.spawn(checkout("a"), run_id=3), "ctx.spawn(run_id=…): found 3, an int; expected a text"),
    (lambda ctx: ctx.parallel(policy=successful("2")), "MinSuccessful(count=…): found '2', a str; expected a whole"),
    (lambda ctx: ctx.map(charge, [], policy=tolerated("half")), "ToleratedFailures(share=…): found 'half', a str"),
    (lambda ctx: ctx.wait_for_callback(lambda _: 1, str), "ctx.wait_for_callback: <function <lambda>.*has no name of"),
    (lambda ctx: ctx.human("a", 1, bool, need="human.b", prefill=3), "ctx.human('a', prefill=…): found 3, an int"),
    (lambda ctx: ctx.hop(3), "ctx.hop: found 3, an int; expected a text"),
    (lambda ctx: ctx.wait_signal(3, str), "ctx.wait_signal: name: found 3, an int; expected a text"),
    (lambda ctx: ctx.wait_signal("a", 3), "ctx.wait_signal: found 3, an int; expected the type of what is to come,"),
    (
        lambda ctx: ctx.wait_signal("a", timedelta(hours=1)),
        "ctx.wait_signal: found datetime.timedelta(seconds=3600), a timedelta; expected the type of what is to come,"
        " such as str, and a time limit by its name: timeout=timedelta(minutes=5)",
    ),
    (lambda ctx: ctx.wait_signal("a", [int]), "ctx.wait_signal: found [<class 'int'>], a list; expected the type of"),
    (lambda ctx: ctx.wait_signal("a", charge), "ctx.wait_signal: found <Step charge>, a Step; expected the type of"),
    (lambda ctx: ctx.awakeable((int, str)), "ctx.awakeable: found (<class 'int'>, <class 'str'>), a tuple; expected"),
    (lambda ctx: ctx.awakeable(3.5), "ctx.awakeable: found 3.5, a float; expected the type of what is to come, such"),
    (lambda ctx: ctx.wait_for_callback(charge, 3), "ctx.wait_for_callback: found 3, an int; expected the type of what"),
    (lambda ctx: ctx.set_attribute(3, "a"), "ctx.set_attribute: name: found 3, an int; expected a text"),
]


@pytest.mark.parametrize(("misuse", "message"), MISUSES)
def test_a_call_with_what_it_does_not_take_is_refused_and_records_nothing(
    misuse: Callable[[Any], Any], message: str
) -> None:
    for program in both(misuse):
        driver = Driver(program())

        outcome = driver.run()

        assert isinstance(outcome, Failed)
        told = outcome.payload.decode()
        for part in message.split(".*"):
            assert part in told
        assert {entry.kind for entry in driver.journal} == {Kind.RUN}


def test_a_branch_that_is_no_function_keeps_the_others_from_beginning() -> None:
    for program in both(lambda ctx: ctx.parallel(lambda branch: branch.step(charge, "a"), "order")):
        driver = Driver(program())

        assert isinstance(driver.run(), Failed)
        assert driver.executed.total() == 0
