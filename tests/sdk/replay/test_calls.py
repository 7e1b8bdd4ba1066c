"""What each call of a context asks for, and what the code gets back."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

import pytest

from pgwf_journal import Kind, Phase
from pgwf_sdk import (
    AsyncContext,
    ChildFailedError,
    Context,
    ContextError,
    Decision,
    DefinitionError,
    WaitTimeoutError,
    step,
    workflow,
)
from pgwf_sdk.replay import (
    AwaitSignal,
    Completed,
    Failed,
    OpenHuman,
    RecordValue,
    RunStep,
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
    assert b"expected a datetime with a time zone" in outcome.payload


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

    assert Driver(program()).run() == Completed(b"\"go: signal 'go' did not come within 0:01:00\"", 1)


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


def test_call_refuses_a_workflow_without_its_arguments() -> None:
    @workflow
    def program(ctx: Context) -> None:
        ctx.call(child)  # type: ignore[arg-type]  # pyright: ignore

    outcome = Driver(program()).run()

    assert isinstance(outcome, Failed)
    assert b"expected one with its arguments" in outcome.payload


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


def test_a_side_effect_is_made_once_and_its_failure_is_repeated() -> None:
    made: list[int] = []

    def look(number: int) -> int:
        made.append(number)
        if number < 0:
            raise ValueError(number)
        return number

    @workflow
    def program(ctx: Context) -> str:
        found = ctx.side_effect(look, 4)
        try:
            ctx.side_effect(look, -1)
        except ValueError as error:
            return f"{found} {error}"
        return ""

    driver = Driver(program())

    assert driver.run() == driver.run() == Completed(b'"4 -1"', 1)
    assert made == [4, -1]
    assert all(isinstance(command, RecordValue) and command.id.kind is Kind.VALUE for command in driver.commands)


def test_now_is_the_time_of_what_happened_last_and_stands_still_between_calls() -> None:
    seen: list[datetime] = []

    @workflow
    def program(ctx: Context) -> None:
        seen.append(ctx.now())
        ctx.sleep(timedelta(days=1))
        seen.extend((ctx.now(), ctx.now()))

    driver = Driver(program())
    driver.run()

    assert seen[0] == EPOCH
    assert seen[1] == seen[2] == driver.journal[-1].recorded_at > EPOCH + timedelta(days=1)


def test_random_numbers_and_uuids_are_the_same_in_a_replay_and_differ_between_runs_and_branches() -> None:
    seen: list[tuple[float, UUID]] = []

    @workflow
    def program(ctx: Context) -> None:
        def draw(ctx: Context) -> None:
            seen.append((ctx.random.random(), ctx.uuid4()))

        draw(ctx)
        ctx.parallel(draw, draw)
        ctx.sleep(timedelta(1))

    first, other = Driver(program()), Driver(program(), seed=18)
    first.run()
    first.run()
    other.run()

    assert seen[0:3] == seen[3:6]
    assert len({number for number, _ in seen}) == 6
    assert all(drawn.version == 4 for _, drawn in seen)


def test_a_line_is_logged_once_however_often_the_run_is_replayed(caplog: pytest.LogCaptureFixture) -> None:
    @workflow
    def program(ctx: Context) -> None:
        ctx.log.info("before")
        ctx.step(charge, Order("1"))
        ctx.log.info("between")
        ctx.sleep(timedelta(1))
        ctx.log.info("after")

    driver = Driver(program(), suspend_after=3)
    with caplog.at_level(logging.INFO):
        driver.run()
        driver.suspend_after = None
        driver.run()

    assert [record.getMessage() for record in caplog.records] == ["before", "between", "after"]
    assert caplog.records[0].__dict__["run_id"] == "run-1"


def test_attributes_are_recorded_with_the_next_commit_and_before_the_end() -> None:
    @workflow
    def program(ctx: Context) -> None:
        ctx.set_attribute("stage", "started")
        ctx.step(charge, Order("1"))
        ctx.set_attribute("stage", "done")

    driver = Driver(program())
    driver.run()

    assert [type(command) for command in driver.commands] == [RecordValue, RunStep, RecordValue]
    assert driver.keys() == ["/attribute:stage#1", "/step:charge#1", "/attribute:stage#2"]
    assert driver.run() == Completed(None, 0)
    assert len(driver.commands) == 3


def test_patched_takes_the_new_way_in_new_runs_and_the_old_in_runs_that_had_passed() -> None:
    def version(*, is_new: bool) -> Any:
        @workflow(name="program")
        def program(ctx: Context) -> str:
            way = "old"
            if is_new and ctx.patched("coupon"):
                ctx.step(charge, Order("coupon"))
                way = "new"
            ctx.step(ship, Order("1"))
            ctx.sleep(timedelta(1))
            return f"{way} {is_new and ctx.patched('coupon')}"

        return program()

    before = Driver(version(is_new=False), suspend_after=3)
    before.run()
    upgraded = Driver(version(is_new=True), journal=before.journal)
    fresh = Driver(version(is_new=True))

    assert upgraded.run() == Completed(b'"old False"', 1)
    assert fresh.run() == fresh.run() == Completed(b'"new True"', 1)
    assert [entry.key for entry in fresh.journal if entry.kind is Kind.PATCH] == ["/patch:coupon#1"]


def test_a_step_called_directly_in_a_workflow_is_an_error_and_elsewhere_calls_its_function() -> None:
    @workflow
    def program(ctx: Context) -> None:
        charge(Order("1"))

    outcome = Driver(program()).run()

    assert isinstance(outcome, Failed)
    assert b"expected ctx.step(charge" in outcome.payload
    assert charge(Order("1")) == Order("1", ("paid",))


def test_step_refuses_what_is_no_step() -> None:
    for mistake in (child, charge(Order("1")), lambda: 1):

        @workflow
        def program(ctx: Context, mistake: Any = mistake) -> None:
            ctx.step(mistake)

        outcome = Driver(program()).run()

        assert isinstance(outcome, Failed)
        assert DefinitionError.__qualname__.encode() in outcome.payload


def test_a_context_is_refused_after_its_run_has_ended() -> None:
    kept: list[Any] = []

    @workflow
    def program(ctx: Context) -> None:
        kept.append(ctx)

    @workflow
    async def async_program(ctx: AsyncContext) -> None:
        kept.append(ctx)

    Driver(program()).run()
    Driver(async_program()).run()

    for ctx in kept:
        with pytest.raises(ContextError):
            ctx.step(charge, Order("1"))
        with pytest.raises(ContextError):
            ctx.now()
