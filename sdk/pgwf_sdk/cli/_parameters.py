"""Values from the command line: `-P name=text`, `-P name:=json`, dotted names for what lies inside, `-i` for all at
once.
"""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import msgspec
from msgspec import Struct

from pgwf_sdk.cli._exit import CliError, ExitCode

INPUT_BYTES_MAX = 64 * 1024 * 1024


class Parameter(Struct, frozen=True):
    """One `-P`: where the value goes, and the value; `is_text` when it was given with `=` and so may need a type."""

    path: tuple[str, ...]
    value: Any
    is_text: bool


def parse_parameters(texts: Sequence[str]) -> list[Parameter]:
    """The parameters in the order given. CliError (invalid input) says what is wrong with the first wrong one."""
    return [_parse(text) for text in texts]


def read_input(text: str | None) -> bytes | None:
    """The JSON of `-i`: itself, `@file`, or `-` for standard input. CliError when it cannot be read or is no JSON."""
    if text is None:
        return None
    raw = _read_source(text)
    try:
        msgspec.json.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise CliError(f"-i {_shown(text)}: it is not JSON: {error}", ExitCode.INVALID_INPUT) from error
    return raw


def assembled(parameters: Sequence[Parameter]) -> dict[str, Any]:
    """One object with every value at its path; a whole number as a name is the place in a list, from 0."""
    root: dict[str, Any] = {}
    for parameter in parameters:
        _place(root, parameter)
    return {name: _with_lists(value) for name, value in root.items()}


def _parse(text: str) -> Parameter:
    name, equals, value = text.partition("=")
    is_json = name.endswith(":")
    path = tuple(name.removesuffix(":").split("."))
    if not equals or not all(path):
        raise CliError(
            f"-P {text!r}: expected name=text or name:=json, such as -P city=Ghent or -P count:=3",
            ExitCode.INVALID_INPUT,
        )
    if not is_json:
        return Parameter(path, value, is_text=True)
    try:
        return Parameter(path, msgspec.json.decode(value), is_text=False)
    except msgspec.DecodeError as error:
        raise CliError(
            f"-P {text!r}: what follows := is not JSON ({error}); for text write {name.removesuffix(':')}={value}",
            ExitCode.INVALID_INPUT,
        ) from error


def _read_source(text: str) -> bytes:
    try:
        if text == "-":
            raw = sys.stdin.buffer.read(INPUT_BYTES_MAX + 1)
        elif text.startswith("@"):
            with Path(text[1:]).open("rb") as file:
                raw = file.read(INPUT_BYTES_MAX + 1)
        else:
            raw = text.encode()
    except OSError as error:
        raise CliError(f"-i {text}: {error.strerror or error}", ExitCode.INVALID_INPUT) from error
    if len(raw) > INPUT_BYTES_MAX:
        raise CliError(f"-i {_shown(text)}: more than {INPUT_BYTES_MAX} bytes", ExitCode.INVALID_INPUT)
    return raw


def _place(root: dict[str, Any], parameter: Parameter) -> None:
    *parents, last = parameter.path
    target: dict[str, Any] | None = root
    for name in parents:
        target = None if target is None else _object(target.setdefault(name, {}))
    if target is None or last in target:
        raise CliError(
            f"-P {'.'.join(parameter.path)}: it was given twice, or as a value and as a part of that value",
            ExitCode.INVALID_INPUT,
        )
    target[last] = parameter.value


def _with_lists(value: Any) -> Any:
    parts = _object(value)
    if parts is None:
        return value
    if parts and all(name.isdecimal() for name in parts):
        places = sorted(parts, key=int)
        if [int(place) for place in places] == list(range(len(places))):
            return [_with_lists(parts[place]) for place in places]
    return {name: _with_lists(part) for name, part in parts.items()}


def _object(value: Any) -> dict[str, Any] | None:
    return cast("dict[str, Any]", value) if isinstance(value, dict) else None


def _shown(text: str) -> str:
    return text if len(text) <= 40 else f"{text[:39]}…"
