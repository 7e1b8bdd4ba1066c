from __future__ import annotations

import re

import pytest

from examples.licence_audit import catalogue, matching
from examples.licence_audit.catalogue import Category
from tests.examples.distributions import text

MIT = catalogue.texts()["MIT"]
BSD3 = catalogue.texts()["BSD-3-Clause"]


def found(document: str) -> list[str]:
    return [match.licence for match in matching.read(document).matches]


@pytest.mark.parametrize("licence", sorted(catalogue.texts()))
def test_each_known_text_is_recognised_as_itself_and_nothing_else(licence: str) -> None:
    assert found(text(licence)) == [licence]


@pytest.mark.parametrize("licence", sorted(catalogue.texts()))
def test_each_known_licence_has_a_category(licence: str) -> None:
    assert catalogue.category(licence) is not Category.UNKNOWN


def test_layout_case_quotes_and_spelling_do_not_count() -> None:
    document = MIT.upper().replace('"', "\N{LEFT DOUBLE QUOTATION MARK}").replace("LICENSE", "LICENCE")

    assert found("\n".join(f"#   {line}" for line in document.replace(". ", ".\n\n").splitlines())) == ["MIT"]


def test_a_line_that_begins_with_copyright_notice_is_part_of_the_terms() -> None:
    one_word_a_line = MIT.replace(" ", "\n")

    assert matching.words(one_word_a_line)[-20:] == matching.words(MIT)[-20:]
    assert "copyright" in matching.words("copyright notice and this permission notice")
    assert matching.words("Copyright (c) 2001-2024 Jane Doe and others\n(c) 2020 Foo") == []


def test_several_licences_in_one_file_are_found_in_order() -> None:
    parts = [MIT, "The parser is under another licence:", BSD3, "And:", catalogue.texts()["Zlib"], MIT]

    assert found("\n\n".join(parts)) == ["MIT", "BSD-3-Clause", "Zlib"]


def test_a_licence_within_a_longer_one_is_not_reported_beside_it() -> None:
    assert found(BSD3) == ["BSD-3-Clause"]
    assert found(catalogue.texts()["X11"]) == ["X11"]
    assert found(MIT) == ["MIT"]


def test_a_missing_clause_makes_it_another_licence() -> None:
    without_names = re.sub(r"3\. Neither.*?permission\.\n", "", BSD3, flags=re.DOTALL)

    assert found(without_names) == ["BSD-2-Clause"]


def test_words_added_to_a_licence_are_reported() -> None:
    addition = "Use by any company with more than one hundred employees requires a separate agreement with us."
    document = MIT.replace("\n\nTHE SOFTWARE", f"\n\n{addition}\n\nTHE SOFTWARE")

    (match,) = matching.read(document).matches

    assert match.licence == "MIT"
    assert match.added == (
        "use by any company with more than one hundred employees requires a separate agreement with us",
    )


def test_a_short_text_that_names_a_licence_is_a_reference_to_it() -> None:
    reading = matching.read("This is subject to the terms of the Mozilla Public License, v. 2.0.")

    assert (reading.matches, reading.mentioned) == ((), ("MPL-2.0",))


def test_an_spdx_tag_names_the_licences_of_its_expression() -> None:
    assert matching.read("# SPDX-License-Identifier: (mit OR Apache-2.0) AND nonsense").mentioned == (
        "MIT",
        "Apache-2.0",
    )


def test_a_gnu_notice_is_found_in_a_text_of_any_length() -> None:
    notice = (
        "Libfoo is free software; you can redistribute it under the terms of the GNU Lesser\nGeneral Public License as "
        "published by the Free Software Foundation; either\nversion 2.1 of the License, or any later version."
    )

    assert matching.read("filler words here\n" * 500 + notice).notices == ("LGPL-2.1",)
    assert matching.read(catalogue.texts()["GPL-2.0"]).notices == ()


def test_the_gcc_exception_is_seen_beside_the_gpl() -> None:
    reading = matching.read("GCC RUNTIME LIBRARY EXCEPTION\n\n" + catalogue.texts()["GPL-3.0"])

    assert reading.exceptions == ("GCC-exception-3.1",)
    assert [match.licence for match in reading.matches] == ["GPL-3.0"]


@pytest.mark.parametrize(
    "document", ["", "   \n", "word", "all rights reserved", "\0\ud7ff\U0010ffff", "a b c " * 50_000]
)
def test_any_other_text_is_recognised_as_nothing(document: str) -> None:
    assert found(document) == []


@pytest.mark.parametrize(
    ("licence", "exception", "expected"),
    [
        ("MIT", "", Category.PERMISSIVE),
        ("BSD-2-Clause-Patent", "", Category.PERMISSIVE),
        ("CC0-1.0", "", Category.PUBLIC_DOMAIN),
        ("LGPL-2.1-or-later", "", Category.WEAK_COPYLEFT),
        ("GPL-3.0-only", "", Category.STRONG_COPYLEFT),
        ("GPL-2.0-only", "Classpath-exception-2.0", Category.WEAK_COPYLEFT),
        ("GPL-3.0-or-later", "GCC-exception-3.1", Category.WEAK_COPYLEFT),
        ("Apache-2.0", "LLVM-exception", Category.PERMISSIVE),
        ("AGPL-3.0-only", "", Category.NETWORK_COPYLEFT),
        ("BUSL-1.1", "", Category.RESTRICTED),
        ("LicenseRef-Proprietary", "", Category.RESTRICTED),
        ("LicenseRef-Mine", "", Category.UNKNOWN),
    ],
)
def test_a_category_is_what_the_identifier_and_its_exception_say(
    licence: str, exception: str, expected: Category
) -> None:
    assert catalogue.category(licence, exception) is expected
