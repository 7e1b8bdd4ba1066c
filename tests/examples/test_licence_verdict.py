from __future__ import annotations

import sysconfig
from pathlib import Path
from typing import get_args

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from examples.licence_audit import catalogue, declaration, evidence, inventory, verdict
from examples.licence_audit.catalogue import Category
from examples.licence_audit.evidence import LicenceText, LicenceTexts, Metadata, Role
from examples.licence_audit.inventory import Item
from examples.licence_audit.verdict import Severity, Status, Verdict
from tests.examples.distributions import install, text


def audit(folder: Path) -> list[Verdict]:
    """Judge every distribution below a folder, as the workflow's steps do."""
    verdicts: list[Verdict] = []
    for item in inventory.discover(str(folder)).items:
        metadata = evidence.read_metadata(item)
        texts = evidence.read_licence_texts(item, metadata.license_files)
        verdicts.append(verdict.judge(item, metadata, texts, verdict.classify(texts)))
    return verdicts


def one(folder: Path) -> Verdict:
    (only,) = audit(folder)
    return only


def codes(judged: Verdict) -> list[str]:
    return [finding.code for finding in judged.findings]


def test_a_declared_licence_with_its_text_agrees_and_asks_for_nothing(tmp_path: Path) -> None:
    install(tmp_path, "zeta", headers=("License-Expression: mit",), files={"licenses/LICENSE": text("MIT")})

    judged = one(tmp_path)

    assert (judged.licence, judged.status, judged.category) == ("MIT", Status.AGREES, Category.PERMISSIVE)
    assert judged.findings == ()
    assert not judged.needs_decision


def test_a_text_other_than_the_declared_one_is_a_conflict_and_the_stricter_holds(tmp_path: Path) -> None:
    install(tmp_path, "zeta", headers=("License-Expression: MIT",), files={"LICENSE": text("GPL-3.0")})

    judged = one(tmp_path)

    assert (judged.status, judged.category) == (Status.CONFLICT, Category.STRONG_COPYLEFT)
    assert codes(judged) == ["conflict"]
    assert judged.needs_decision


def test_an_ambiguous_name_is_made_exact_by_the_text(tmp_path: Path) -> None:
    headers = ("Classifier: License :: OSI Approved :: BSD License",)
    install(tmp_path, "zeta", headers=headers, files={"LICENSE": text("BSD-3-Clause")})

    assert (one(tmp_path).licence, one(tmp_path).status) == ("BSD-3-Clause", Status.AGREES)


def test_a_declaration_without_a_text_is_flagged(tmp_path: Path) -> None:
    install(tmp_path, "zeta", headers=("License: Apache 2.0", "License-File: LICENSE"))

    judged = one(tmp_path)

    assert (judged.licence, judged.status) == ("Apache-2.0", Status.NO_TEXT)
    assert codes(judged) == ["no-text"]
    assert not judged.needs_decision


def test_nothing_declared_and_no_text_needs_a_decision(tmp_path: Path) -> None:
    install(tmp_path, "zeta")

    judged = one(tmp_path)

    assert (judged.status, judged.category) == (Status.UNKNOWN, Category.UNKNOWN)
    assert [(finding.code, finding.severity) for finding in judged.findings] == [("no-licence", Severity.HIGH)]


def test_a_text_alone_is_taken_and_flagged(tmp_path: Path) -> None:
    install(tmp_path, "zeta", files={"LICENSE": text("ISC")})

    judged = one(tmp_path)

    assert (judged.licence, judged.status, codes(judged)) == ("ISC", Status.NOT_DECLARED, ["not-declared"])


def test_an_unknown_text_needs_a_decision(tmp_path: Path) -> None:
    headers = ("Classifier: License :: Other/Proprietary License",)
    install(tmp_path, "zeta", headers=headers, files={"LICENSE": "You owe us your first-born child. " * 20})

    judged = one(tmp_path)

    assert (judged.status, judged.category) == (Status.UNKNOWN, Category.RESTRICTED)
    assert judged.needs_decision


def test_of_alternatives_one_text_is_enough_and_the_mildest_counts(tmp_path: Path) -> None:
    headers = ("License-Expression: GPL-3.0-or-later OR MIT",)
    install(tmp_path, "zeta", headers=headers, files={"LICENSE": text("MIT")})

    assert (one(tmp_path).status, one(tmp_path).category) == (Status.AGREES, Category.PERMISSIVE)


def test_of_a_sum_each_text_is_needed_and_the_strictest_counts(tmp_path: Path) -> None:
    headers = ("License-Expression: MIT AND MPL-2.0",)
    install(tmp_path, "zeta", headers=headers, files={"LICENSE": text("MIT")})

    judged = one(tmp_path)

    assert (judged.status, judged.category) == (Status.PARTLY, Category.WEAK_COPYLEFT)
    assert codes(judged) == ["weak-copyleft", "part-without-text"]


def test_copyleft_parts_of_a_permissive_distribution_need_a_decision(tmp_path: Path) -> None:
    files = {"LICENSE": text("BSD-3-Clause"), "licenses/vendor/dep/COPYING": text("GPL-3.0")}
    install(tmp_path, "zeta", headers=("License-Expression: BSD-3-Clause",), files=files)

    judged = one(tmp_path)

    assert (judged.licence, judged.category, judged.bundled) == ("BSD-3-Clause", Category.PERMISSIVE, ("GPL-3.0",))
    assert judged.needs_decision


def test_a_part_under_the_licence_of_the_whole_is_nothing_to_report(tmp_path: Path) -> None:
    files = {"LICENSE": text("LGPL-2.1"), "licenses/vendor/dep/COPYING": text("LGPL-2.1")}
    install(tmp_path, "zeta", headers=("License-Expression: LGPL-2.1-or-later",), files=files)

    assert (one(tmp_path).bundled, codes(one(tmp_path))) == ((), ["weak-copyleft"])


def test_the_gpl_text_beside_the_lgpl_text_is_part_of_it(tmp_path: Path) -> None:
    files = {"COPYING": text("GPL-3.0"), "COPYING.LESSER": text("LGPL-3.0")}
    install(tmp_path, "zeta", headers=("License-Expression: LGPL-3.0-or-later",), files=files)

    judged = one(tmp_path)

    assert (judged.status, judged.category) == (Status.AGREES, Category.WEAK_COPYLEFT)
    assert judged.bundled == ()


def test_a_licence_pasted_into_the_license_field_is_recognised(tmp_path: Path) -> None:
    pasted = text("BSD-3-Clause").replace("\n", "\n        ")
    install(tmp_path, "zeta", headers=(f"License: {pasted}",))

    judged = one(tmp_path)

    assert (judged.declared, judged.declared_in, judged.status) == ("BSD-3-Clause", "Text", Status.NO_TEXT)


def test_an_invalid_expression_is_flagged_and_the_text_holds(tmp_path: Path) -> None:
    install(tmp_path, "zeta", headers=("License-Expression: MIT License",), files={"LICENSE": text("MIT")})

    assert codes(one(tmp_path)) == ["invalid-expression", "not-declared"]


def test_broken_metadata_does_not_stop_the_audit_of_the_others(tmp_path: Path) -> None:
    install(tmp_path, "good", headers=("License-Expression: MIT",), files={"LICENSE": text("MIT")})
    (install(tmp_path, "lost") / "METADATA").unlink()
    (install(tmp_path, "torn") / "METADATA").write_bytes(b"\xff\xfe\0garbage")

    verdicts = {judged.name: judged for judged in audit(tmp_path)}

    assert codes(verdicts["good"]) == []
    assert "broken-metadata" in codes(verdicts["lost"])
    assert "broken-metadata" in codes(verdicts["torn"])
    assert verdicts["torn"].version == "1.0"


@pytest.mark.parametrize(
    ("metadata", "expected"),
    [
        (Metadata(license_expression="apache-2.0 or bsd-2-clause"), "Apache-2.0 OR BSD-2-Clause"),
        (Metadata(license_field="The MIT License (MIT)"), "MIT"),
        (Metadata(license_field="MIT/Apache-2.0"), "MIT OR Apache-2.0"),
        (Metadata(license_field="LGPLv3+"), "LGPL-3.0-or-later"),
        (Metadata(license_field="bsd", classifiers=("OSI Approved :: MIT License",)), "MIT"),
        (Metadata(classifiers=("OSI Approved", "OSI Approved :: Apache Software License")), ""),
        (Metadata(license_expression="(" * 1000 + "MIT" + ")" * 1000), ""),
        (Metadata(license_expression="MIT AND"), ""),
        (Metadata(), ""),
    ],
)
def test_the_most_exact_declaration_counts(metadata: Metadata, expected: str) -> None:
    assert declaration.declared(metadata).expression == expected


@pytest.mark.parametrize(
    ("expression", "found", "missing"),
    [
        ("MIT", {"MIT"}, ()),
        ("GPL-2.0-or-later", {"GPL-2.0"}, ()),
        ("PSF-2.0", {"Python-2.0.1"}, ()),
        ("MIT OR (Apache-2.0 AND BSD-2-Clause)", {"Apache-2.0", "BSD-2-Clause"}, ()),
        ("MIT AND (Apache-2.0 OR ISC)", {"ISC"}, ("MIT",)),
        ("Apache-2.0 WITH LLVM-exception", {"MIT"}, ("Apache-2.0",)),
    ],
)
def test_an_expression_says_which_texts_it_misses(expression: str, found: set[str], missing: tuple[str, ...]) -> None:
    assert declaration.without_text(expression, found) == missing


def test_every_name_in_the_catalogue_is_spelt_as_names_are_looked_up() -> None:
    assert [name for name in catalogue.NAMES if catalogue.simplified(name) != name] == []


LINES = st.sampled_from(
    [
        *catalogue.texts(),
        *catalogue.NAMES,
        "AND",
        "OR",
        "WITH",
        "(",
        ")",
        "BSD License",
        "OSI Approved",
        "LicenseRef-x",
        "GPL-2.0+",
    ]
) | st.text(max_size=20)
STATEMENTS = st.lists(LINES, max_size=4).map(" ".join)
DOCUMENTS = st.lists(
    st.sampled_from(["MIT", "BSD-3-Clause", "LGPL-3.0", "GPL-2.0"]).map(text)
    | STATEMENTS.map(lambda statement: f"SPDX-License-Identifier: {statement}")
    | st.text(max_size=200),
    max_size=3,
).map("\n".join)
TEXTS = st.lists(
    st.builds(
        LicenceText,
        path=st.just("LICENSE"),
        role=st.sampled_from(get_args(Role)),
        byte_count=st.just(1),
        sha256=st.just("0"),
        text=DOCUMENTS,
    ),
    max_size=3,
).map(lambda texts: LicenceTexts(tuple(texts)))


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    metadata=st.builds(
        Metadata,
        license_expression=STATEMENTS,
        license_field=STATEMENTS,
        classifiers=st.lists(STATEMENTS, max_size=3).map(tuple),
    ),
    texts=TEXTS,
)
def test_whatever_is_declared_and_found_gets_a_verdict(metadata: Metadata, texts: LicenceTexts) -> None:
    judged = verdict.judge(
        Item("/x-1.dist-info", "x-1.dist-info", "dist-info"), metadata, texts, verdict.classify(texts)
    )

    assert judged.needs_decision or judged.category in (Category.PERMISSIVE, Category.PUBLIC_DOMAIN)
    assert msgspec.json.decode(msgspec.json.encode(judged), type=Verdict) == judged


def test_this_environment_is_judged_without_a_conflict_and_with_its_copyleft() -> None:
    """Accuracy on real input: what is installed here is well kept, and psycopg is LGPL."""
    verdicts = {judged.name: judged for judged in audit(_site_packages())}
    clear = (Status.AGREES, Status.PARTLY, Status.BY_REFERENCE, Status.NO_TEXT)

    assert {name for name, judged in verdicts.items() if judged.status not in clear} == set()
    assert verdicts["psycopg"].category is Category.WEAK_COPYLEFT
    assert verdicts["click"].licence == "BSD-3-Clause"
    assert verdicts["pytest"].licence == "MIT"
    assert sum(judged.status is Status.AGREES for judged in verdicts.values()) >= 0.9 * len(verdicts)


def _site_packages() -> Path:
    return Path(sysconfig.get_paths()["purelib"])
