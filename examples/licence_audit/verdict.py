"""Compare what a distribution declares with the texts it carries, and say what follows for its user."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING

import msgspec

from examples.licence_audit import catalogue, declaration, matching
from examples.licence_audit.catalogue import Category
from examples.licence_audit.declaration import Declared
from examples.licence_audit.evidence import LISTED_AND_MISSING, Role

if TYPE_CHECKING:
    from examples.licence_audit.evidence import LicenceTexts, Metadata
    from examples.licence_audit.inventory import Item

POINTER_WORDS_MAX = 60  # A text this short beside recognised ones only says where they are.
UNRECOGNISED_WORDS_MAX = 600  # More than the longest appendix of a known text; beyond it, what is missing may be there.
ALTERED_SIMILARITY = 0.90  # Below it, a recognised text differs enough that someone should read the difference.


class Severity(StrEnum):
    HIGH = "high"
    MEDIUM = "medium"
    LOW = "low"
    INFO = "info"


class Status(StrEnum):
    """How the declaration and the licence texts go together."""

    AGREES = "agrees"
    PARTLY = "agrees in part"  # Of several declared licences some have no text.
    BY_REFERENCE = "agrees by reference"  # The text only names the declared licence.
    NO_TEXT = "no licence text"
    NOT_DECLARED = "only a text"
    CONFLICT = "conflict"
    UNKNOWN = "unknown"


class Finding(msgspec.Struct, frozen=True):
    code: str
    severity: Severity
    message: str
    action: str


class Altered(msgspec.Struct, frozen=True):
    """A licence whose text differs from the known one; `added` are runs of words the known text does not have."""

    licence: str
    similarity: float
    added: tuple[str, ...]


class Evidence(msgspec.Struct, frozen=True):
    """A licence file and what it was recognised as."""

    path: str
    role: Role
    sha256: str
    licences: tuple[str, ...]
    altered: tuple[Altered, ...] = ()  # Of those licences, the ones whose text differs.
    other_words: int = 0


class Verdict(msgspec.Struct, frozen=True):
    """The result for one distribution."""

    name: str
    version: str
    path: str
    licence: str  # What it is under as far as this audit can tell; "" when it cannot.
    category: Category
    status: Status
    declared: str
    declared_in: str
    bundled: tuple[str, ...]  # Licences of what the distribution carries besides its own.
    findings: tuple[Finding, ...]
    evidence: tuple[Evidence, ...]
    needs_decision: bool

    @property
    def key(self) -> str:
        """Name, version and, where two copies exist, the path are what a decision refers to."""
        return f"{self.name} {self.version}".strip()


class Classified(msgspec.Struct, frozen=True):
    """Licence texts after recognition; what the step that looks at the texts returns."""

    evidence: tuple[Evidence, ...] = ()
    mentioned: tuple[str, ...] = ()


def classify(texts: LicenceTexts) -> Classified:
    """Return what each licence text was recognised as."""
    evidence: list[Evidence] = []
    mentioned: list[str] = []
    for text in texts.texts:
        reading = matching.read(text.text)
        found = [match.licence for match in reading.matches] + list(reading.notices)
        licences = tuple(catalogue.with_exception(licence, reading.exceptions) for licence in found)
        evidence.append(
            Evidence(
                path=text.path,
                role=text.role,
                sha256=text.sha256,
                licences=licences,
                altered=tuple(
                    Altered(match.licence, match.similarity, match.added)
                    for match in reading.matches
                    if match.similarity < ALTERED_SIMILARITY and match.added
                ),
                other_words=reading.other_words,
            )
        )
        if text.role == "own" and not licences:
            mentioned += reading.mentioned
    return Classified(tuple(evidence), tuple(dict.fromkeys(mentioned)))


def judge(item: Item, metadata: Metadata, texts: LicenceTexts, classified: Classified) -> Verdict:
    """Return the verdict on one distribution from everything that was read of it."""
    stated = declaration.declared(metadata)
    own = _licences(classified, "own") or _licences(classified, "notice")
    status = _status(stated, own, classified)
    licence = _licence(stated, own, classified, status)
    kind = _category(stated, licence, status)
    bundled = _bundled(stated, own, classified, status)
    findings = [
        *_status_findings(stated, own, status, classified),
        *(_category_findings(licence, kind) if status is not Status.CONFLICT else []),
        *_bundled_findings(bundled),
        *_altered_findings(classified),
        *_fault_findings(metadata, texts),
    ]
    findings.sort(key=lambda finding: (list(Severity).index(finding.severity), finding.code, finding.message))
    label_name, _, label_version = item.label.partition(" ")
    return Verdict(
        name=metadata.name or label_name,
        version=metadata.version or label_version,
        path=item.shown,
        licence=licence,
        category=kind,
        status=status,
        declared=stated.text,
        declared_in=stated.source,
        bundled=bundled,
        findings=tuple(findings),
        evidence=classified.evidence,
        needs_decision=any(finding.severity in (Severity.HIGH, Severity.MEDIUM) for finding in findings),
    )


def unreadable(item: Item, problem: str) -> Verdict:
    """Return the verdict on a distribution of which nothing could be read."""
    name, _, version = item.label.partition(" ")
    finding = Finding("unreadable", Severity.HIGH, problem, "Reinstall the distribution and run the audit again.")
    return Verdict(
        name=name,
        version=version,
        path=item.shown,
        licence="",
        category=Category.UNKNOWN,
        status=Status.UNKNOWN,
        declared="",
        declared_in="",
        bundled=(),
        findings=(finding,),
        evidence=(),
        needs_decision=True,
    )


def _licences(classified: Classified, role: Role) -> tuple[str, ...]:
    """Return the licences recognised in texts of a role; LGPL-3.0 comes with the GPL-3.0 it builds on."""
    found = dict.fromkeys(licence for text in classified.evidence if text.role == role for licence in text.licences)
    if "LGPL-3.0" in found:
        found.pop("GPL-3.0", None)
    return tuple(found)


def _status(stated: Declared, own: tuple[str, ...], classified: Classified) -> Status:
    mentioned = classified.mentioned
    own_texts = [text for text in classified.evidence if text.role == "own"]
    if not own and not mentioned:
        return Status.NO_TEXT if stated.is_known and not own_texts else Status.UNKNOWN
    if not stated.is_known:
        return Status.NOT_DECLARED
    everywhere = {licence for text in classified.evidence for licence in text.licences}
    missing = _missing(stated, {*own, *mentioned, *everywhere})
    if not missing:
        return Status.AGREES if not _missing(stated, everywhere) else Status.BY_REFERENCE
    if len(missing) < len(stated.licences) and stated.expression:
        return Status.PARTLY
    # The declared licence may be among the words that were not recognised.
    is_clear = sum(text.other_words for text in own_texts) <= UNRECOGNISED_WORDS_MAX
    return Status.CONFLICT if is_clear else Status.UNKNOWN


def _missing(stated: Declared, found: set[str]) -> tuple[str, ...]:
    """Return the declared licences without a text; of an ambiguous name any one will do."""
    plain = {licence.partition(" WITH ")[0] for licence in found}
    if stated.expression:
        return declaration.without_text(stated.expression, plain)
    is_found = any(declaration.same_text(licence, text) for licence in stated.family for text in plain)
    return () if is_found else stated.family


def _licence(stated: Declared, own: tuple[str, ...], classified: Classified, status: Status) -> str:
    if stated.expression and status is not Status.CONFLICT:
        return stated.expression
    found = own or classified.mentioned
    if status in (Status.AGREES, Status.BY_REFERENCE):
        # An ambiguous name is made exact by the text: "BSD" and the text of BSD-3-Clause.
        meant = [
            text
            for text in (*own, *classified.mentioned)
            if any(declaration.same_text(licence, text) for licence in stated.family)
        ]
        return " AND ".join(meant)
    if status in (Status.NOT_DECLARED, Status.CONFLICT):
        return " AND ".join(found)
    return stated.text


def _category(stated: Declared, licence: str, status: Status) -> Category:
    if status in (Status.NO_TEXT, Status.UNKNOWN):
        return stated.category
    found = declaration.category(licence) if licence else Category.UNKNOWN
    if status is Status.CONFLICT:
        # Until someone has looked, the stricter of the two holds.
        return max(found, stated.category, key=lambda kind: kind.rank)
    return found


def _bundled(stated: Declared, own: tuple[str, ...], classified: Classified, status: Status) -> tuple[str, ...]:
    """Return the licences of parts a distribution carries, other than those it is under itself."""
    extra = _extra(stated, own, status)
    itself = {catalogue.stem(each) for each in (stated.licences if stated.expression else set(own) - extra)}
    carried = set(_licences(classified, "bundled")) | extra
    return tuple(sorted(each for each in carried if catalogue.stem(each) not in itself))


def _extra(stated: Declared, own: tuple[str, ...], status: Status) -> set[str]:
    """Return licences in a distribution's own licence file beside those it declares: parts it carries."""
    if status in (Status.CONFLICT, Status.NOT_DECLARED):
        return set()
    return {
        text
        for text in own
        if not any(declaration.same_text(licence, text.partition(" WITH ")[0]) for licence in stated.licences)
    }


def _status_findings(stated: Declared, own: tuple[str, ...], status: Status, classified: Classified) -> list[Finding]:
    found = ", ".join(own or classified.mentioned)
    findings: list[Finding] = []
    if stated.source == "License-Expression" and not stated.expression:
        message = f"License-Expression {stated.raw[:80]!r} is not a valid SPDX expression"
        findings.append(Finding("invalid-expression", Severity.LOW, message, "Ask upstream to correct it."))
    if status is Status.CONFLICT:
        message = f"declares {stated.text} ({stated.source}), but its licence text is that of {found}"
        action = "Read both; ask upstream which holds and keep the answer. Until then the stricter one applies."
        findings.append(Finding("conflict", Severity.HIGH, message, action))
    elif status is Status.NO_TEXT:
        message = f"declares {stated.text} ({stated.source}) and carries no licence text"
        action = "If you ship it, take the text from its source archive: nearly every licence asks you to pass it on."
        findings.append(Finding("no-text", Severity.LOW, message, action))
    elif status is Status.PARTLY:
        everywhere = {licence for text in classified.evidence for licence in text.licences}
        missing = ", ".join(_missing(stated, {*everywhere, *classified.mentioned}))
        message = f"declares {stated.text} and carries no text of {missing}"
        findings.append(
            Finding("part-without-text", Severity.LOW, message, "Take the missing text from its source archive.")
        )
    elif status is Status.NOT_DECLARED:
        message = f"declares no licence in its metadata; its licence text is that of {found}"
        findings.append(Finding("not-declared", Severity.LOW, message, "Nothing, if the text is clear; tell upstream."))
    elif status is Status.UNKNOWN and own:
        words = sum(text.other_words for text in classified.evidence if text.role == "own")
        message = (
            f"declares {stated.text} ({stated.source}); its licence texts hold {found} and {words} words this audit "
            f"does not recognise"
        )
        findings.append(Finding("unknown-text", Severity.MEDIUM, message, "Read the unrecognised part and decide."))
    elif status is Status.UNKNOWN and classified.evidence:
        paths = ", ".join(text.path.rsplit("/", 1)[-1] for text in classified.evidence if text.role == "own")
        says = f"declares {stated.text} ({stated.source})" if stated.raw else "declares no licence"
        message = f"{says}, and its licence text ({paths or 'notices only'}) is none this audit knows"
        findings.append(
            Finding("unknown-text", Severity.MEDIUM, message, "Read the text and decide; a lawyer may have to.")
        )
    elif status is Status.UNKNOWN:
        says = f"its declaration {stated.raw[:80]!r} names no known licence" if stated.raw else "it declares no licence"
        action = "Without a licence nobody may use it: ask upstream for one, or replace it."
        findings.append(Finding("no-licence", Severity.HIGH, f"{says} and it carries no licence text", action))
    return findings


_CATEGORY_FINDINGS: dict[Category, tuple[Severity, str]] = {
    Category.WEAK_COPYLEFT: (
        Severity.MEDIUM,
        "Use it unmodified as a library and pass its licence text on; changes to its own files must be published. "
        "LGPL also asks that users can replace the library.",
    ),
    Category.STRONG_COPYLEFT: (
        Severity.HIGH,
        "If you distribute a program that contains it, the whole program falls under this licence. Keep it out of what "
        "you ship (build and test tools are no problem), or replace it.",
    ),
    Category.NETWORK_COPYLEFT: (
        Severity.HIGH,
        "Offering it over a network obliges you to offer the source of the whole program. Replace it, or buy "
        "another licence.",
    ),
    Category.RESTRICTED: (
        Severity.HIGH,
        "Its licence forbids some uses or asks for payment: read it against your use, or replace it.",
    ),
}


def _category_findings(licence: str, kind: Category) -> list[Finding]:
    known = _CATEGORY_FINDINGS.get(kind)
    if known is None:
        if kind is Category.UNKNOWN and licence:
            message = f"{licence} is a licence this audit has no opinion on"
            return [Finding("unclassified", Severity.MEDIUM, message, "Read it and decide.")]
        return []
    severity, action = known
    return [Finding(kind.replace(" ", "-"), severity, f"is under {licence}: {kind}", action)]


def _bundled_findings(bundled: tuple[str, ...]) -> list[Finding]:
    """Return one finding for mild and one for strict licences among the parts a distribution carries."""
    strict = [licence for licence in bundled if declaration.category(licence).needs_decision]
    mild = [licence for licence in bundled if licence not in strict]
    findings: list[Finding] = []
    if strict:
        message = f"carries parts under {', '.join(strict)}"
        action = "See which parts these are and whether you ship them; pass their texts on."
        findings.append(Finding("bundled-copyleft", Severity.MEDIUM, message, action))
    if mild:
        message = f"carries parts under {', '.join(mild)}"
        findings.append(Finding("bundled", Severity.INFO, message, "Pass all of its licence files on."))
    return findings


def _altered_findings(classified: Classified) -> list[Finding]:
    findings: list[Finding] = []
    for text in classified.evidence:
        name = text.path.rsplit("/", 1)[-1]
        for altered in text.altered:
            words = "; ".join(f"“{run}”" for run in altered.added[:3])
            message = f"{name} differs from the usual text of {altered.licence}: it adds {words}"
            severity = Severity.LOW if text.role == "own" else Severity.INFO
            findings.append(Finding("altered-text", severity, message, "Read the added words."))
    return findings


def _fault_findings(metadata: Metadata, texts: LicenceTexts) -> list[Finding]:
    findings = [
        Finding(
            "broken-metadata", Severity.MEDIUM, f"{fault.subject} {fault.problem}", "Reinstall it; then audit again."
        )
        for fault in metadata.faults
    ]
    findings += [
        Finding("unread-text", Severity.LOW, f"{fault.subject} {fault.problem}", "Look at the file yourself.")
        for fault in texts.faults
        # That there is no text at all is a finding of its own.
        if texts.texts or fault.problem != LISTED_AND_MISSING
    ]
    return findings
