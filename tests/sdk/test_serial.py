"""Values to bytes and back: nothing is lost, and what would be is refused by its path."""

from __future__ import annotations

import enum
import math
import pathlib
import uuid
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from typing import Any, Literal, NamedTuple, TypedDict

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pgwf_sdk import SerialisationError, UndecodableError
from pgwf_sdk._serial import JSON, NONE, TAGGED_JSON, codec_for, decode, encode


class Colour(enum.Enum):
    RED = "red"


class Level(enum.IntEnum):
    HIGH = 3


class Point(NamedTuple):
    x: int
    y: float


class Approve(msgspec.Struct, tag="approve"):
    cents: int


class Reject(msgspec.Struct, tag="reject"):
    reason: str


@dataclass
class Order:
    id: str
    at: datetime
    lines: list[Point] = field(default_factory=list)
    limit: Decimal | None = None


@dataclass
class Rush(Order):
    hours: int = 1


class Node(msgspec.Struct):
    name: str
    children: list[Node] = []


class Header(TypedDict):
    size: int


AT = datetime(2026, 1, 2, 3, 4, 5, 678901, tzinfo=UTC)


@pytest.mark.parametrize(
    ("value", "annotation"),
    [
        (Order("1", AT, [Point(1, 2.5)], Decimal("1.50")), Order),
        (Approve(5), Approve | Reject),
        (Node("a", [Node("b")]), Node),
        (Header(size=1), Header),
        ("yes", Literal["yes", "no"]),
        (Colour.RED, Colour),
        (Level.HIGH, Level),
        (Point(1, 2.0), Point),
        ({"a": {1, 2}}, dict[str, set[int]]),
        ((1, "a"), tuple[int, str]),
        (timedelta(days=1, microseconds=3), timedelta),
        (uuid.UUID(int=7), uuid.UUID),
        (b"\x00\xff", bytes),
        (pathlib.PurePosixPath("/a/b"), pathlib.PurePosixPath),
        ({1: "one"}, dict[int, str]),
        (2**80, int),
    ],
)
def test_what_its_annotation_describes_is_plain_json(value: Any, annotation: Any) -> None:
    payload, encoding = encode(value, annotation)

    assert encoding == JSON
    assert b"$" not in (payload or b"")
    assert decode(payload, encoding, annotation) == value
    assert type(decode(payload, encoding, annotation)) is type(value)


@pytest.mark.parametrize(
    ("value", "annotation"),
    [
        (Rush("1", AT, hours=2), Order),
        ((1, 2), list[int]),
        (True, int),
        ("text", int),
        (math.inf, float),
        ([Decimal("1.50")], list),
        ({"at": AT}, dict[str, Any]),
        (Colour.RED, object),
        ([Approve(1), Reject("x")], None),
        (Order("1", AT), None),
        (Point(1, 2.0), None),
        ({"$set": [1]}, None),
        ({"$set": [1]}, Any),
        ({1: 2, "a": 3}, None),
        (complex(1, -2), None),
    ],
)
def test_what_its_annotation_does_not_describe_is_tagged_and_comes_back_as_it_was(value: Any, annotation: Any) -> None:
    payload, encoding = encode(value, annotation)

    assert encoding == TAGGED_JSON
    assert decode(payload, encoding, annotation) == value
    assert type(decode(payload, encoding, annotation)) is type(value)


def test_none_has_no_payload() -> None:
    assert encode(None) == encode(None, Order) == (None, NONE)
    assert decode(None, NONE, Order) is None


_scalars = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text()
    | st.binary()
    | st.decimals(allow_nan=False)
    | st.datetimes(timezones=st.sampled_from([UTC, timezone(timedelta(hours=5, minutes=30))]))
    | st.datetimes()
    | st.dates()
    | st.times()
    | st.timedeltas()
    | st.uuids()
    | st.sampled_from(Colour)
    | st.builds(Point, st.integers(), st.floats(allow_nan=False))
    | st.builds(Approve, st.integers())
)
_keys = st.text() | st.integers() | st.sampled_from(["$set", "$", "$object"])
patient = settings(suppress_health_check=[HealthCheck.too_slow], deadline=None)
values = st.recursive(
    _scalars,
    lambda inner: (
        st.lists(inner)
        | st.lists(inner).map(tuple)
        | st.dictionaries(_keys, inner)
        | st.frozensets(st.integers() | st.text())
        | st.sets(st.dates())
    ),
    max_leaves=20,
)


def same(left: Any, right: Any) -> bool:
    """Equal, and of equal classes all the way down."""
    if type(left) is not type(right):
        return False
    if isinstance(left, dict):
        return list(left) == list(right) and all(same(left[key], right[key]) for key in left)
    if isinstance(left, list | tuple):
        return len(left) == len(right) and all(map(same, left, right))
    return bool(left == right)


@patient
@given(values)
def test_every_value_comes_back_equal_and_of_the_same_classes(value: Any) -> None:
    payload, encoding = encode(value)

    assert same(decode(payload, encoding), value)


@patient
@given(values)
def test_embedded_values_come_back_too(value: Any) -> None:
    for annotation in (None, Any, dict[str, Any], int, Order):
        codec = codec_for(annotation)
        embedded = codec.embed(value, subject="value")
        if annotation in (None, int, Order):
            assert same(codec.extract(embedded), value)


@pytest.mark.parametrize(
    ("value", "path"),
    [
        ({"items": [0, {"file": object()}]}, "result['items'][1]['file']"),
        (Order("1", AT, lines=[object()]), "result.lines[0]"),  # type: ignore[list-item]
        ({(1, 2): object()}, "result[(1, 2)]"),
        ({object}, "result"),
    ],
)
def test_what_cannot_be_stored_is_named_by_its_path(value: Any, path: str) -> None:
    with pytest.raises(SerialisationError) as caught:
        encode(value, subject="result")

    assert caught.value.path.startswith(path)
    assert "cannot be stored" in str(caught.value)


def test_a_value_that_contains_itself_is_refused() -> None:
    value: list[Any] = []
    value.append(value)

    with pytest.raises(SerialisationError, match="contains itself"):
        encode(value)


@dataclass(eq=False)
class Contrary:
    """Raises when it is compared or shown."""

    number: int

    def __eq__(self, other: object) -> bool:
        raise RuntimeError("never the same")

    def __repr__(self) -> str:
        raise RuntimeError("not to be shown")

    __hash__ = object.__hash__


def test_a_value_that_cannot_be_compared_or_shown_comes_back() -> None:
    found = decode(*encode(Contrary(3), Contrary), Contrary)

    assert type(found) is Contrary
    assert found.number == 3
    with pytest.raises(SerialisationError, match="Contrary that cannot be shown"):
        encode({Contrary(3): object()})


@dataclass
class Locked:
    def __getattribute__(self, name: str) -> Any:
        if name == "number":
            raise PermissionError("nobody may read this")
        return super().__getattribute__(name)

    number: int = 0


def test_a_value_that_cannot_be_read_cannot_be_stored() -> None:
    with pytest.raises(SerialisationError, match="result: PermissionError when it was read: nobody may read this"):
        encode(Locked(), subject="result")


def test_a_number_of_too_many_digits_is_not_taken_for_a_text() -> None:
    with pytest.raises(SerialisationError, match="expected what JSON has a form for"):
        encode({"number": 10**5_000})


@dataclass
class Picky:
    number: int

    def __post_init__(self) -> None:
        if self.number < 0:
            raise LookupError("no such number")


@pytest.mark.parametrize(
    "read",
    [
        lambda: decode(b'{"number":-1}', JSON, Picky),
        lambda: decode(b'{"$model": "%s:Refusing", "value": 1}' % __name__.encode(), TAGGED_JSON),
    ],
)
def test_whatever_a_class_raises_when_it_is_read_its_payload_does_not_fit(read: Any) -> None:
    with pytest.raises(UndecodableError, match="no such number"):
        read()


class Refusing:
    """As Pydantic models look from here."""

    def model_dump(self, mode: str) -> int:
        return 1

    @classmethod
    def model_validate(cls, value: int) -> Refusing:
        raise LookupError("no such number")


def test_a_class_of_a_function_can_be_stored_only_with_its_annotation() -> None:
    @dataclass
    class Local:
        number: int

    assert decode(*encode(Local(1), Local), Local) == Local(1)
    with pytest.raises(SerialisationError, match="define it at the top level"):
        encode(Local(1))


def test_a_class_is_only_looked_up_among_imported_modules() -> None:
    with pytest.raises(UndecodableError, match="not imported"):
        decode(b'{"$object": "antigravity:Thing", "fields": {}}', TAGGED_JSON)
    with pytest.raises(UndecodableError):
        decode(b'{"$object": "subprocess:Popen", "fields": {"args": "true"}}', TAGGED_JSON)


def test_fields_may_come_and_go() -> None:
    stored = b'{"$object": "%s:Order", "fields": {"id": "1", "at": {"$datetime": "2026-01-02T00:00:00"}, "gone": 1}}'

    found = decode(stored % __name__.encode(), TAGGED_JSON)

    assert found == Order("1", datetime(2026, 1, 2), [], None)  # noqa: DTZ001 - stored without a zone
    assert decode(b'{"id": "1", "at": "2026-01-02T00:00:00Z", "gone": 1}', JSON, Order).lines == []


def test_a_payload_that_does_not_fit_says_what_was_found_and_expected() -> None:
    with pytest.raises(UndecodableError, match=r'{"id":1} is no Order: Expected `str`, got `int`'):
        decode(b'{"id":1}', JSON, Order)
    with pytest.raises(UndecodableError, match="a newer SDK wrote"):
        decode(b'{"$quaternion": 1}', TAGGED_JSON)
    with pytest.raises(UndecodableError, match="encoding 9"):
        decode(b"", 9)


def test_what_others_send_is_read_by_the_type_and_must_fit_it() -> None:
    codec = codec_for(Approve | Reject)

    assert codec.decode_sent(b'{"type": "approve", "cents": 5}', TAGGED_JSON) == Approve(5)
    assert codec.decode_sent(encode(Reject("x"))[0], TAGGED_JSON) == Reject("x")
    with pytest.raises(UndecodableError, match="was sent where"):
        codec.decode_sent(b'{"cents": 5}', TAGGED_JSON)
    with pytest.raises(UndecodableError):
        codec.decode_sent(encode(Point(1, 2))[0], TAGGED_JSON)


def test_dates_and_times_keep_their_zone() -> None:
    zoned = AT.astimezone(timezone(timedelta(hours=2)))

    assert decode(*encode([zoned, date(2026, 1, 2), time(1, 2)])) == [zoned, date(2026, 1, 2), time(1, 2)]
    assert decode(*encode(zoned)).utcoffset() == timedelta(hours=2)
