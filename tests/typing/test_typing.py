"""The public API as type checkers see it: right programs pass, and each mistake is found where it is made."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
POSITIVE = "tests/typing/positive.py"
NEGATIVE = "tests/typing/negative/mistakes.py"
CASES = 37

Found = set[tuple[str, int]]


def mypy() -> Found:
    """File and line of what mypy reports, with the settings of the project."""
    command = [sys.executable, "-m", "mypy", "--no-error-summary", "--output=json", POSITIVE, NEGATIVE]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode in (0, 1), done.stdout + done.stderr
    reports = [json.loads(line) for line in done.stdout.splitlines()]
    return {(report["file"], report["line"]) for report in reports if report["severity"] == "error"}


def basedpyright() -> Found:
    """File and line of what basedpyright reports, with the settings of the project."""
    command = [sys.executable, "-m", "basedpyright", "--outputjson", POSITIVE, NEGATIVE]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode in (0, 1), done.stdout + done.stderr
    reports = json.loads(done.stdout)["generalDiagnostics"]
    return {
        (str(Path(report["file"]).relative_to(ROOT)), report["range"]["start"]["line"] + 1)
        for report in reports
        if report["severity"] == "error"
    }


def mistakes() -> Found:
    numbered = re.compile(r"#\s*N(\d+) ")
    lines = (ROOT / NEGATIVE).read_text(encoding="utf-8").splitlines()
    found = {(NEGATIVE, number) for number, line in enumerate(lines, start=1) if numbered.search(line)}
    assert len(found) == CASES
    return found


def test_mypy_accepts_right_programs_and_finds_each_mistake_on_its_line() -> None:
    assert mypy() == mistakes()


def test_basedpyright_accepts_right_programs_and_finds_each_mistake_on_its_line() -> None:
    assert basedpyright() == mistakes()
