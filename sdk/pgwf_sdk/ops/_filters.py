"""The filter language: `status:failed,cancelled workflow:refund age:<1h -need:gpu order-17`.

Words are joined by AND, the values of one word by OR, a leading `-` means not. A word without a key is the
beginning of a run id. Lists show root runs only unless `parent:` or `root:` says otherwise, because children
would drown them.
"""

import re
from collections.abc import Callable, Iterable
from datetime import timedelta
from types import MappingProxyType

from msgspec import Struct
from msgspec.json import encode
from msgspec.structs import replace

from pgwf_sdk.ops._rows import STATUSES

FILTER_WORDS_MAX = 32
DURATION_SECONDS_MAX = 100 * 366 * 86_400  # A hundred years: what PostgreSQL's timestamps bear from any date in use.

_SECONDS_OF_UNIT = MappingProxyType({"s": 1, "m": 60, "h": 3_600, "d": 86_400, "w": 604_800})
_DURATION = re.compile(r"(?P<number>\d+(?:\.\d+)?)(?P<unit>[smhdw])")


class FilterError(ValueError):
    """A filter word that means nothing. `word` is the word; the message says what is accepted in its place."""

    def __init__(self, word: str, expected: str) -> None:
        super().__init__(f"filter {word!r}: {expected}")
        self.word = word
        self.expected = expected


class RunFilter(Struct, frozen=True, kw_only=True):
    """Which runs to list; an empty filter means every root run. Each field narrows further.

    `attributes` are names with a value each, as JSON; the first should be the one that fewest runs have.
    `id_prefix` is the beginning of a run id. `parent` is a run id, `any` (children too) or `none` (the
    default: root runs only). `younger_than` and `older_than` look at the time since the run was created,
    `longer_than` and `shorter_than` at its duration up to now or to its end.
    """

    statuses: tuple[str, ...] = ()
    not_statuses: tuple[str, ...] = ()
    workflows: tuple[str, ...] = ()
    not_workflows: tuple[str, ...] = ()
    needs: tuple[str, ...] = ()
    not_needs: tuple[str, ...] = ()
    workers: tuple[str, ...] = ()
    builds: tuple[str, ...] = ()
    attributes: tuple[tuple[str, str], ...] = ()
    id_prefix: str | None = None
    parent: str | None = None
    root: str | None = None
    younger_than: timedelta | None = None
    older_than: timedelta | None = None
    longer_than: timedelta | None = None
    shorter_than: timedelta | None = None


def parse_filter(words: Iterable[str]) -> RunFilter:
    """The filter that `words` describe. FilterError names the first word that means nothing."""
    found = RunFilter()
    for number, word in enumerate(words, 1):
        if number > FILTER_WORDS_MAX:
            raise FilterError(word, f"a filter has at most {FILTER_WORDS_MAX} words")
        found = _with_word(found, word)
    return found


def parse_duration(text: str, *, word: str | None = None) -> timedelta:
    """The duration that a number and a unit spell (`90s`, `5m`, `1.5h`, `2d`, `1w`). FilterError if they
    spell none.
    """
    match = _DURATION.fullmatch(text)
    seconds = float(match["number"]) * _SECONDS_OF_UNIT[match["unit"]] if match else 0.0
    if not match or seconds > DURATION_SECONDS_MAX:
        raise FilterError(word or text, "expected a duration such as 90s, 5m, 1.5h, 2d or 1w")
    return timedelta(seconds=seconds)


def _with_word(found: RunFilter, word: str) -> RunFilter:
    negated = word.startswith("-") and len(word) > 1
    key, colon, value = (word[1:] if negated else word).partition(":")
    if not colon:
        if negated:
            raise FilterError(word, "only key:value words can be negated, as in -status:failed")
        return replace(found, id_prefix=word.removesuffix("*"))
    reader = _READERS.get(key)
    if reader is None:
        raise FilterError(word, f"unknown key; known are {', '.join(sorted(_READERS))}")
    if not value and key in _OF_DURATIONS:
        raise FilterError(word, f"the key has no value; quote it, as in '{key}:<1h': a shell takes < and > for itself")
    if not value:
        raise FilterError(word, "the key has no value; write key:value without a space")
    if negated and key not in _NEGATABLE:
        raise FilterError(word, f"{key} cannot be negated; {', '.join(sorted(_NEGATABLE))} can")
    return reader(found, word, value, negated)


_Reader = Callable[[RunFilter, str, str, bool], RunFilter]


def _read_statuses(found: RunFilter, word: str, value: str, negated: bool) -> RunFilter:
    values = _values(word, value)
    unknown = [status for status in values if status not in STATUSES]
    if unknown:
        raise FilterError(word, f"no status is called {unknown[0]!r}; they are {', '.join(STATUSES)}")
    return replace(found, **{"not_statuses" if negated else "statuses": values})


def _values_reader(field: str, negated_field: str | None = None) -> _Reader:
    def read(found: RunFilter, word: str, value: str, negated: bool) -> RunFilter:
        name = negated_field if negated and negated_field else field
        return replace(found, **{name: _values(word, value)})

    return read


def _text_reader(field: str) -> _Reader:
    def read(found: RunFilter, word: str, value: str, negated: bool) -> RunFilter:
        return replace(found, **{field: value.removesuffix("*") if field == "id_prefix" else value})

    return read


def _read_attribute(found: RunFilter, word: str, value: str, negated: bool) -> RunFilter:
    name, equals, text = value.partition("=")
    if not name or not equals:
        raise FilterError(word, "expected attr:name=value, as in attr:customer=17")
    return replace(found, attributes=(*found.attributes, (name, encode(text).decode())))


def _duration_reader(below: str, above: str) -> _Reader:
    def read(found: RunFilter, word: str, value: str, negated: bool) -> RunFilter:
        if value[0] not in "<>":
            raise FilterError(word, "expected < or > before the duration, as in age:<1h")
        return replace(found, **{below if value[0] == "<" else above: parse_duration(value[1:], word=word)})

    return read


def _values(word: str, value: str) -> tuple[str, ...]:
    values = tuple(value.split(","))
    if not all(values):
        raise FilterError(word, "a value between the commas is empty")
    return values


_OF_DURATIONS = frozenset({"age", "dur"})
_NEGATABLE = frozenset({"need", "status", "type", "workflow"})
_READERS = MappingProxyType(
    {
        "age": _duration_reader("younger_than", "older_than"),
        "attr": _read_attribute,
        "build": _values_reader("builds"),
        "dur": _duration_reader("shorter_than", "longer_than"),
        "id": _text_reader("id_prefix"),
        "need": _values_reader("needs", "not_needs"),
        "parent": _text_reader("parent"),
        "root": _text_reader("root"),
        "status": _read_statuses,
        "type": _values_reader("workflows", "not_workflows"),
        "worker": _values_reader("workers"),
        "workflow": _values_reader("workflows", "not_workflows"),
    }
)
