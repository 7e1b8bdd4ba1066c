"""Decisions typed by a person, against the schemas msgspec makes of real decision types."""

from __future__ import annotations

import math
import re
from datetime import date
from enum import Enum
from typing import Annotated, Any, Literal

import msgspec
import pytest
from msgspec import Meta, Struct

from pgwf_sdk.ops import DecisionError, DecisionForm


class Colour(Enum):
    RED = "red"
    BLUE = "blue"


class Line(Struct):
    sku: str
    count: Annotated[int, Meta(ge=1)]


class Approve(Struct, tag="approve"):
    """Pay this refund."""

    cents: Annotated[int, Meta(ge=1, le=10_000, title="Amount to pay")]
    note: str | None = None
    colour: Colour = Colour.RED
    urgent: bool = False
    pay_on: date | None = None
    share: float | None = None
    lines: list[Line] = []


class Reject(Struct, tag="reject", forbid_unknown_fields=True):
    """Refuse."""

    reason: Literal["fraud", "policy", "duplicate"]


class Escalate(Struct, tag="escalate"):
    """Ask somebody else."""


def form_of(type_: Any) -> DecisionForm:
    return DecisionForm(msgspec.json.encode(msgspec.json.schema(type_)).decode())


FORM = form_of(Approve | Reject | Escalate)


def test_each_member_of_a_tagged_union_is_a_variant_with_its_fields() -> None:
    assert sorted(variant.name for variant in FORM.variants) == ["approve", "escalate", "reject"]
    fields = {field.name: field for field in FORM.variant("approve").fields}
    assert fields["cents"].is_required
    assert fields["cents"].title == "Amount to pay"
    assert fields["cents"].type == "integer >= 1, <= 10000"
    assert not fields["note"].is_required
    assert "type" not in fields
    assert FORM.variant("reject").fields[0].type == "duplicate | fraud | policy"
    assert FORM.variant("reject").help == "Refuse."


@pytest.mark.parametrize(
    ("decision_type", "whole_types"),
    [
        (bool, ("boolean",)),
        (Annotated[int, Meta(ge=1)], ("integer >= 1",)),
        (int | None, ("integer", "null")),
        (list[str], ("list of string",)),
        (dict[str, int], ("object",)),
        (Colour, ("blue | red",)),
        (Line, ()),
        (Approve | Reject, ()),
        (Approve | None, ("null",)),
    ],
)
def test_what_has_no_fields_is_given_whole(decision_type: Any, whole_types: tuple[str, ...]) -> None:
    assert form_of(decision_type).whole_types == whole_types


@pytest.mark.parametrize(
    ("variant", "given", "decision"),
    [
        ("approve", {"cents": "250"}, Approve(250)),
        ("APPROVE", {"cents": 250, "note": "well done"}, Approve(250, "well done")),
        ("approve", {"cents": "1", "note": "", "colour": "blue"}, Approve(1, None, Colour.BLUE)),
        (
            "approve",
            {"cents": "1", "urgent": "yes", "pay_on": "2030-02-28"},
            Approve(1, urgent=True, pay_on=date(2030, 2, 28)),
        ),
        ("approve", {"cents": "1", "share": "0.5"}, Approve(1, share=0.5)),
        ("approve", {"cents": "1", "note": "42"}, Approve(1, "42")),
        ("approve", {"cents": "1", "lines": [{"sku": "7", "count": "3"}]}, Approve(1, lines=[Line("7", 3)])),
        ("reject", {"reason": "fraud"}, Reject("fraud")),
        ("escalate", {}, Escalate()),
    ],
)
def test_what_was_typed_becomes_a_value_the_workflow_decodes(
    variant: str, given: dict[str, Any], decision: Struct
) -> None:
    built = FORM.build(FORM.variant(variant), given)

    assert msgspec.convert(built, Approve | Reject | Escalate) == decision


@pytest.mark.parametrize(
    ("variant", "given", "path", "said"),
    [
        ("approve", {}, "cents", "it is missing; expected integer >= 1, <= 10000"),
        ("approve", {"cents": "many"}, "cents", 'expected a whole number, found "many"'),
        ("approve", {"cents": "0"}, "cents", "at least 1, found 0"),
        ("approve", {"cents": "10001"}, "cents", "at most 10000, found 10001"),
        ("approve", {"cents": True}, "cents", "expected a whole number, found true"),
        ("approve", {"cents": "1", "cent": "1"}, "cent", "there is no such field; known are"),
        ("approve", {"cents": "1", "pay_on": "tomorrow"}, "pay_on", 'found "tomorrow"'),
        ("approve", {"cents": "1", "lines": [{"sku": "7", "count": "0"}]}, "lines.0.count", "at least 1, found 0"),
        ("approve", {"cents": "1", "lines": "7"}, "lines", 'expected a list, found "7"'),
        ("reject", {"reason": "mood"}, "reason", "expected one of duplicate, fraud, policy"),
    ],
)
def test_a_decision_that_does_not_fit_names_the_field(
    variant: str, given: dict[str, Any], path: str, said: str
) -> None:
    with pytest.raises(DecisionError) as caught:
        FORM.build(FORM.variant(variant), given)

    assert caught.value.path == path
    assert said in str(caught.value)


def test_an_unknown_variant_is_answered_with_those_there_are() -> None:
    with pytest.raises(DecisionError, match="no variant is called 'accept'; expected one of"):
        FORM.variant("accept")


def test_a_whole_decision_is_checked_by_its_tag() -> None:
    assert FORM.check({"type": "reject", "reason": "fraud"}) == {"type": "reject", "reason": "fraud"}
    with pytest.raises(DecisionError) as caught:
        FORM.check({"type": "reject", "reason": "mood"})
    assert caught.value.path == "reason"


def test_a_single_struct_is_one_variant_without_a_name() -> None:
    form = form_of(Line)

    assert [variant.name for variant in form.variants] == [""]
    assert form.build(form.variants[0], {"sku": "7", "count": "2"}) == {"sku": "7", "count": 2}


@pytest.mark.parametrize(
    ("type_", "value"), [(bool, True), (int, 2**63 - 1), (str, "yes"), (Colour, "blue"), (list[int], [1, 2])]
)
def test_a_decision_that_is_no_struct_is_given_whole(type_: Any, value: Any) -> None:
    assert form_of(type_).check(value) == value


def test_a_type_that_contains_itself_is_followed_to_a_bound() -> None:
    form = form_of(_Tree)
    deep: dict[str, Any] = {}
    for _ in range(100):
        deep = {"below": deep}

    assert form.check({"below": {"below": None}}) == {"below": {"below": None}}
    with pytest.raises(DecisionError):
        form.check(deep)


class _Tree(Struct):
    below: _Tree | None = None


@pytest.mark.parametrize(
    ("type_", "right", "wrong", "said"),
    [
        (int, 3, "3", 'expected a whole number, found "3"'),
        (int | str, "3", 3.5, "expected"),
        (bool, True, "yes", "expected true or false"),
        (Literal[1, 2], 1, "1", "expected one of 1, 2"),
        (Colour, "red", "RED", "expected one of"),
        (Line, {"sku": "a", "count": 1, "colour": "new"}, {"sku": "a", "count": "1"}, "count: expected a whole number"),
        (
            Reject,
            {"type": "reject", "reason": "fraud"},
            {"type": "reject", "reason": "fraud", "x": 1},
            "x: there is no",
        ),
        (tuple[int, str], (1, "a"), (1, 2), "1: expected a text"),
        (float, math.inf, None, "expected a number"),
        (Approve | Reject | Escalate, {"type": "escalate"}, {"type": "other"}, "expected"),
    ],
)
def test_the_value_of_a_program_is_taken_as_it_is(type_: Any, right: Any, wrong: Any, said: str) -> None:
    form = DecisionForm(msgspec.json.encode(msgspec.json.schema(type_)).decode(), is_typed=True)

    form.check(right)
    with pytest.raises(DecisionError, match=re.escape(said)):
        form.check(wrong)


def test_a_tuple_is_said_part_by_part() -> None:
    assert form_of(tuple[int, str]).whole_types == ("list of integer, string",)
    assert form_of(tuple[int, ...]).whole_types == ("list of integer",)
