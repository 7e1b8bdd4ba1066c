"""Types change while runs are open: what earlier versions stored is read by later ones, or refused with the reason.

The two versions of a class are made under one name, as two deploys of one module would be.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from datetime import UTC, datetime
from decimal import Decimal
from types import ModuleType
from typing import Any
from zoneinfo import ZoneInfo

import msgspec
import pytest

from pgwf_sdk import UndecodableError
from pgwf_sdk._serial import JSON, TAGGED_JSON, decode, encode

attrs: Any = pytest.importorskip("attrs")
pydantic: Any = pytest.importorskip("pydantic")

NAMESPACE = "pgwf_versions"


@pytest.fixture(autouse=True)
def module() -> Any:
    """A module that both versions live in."""
    sys.modules[NAMESPACE] = ModuleType(NAMESPACE)
    yield sys.modules[NAMESPACE]
    del sys.modules[NAMESPACE]


def deployed(cls: Any) -> Any:
    """The class as the present version of `pgwf_versions.Order`."""
    cls.__module__, cls.__qualname__, cls.__name__ = NAMESPACE, "Order", "Order"
    vars(sys.modules[NAMESPACE])["Order"] = cls
    return cls


def kinds(**fields: Any) -> list[Any]:
    """One class of these fields of each kind that can be stored; a field is a type, or a type and its default."""
    notes: dict[str, Any] = {name: given[0] if isinstance(given, tuple) else given for name, given in fields.items()}
    defaults: dict[str, Any] = {name: given[1] for name, given in fields.items() if isinstance(given, tuple)}
    body: dict[str, Any] = {"__annotations__": notes, **defaults}
    return [
        dataclass(type("Order", (), dict(body))),
        attrs.define(type("Order", (), dict(body))),
        type("Order", (msgspec.Struct,), dict(body)),
        type("Order", (pydantic.BaseModel,), {**body, "__module__": __name__}),
    ]


@pytest.mark.parametrize("kind", range(4))
@pytest.mark.parametrize("typed", [True, False])
def test_fields_that_are_gone_are_ignored_and_new_ones_take_their_default(kind: int, typed: bool) -> None:
    old = deployed(kinds(id=str, gone=int)[kind])
    stored = encode(old(id="17", gone=1), old if typed else None)
    new = deployed(kinds(id=str, new=(str, "default"))[kind])

    found = decode(*stored, new if typed else None)

    assert stored[1] == (JSON if typed else TAGGED_JSON)
    assert (found.id, found.new) == ("17", "default")


@pytest.mark.parametrize("kind", range(4))
def test_a_new_field_without_a_default_is_refused_with_what_is_missing(kind: int) -> None:
    old = deployed(kinds(id=str)[kind])
    stored = encode(old(id="17"), old)
    new = deployed(kinds(id=str, new=str)[kind])

    with pytest.raises(UndecodableError, match="new"):
        decode(*stored, new)


@dataclass
class Line:
    sku: str
    count: int = 1

    @classmethod
    def __pgwf_upcast__(cls, stored: dict[str, Any]) -> dict[str, Any]:
        if "article" in stored:
            stored["sku"] = stored.pop("article")
        return stored


@dataclass
class Basket:
    lines: list[Line] = field(default_factory=list)
    first: Line | None = None
    total: Decimal = Decimal(0)

    @classmethod
    def __pgwf_upcast__(cls, stored: dict[str, Any]) -> dict[str, Any]:
        if "cents" in stored:
            stored["total"] = str(Decimal(stored.pop("cents")) / 100)
        return stored


def test_a_hook_renames_and_converts_what_an_earlier_version_stored_at_any_depth() -> None:
    stored = b'{"lines":[{"article":"a","count":2},{"sku":"b"}],"first":{"article":"c"},"cents":150}'

    found = decode(stored, JSON, Basket)

    assert found == Basket([Line("a", 2), Line("b")], Line("c"), Decimal("1.5"))
    assert decode(b"[" + stored + b"]", JSON, list[Basket]) == [found]
    assert decode(*encode(found, Basket), Basket) == found


def test_a_hook_sees_what_was_stored_with_tags_too() -> None:
    payload, encoding = encode([Line("a", 2)], None)

    assert decode((payload or b"").replace(b'"sku"', b'"article"'), encoding, None) == [Line("a", 2)]


def test_struct_renames_and_pydantic_aliases_work_as_well() -> None:
    class Renamed(msgspec.Struct):
        sku: str = msgspec.field(name="article")

    class Model(pydantic.BaseModel):  # type: ignore[misc]
        model_config = pydantic.ConfigDict(populate_by_name=True)
        sku: str = pydantic.Field(validation_alias="article")

    for kind in (Renamed, Model):
        assert decode(b'{"article":"a"}', JSON, kind).sku == "a"


def test_attrs_and_pydantic_values_come_back_as_what_they_were() -> None:
    @deployed
    @attrs.frozen
    class Order:
        at: datetime
        total: Decimal
        tags: frozenset[str] = frozenset()

    class Parcel(pydantic.BaseModel):  # type: ignore[misc]
        order: str
        at: datetime
        weights: tuple[Decimal, ...] = ()

    make: Any = Order
    zoned = datetime(2026, 7, 1, 12, tzinfo=ZoneInfo("Europe/Brussels"))
    for value in (
        make(zoned.astimezone(UTC), Decimal("1.50"), frozenset({"a", "b"})),
        Parcel(order="17", at=zoned, weights=(Decimal("0.1"),)),
    ):
        found = decode(*encode(value, type(value)), type(value))
        assert found == value
        assert type(found) is type(value)
