"""Names that are stored: those of definitions, and those of classes, which are only ever looked up among imports."""

from __future__ import annotations

import sys
from functools import partial
from typing import Any, Final, cast

from pgwf_sdk._errors import DefinitionError
from pgwf_sdk._kinds import described
from pgwf_sdk._wording import shown

NAME_BYTES_MAX = 200
ID_BYTES_MAX = 512
HUMAN_PREFIX: Final = "human."
"""Needs that begin with it belong to people: no program may offer them."""
_RESERVED = frozenset("/#[]")  # They have a meaning in entry keys.


def check_name(name: str, subject: str) -> str:
    """Return `name` when it may be part of an entry key. DefinitionError: it may not, and why."""
    size = len(_text(name, f"{subject}: name").encode(errors="replace"))
    if not 1 <= size <= NAME_BYTES_MAX:
        raise DefinitionError(f"{subject}: the name {name[:50]!r} is {size} bytes long; expected 1 to {NAME_BYTES_MAX}")
    if not _RESERVED.isdisjoint(name) or not name.isprintable():
        raise DefinitionError(
            f"{subject}: the name {name!r} has a character that entry keys reserve; expected printable text"
            " without any of / # [ ]"
        )
    return name


def check_id(text: str, subject: str) -> str:
    """Return `text` when the database takes it as a run id or as a need. DefinitionError: it does not, and why."""
    size = len(check_storable(text, subject).encode())
    if not 1 <= size <= ID_BYTES_MAX or min(text) < " " or "\x7f" in text:
        raise DefinitionError(
            f"{subject}: {text[:50]!r} is {size} bytes long; expected 1 to {ID_BYTES_MAX} without control characters"
        )
    return text


def check_need(need: str, subject: str) -> str:
    """Return `need` when programs may offer it. DefinitionError: they may not, or the database does not take it."""
    if check_id(need, subject).startswith(HUMAN_PREFIX):
        raise DefinitionError(
            f"{subject}: {need!r} belongs to people, as all that begins with {HUMAN_PREFIX!r}, so no worker would ever"
            " come; expected another need, or ctx.human(…) for what a person decides"
        )
    return need


def check_storable(text: str, subject: str) -> str:
    """Return `text` when the database can hold it. DefinitionError: it cannot."""
    if "\0" in _text(text, subject) or (not text.isascii() and text != text.encode(errors="replace").decode()):
        raise DefinitionError(f"{subject}: {text[:50]!r} has a NUL or half of a surrogate pair; expected text")
    return text


def _text(found: str, subject: str) -> str:
    if not isinstance(cast("object", found), str):
        raise DefinitionError(f"{subject}: found {described(found)}; expected a text")
    return found


def name_of(fn: Any) -> str:
    """Return the name a function has in journals: the tail of its qualified name, so that moving it changes nothing.

    DefinitionError: a lambda, or a partial without `__name__`, has no name that would last.
    """
    attribute = "__name__" if isinstance(fn, partial) else "__qualname__"
    qualname = getattr(cast("Any", fn), attribute, None)
    name = qualname.rpartition(".")[2] if isinstance(qualname, str) else ""
    if not name or name == "<lambda>":
        found = shown(cast("Any", fn))
        raise DefinitionError(
            f"{found} has no name of its own, and steps and workflows are known by name in the journal;"
            ' give it one: step(name="…")(fn)'
        )
    return check_name(name, repr(cast("Any", fn)))


def class_name(cls: type) -> str:
    """Return `module:Qualname`, by which `imported_class` finds the class again in any process that imported it."""
    return f"{cls.__module__}:{cls.__qualname__}"


def imported_class(name: str) -> type | None:
    """Return the class called `name` (`module:Qualname`) if its module is imported already; never imports anything.

    Stored data must not decide what code gets loaded.
    """
    module, _, qualname = name.partition(":")
    found: Any = sys.modules.get(module)
    for part in qualname.split("."):
        found = getattr(found, part, None)
    return found if isinstance(found, type) else None


def annotation_text(annotation: Any) -> str:
    """Return an annotation as a reader would write it."""
    return annotation.__qualname__ if isinstance(annotation, type) else str(annotation).replace("typing.", "")
