from __future__ import annotations

import os
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import msgspec
import pytest

from examples.licence_audit import report, review
from examples.licence_audit.report import Report, Review
from examples.licence_audit.review import AcceptAll, Answer, Dossier, RejectAll, Ruled, RuleEach
from tests.examples.distributions import install, text
from tests.examples.test_licence_verdict import audit

if TYPE_CHECKING:
    from pathlib import Path

    from examples.licence_audit.verdict import Verdict

AT = datetime(2026, 5, 1, 12, 30, tzinfo=UTC)


@pytest.fixture
def verdicts(tmp_path: Path) -> list[Verdict]:
    site = tmp_path / "site"
    install(site, "mild", headers=("License-Expression: MIT",), files={"LICENSE": text("MIT")})
    install(site, "weak", headers=("License-Expression: MPL-2.0",), files={"LICENSE": text("MPL-2.0")})
    install(site, "strong", headers=("License-Expression: GPL-3.0-only",), files={"LICENSE": text("GPL-3.0")})
    install(site, "odd", headers=("License: Ask | <me>\x1b[31m",))
    install(site, "twin", headers=("License-Expression: MPL-2.0",))
    install(site / "_vendor", "twin", headers=("License-Expression: MPL-2.0",))
    return audit(site)


def built(verdicts: list[Verdict], answer: Answer | None = None) -> Report:
    dossier = review.dossier("/site", verdicts)
    reviewed = Review("ada", AT, review.rulings(dossier, answer)) if answer else None
    return report.build(run_id="r", folder="/site", audited_at=AT, verdicts=verdicts, reviewed=reviewed, remarks=())


def test_the_dossier_lists_what_needs_a_decision_worst_first(verdicts: list[Verdict]) -> None:
    questions = review.dossier("/site", verdicts).questions

    assert [question.distribution for question in questions] == [
        "odd 1.0",
        "strong 1.0",
        "twin 1.0 (_vendor/twin-1.0.dist-info)",
        "twin 1.0 (twin-1.0.dist-info)",
        "weak 1.0",
    ]
    assert [question.suggestion for question in questions] == ["later", "reject", "accept", "accept", "accept"]


def test_each_answer_gives_a_ruling_on_every_question(verdicts: list[Verdict]) -> None:
    dossier = review.dossier("/site", verdicts)
    partial = RuleEach((Ruled("strong 1.0", "accept", "we have a licence"), Ruled("stranger", "accept")))

    assert {each.ruling for each in review.rulings(dossier, AcceptAll())} == {"accept"}
    assert {each.ruling for each in review.rulings(dossier, RejectAll("no"))} == {"reject"}
    assert [each.ruling for each in review.rulings(dossier, partial)] == ["later", "accept", "later", "later", "later"]
    assert review.rulings(dossier, review.suggested(dossier)) == review.suggested(dossier).rulings


def test_an_answer_survives_its_wire_form(verdicts: list[Verdict]) -> None:
    answer = review.suggested(review.dossier("/site", verdicts))

    assert msgspec.json.decode(msgspec.json.encode(answer), type=RuleEach | AcceptAll | RejectAll) == answer


def test_the_json_report_decodes_into_what_was_written(verdicts: list[Verdict], tmp_path: Path) -> None:
    whole = built(verdicts, AcceptAll("fine"))

    written = report.write(whole, str(tmp_path / "out"))

    with open(written.json, "rb") as file:
        assert msgspec.json.decode(file.read(), type=Report) == whole
    assert whole.schema == "pgwf.licence-audit/1"


def test_the_report_does_not_depend_on_the_order_of_the_verdicts(verdicts: list[Verdict]) -> None:
    assert report.markdown(built(verdicts)) == report.markdown(built(verdicts[::-1]))


def test_the_report_says_what_to_do_who_decided_and_when(verdicts: list[Verdict]) -> None:
    shown = report.markdown(
        built(verdicts, review.suggested(Dossier("/site", review.dossier("/site", verdicts).questions)))
    )

    assert "**Rejected: replace or leave out:** strong 1.0" in shown
    assert "**Still to be decided:** odd 1.0" in shown
    assert "By ada, 2026-05-01 12:30:00 UTC." in shown
    assert "| weak 1.0 | MPL-2.0 | weak copyleft | agrees | medium | accept |" in shown


def test_what_metadata_says_cannot_break_the_markdown(verdicts: list[Verdict]) -> None:
    shown = report.markdown(built(verdicts))

    assert r"Ask \| \<me\> \[31m" in shown
    assert "\x1b" not in shown
    assert all(line.count(" | ") == 5 for line in shown.splitlines() if line.startswith("| odd"))


def test_a_report_replaces_the_one_before_and_leaves_nothing_else(verdicts: list[Verdict], tmp_path: Path) -> None:
    out = tmp_path / "out"
    report.write(built(verdicts), str(out))
    (out / ".report.md.killed.tmp").write_text("half a rep")

    report.write(built(verdicts, AcceptAll()), str(out))

    assert sorted(os.listdir(out)) == ["report.json", "report.md"]
    assert "| accept |" in (out / "report.md").read_text()


def test_a_failed_write_leaves_the_report_before_as_it_was(
    verdicts: list[Verdict], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    report.write(built(verdicts), str(tmp_path / "out"))
    before = (tmp_path / "out" / "report.json").read_bytes()

    def refuse(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", refuse)
    with pytest.raises(OSError, match="No space left"):
        report.write(built(verdicts, AcceptAll()), str(tmp_path / "out"))

    assert (tmp_path / "out" / "report.json").read_bytes() == before
    assert sorted(os.listdir(tmp_path / "out")) == ["report.json", "report.md"]
