"""The one question the audit asks a person, the answers it takes, and the rule of the scripted reviewer."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Annotated, Literal

import msgspec
from msgspec import Meta

from examples.licence_audit import declaration
from examples.licence_audit.catalogue import Category
from examples.licence_audit.verdict import Severity, Status, Verdict

if TYPE_CHECKING:
    from collections.abc import Iterable

TEXTS_SHOWN_MAX = 5

Ruling = Literal["accept", "reject", "later"]


class Question(msgspec.Struct, frozen=True):
    """A distribution that needs a decision, with what speaks for and against it."""

    distribution: str  # What a Ruled refers to; unique within a dossier.
    licence: str
    category: Category
    status: Status
    why: tuple[str, ...]
    texts: tuple[str, ...]  # Its first licence files, below the folder that holds its metadata.
    suggestion: Ruling
    reason: str


class Dossier(msgspec.Struct, frozen=True):
    """What the reviewer is shown: everything that needs a decision, in one form."""

    folder: str
    questions: tuple[Question, ...]


class Ruled(msgspec.Struct, frozen=True):
    """The decision on one distribution."""

    distribution: str
    ruling: Ruling
    note: Annotated[str, Meta(max_length=2000)] = ""


class RuleEach(msgspec.Struct, frozen=True, tag="rule_each"):
    """Decide distribution by distribution; the form starts with the suggestions."""

    rulings: tuple[Ruled, ...]


class AcceptAll(msgspec.Struct, frozen=True, tag="accept_all"):
    """Accept every licence listed."""

    note: Annotated[str, Meta(max_length=2000)] = ""


class RejectAll(msgspec.Struct, frozen=True, tag="reject_all"):
    """Reject every licence listed."""

    reason: Annotated[str, Meta(min_length=3, max_length=2000)]


Answer = RuleEach | AcceptAll | RejectAll


def dossier(folder: str, verdicts: Iterable[Verdict]) -> Dossier:
    """Return what needs a decision, worst first."""
    listed = list(verdicts)
    copies = Counter(verdict.key for verdict in listed)
    questions = [_question(verdict, copies[verdict.key] > 1) for verdict in listed if verdict.needs_decision]
    questions.sort(key=lambda question: (-question.category.rank, question.distribution.lower()))
    return Dossier(folder, tuple(questions))


def label(verdict: Verdict, is_one_of_many: bool) -> str:
    """Return what a distribution is called in the dossier and the report: with its path where there are copies."""
    return f"{verdict.key} ({verdict.path})" if is_one_of_many else verdict.key


def suggested(questions: Dossier) -> RuleEach:
    """Return the suggestions as an answer: what the form starts with and the scripted reviewer gives."""
    return RuleEach(
        tuple(Ruled(question.distribution, question.suggestion, question.reason) for question in questions.questions)
    )


def rulings(questions: Dossier, answer: Answer) -> tuple[Ruled, ...]:
    """Return one ruling for each question; what an answer leaves out stays open ("later")."""
    match answer:
        case AcceptAll(note):
            return tuple(Ruled(question.distribution, "accept", note) for question in questions.questions)
        case RejectAll(reason):
            return tuple(Ruled(question.distribution, "reject", reason) for question in questions.questions)
        case RuleEach(given):
            by_name = {ruled.distribution: ruled for ruled in given}
            return tuple(
                by_name.get(question.distribution, Ruled(question.distribution, "later", "not answered"))
                for question in questions.questions
            )


def _question(verdict: Verdict, is_one_of_many: bool) -> Question:
    ruling, reason = _suggestion(verdict)
    return Question(
        distribution=label(verdict, is_one_of_many),
        licence=verdict.licence,
        category=verdict.category,
        status=verdict.status,
        why=tuple(
            finding.message for finding in verdict.findings if finding.severity in (Severity.HIGH, Severity.MEDIUM)
        ),
        texts=tuple(text.path for text in verdict.evidence[:TEXTS_SHOWN_MAX]),
        suggestion=ruling,
        reason=reason,
    )


def _suggestion(verdict: Verdict) -> tuple[Ruling, str]:
    """Return the rule's opinion: copyleft of parts and files is accepted, of whole programs not, doubt stays open."""
    if verdict.category in (Category.STRONG_COPYLEFT, Category.NETWORK_COPYLEFT):
        return "reject", f"{verdict.category}: must not be part of what we ship"
    if verdict.category is Category.RESTRICTED:
        return "reject", "its licence restricts use"
    if verdict.status in (Status.CONFLICT, Status.UNKNOWN) or verdict.category is Category.UNKNOWN:
        return "later", "a person has to read its licence"
    if any(finding.code == "broken-metadata" for finding in verdict.findings):
        return "later", "its metadata could not be read"
    strictest = max(
        (declaration.category(licence) for licence in verdict.bundled), key=lambda kind: kind.rank, default=None
    )
    if strictest is not None and strictest.rank > Category.WEAK_COPYLEFT.rank:
        return "later", f"a person has to see which parts are under {strictest}"
    return "accept", "used unmodified as a library; its licence texts are passed on"
