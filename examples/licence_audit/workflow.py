"""The licence audit as workflows: one run for the audit, one child run for each distribution, one question to a person.

`audit` runs on workers that offer "python", each `audit_one` on workers that offer "classify", and the question waits
for somebody who offers "human.review". What steps return is kept in the journal, licence texts included: they are
the evidence on which somebody decided.
"""

from __future__ import annotations

from datetime import timedelta

from examples.licence_audit import evidence, inventory, report, review, verdict
from examples.licence_audit.evidence import LicenceTexts, Metadata
from examples.licence_audit.inventory import Inventory, Item
from examples.licence_audit.report import Report, Review, Written
from examples.licence_audit.review import AcceptAll, RejectAll, RuleEach
from examples.licence_audit.verdict import Classified, Verdict
from pgwf_sdk import Context, RetryPolicy, step, workflow

AUDIT_NEED = "python"
CLASSIFY_NEED = "classify"
REVIEW_NEED = "human.review"
REVIEW_DUE = timedelta(days=2)

# What goes wrong on disk is a finding, so a step that raises met something passing, such as a full disk.
_A_FEW_TIMES = RetryPolicy(max_attempts=4, initial=timedelta(milliseconds=200))


@step(retry=_A_FEW_TIMES)
def discover(folder: str) -> Inventory:
    return inventory.discover(folder)


@step(retry=_A_FEW_TIMES)
def read_metadata(item: Item) -> Metadata:
    return evidence.read_metadata(item)


@step(retry=_A_FEW_TIMES)
def read_licence_texts(item: Item, license_files: tuple[str, ...]) -> LicenceTexts:
    return evidence.read_licence_texts(item, license_files)


@step(retry=_A_FEW_TIMES)
def classify(texts: LicenceTexts) -> Classified:
    return verdict.classify(texts)


@step(retry=_A_FEW_TIMES)
def write_report(whole: Report, folder: str) -> Written:
    return report.write(whole, folder)


@workflow(need=CLASSIFY_NEED)
def audit_one(ctx: Context, item: Item) -> Verdict:
    """Return the verdict on one distribution; whatever happens, there is one."""
    try:
        metadata = ctx.step(read_metadata, item)
        texts = ctx.step(read_licence_texts, item, metadata.license_files)
        classified = ctx.step(classify, texts)
        return verdict.judge(item, metadata, texts, classified)
    except Exception as error:  # noqa: BLE001 - one distribution must not end the audit of the others
        return verdict.unreadable(item, f"could not be audited: {type(error).__name__}: {error}")


@workflow(need=AUDIT_NEED)
def audit(ctx: Context, folder: str, output: str) -> Written:
    """Audit every distribution below `folder`, have doubtful licences decided, and write the report below `output`."""
    audited_at = ctx.now()
    found = ctx.step(discover, folder)
    verdicts = ctx.map(audit_one, found.items)
    dossier = review.dossier(found.folder, verdicts)
    reviewed: Review | None = None
    if dossier.questions:
        decision = ctx.human(
            "licences-to-review",
            dossier,
            RuleEach | AcceptAll | RejectAll,
            need=REVIEW_NEED,
            title=f"{len(dossier.questions)} licences to review in {found.folder}",
            due=REVIEW_DUE,
            prefill=review.suggested(dossier),
        )
        reviewed = Review(decision.by, decision.at, review.rulings(dossier, decision.value))
    whole = report.build(
        run_id=ctx.run_id,
        folder=found.folder,
        audited_at=audited_at,
        verdicts=verdicts,
        reviewed=reviewed,
        remarks=found.remarks,
    )
    return ctx.step(write_report, whole, output)
