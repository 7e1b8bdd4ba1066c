"""Modules that a command is given and that cannot be imported: their author is told where, and no run minds."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.sdk.sql.hand import start, status
from tests.sdk.test_cli_commands import Pgwf, pgwf

if TYPE_CHECKING:
    from pathlib import Path

    import psycopg

    Conn = psycopg.Connection[Any]

__all__ = ["pgwf"]


@pytest.mark.parametrize(
    ("name", "code", "said"),
    [
        ("lacking", "import no_such_package\n", "it needs 'no_such_package', which is not installed here"),
        ("malformed", "def shop(:\n", "SyntaxError: invalid syntax (malformed.py, line 1)"),
        ("raising", "\n\n1 / 0\n", "ZeroDivisionError: division by zero, at {file}:3"),
        ("renamed", "from pgwf_sdk import wrokflow\n", "ImportError: cannot import name 'wrokflow'"),
    ],
)
def test_a_worker_whose_module_cannot_be_imported_says_why_and_takes_no_run(
    pgwf: Pgwf, db: Conn, tmp_path: Path, name: str, code: str, said: str
) -> None:
    file = tmp_path / f"{name}.py"
    file.write_text(code)
    start(db, "order-1", need=name)

    ended = pgwf("worker", "run", str(file), "--capability", name)

    assert ended.code == 6
    assert f"module '{name}' cannot be imported: {said.format(file=file)}" in ended.err
    assert "Traceback" not in ended.err
    assert status(db) == "ready"
