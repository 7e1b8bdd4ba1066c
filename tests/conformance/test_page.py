"""docs/conformance.md has each requirement of the kit once, and its figures are those of its rows."""

from __future__ import annotations

import re
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "conformance.md"
COUNTS = {1: 20, 2: 5, 3: 18, 4: 19, 5: 16, 6: 13, 7: 15, 8: 22, 9: 20, 10: 7}
"""Requirements of version 1.0.0 of the kit, by suite; within one they are numbered from 1."""
ROW = re.compile(r"(?m)^\| (\d+-\d+) \| [^|]+ \| (`tests/[\w/]+\.py::test_\w+`|not applicable: [^|]+|open: [^|]+) \|$")


def test_each_requirement_has_a_row_that_names_a_test_or_says_why_there_is_none() -> None:
    rows = ROW.findall(PAGE.read_text(encoding="utf-8"))

    assert [requirement for requirement, _ in rows] == [
        f"{suite}-{number}" for suite, count in COUNTS.items() for number in range(1, count + 1)
    ]


def test_the_figures_of_the_page_are_those_of_its_rows() -> None:
    page = PAGE.read_text(encoding="utf-8")
    verdicts = [verdict for _, verdict in ROW.findall(page)]
    passed = sum(verdict.startswith("`") for verdict in verdicts)
    open_ = sum(verdict.startswith("open: ") for verdict in verdicts)

    said = f"{passed} of {len(verdicts)} are passed, {len(verdicts) - passed - open_} do not apply"
    assert (f"{said}, {open_} are open." if open_ else f"{said}.") in page


def test_each_test_named_on_the_page_exists_and_each_test_of_this_folder_is_named() -> None:
    page = PAGE.read_text(encoding="utf-8")
    named = set(re.findall(r"tests/conformance/(\w+\.py)::(test_\w+)", page))
    there = {
        (file.name, test)
        for file in Path(__file__).parent.glob("test_*.py")
        if file.name != Path(__file__).name
        for test in re.findall(r"(?m)^def (test_\w+)\(", file.read_text(encoding="utf-8"))
    }

    assert named == there
