"""What a call of a user's function must fit, and how each of its arguments is stored."""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, partial
from typing import Any

from pgwf_sdk._serial import Codec, codec_for

__all__ = ["Parameters", "annotations_of"]


class Parameters:
    """The parameters of a function after the first `given_count`, which the SDK gives it itself.

    `subject` and `name` are what errors call the function.
    """

    def __init__(self, fn: Callable[..., Any], subject: str, name: str, *, given_count: int) -> None:
        self._fn = fn
        self._subject = subject
        self._name = name
        self._given_count = given_count

    def __str__(self) -> str:
        return str(self.signature or "(…)")

    def __len__(self) -> int:
        return len(self._all)

    @cached_property
    def signature(self) -> inspect.Signature | None:
        """The parameters as Python knows them; None for the few built-ins that do not tell."""
        try:
            whole = inspect.signature(self._fn)
        except (ValueError, TypeError):
            return None
        return whole.replace(parameters=list(whole.parameters.values())[self._given_count :])

    def check(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        """TypeError: the arguments do not fit, which no retry would mend."""
        if self.signature is None or (not kwargs and len(args) in self._plain_counts):
            return
        try:
            self.signature.bind(*args, **kwargs)
        except TypeError as error:
            raise TypeError(f"{self._subject}: {error}; expected {self._name}{self}") from None

    def name_at(self, index: int) -> str:
        """What the positional argument at `index` is called."""
        for position, parameter in enumerate(self._all):
            if parameter.kind is parameter.VAR_POSITIONAL:
                return f"{parameter.name}[{index - position}]"
            if position == index:
                return parameter.name
        return f"args[{index}]"

    def codec_at(self, index: int) -> Codec:
        """The codec of the positional argument at `index`."""
        if index < len(self._plain_codecs):
            return self._plain_codecs[index]
        rest = (p.name for p in self._all if p.kind is p.VAR_POSITIONAL)
        return self._codecs.get(next(rest, ""), codec_for(None))

    def codec_named(self, name: str) -> Codec:
        """The codec of an argument by name."""
        if name in self._codecs:
            return self._codecs[name]
        rest = (p.name for p in self._all if p.kind is p.VAR_KEYWORD)
        return self._codecs.get(next(rest, ""), codec_for(None))

    @cached_property
    def _all(self) -> list[inspect.Parameter]:
        return [] if self.signature is None else list(self.signature.parameters.values())

    @cached_property
    def _plain_counts(self) -> range:
        """How many positional arguments, and none by name, fit whatever they are."""
        if any(p.kind not in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD) for p in self._all):
            return range(0)
        return range(sum(p.default is p.empty for p in self._all), len(self._all) + 1)

    @cached_property
    def _codecs(self) -> dict[str, Codec]:
        hints = annotations_of(self._fn)
        return {p.name: codec_for(hints.get(p.name)) for p in self._all}

    @cached_property
    def _plain_codecs(self) -> list[Codec]:
        return [self._codecs[p.name] for p in self._all if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]


def annotations_of(fn: Callable[..., Any]) -> dict[str, Any]:
    """The annotations of a function as types; one that names what is not there at run time is left out.

    `-> None` stays None, which a codec takes for "any": None itself is stored without a payload either way.
    """
    while isinstance(fn, partial):
        fn = fn.func
    function = inspect.unwrap(fn)
    written: dict[str, Any] = getattr(function, "__annotations__", {})
    code, cells = getattr(function, "__code__", None), getattr(function, "__closure__", None)
    local: dict[str, Any] = {}
    for name, cell in zip(getattr(code, "co_freevars", ()), cells or (), strict=False):
        try:
            local[name] = cell.cell_contents
        except ValueError:
            continue  # Assigned later than the function was made.
    try:
        return typing.get_type_hints(function, localns=local or None, include_extras=True)
    except (NameError, TypeError, AttributeError, SyntaxError):
        pass
    found: dict[str, Any] = {}
    for name, annotation in written.items():
        lone = type("_Lone", (), {"__annotations__": {name: annotation}})
        try:
            namespace = {**getattr(function, "__globals__", {}), **local}
            found[name] = typing.get_type_hints(lone, globalns=namespace, include_extras=True)[name]
        except (NameError, TypeError, AttributeError, SyntaxError):
            continue
    return found
