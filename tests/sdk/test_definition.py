"""Steps, workflows, calls and retry policies as values."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial, wraps
from random import Random
from typing import Any, cast

import pytest

from pgwf_sdk import (
    AsyncContext,
    Context,
    ContextError,
    DefinitionError,
    NonRetryable,
    RetryAfter,
    RetryPolicy,
    SerialisationError,
    Step,
    StepContext,
    UndecodableError,
    current_step,
    step,
    workflow,
)
from pgwf_sdk._definition import Call, as_step
from pgwf_sdk._step_context import enter_step, leave_step


@dataclass
class Order:
    id: str
    extra: dict[str, Any] = field(default_factory=dict)


@step(retry=RetryPolicy(max_attempts=2), timeout=timedelta(seconds=3))
def charge(order: Order) -> Order:
    return order


@workflow
def checkout(ctx: Context, /, order: Order, *rest: int, fast: bool = False, **more: Any) -> Order:
    return order


def test_a_step_keeps_its_function_and_takes_its_name_from_it() -> None:
    assert charge.name == "charge"
    assert charge.fn(Order("1")) == charge(Order("1")) == Order("1")
    assert charge.timeout == timedelta(seconds=3)
    assert repr(charge) == "<Step charge>"


def test_options_make_a_copy() -> None:
    other = charge.options(name="charge-2", need="gpu")

    assert (other.name, other.need, other.retry) == ("charge-2", "gpu", charge.retry)
    assert (charge.name, charge.need) == ("charge", None)


def test_definitions_are_frozen() -> None:
    with pytest.raises(AttributeError):
        charge.name = "other"  # type: ignore[misc]  # pyright: ignore


def test_the_name_is_the_tail_of_the_qualified_name_so_that_moving_changes_nothing() -> None:
    class Shop:
        @staticmethod
        def sell() -> None: ...

    assert as_step(Shop.sell).name == "sell"
    assert step(name="x")(lambda: 1).name == "x"


def test_a_named_partial_is_a_step() -> None:
    half = partial(charge.fn, Order("1"))
    with pytest.raises(DefinitionError, match="has no name of its own"):
        as_step(half)

    half.__name__ = "half"  # type: ignore[attr-defined]

    assert as_step(half).name == "half"
    assert as_step(half).codec.annotation is Order


@pytest.mark.parametrize("name", ["", "a/b", "a#1", "a[0]", "a\n", "x" * 201])
def test_names_that_entry_keys_could_not_hold_are_refused(name: str) -> None:
    with pytest.raises(DefinitionError, match="the name"):
        step(name=name)(charge.fn)
    with pytest.raises(DefinitionError, match="the name"):
        charge.options(name=name)


@pytest.mark.parametrize(
    ("options", "promise"),
    [
        ({"at_most_once": True}, "at_most_once"),
        ({"undo": charge.fn}, "given an undo"),
        ({"on_cancel": "finish"}, "let finish"),
    ],
)
def test_a_step_whose_end_must_be_recorded_cannot_be_deferred(options: dict[str, Any], promise: str) -> None:
    with pytest.raises(DefinitionError, match=f'has durability="deferred" and is {promise}'):
        step(durability="deferred", **options)(charge.fn)
    with pytest.raises(DefinitionError, match=promise):
        charge.options(**options).options(durability="deferred")


def test_an_undo_cannot_be_deferred_nor_is_there_another_durability() -> None:
    with pytest.raises(DefinitionError, match="its undo 'take_back' has durability"):
        charge.options(undo=step(name="take_back", durability="deferred")(lambda receipt: None))
    with pytest.raises(DefinitionError, match="durability is 'never'; expected \"deferred\""):
        charge.options(durability="never")  # type: ignore[arg-type]  # pyright: ignore


def test_what_is_defined_already_cannot_be_defined_again() -> None:
    with pytest.raises(DefinitionError, match="is a definition already"):
        step(charge)
    with pytest.raises(DefinitionError, match="is a definition already"):
        workflow(checkout)  # type: ignore[arg-type]


def test_a_workflow_needs_its_own_name_unless_told_otherwise() -> None:
    @workflow(need="python", build="b42")
    async def other(ctx: AsyncContext) -> None: ...

    assert checkout.need == "checkout"
    assert (other.need, other.build, other.is_async) == ("python", "b42", True)


def test_a_workflow_takes_the_context_of_its_kind_first() -> None:
    def no_context() -> None: ...
    async def sync_context(ctx: Context) -> None: ...
    def async_context(ctx: AsyncContext) -> None: ...

    for fn in (no_context, sync_context, async_context):
        with pytest.raises(DefinitionError, match="expected"):
            workflow(fn)  # type: ignore[arg-type]


def test_calling_a_workflow_checks_the_arguments_and_runs_nothing() -> None:
    call = checkout(Order("1"), 2, 3, fast=True, colour="red")

    assert call.args == (Order("1"), 2, 3)
    with pytest.raises(
        TypeError, match=r"workflow 'checkout': missing a required argument: 'order'; expected checkout"
    ):
        checkout()  # type: ignore[call-arg]


def test_a_call_comes_back_from_its_bytes() -> None:
    call = checkout(Order("1", {"set": {1}}), 2, 3, fast=True, colour=("a",))

    assert checkout.decode_call(call.encode()) == (call.args, call.kwargs)


@workflow
def packing(ctx: Context, /, order: Order, sizes: list[int], *labels: str, **more: Any) -> None:
    return None


FILE = object()


@pytest.mark.parametrize(
    ("call", "path"),
    [
        (packing(cast("Any", FILE), [1]), "order"),
        (packing(Order("1"), [1, cast("Any", FILE)]), "sizes[1]"),
        (packing(Order("1"), [], "a", cast("Any", FILE)), "labels[1]"),
        (packing(Order("1"), sizes=[], extra={"lines": [FILE]}), "extra['lines'][0]"),
    ],
)
def test_an_argument_that_cannot_be_stored_is_named_with_its_path(call: Call[None], path: str) -> None:
    with pytest.raises(SerialisationError) as refused:
        call.encode()

    assert refused.value.path == path
    assert str(refused.value).startswith(f"workflow 'packing': argument {path}: object cannot be stored; expected ")


def test_a_call_can_be_written_by_hand_in_another_language() -> None:
    stored = b'{"kwargs": {"order": {"id": "1"}, "fast": true}}'

    assert checkout.decode_call(stored) == ((), {"order": Order("1"), "fast": True})
    assert checkout(Order("1")).encode() == b'{"args":[{"$tagged":%b}],"kwargs":{}}' % (
        b'{"$object":"tests.sdk.test_definition:Order","fields":{"id":"1","extra":{}}}'
    )


@pytest.mark.parametrize("stored", [b"[]", b'{"args": []}', b'{"args": [{"id": 1}]}', b'{"kwargs": {"other": 1}}'])
def test_a_stored_call_that_does_not_fit_is_undecodable(stored: bytes) -> None:
    with pytest.raises(UndecodableError):
        checkout.decode_call(stored)


def test_annotations_that_cannot_be_resolved_do_not_hide_the_others() -> None:
    def known(order: Order, other: Unknown) -> Order:  # type: ignore[name-defined]  # noqa: F821
        return order

    @wraps(known)
    def wrapped(*args: Any) -> Any:
        return known(*args)

    assert as_step(known).codec.annotation is Order
    assert as_step(wrapped).codec.annotation is Order


def test_delays_grow_to_the_longest_and_are_drawn_evenly_below() -> None:
    policy = RetryPolicy(max_attempts=100, initial=timedelta(seconds=1), factor=2, max_interval=timedelta(seconds=10))

    assert [policy.longest_delay_after(n).total_seconds() for n in (1, 2, 3, 4, 5, 5000)] == [1, 2, 4, 8, 10, 10]
    drawn = [policy.delay_after(3, ValueError(), Random(seed)) for seed in range(200)]
    assert all(delay is not None and timedelta(0) <= delay <= timedelta(seconds=4) for delay in drawn)
    assert len(set(drawn)) == 200


def test_a_policy_stops_after_its_attempts_and_by_class() -> None:
    policy = RetryPolicy(max_attempts=3, retry_on=(OSError, ValueError), no_retry_on=(FileNotFoundError,))

    assert policy.delay_after(2, OSError(), Random(1)) is not None
    assert policy.delay_after(3, OSError(), Random(1)) is None
    assert policy.delay_after(1, FileNotFoundError(), Random(1)) is None
    assert policy.delay_after(1, KeyError(), Random(1)) is None
    assert RetryPolicy().delay_after(1, NonRetryable(), Random(1)) is None
    assert RetryPolicy().delay_after(1, RetryAfter(delay=timedelta(hours=1)), Random(1)) == timedelta(hours=1)


@pytest.mark.parametrize(
    "mistake",
    [
        {"max_attempts": 0},
        {"initial": timedelta(seconds=-1)},
        {"factor": 0.5},
        {"max_interval": timedelta(0)},
        {"max_elapsed": timedelta(0)},
    ],
)
def test_a_policy_without_sense_is_refused(mistake: dict[str, Any]) -> None:
    with pytest.raises(DefinitionError, match=next(iter(mistake))):
        RetryPolicy(**mistake)


def test_a_step_can_ask_about_its_attempt_only_while_it_runs() -> None:
    beats: list[Any] = []
    attempt = StepContext(attempt=2, call="order-1/step:x#1", beat=beats.append)
    with pytest.raises(ContextError):
        current_step()

    token = enter_step(attempt)
    current_step().heartbeat({"done": 5})
    leave_step(token)

    assert (attempt.attempt, beats) == (2, [{"done": 5}])
    with pytest.raises(ContextError):
        current_step()


def test_a_step_is_generic_over_its_parameters_and_result() -> None:
    typed: Step[[Order], Order] = charge

    assert typed is charge


@pytest.mark.parametrize(
    ("option", "value"),
    [("retry", 3), ("timeout", 3), ("total_timeout", 1.5), ("heartbeat_timeout", "5s"), ("need", 7)],
)
def test_an_option_of_the_wrong_type_is_refused_where_the_step_is_defined(option: str, value: object) -> None:
    with pytest.raises(DefinitionError, match=rf"{option} is .*; expected a \w+, such as"):
        step(**{option: value})(len)  # type: ignore[call-overload]


@pytest.mark.parametrize("option", ["timeout", "total_timeout", "heartbeat_timeout"])
@pytest.mark.parametrize("length", [timedelta(0), timedelta(seconds=-1)])
def test_a_step_has_longer_than_nothing(option: str, length: timedelta) -> None:
    options: dict[str, Any] = {option: length}

    with pytest.raises(DefinitionError, match=f"{option} is .*; expected longer than nothing"):
        step(**options)(charge.fn)


def test_what_belongs_to_people_is_no_need_of_a_program() -> None:
    def takes(ctx: Context) -> None: ...

    for define in (step(need="human.review"), workflow(need="human.review")):
        with pytest.raises(DefinitionError, match=r"'human\.review' belongs to people"):
            cast("Any", define)(takes)


def test_an_error_about_a_function_names_no_address() -> None:
    with pytest.raises(DefinitionError) as refused:
        step(lambda: 1)

    assert "<lambda>" in str(refused.value)
    assert " at 0x" not in str(refused.value)
