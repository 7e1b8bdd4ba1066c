"""Recognise known licences in a text by comparing word sequences; several in one file are all found.

Texts are first reduced to words as the SPDX matching guidelines allow: case, punctuation, white space, list
markers, copyright lines and spelling variants do not count. A known licence is then looked for as a run of
3-word sequences that keep their order and distance. What counts as found was set by measuring: see
docs/decisions/licence-matching.md.
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from dataclasses import dataclass
from functools import cache
from itertools import pairwise

import msgspec

from examples.licence_audit import catalogue

SEQUENCE_WORDS = 3
FOUND_SHARE_MIN = 0.80  # Of a known text's sequences; below it, a licence shares clauses with this one but is another.
MISSING_RUN_MAX = 14  # Words missing in one piece; a whole clause that is missing makes it another licence.
ADDED_RUN_MIN = 8  # Words added in one piece inside a licence; shorter ones are names and titles.
EDGE_GAP_WORDS = 12  # A few chance hits beyond such a gap are not part of the licence.
PLACES_PER_LICENCE_MAX = 100
SHORT_TEXT_WORDS = 400  # A text this short that only names a licence is taken as a reference to it.

# Preambles of CC0 and appendices that tell how to apply a licence; the SPDX matching guidelines make them optional.
_OPTIONAL_HEAD = re.compile(r"^Statement of Purpose$", re.MULTILINE)
_OPTIONAL_TAIL = re.compile(r"END OF TERMS AND CONDITIONS|^Exhibit A|^EXHIBIT A|^APPENDIX: How to apply", re.MULTILINE)
_COPYRIGHT_LINE = re.compile(
    r"^\W*(?:portions? )?(?:copyright(?!\W+(?:and|disclaimer|holders?|in|interest|laws?|licen[cs]e|notices?|or|owners?"
    r"|patent|permission|statement|treaty)\b)|©|\(c\)(?=\s*(?:copyright|\d|by\b))|copr\.)(?=[\s:©(]).*$"
    r"|^\W*all rights reserved\W*$|^\W*SPDX-[A-Za-z-]+:.*$",
    re.IGNORECASE | re.MULTILINE,
)
_LIST_MARKER = re.compile(r"^[\s*#>/;%|.-]*(?:\(?(?:\d{1,2}|[a-z]|[ivx]{1,4})[.)]\s)?", re.IGNORECASE | re.MULTILINE)
_PLACEHOLDER = re.compile(r"<[^<>\n]{1,60}>|\[(?:yyyy|year|name of[^\]]*|fullname)\]", re.IGNORECASE)
_SPELLINGS = {
    "licence": "license",
    "licences": "licenses",
    "licenced": "licensed",
    "acknowledgement": "acknowledgment",
    "favour": "favor",
    "authorisation": "authorization",
    "organisation": "organization",
    "merchantibility": "merchantability",
    "https": "http",
    "holder": "holders",
    "owner": "owners",
    "sublicence": "sublicense",
    "noncommercial": "non",
}
_WORD = re.compile(r"[a-z0-9]+(?:\.[0-9]+)*")
_IDENTIFIER = re.compile(r"[A-Za-z0-9.+-]+")
_TAG = re.compile(r"SPDX-License-Identifier:\s*([A-Za-z0-9.+() -]+)")


class Match(msgspec.Struct, frozen=True):
    """A known licence found in a text."""

    licence: str
    similarity: float  # 0 to 1, of the place where it was found (Sørensen-Dice over word sequences).
    added: tuple[str, ...] = ()  # Runs of words inside it that the known text does not have.


class Reading(msgspec.Struct, frozen=True):
    """What a text was recognised as."""

    matches: tuple[Match, ...] = ()
    mentioned: tuple[str, ...] = ()  # Licences named by tag or, in a short text, in prose; those recognised left out.
    notices: tuple[str, ...] = ()  # GNU licences under which the text puts something without holding their text.
    exceptions: tuple[str, ...] = ()  # SPDX exceptions whose wording stands in the text.
    other_words: int = 0  # Words that belong to no recognised licence.


@dataclass(frozen=True, slots=True)
class _Known:
    licence: str
    word_count: int
    first_index: dict[str, int]  # Each sequence's first place.


@dataclass(frozen=True, slots=True)
class _Place:
    licence: str
    start: int
    end: int
    found_count: int
    similarity: float
    added: tuple[tuple[int, int], ...]


def words(text: str) -> list[str]:
    """Return the words of a licence text that matter for comparing."""
    plain = unicodedata.normalize("NFKC", text)
    plain = _PLACEHOLDER.sub(" ", plain)
    plain = _COPYRIGHT_LINE.sub(" ", plain)
    plain = _LIST_MARKER.sub(" ", plain).lower()
    found: list[str] = _WORD.findall(plain)
    return [_SPELLINGS.get(word, word) for word in found]


def read(text: str) -> Reading:
    """Return the licences whose text, or failing that whose name, stands in `text`, in the order they stand there."""
    own = words(text)
    sequences = _sequences(own)
    places = _without_overlap([place for known in _known() for place in _places(known, sequences)])
    matches: dict[str, Match] = {}
    covered = 0
    for place in sorted(places, key=lambda place: place.start):
        covered += place.end - place.start
        added = tuple(" ".join(own[start:end][:40]) for start, end in place.added)
        best = matches.get(place.licence)
        if best is None or place.similarity > best.similarity:
            matches[place.licence] = Match(place.licence, round(place.similarity, 3), added)
    other_words = max(0, len(own) - covered)
    flat = " ".join(text.lower().replace("licence", "license").split())
    mentions = _mentions(text, flat if len(own) <= SHORT_TEXT_WORDS else "")
    return Reading(
        matches=tuple(matches.values()),
        mentioned=tuple(licence for licence in mentions if licence not in matches),
        notices=tuple(licence for licence in _gnu_notices(flat) if licence not in matches),
        exceptions=tuple(name for name, pattern in catalogue.EXCEPTIONS if re.search(pattern, " ".join(own))),
        other_words=other_words,
    )


def _mentions(text: str, prose: str) -> tuple[str, ...]:
    """Return the licences that SPDX tags in `text` and the words of `prose` name."""
    tagged: list[str] = [name for tag in _TAG.findall(text) for name in _IDENTIFIER.findall(tag)]
    named = [licence for licence, pattern in catalogue.MENTIONS if re.search(pattern, prose)]
    return tuple(dict.fromkeys([*filter(None, map(catalogue.canonical, tagged)), *named]))


def _gnu_notices(prose: str) -> tuple[str, ...]:
    found = (
        f"{catalogue.GNU_KINDS[notice[1] or '']}-{notice[2] if '.' in notice[2] else notice[2] + '.0'}"
        for notice in catalogue.GNU_NOTICE.finditer(prose)
    )
    return tuple(dict.fromkeys(found))


def _sequences(tokens: list[str]) -> list[str]:
    return [" ".join(tokens[i : i + SEQUENCE_WORDS]) for i in range(len(tokens) - SEQUENCE_WORDS + 1)]


@cache
def _known() -> tuple[_Known, ...]:
    known: list[_Known] = []
    for licence, text in catalogue.texts().items():
        head = _OPTIONAL_HEAD.search(text)
        tail = _OPTIONAL_TAIL.search(text, len(text) // 2)  # The same words further up are part of the terms.
        tokens = words(text[head.start() if head else 0 : tail.start() if tail else len(text)])
        first_index: dict[str, int] = {}
        for index, sequence in enumerate(_sequences(tokens)):
            first_index.setdefault(sequence, index)
        known.append(_Known(licence, len(tokens), first_index))
    return tuple(known)


def _places(known: _Known, sequences: list[str]) -> list[_Place]:
    """Return where `known` stands in the text that has these `sequences`."""
    total = len(known.first_index)
    hits = [
        (at, index) for at, sequence in enumerate(sequences) if (index := known.first_index.get(sequence)) is not None
    ]
    if len({index for _, index in hits}) < FOUND_SHARE_MIN * total:
        return []
    # A licence that stands at word s has its i-th sequence near s + i: each such start gets many hits.
    step = max(20, known.word_count // 8)
    starts = Counter((at - index) // step for at, index in hits)
    places: list[_Place] = []
    for bucket, count in starts.most_common(PLACES_PER_LICENCE_MAX):
        if count < 0.15 * total:
            break
        place = _place(known, hits, bucket * step, step, total)
        if place is not None and all(_shared(place, other) < 0.2 * (place.end - place.start) for other in places):
            places.append(place)
    return places


def _place(known: _Known, hits: list[tuple[int, int]], start: int, step: int, total: int) -> _Place | None:
    slack = step + known.word_count // 4
    near = [(at, index) for at, index in hits if start - slack <= at - index <= start + slack]
    if not near:
        return None
    # A sentence that a licence has twice is known by its first place only, so within these bounds order is not asked.
    inside = _without_stray_edges([at for at, _ in hits if near[0][0] <= at <= near[-1][0]])
    first, last = inside[0], inside[-1]
    found = {index for at, index in near if first <= at <= last}
    recall = len(found) / total
    if recall < FOUND_SHARE_MIN:
        return None
    if _longest_gap(sorted(known.first_index.values()), found) > max(MISSING_RUN_MAX, known.word_count // 40):
        return None
    precision = len(inside) / (last - first + 1)
    added = [
        (before + SEQUENCE_WORDS, after)
        for before, after in pairwise(inside)
        if after - before - SEQUENCE_WORDS >= ADDED_RUN_MIN
    ]
    similarity = 2 * precision * recall / (precision + recall)
    return _Place(known.licence, first, last + SEQUENCE_WORDS, len(found), similarity, tuple(added))


def _without_stray_edges(hits: list[int]) -> list[int]:
    """Drop small groups of hits before the first and after the last large one."""
    groups: list[list[int]] = []
    for hit in hits:
        if groups and hit - groups[-1][-1] <= EDGE_GAP_WORDS:
            groups[-1].append(hit)
        else:
            groups.append([hit])
    large = [number for number, group in enumerate(groups) if len(group) >= max(4, len(hits) // 12)]
    return [hit for group in groups[large[0] : large[-1] + 1] for hit in group] if large else hits


def _longest_gap(indexes: list[int], found: set[int]) -> int:
    """Return the number of words in the longest part of a known text of which nothing was found."""
    longest = run = 0
    for index in indexes:
        run = 0 if index in found else run + 1
        longest = max(longest, run)
    return max(0, longest - SEQUENCE_WORDS + 1)


def _without_overlap(places: list[_Place]) -> list[_Place]:
    """Keep, of places that overlap by half, the one of which most was found."""
    kept: list[_Place] = []
    for place in sorted(places, key=lambda place: (-place.found_count * place.similarity, place.licence)):
        if all(_shared(place, other) < 0.5 * (place.end - place.start) for other in kept):
            kept.append(place)
    return kept


def _shared(one: _Place, other: _Place) -> int:
    return max(0, min(one.end, other.end) - max(one.start, other.start))
