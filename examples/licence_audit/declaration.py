"""What a distribution declares: SPDX expressions, or what can be made of older fields."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Literal

import msgspec

from examples.licence_audit import catalogue, matching
from examples.licence_audit.catalogue import Category

if TYPE_CHECKING:
    from examples.licence_audit.evidence import Metadata

_TOKEN = re.compile(r"\(|\)|[^\s()]+")
_NAME_CHARACTERS_MAX = 200  # A License field longer than this is a pasted licence, not a name.

Source = Literal["License-Expression", "License", "Classifier", "Text", ""]


class Declared(msgspec.Struct, frozen=True):
    """A distribution's own statement. One of `expression` and `family` is set, or neither if there is none.

    `family` are the licences an ambiguous name may mean ("BSD"); which one it is only the text can tell.
    """

    source: Source = ""
    raw: str = ""
    expression: str = ""
    family: tuple[str, ...] = ()

    @property
    def is_known(self) -> bool:
        return bool(self.expression or self.family)

    @property
    def licences(self) -> tuple[str, ...]:
        return identifiers(self.expression) if self.expression else self.family

    @property
    def category(self) -> Category:
        if self.expression:
            return category(self.expression)
        kinds = [catalogue.category(licence) for licence in self.family]
        return max(kinds, key=lambda kind: kind.rank, default=Category.UNKNOWN)

    @property
    def text(self) -> str:
        """How the report writes it."""
        return self.expression or (f"{self.raw} (not exact)" if self.family else self.raw)


def declared(metadata: Metadata) -> Declared:
    """Return the most exact statement: License-Expression, then a named License, classifiers, a pasted text."""
    if metadata.license_expression:
        expression = catalogue.canonical(metadata.license_expression)
        return Declared("License-Expression", metadata.license_expression, expression)
    field, is_pasted = metadata.license_field, len(metadata.license_field) > _NAME_CHARACTERS_MAX
    candidates: list[Declared] = []
    if field and not is_pasted:
        candidates.append(_from_name(field))
    if metadata.classifiers:
        candidates.append(_from_classifiers(metadata.classifiers))
    if is_pasted:
        candidates.append(_from_text(field))
    exact = next((candidate for candidate in candidates if candidate.expression and candidate.source != "Text"), None)
    vague = next((candidate for candidate in candidates if candidate.is_known), None)
    return exact or vague or next(iter(candidates), Declared())


def _from_text(field: str) -> Declared:
    """Return what a whole licence text, pasted into the License field, says."""
    reading = matching.read(field)
    found = [catalogue.with_exception(match.licence, reading.exceptions) for match in reading.matches]
    return Declared("Text", " ".join(field.split())[:60] + " …", " AND ".join(found))


def _from_name(field: str) -> Declared:
    raw = " ".join(field.split())
    if expression := catalogue.canonical(raw):
        return Declared("License", raw, expression)
    choices = re.split(r"(?i)\s+or\s+|\s*/\s*|\s*\|\s*", raw)
    named = [
        catalogue.NAMES.get(catalogue.simplified(choice)) or _single(catalogue.canonical(choice)) for choice in choices
    ]
    if len(named) > 1 and all(len(licences) == 1 for licences in named):
        return Declared("License", raw, " OR ".join(licences[0] for licences in named))
    return _named("License", raw, catalogue.NAMES.get(catalogue.simplified(raw), ()))


def _single(licence: str) -> tuple[str, ...]:
    return (licence,) if licence else ()


def _from_classifiers(classifiers: tuple[str, ...]) -> Declared:
    leaves = [leaf for text in classifiers if (leaf := text.rsplit("::", 1)[-1].strip()) != "OSI Approved"]
    raw = "; ".join(leaves)
    named = [catalogue.NAMES.get(catalogue.simplified(leaf), ()) for leaf in leaves]
    if len(leaves) == 1:
        return _named("Classifier", raw, named[0])
    # Several classifiers may be a choice or a sum: nothing says which, so the texts have to.
    return Declared(
        "Classifier", raw, family=tuple(dict.fromkeys(licence for licences in named for licence in licences))
    )


def _named(source: Source, raw: str, licences: tuple[str, ...]) -> Declared:
    if len(licences) == 1:
        return Declared(source, raw, licences[0])
    return Declared(source, raw, family=licences)


# --- SPDX expressions -----------------------------------------------------------------------------------------
# The grammar is SPDX's: WITH binds tightest, then AND, then OR. Only canonical expressions get here.


class _Leaf(msgspec.Struct, frozen=True):
    licence: str
    exception: str = ""


class _Both(msgspec.Struct, frozen=True):
    parts: tuple[_Node, ...]


class _Either(msgspec.Struct, frozen=True):
    parts: tuple[_Node, ...]


_Node = _Leaf | _Both | _Either


def identifiers(expression: str) -> tuple[str, ...]:
    """Return the licence identifiers of an expression in order, without exceptions."""
    return tuple(dict.fromkeys(leaf.licence for leaf in _leaves(_parsed(expression))))


def category(expression: str) -> Category:
    """Return what an expression asks: of `AND` the strictest part, of `OR` the mildest."""
    return _category(_parsed(expression))


def without_text(expression: str, licences: set[str]) -> tuple[str, ...]:
    """Return the licences that the expression needs and whose texts are not among `licences`.

    Of alternatives (OR) only the one with the fewest missing counts.
    """
    return _missing(_parsed(expression), {catalogue.stem(licence) for licence in licences})


def _category(node: _Node) -> Category:
    match node:
        case _Leaf(licence, exception):
            return catalogue.category(licence, exception)
        case _Both(parts):
            return max((_category(part) for part in parts), key=lambda kind: kind.rank)
        case _Either(parts):
            return min((_category(part) for part in parts), key=lambda kind: kind.rank)


def _missing(node: _Node, stems: set[str]) -> tuple[str, ...]:
    match node:
        case _Leaf(licence):
            return () if any(same_text(licence, stem) for stem in stems) else (licence,)
        case _Both(parts):
            return tuple(licence for part in parts for licence in _missing(part, stems))
        case _Either(parts):
            return min((_missing(part, stems) for part in parts), key=len)


def same_text(licence: str, found: str) -> bool:
    """Return whether the text found is, or holds, the text of a declared licence."""
    return catalogue.stem(licence) in _HOLDS.get(catalogue.stem(found), (catalogue.stem(found),))


# Texts that hold others: CPython's stack of licences begins with PSF-2.0; LGPL-3.0 adds permissions to GPL-3.0.
_PYTHON_TEXTS = ("PSF-2.0", "Python-2.0", "Python-2.0.1", "CNRI-Python")
_HOLDS: dict[str, tuple[str, ...]] = {
    "Python-2.0": _PYTHON_TEXTS,
    "Python-2.0.1": _PYTHON_TEXTS,
    "MIT-CMU": ("MIT-CMU", "HPND"),
}


def _leaves(node: _Node) -> list[_Leaf]:
    if isinstance(node, _Leaf):
        return [node]
    return [leaf for part in node.parts for leaf in _leaves(part)]


def _parsed(expression: str) -> _Node:
    tokens: list[str] = _TOKEN.findall(expression)
    node = _either(tokens)
    if tokens:
        raise ValueError(f"{expression!r} is not an SPDX expression: {tokens[0]!r} is left over")
    return node


def _either(tokens: list[str]) -> _Node:
    parts = [_both(tokens)]
    while tokens and tokens[0] == "OR":
        tokens.pop(0)
        parts.append(_both(tokens))
    return parts[0] if len(parts) == 1 else _Either(tuple(parts))


def _both(tokens: list[str]) -> _Node:
    parts = [_leaf(tokens)]
    while tokens and tokens[0] == "AND":
        tokens.pop(0)
        parts.append(_leaf(tokens))
    return parts[0] if len(parts) == 1 else _Both(tuple(parts))


def _leaf(tokens: list[str]) -> _Node:
    token = tokens.pop(0)
    if token == "(":
        node = _either(tokens)
        tokens.pop(0)
        return node
    if tokens[:1] == ["WITH"]:
        tokens.pop(0)
        return _Leaf(token, tokens.pop(0))
    return _Leaf(token)
