"""What each call of a context asks for, and what the code gets back."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import pytest

from pgwf_journal import Phase
from pgwf_sdk import (
    AsyncContext,
    ChildFailedError,
    Context,
    Decision,
    WaitTimeoutError,
    step,
    workflow,
)
from pgwf_sdk.replay import (
    AwaitSignal,
    Completed,
    Failed,
    OpenHuman,
    StartChild,
    StartTimer,
)
from tests.sdk.replay.driver import EPOCH, Driver


@dataclass
class Order:
    id: str
    tags: tuple[str, ...] = ()


class CardDeclinedError(Exception):
    def __init__(self, code: int) -> None:
        super().__init__(f"declined with {code}")
        self.code = code


@step
def charge(order: Order) -> Order:
    return Order(order.id, ("paid",))


@step
async def ship(order: Order) -> str:
    return f"shipped {order.id}"


@step
def decline(code: int) -> int:
    raise CardDeclinedError(code)


def test_a_step_gives_its_value_through_its_bytes_on_the_first_run_too() -> None:
    returned = Order("1", ("paid",))

    @step
    def same() -> Order:
        return returned

    @workflow
    def program(ctx: Context) -> bool:
        result = ctx.step(same)
        return result == returned and result is not returned

    assert Driver(program()).run() == Completed(b"true", 1)


def test_sync_and_async_steps_run_from_both_kinds_of_workflow() -> None:
    @workflow
    def program(ctx: Context) -> str:
        return ctx.step(ship, ctx.step(charge, Order("7")))

    @workflow
    async def async_program(ctx: AsyncContext) -> str:
        return await ctx.step(ship, await ctx.step(charge, Order("7")))

    assert Driver(program()).run() == Driver(async_program()).run() == Completed(b'"shipped 7"', 1)


def test_calls_are_keyed_by_scope_kind_name_and_occurrence() -> None:
    @workflow
    def program(ctx: Context) -> None:
        for _ in range(2):
            ctx.step(charge, Order("1"))
        ctx.step(charge.options(name="charge-again"), Order("1"))
        ctx.sleep(timedelta(hours=1))
        ctx.parallel(lambda ctx: ctx.step(charge, Order("2")))
        ctx.map(charge, [Order("3")])

    driver = Driver(program())
    driver.run()

    assert driver.keys() == [
        "/step:charge#1",
        "/step:charge#2",
        "/step:charge-again#1",
        "/timer:sleep#1",
        "/branch:parallel#1[0]/step:charge#1",
        "/branch:map#1[0]/step:charge#1",
    ]


def test_a_command_names_the_users_line_and_a_repeated_one_does_not_look_for_it() -> None:
    @workflow
    def program(ctx: Context) -> None:
        ctx.sleep(timedelta(hours=1))
        ctx.step(charge, Order("1"))

    driver = Driver(program(), suspend_after=2)
    driver.run()
    driver.run()

    first, again = driver.commands
    assert first.id.code is not None
    assert first.id.code == (__file__, program.fn.__code__.co_firstlineno + 2)
    assert again.id.code is None


def test_a_plain_function_is_a_step_under_its_own_name() -> None:
    def plain(number: int) -> int:
        return number + 1

    @workflow
    def program(ctx: Context) -> int:
        return ctx.step(plain, 1) + ctx.step(plain, number=2)

    driver = Driver(program())

    assert driver.run() == Completed(b"5", 1)
    assert driver.keys() == ["/step:plain#1", "/step:plain#2"]


def test_arguments_that_do_not_fit_are_the_callers_error_not_a_failed_step() -> None:
    @workflow
    def program(ctx: Context) -> str:
        try:
            ctx.step(charge)  # type: ignore[call-overload]  # pyright: ignore
        except TypeError as error:
            return str(error)
        return ""

    driver = Driver(program())
    outcome = driver.run()

    assert isinstance(outcome, Completed)
    assert b"missing a required argument: 'order'" in (outcome.payload or b"")
    assert driver.commands == []


def test_a_failed_step_raises_its_own_class_with_its_attributes_and_the_remote_traceback() -> None:
    @workflow
    def program(ctx: Context) -> list[Any]:
        try:
            ctx.step(decline, 51)
        except CardDeclinedError as error:
            return [error.code, str(error), error.__notes__[0]]
        return []

    driver = Driver(program())
    outcome = driver.run()

    assert isinstance(outcome, Completed)
    assert (outcome.payload or b"").startswith(b'[51,"declined with 51","Remote traceback')
    assert b"raise CardDeclinedError(code)" in (outcome.payload or b"")


def test_an_exception_that_leaves_the_workflow_fails_the_run() -> None:
    @workflow
    async def program(ctx: AsyncContext) -> int:
        return await ctx.step(decline, 5)

    outcome = Driver(program()).run()

    assert isinstance(outcome, Failed)
    assert b'"message":"declined with 5"' in outcome.payload


def test_a_result_that_cannot_be_stored_fails_the_run_and_names_the_part() -> None:
    @workflow
    def program(ctx: Context) -> object:
        return {"items": [1, object()]}

    outcome = Driver(program()).run()

    assert isinstance(outcome, Failed)
    assert b"result['items'][1]: object cannot be stored" in outcome.payload


def test_a_result_that_was_not_awaited_is_told_to_be() -> None:
    @workflow
    async def program(ctx: AsyncContext) -> list[Any]:
        charged = ctx.step(charge, Order("1"))
        await ctx.sleep(timedelta(days=1))
        return [charged]

    outcome = Driver(program()).run()

    assert isinstance(outcome, Failed)
    assert b"result[0]: CallFuture cannot be stored" in outcome.payload
    assert b"await it first" in outcome.payload


def test_sleep_is_recorded_also_when_there_is_nothing_to_wait_for() -> None:
    @workflow
    def program(ctx: Context) -> None:
        ctx.sleep(timedelta(seconds=-1))
        ctx.sleep_until(EPOCH + timedelta(days=1))

    driver = Driver(program())
    driver.run()

    first, second = driver.commands
    assert isinstance(first, StartTimer)
    assert first.duration == timedelta(0)
    assert isinstance(second, StartTimer)
    assert second.until == EPOCH + timedelta(days=1)
    assert driver.keys() == ["/timer:sleep#1", "/timer:sleep#2"]


@pytest.mark.parametrize("duration", [timedelta(days=4000), 5, "1h"])
def test_a_sleep_without_a_unit_or_beyond_ten_years_is_refused_before_it_is_recorded(duration: Any) -> None:
    @workflow
    def program(ctx: Context) -> None:
        ctx.sleep(duration)

    driver = Driver(program())
    outcome = driver.run()

    assert isinstance(outcome, Failed)
    assert len(driver.journal) == 1


def test_a_naive_datetime_is_refused() -> None:
    @workflow
    def program(ctx: Context) -> None:
        ctx.sleep_until(datetime(2026, 1, 1))  # noqa: DTZ001 - the point of the test

    outcome = Driver(program()).run()

    assert isinstance(outcome, Failed)
    assert b"which has no time zone; expected one" in outcome.payload


def test_signals_are_taken_in_order_and_decoded_by_the_type_asked_for() -> None:
    @workflow
    def program(ctx: Context) -> list[str]:
        return [ctx.wait_signal("order", Order).id for _ in range(2)]

    driver = Driver(program(), signals={"order": [{"id": "a"}, Order("b")]})

    assert driver.run() == Completed(b'["a","b"]', 1)
    assert all(isinstance(command, AwaitSignal) for command in driver.commands)


def test_a_signal_that_does_not_come_raises_wait_timeout() -> None:
    @workflow
    def program(ctx: Context) -> str:
        try:
            ctx.wait_signal("go", int, timeout=timedelta(minutes=1))
        except WaitTimeoutError as error:
            return f"{error.name}: {error}"
        return ""

    assert Driver(program()).run() == Completed(b"\"go: signal 'go' did not come within 1 minute\"", 1)


@workflow
def child(ctx: Context, order: Order) -> Order:
    return ctx.step(charge, order)


@workflow
def failing_child(ctx: Context) -> int:
    return ctx.step(decline, 3)


def test_a_child_gives_its_result_by_its_return_annotation() -> None:
    @workflow
    def program(ctx: Context) -> Order:
        return ctx.call(child(Order("c")), run_id="own-id")

    driver = Driver(program())

    assert driver.run() == Completed(b'{"id":"c","tags":["paid"]}', 1)
    (command,) = driver.commands
    assert isinstance(command, StartChild)
    assert command.run_id == "own-id"


def test_a_child_that_failed_raises_child_failed_with_the_cause() -> None:
    @workflow
    def program(ctx: Context) -> list[Any]:
        try:
            ctx.call(failing_child())
        except ChildFailedError as error:
            return [error.workflow, error.status, repr(error.__cause__)]
        return []

    assert Driver(program()).run() == Completed(
        b'["failing_child","failed","CardDeclinedError(\'declined with 3\')"]', 2
    )


def test_a_spawned_child_is_started_before_the_run_can_end_and_not_waited_for() -> None:
    @workflow
    def program(ctx: Context) -> str:
        ctx.spawn(child(Order("c")))
        return "done"

    @workflow
    async def async_program(ctx: AsyncContext) -> str:
        ctx.spawn(child(Order("c")))
        return "done"

    for call in (program(), async_program()):
        driver = Driver(call)

        assert driver.run() == Completed(b'"done"', 1)
        assert driver.keys(Phase.OPENED) == ["/child:child#1"]


def test_the_result_of_a_spawned_child_can_be_waited_for_later_and_by_several() -> None:
    @workflow
    def program(ctx: Context) -> list[str]:
        handle = ctx.spawn(child(Order("c")))
        ctx.step(charge, Order("x"))
        both = ctx.parallel(lambda _ctx: handle.result().id, lambda _ctx: handle.result().id)
        return [*both, handle.result().id]

    @workflow
    async def async_program(ctx: AsyncContext) -> list[str]:
        handle = ctx.spawn(child(Order("c")))
        await ctx.step(charge, Order("x"))

        async def wait(_ctx: AsyncContext) -> str:
            return (await handle.result()).id

        return [*await ctx.parallel(wait, wait), (await handle.result()).id]

    assert Driver(program()).run() == Driver(async_program()).run() == Completed(b'["c","c","c"]', 1)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((child,), "ctx.call: found the workflow child with no arguments"),
        ((child, 1), "ctx.call: found the workflow child with its arguments beside it"),
        ((child(Order("c")), 1), "found 1 more after the call; expected the arguments of the workflow inside"),
        ((charge,), "found the step charge; expected the call of a workflow, such as ctx.call(checkout(order))"),
    ],
)
def test_call_refuses_what_is_no_call_of_a_workflow(arguments: Any, said: str) -> None:
    @workflow
    def program(ctx: Context) -> None:
        ctx.call(*arguments)

    outcome = Driver(program()).run()

    assert isinstance(outcome, Failed)
    assert said in outcome.payload.decode()


def test_a_decision_has_value_person_and_time() -> None:
    @workflow
    def program(ctx: Context) -> list[Any]:
        decision: Decision[Order] = ctx.human("review", {"sum": 5}, Order, need="human.risk", title="Look")
        return [decision.value.id, decision.by, decision.timed_out, len(decision.votes)]

    driver = Driver(program(), decisions={"review": [{"id": "approved"}]})

    assert driver.run() == Completed(b'["approved","ann",false,1]', 2)
    (command,) = driver.commands
    assert isinstance(command, OpenHuman)
    assert command.request.encode_subject() == (b'{"sum":5}', 2)
    assert command.request.decision_schema()["$ref"] == "#/$defs/Order"


def test_an_expired_task_gives_on_expire_or_raises() -> None:
    @workflow
    def program(ctx: Context) -> list[Any]:
        expires = timedelta(hours=1)
        decision = ctx.human("a", 1, Order, need="human", expires=expires, on_expire=Order("default"))
        try:
            ctx.human("b", 1, Order, need="human", expires=expires)
        except WaitTimeoutError as error:
            return [decision.value.id, decision.timed_out, decision.by, error.name]
        return []

    assert Driver(program()).run() == Completed(b'["default",true,"","b"]', 2)


def test_on_expire_of_another_type_is_refused_when_the_call_is_made() -> None:
    @workflow
    def program(ctx: Context) -> None:
        ctx.human("a", 1, Order, need="human", on_expire=3)

    outcome = Driver(program()).run()

    assert isinstance(outcome, Failed)
    assert b"on_expire=3" in outcome.payload
