"""Values that an earlier version of a class stored, brought to its present form before they are decoded.

A class says how by a class method `__pgwf_upcast__(stored)`, which is given the stored fields and returns those that
the class has now. It sees values of the present form too, so it changes only what it knows to be old.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, cast

from msgspec import inspect as shape

HOOK: Final = "__pgwf_upcast__"

Objects = shape.StructType | shape.DataclassType | shape.NamedTupleType | shape.TypedDictType


def has_hook(described: shape.Type) -> bool:
    """Whether some class in a type brings old values to its present form."""
    return _has_hook(described, set())


def upcast_fields(cls: Any, stored: Mapping[str, Any]) -> Mapping[str, Any]:
    """The fields as the class has them now."""
    hook = getattr(cls, HOOK, None)
    return stored if hook is None else hook(dict(stored))


def upcast(described: shape.Type, value: Any) -> Any:
    """Decoded JSON of a type, with each object brought to the present form of its class, outer ones first."""
    match described:
        case shape.UnionType(types):
            member = _member(types, value)
            return value if member is None else upcast(member, value)
        case shape.DictType(_, of_value) if isinstance(value, dict):
            return {key: upcast(of_value, item) for key, item in cast("dict[str, Any]", value).items()}
        case shape.CollectionType(item_type) if isinstance(value, list):
            return [upcast(item_type, item) for item in _items(value)]
        case shape.TupleType(types) if isinstance(value, list):
            items = _items(value)
            return [upcast(kind, item) for kind, item in zip(types, items, strict=False)] + items[len(types) :]
        case shape.StructType() | shape.DataclassType() | shape.TypedDictType() if isinstance(value, dict):
            fields = dict(upcast_fields(described.cls, cast("dict[str, Any]", value)))
            kinds = {field.encode_name: field.type for field in described.fields}
            return {name: upcast(kinds[name], item) if name in kinds else item for name, item in fields.items()}
        case _:
            return value


def _items(value: Any) -> list[Any]:
    items: list[Any] = value
    return items


def _member(types: tuple[shape.Type, ...], value: Any) -> shape.Type | None:
    """The member of a union that a value was stored as, as far as its form tells."""
    if isinstance(value, dict):
        stored = cast("dict[str, Any]", value)
        objects = [kind for kind in types if isinstance(kind, Objects)]
        tagged = [
            kind
            for kind in objects
            if isinstance(kind, shape.StructType) and kind.tag_field and stored.get(kind.tag_field) == kind.tag
        ]
        found = tagged or objects
        return found[0] if len(found) == 1 else None
    if isinstance(value, list):
        return next((kind for kind in types if isinstance(kind, shape.CollectionType | shape.TupleType)), None)
    return None


def _has_hook(described: shape.Type, seen: set[int]) -> bool:
    if id(described) in seen:
        return False
    seen.add(id(described))
    if isinstance(described, Objects):
        return hasattr(described.cls, HOOK) or any(_has_hook(field.type, seen) for field in described.fields)
    match described:
        case shape.UnionType(types) | shape.TupleType(types):
            return any(_has_hook(kind, seen) for kind in types)
        case shape.DictType(key, value) | shape.FrozenDictType(key, value):
            return _has_hook(key, seen) or _has_hook(value, seen)
        case shape.CollectionType(item):
            return _has_hook(item, seen)
        case _:
            return False
