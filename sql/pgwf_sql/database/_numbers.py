"""Whole numbers that the database's types can hold: beyond them PostgreSQL finds no such function, or has no room."""

from collections.abc import Mapping
from typing import SupportsIndex

BITS_OF_INT = 32
BITS_OF_BIGINT = 64
_SHOWN_CHARS_MAX = 50


def whole_numbers(numbers: Mapping[str, object], *, bits: int, refusal: type[Exception]) -> dict[str, object]:
    """The numbers by their names, as parameters of a statement; None stays. `refusal`: one is no whole number, or
    beyond what so many bits hold."""
    bound = 1 << (bits - 1)
    for name, found in numbers.items():
        if found is None:
            continue
        if isinstance(found, bool) or not isinstance(found, SupportsIndex):
            raise refusal(f"{name} is {shown_number(found)}, expected a whole number")
        if not -bound <= found.__index__() < bound:
            raise refusal(f"{name} is {shown_number(found)}, expected a number from -2^{bits - 1} to 2^{bits - 1} - 1")
    return dict(numbers)


def shown_number(found: object) -> str:
    """The number in a line that fits a sentence; Python writes none of more than 4,300 digits."""
    try:
        text = repr(found)
    except ValueError:
        return "a number of thousands of digits"
    return text if len(text) <= _SHOWN_CHARS_MAX else f"{text[:_SHOWN_CHARS_MAX]}…"
