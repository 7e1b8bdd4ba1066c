"""What the command line prints of reports that have several lines."""

from __future__ import annotations

import json
from typing import Any

import psycopg
import pytest

from pgwf_sdk.cli._app import run_command
from tests.sdk.sql.hand import Hand, start, value

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


def failed(message: str, *notes: str) -> bytes:
    return json.dumps({"type": "shop:Refused", "message": message, "notes": notes}).encode()


def test_show_tells_the_error_of_the_run_that_was_asked_for_not_of_its_retry(
    db: Conn, dsn: str, capfd: pytest.CaptureFixture[str]
) -> None:
    hand = Hand(db, "w", ["python"])
    start(db, "flip-1")
    hand.say(hand.take().end("fail", failed("heads")))
    value(db, "select pgwf_sdk.retry_run('flip-1', 'ann')")
    hand.say(hand.take().end("fail", failed("tails")))

    def shown(run_id: str) -> str:
        assert run_command(["--dsn", dsn, "show", run_id]) == 0
        return capfd.readouterr().out

    assert "flip-1: workflow checkout, failed;" in shown("flip-1")
    assert "\nRefused: heads\n" in shown("flip-1")
    assert "\nRefused: tails\n" in shown("flip-1~2")


def test_show_tells_who_terminated_a_run(db: Conn, dsn: str, capfd: pytest.CaptureFixture[str]) -> None:
    start(db, "order-1")
    value(db, "select pgwf_sdk.terminate_run('order-1', 'ann', 'enough')")

    assert run_command(["--dsn", dsn, "show", "order-1"]) == 0

    assert "\nRunTerminatedError: terminated by ann: enough\n" in capfd.readouterr().out


def test_show_prints_an_error_of_several_lines_in_its_lines(
    db: Conn, dsn: str, capfd: pytest.CaptureFixture[str]
) -> None:
    start(db, "order-1")
    hand = Hand(db, "w", ["python"])
    note = 'Traceback:\n  File "shop.py", line 3\n\tpay()'
    hand.say(hand.take().end("fail", failed("two\nlines\x1b[31m", note)))

    assert run_command(["--dsn", dsn, "show", "order-1"]) == 0
    out = capfd.readouterr().out

    assert f"\nRefused: two\nlines\\x1b[31m\n{note}\n" in out
    assert "\\x0a" not in out
