"""Arrays in PostgreSQL's binary format, packed whole: calls that carry thousands of elements spend their time here.

The format is that of PostgreSQL's array_send: dimensions, a flag for NULLs, the element type, length and lower bound,
then each element with its length before it (-1 for NULL).
"""

import struct
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Any, Final
from uuid import UUID

import psycopg
from psycopg.adapt import Dumper
from psycopg.pq import Format

_BOOL: Final = 16
_BYTEA: Final = 17
_INT8: Final = 20
_INT2: Final = 21
_INT4: Final = 23
_TEXT: Final = 25
_FLOAT8: Final = 701
_TIMESTAMPTZ: Final = 1184
_UUID: Final = 2950

_LENGTH: Final = struct.Struct("!i")
_FLOAT: Final = struct.Struct("!id")
_EPOCH: Final = datetime(2000, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)

_NULL: Final = b"\xff\xff\xff\xff"
_TEXT_KEPT_MAX: Final = 64


class PackedArray:
    """An array as it travels; its type is what the statement casts the parameter to."""

    __slots__ = ("data",)

    def __init__(self, data: bytes) -> None:
        self.data = data


class _PackedArrayDumper(Dumper):
    format = Format.BINARY

    def dump(self, obj: PackedArray) -> bytes:
        return obj.data


psycopg.adapters.register_dumper(PackedArray, _PackedArrayDumper)


def bigints(values: Sequence[int | None]) -> PackedArray:
    """A `bigint[]`."""
    return _integers(values, "q", 8, _INT8)


def integers(values: Sequence[int | None]) -> PackedArray:
    """An `int[]`."""
    return _integers(values, "i", 4, _INT4)


def smallints(values: Sequence[int | None]) -> PackedArray:
    """A `smallint[]`."""
    return _integers(values, "h", 2, _INT2)


def floats(values: Sequence[float | None]) -> PackedArray:
    """A `double precision[]`."""
    return _joined([_NULL if value is None else _FLOAT.pack(8, value) for value in values], _FLOAT8)


def booleans(values: Sequence[bool]) -> PackedArray:
    """A `boolean[]`."""
    return _joined([b"\0\0\0\1\1" if value else b"\0\0\0\1\0" for value in values], _BOOL)


def instants(values: Sequence[datetime | None]) -> PackedArray:
    """A `timestamptz[]`."""
    return _integers(
        [None if value is None else (value - _EPOCH) // _MICROSECOND for value in values], "q", 8, _TIMESTAMPTZ
    )


def texts(values: Sequence[str | None]) -> PackedArray:
    """A `text[]`. ValueError: PostgreSQL has no text with a NUL."""
    parts = [
        _NULL if value is None else _kept_text(value) if len(value) <= _TEXT_KEPT_MAX else _packed_text(value)
        for value in values
    ]
    return _joined(parts, _TEXT)


def byteas(values: Sequence[bytes | None]) -> PackedArray:
    """A `bytea[]`."""
    parts = [_NULL if value is None else _LENGTH.pack(len(value)) + value for value in values]
    return _joined(parts, _BYTEA)


def uuids(values: Sequence[UUID]) -> PackedArray:
    """A `uuid[]`."""
    return _joined([b"\0\0\0\x10" + value.int.to_bytes(16, "big") for value in values], _UUID)


def _packed_text(value: str) -> bytes:
    data = value.encode()
    if b"\0" in data:
        raise ValueError(f"{value[:40]!r} holds a NUL, which PostgreSQL's text cannot; expected text without it")
    return _LENGTH.pack(len(data)) + data


# Names, scopes and dispositions come again in every call.
_kept_text = lru_cache(maxsize=4096)(_packed_text)


def _integers(values: Sequence[int | None], code: str, size: int, oid: int) -> PackedArray:
    if None in values:
        one = struct.Struct(f"!i{code}")
        parts = [_NULL if value is None else one.pack(size, value) for value in values]
        return _joined(parts, oid)
    if not values:
        return _joined([], oid)
    flat: list[Any] = [size] * (2 * len(values))
    flat[1::2] = values
    return PackedArray(_header(len(values), oid, False) + struct.pack(f"!{f'i{code}' * len(values)}", *flat))


def _joined(parts: Sequence[bytes], oid: int) -> PackedArray:
    return PackedArray(_header(len(parts), oid, _NULL in parts) + b"".join(parts))


def _header(count: int, oid: int, has_nulls: bool) -> bytes:
    if not count:
        return struct.pack("!iiI", 0, 0, oid)
    return struct.pack("!iiIii", 1, has_nulls, oid, count, 1)
