"""What the command line prints of reports that have several lines."""

from __future__ import annotations

import json
from typing import Any

import psycopg
import pytest

from pgwf_sdk.cli._app import run_command
from tests.sdk.sql.hand import Hand, start

Conn = psycopg.Connection[Any]


@pytest.mark.parametrize("arguments", [["why", "order-1"], ["show", "order-1", "--why"], ["show", "order-1"]])
def test_the_report_on_a_blocked_run_is_printed_in_its_lines(
    db: Conn, dsn: str, capfd: pytest.CaptureFixture[str], arguments: list[str]
) -> None:
    start(db, "order-1")
    report = json.dumps({"text": "run order-1 cannot go on\n  recorded:  \x1b[31m\n  this code: b\n"})
    hand = Hand(db, "w", ["python"])
    hand.say(hand.take().item("block", note=report))

    assert run_command(["--dsn", dsn, *arguments]) == 0
    out = capfd.readouterr().out

    assert "`pgwf resume order-1`.\n\nrun order-1 cannot go on\n  recorded:  \\x1b[31m\n  this code: b\n" in out
    assert "\\x0a" not in out
