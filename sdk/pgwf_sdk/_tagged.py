"""Tagged JSON: values that JSON does not know stand as an object whose only or first key starts with a dollar sign.

{"$tuple": […]} {"$set": […]} {"$frozenset": […]} {"$bytes": base64} {"$decimal": "1.50"} {"$datetime": …} {"$date": …}
{"$time": …} {"$timedelta": [days, seconds, microseconds]} {"$uuid": …} {"$float": "nan"} {"$complex": [re, im]}
{"$path": "PurePosixPath:/a"} {"$dict": [[key, value], …]} {"$enum": "module:Class", "value": …}
{"$object": "module:Class", "fields": {…}} for dataclasses, NamedTuples, attrs classes and msgspec Structs
{"$model": "module:Class", "value": …} for Pydantic models

Numbers, strings, lists and dicts with plain string keys are themselves, so what people read in SQL is what they expect.
"""

from __future__ import annotations

import base64
import dataclasses
import math
import pathlib
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from typing import TYPE_CHECKING, Any, Final, cast
from uuid import UUID

import msgspec

from pgwf_sdk._errors import SerialisationError, UndecodableError
from pgwf_sdk._names import class_name, imported_class
from pgwf_sdk._upcast import upcast_fields
from pgwf_sdk._wording import shown, text_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

_PATHS: Final = {cls.__name__: cls for cls in (
    pathlib.PurePosixPath, pathlib.PureWindowsPath, pathlib.PosixPath, pathlib.WindowsPath)}  # fmt: skip


def to_tagged(value: object, subject: str) -> bytes:
    """Return `value` as tagged JSON. SerialisationError: which part under `subject` cannot be stored."""
    try:
        return _encoder.encode(_pack(value))
    except _UnstorableError as error:
        path = subject + "".join(reversed(error.steps))
        raise SerialisationError(
            f"{path}: {error.found} cannot be stored; expected plain values, dataclasses, NamedTuples, Enums, msgspec"
            f" Structs, attrs classes or Pydantic models.{error.advice}",
            path=path,
        ) from None
    except RecursionError:
        raise SerialisationError(
            f"{subject}: the value contains itself or is nested too deeply; expected a tree", path=subject
        ) from None
    except UnicodeEncodeError as error:
        raise SerialisationError(f"{subject}: {error}; expected text that UTF-8 can hold", path=subject) from error
    except (OverflowError, ValueError) as error:
        raise SerialisationError(f"{subject}: {error}; expected what JSON has a form for", path=subject) from error
    except Exception as error:
        raise SerialisationError(
            f"{subject}: {type(error).__name__} when it was read: {text_of(error)}; expected a value that can be read",
            path=subject,
        ) from error


def from_tagged(payload: bytes) -> Any:
    """Return the value that was packed. UndecodableError: a class it names is not imported, or its shape is unknown."""
    try:
        decoded = _decoder.decode(payload)
        return _unpack(decoded) if b'"$' in payload else decoded
    except UndecodableError:
        raise
    except Exception as error:  # The user's classes may raise anything.
        raise UndecodableError(f"{payload[:80]!r} cannot be read as tagged JSON: {shown(error)}") from error


class _UnstorableError(Exception):
    """Found while walking a value; each container on the way out adds its step to the path."""

    def __init__(self, found: str, advice: str = "") -> None:
        super().__init__(found)
        self.found = found
        self.advice = advice
        self.steps: list[str] = []

    def under(self, step: str) -> _UnstorableError:
        self.steps.append(step)
        return self


def _pack(value: Any) -> Any:
    cls: Any = cast("Any", type(value))
    packer = _PACKERS.get(cls)
    return packer(value) if packer is not None else _pack_object(value)


def _same(value: Any) -> Any:
    return value


def _pack_items(values: Any) -> list[Any]:
    packed: list[Any] = []
    for index, value in enumerate(values):
        try:
            packed.append(_pack(value))
        except _UnstorableError as error:
            raise error.under(f"[{index}]") from None
    return packed


def _pack_set(values: Any) -> list[Any]:
    # Sorted, so that equal sets have equal payloads whatever the hash seed of the process.
    return sorted((_pack(value) for value in values), key=_encoder.encode)


def _pack_dict(values: dict[Any, Any]) -> dict[str, Any]:
    if any(type(key) is not str or key.startswith("$") for key in values):
        return {"$dict": [[_pack_key(key), _pack_entry(key, value)] for key, value in values.items()]}
    return {key: _pack_entry(key, value) for key, value in values.items()}


def _pack_key(key: Any) -> Any:
    try:
        return _pack(key)
    except _UnstorableError as error:
        raise error.under(f"[key {shown(key)}]") from None


def _pack_entry(key: Any, value: Any) -> Any:
    try:
        return _pack(value)
    except _UnstorableError as error:
        raise error.under(f"[{shown(key)}]") from None


def _pack_float(value: float) -> Any:
    return value if math.isfinite(value) else {"$float": str(value)}


def _pack_object(value: Any) -> Any:
    cls: Any = cast("Any", type(value))
    if issubclass(cls, Enum):
        return {"$enum": _findable(cls), "value": _pack(value.value)}
    if cls in _PATHS.values():
        return {"$path": f"{cls.__name__}:{value}"}
    if hasattr(cls, "model_validate") and hasattr(cls, "model_dump"):
        return {"$model": _findable(cls), "value": value.model_dump(mode="json")}
    names = _field_names(cls)
    if names is None:
        is_promise = hasattr(cls, "__await__")
        raise _UnstorableError(
            cls.__qualname__, " It is not the value but a promise of it: await it first." if is_promise else ""
        )
    fields: dict[str, Any] = {}
    for name in names:
        try:
            fields[name] = _pack(getattr(value, name))
        except AttributeError:
            continue  # A field that was never set stays unset.
        except _UnstorableError as error:
            raise error.under(f".{name}") from None
    return {"$object": _findable(cls), "fields": fields}


def _field_names(cls: Any) -> tuple[str, ...] | None:
    if dataclasses.is_dataclass(cls):
        return tuple(field.name for field in dataclasses.fields(cls))
    if issubclass(cls, msgspec.Struct):
        names: tuple[str, ...] = cls.__struct_fields__
        return names
    if hasattr(cls, "_fields") and _is_tuple(cls):
        return tuple(cls._fields)
    if hasattr(cls, "__attrs_attrs__"):
        return tuple(attribute.name for attribute in cls.__attrs_attrs__)
    return None


def _is_tuple(cls: type) -> bool:
    return issubclass(cls, tuple)


def _findable(cls: type) -> str:
    name = class_name(cls)
    if imported_class(name) is not cls:
        raise _UnstorableError(
            cls.__qualname__, " Its class cannot be found by name: define it at the top level of a module."
        )
    return name


_PACKERS: Final[dict[type, Callable[[Any], Any]]] = {
    str: _same,
    int: _same,
    bool: _same,
    type(None): _same,
    float: _pack_float,
    list: _pack_items,
    dict: _pack_dict,
    tuple: lambda value: {"$tuple": _pack_items(value)},
    set: lambda value: {"$set": _pack_set(value)},
    frozenset: lambda value: {"$frozenset": _pack_set(value)},
    bytes: lambda value: {"$bytes": base64.b64encode(value).decode()},
    Decimal: lambda value: {"$decimal": str(value)},
    datetime: lambda value: {"$datetime": value.isoformat()},
    date: lambda value: {"$date": value.isoformat()},
    time: lambda value: {"$time": value.isoformat()},
    timedelta: lambda value: {"$timedelta": [value.days, value.seconds, value.microseconds]},
    UUID: lambda value: {"$uuid": str(value)},
    complex: lambda value: {"$complex": [_pack_float(value.real), _pack_float(value.imag)]},
}


def _unpack(value: Any) -> Any:
    if type(value) is list:
        return [_unpack(item) for item in cast("Any", value)]
    if type(value) is not dict:
        return value
    packed = cast("dict[str, Any]", value)
    tag = next(iter(packed), "")
    if not tag.startswith("$"):
        return {key: _unpack(item) for key, item in packed.items()}
    unpacker = _UNPACKERS.get(tag)
    if unpacker is None:
        raise UndecodableError(f"the tag {tag!r} is unknown here; a newer SDK wrote this payload")
    return unpacker(packed)


def _unpack_object(packed: Mapping[str, Any]) -> Any:
    cls = _found(packed["$object"])
    known = _field_names(cls)
    if known is None:
        raise UndecodableError(
            f"{packed['$object']} is no longer a dataclass, NamedTuple, Struct or attrs class; expected what it was"
            " when the value was stored"
        )
    stored = upcast_fields(cls, {name: _unpack(item) for name, item in packed["fields"].items()})
    fields = {name: item for name, item in stored.items() if name in known}
    if _is_tuple(cls) or issubclass(cls, msgspec.Struct):
        return cls(**fields)
    value: Any = object.__new__(cls)
    for name in known:
        if name not in fields:
            _set_default(value, cls, name)
        else:
            object.__setattr__(value, name, fields[name])
    return value


def _set_default(value: Any, cls: Any, name: str) -> None:
    """A field that came with a later version of the class takes its default; without one it stays unset."""
    if not dataclasses.is_dataclass(cls):
        _set_attrs_default(value, cls, name)
        return
    field = next(field for field in dataclasses.fields(cls) if field.name == name)
    if field.default is not dataclasses.MISSING:
        object.__setattr__(value, name, field.default)
    elif field.default_factory is not dataclasses.MISSING:
        object.__setattr__(value, name, field.default_factory())


def _set_attrs_default(value: Any, cls: Any, name: str) -> None:
    default = next(field.default for field in cls.__attrs_attrs__ if field.name == name)
    factory = getattr(default, "factory", None)
    if factory is not None:
        default = factory(value) if default.takes_self else factory()
    if type(default).__name__ != "_Nothing":  # What attrs has for a field without a default.
        object.__setattr__(value, name, default)


def _unpack_path(text: str) -> pathlib.PurePath:
    name, _, path = text.partition(":")
    return _PATHS[name](path)


def _found(name: str) -> Any:
    cls = imported_class(name)
    if cls is None:
        raise UndecodableError(
            f"the class {name} is not imported in this process; import its module where the worker's workflows are"
            " defined, then resume the run"
        )
    return cls


def _unpack_enum(packed: Mapping[str, Any]) -> Any:
    cls = _found(packed["$enum"])
    if not issubclass(cls, Enum):
        raise UndecodableError(f"{packed['$enum']} is no longer an Enum")
    return cls(_unpack(packed["value"]))


def _unpack_model(packed: Mapping[str, Any]) -> Any:
    cls = _found(packed["$model"])
    if not hasattr(cls, "model_validate"):
        raise UndecodableError(f"{packed['$model']} is no longer a Pydantic model")
    return cls.model_validate(packed["value"])


_UNPACKERS: Final[dict[str, Callable[[dict[str, Any]], Any]]] = {
    "$tuple": lambda packed: tuple(_unpack(packed["$tuple"])),
    "$set": lambda packed: set(_unpack(packed["$set"])),
    "$frozenset": lambda packed: frozenset(_unpack(packed["$frozenset"])),
    "$bytes": lambda packed: base64.b64decode(packed["$bytes"], validate=True),
    "$decimal": lambda packed: Decimal(packed["$decimal"]),
    "$datetime": lambda packed: datetime.fromisoformat(packed["$datetime"]),
    "$date": lambda packed: date.fromisoformat(packed["$date"]),
    "$time": lambda packed: time.fromisoformat(packed["$time"]),
    "$timedelta": lambda packed: timedelta(*packed["$timedelta"]),
    "$uuid": lambda packed: UUID(packed["$uuid"]),
    "$float": lambda packed: float(packed["$float"]),
    "$complex": lambda packed: complex(*_unpack(packed["$complex"])),
    "$path": lambda packed: _unpack_path(packed["$path"]),
    "$dict": lambda packed: {_unpack(key): _unpack(item) for key, item in packed["$dict"]},
    "$enum": _unpack_enum,
    "$object": _unpack_object,
    "$model": _unpack_model,
}

_encoder = msgspec.json.Encoder()
_decoder: msgspec.json.Decoder[Any] = msgspec.json.Decoder()
