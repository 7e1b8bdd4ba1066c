"""Arguments of another kind than a call takes, told as subject, found, expected; knows nothing of workflows.

`used` is what was called, with the option as it was written: `result(timeout=…)`.
"""

from __future__ import annotations

from datetime import datetime, timedelta

from pgwf_sdk._wording import shown

_INSTANT = "datetime(2031, 2, 3, tzinfo=UTC)"
_OFFSET_END = timedelta(hours=16)  # as PostgreSQL has it
_MODULES_OF_TYPES = frozenset({"typing", "typing_extensions", "types"})
"""Where Python has the classes of what is no class and yet a type: `int | None`, `list[int]`, `Literal["a"]`."""
_TEXTS = ("run_id", "task_id", "name")
"""What callers mean when they pass the thing itself: a run's handle, a task, a workflow."""


def check_kind(found: object, kind: type | tuple[type, ...], *, used: str, expected: str) -> None:
    """TypeError: `found` is of none of these classes; a bool is no int."""
    if not isinstance(found, kind) or (kind is int and isinstance(found, bool)):
        raise TypeError(f"{used}: found {described(found)}; expected {expected}")


def check_text(found: object, *, used: str, such_as: str = "") -> None:
    """TypeError: no text."""
    if isinstance(found, str):
        return
    own = next((name for name in _TEXTS if isinstance(getattr(found, name, None), str)), None)
    example = f", such as {such_as!r}" if such_as else ""
    check_kind(found, str, used=used, expected=f"a text: its {own}" if own else f"a text{example}")


def check_type(found: object, *, used: str) -> None:
    """TypeError: no type that a value can be read as; a text passes for the name of one."""
    if found is None or isinstance(found, type | str) or type(found).__module__ in _MODULES_OF_TYPES:
        return
    expected = "the type of what is to come, such as str"
    if isinstance(found, timedelta | int | float):
        expected += ", and a time limit by its name: timeout=timedelta(minutes=5)"
    raise TypeError(f"{used}: found {described(found)}; expected {expected}")


def check_texts(used: str, /, **options: object) -> None:
    """TypeError: an option of the call `used` is no text. None is fine: it was left out."""
    for option, found in options.items():
        if found is not None:
            check_text(found, used=f"{used}({option}=…)")


def check_counts(used: str, /, **options: object) -> None:
    """TypeError: an option of the call `used` is no whole number. None is fine: it was left out."""
    for option, found in options.items():
        if found is not None:
            check_kind(found, int, used=f"{used}({option}=…)", expected="a whole number, such as 3")


def check_timedelta(found: object, *, used: str) -> None:
    """TypeError: a number lacks a unit."""
    if not isinstance(found, timedelta):
        raise TypeError(f"{used}: found {shown(found)}; expected a timedelta, such as timedelta(seconds=5)")


def check_wait(found: timedelta, *, used: str) -> None:
    """TypeError: no timedelta. ValueError: a negative one; zero looks once and does not wait."""
    check_timedelta(found, used=used)
    if found < timedelta(0):
        raise ValueError(f"{used}: found {found!r}, which is negative; expected timedelta(0) or longer")


def check_instants(used: str, /, **options: object) -> None:
    """TypeError, ValueError: an option of the call `used` is no instant. None is fine: it was left out."""
    for option, found in options.items():
        if found is not None:
            check_instant(found, used=f"{used}({option}=…)")


def check_instant(found: object, *, used: str) -> None:
    """TypeError: no instant. ValueError: one without a time zone, or with one that PostgreSQL does not know."""
    if isinstance(found, timedelta):
        raise TypeError(f"{used}: found {found!r}; expected a datetime: datetime.now(UTC) + {found!r}")
    if not isinstance(found, datetime):
        raise TypeError(f"{used}: found {shown(found)}; expected a datetime, such as {_INSTANT}")
    offset = found.utcoffset()
    if offset is None:
        raise ValueError(f"{used}: found {found!r}, which has no time zone; expected one, as in {_INSTANT}")
    if abs(offset) >= _OFFSET_END:
        raise ValueError(f"{used}: found {found!r}; expected less than {_OFFSET_END} between its time zone and UTC")


def described(found: object) -> str:
    """The value and its class: `17, an int`; None alone says it all."""
    if found is None:
        return "None"
    return f"{shown(found)}, {kind_of(found)}"


def kind_of(found: object) -> str:
    """The class alone, where the value may be a secret: `an int`."""
    name = type(found).__name__
    return f"{'an' if name[0].lower() in 'aeiou' else 'a'} {name}"
