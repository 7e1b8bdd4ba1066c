"""The program of docs/sdk-guide.md: its blocks run in order, and its workflows do what the page says."""

from __future__ import annotations

import re
import sys
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from pgwf_journal import Phase
from pgwf_sdk import Workflow
from pgwf_sdk._serial import decode
from pgwf_sdk.replay import Completed, Continued
from pgwf_sdk.testing import Environment
from tests.sdk.replay.driver import Driver

GUIDE = Path(__file__).parents[2] / "docs" / "sdk-guide.md"


@pytest.fixture(scope="module")
def guide() -> Any:
    module = ModuleType("sdk_guide")
    sys.modules["sdk_guide"] = module
    text = GUIDE.read_text(encoding="utf-8")
    blocks = re.finditer(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    for block in blocks:
        line = text.count("\n", 0, block.start(1))
        code = compile("\n" * line + block.group(1), str(GUIDE), "exec", dont_inherit=False)
        exec(code, module.__dict__)
    return module


CASES: dict[str, Any] = {
    "checkout": None,
    "careful_checkout": "shipped 2",
    "deliver": "received by ann",
    "large_payment": "released by ann",
    "family": "bank-17, received by ann",
    "subscription": None,
    "trained": 3,
    "trip": None,
    "fan_out": "[1, 2] ['a:1', 'bb:2'] bank-17 2",
    "best_effort": "3 g, succeeded, unfinished",
    "async_checkout": "ann",
    "patient": "done",
    "collect": "paid 1200",
    "basket": [],
    "tracked": None,
    "top_up": Decimal(10),
    "track": "delivered",
    "repeatable": None,
    "changed": "bank-17",
    "quoted_checkout": "bank-17: 3",
    "after_order": "charged as bank-17",
    "labelled": ["a by post", "bb by post"],
    "illustrate": 2,
    "render_all": 2,
    "close_books": 10,
}


ARGUMENTS: dict[str, tuple[Any, ...]] = {
    "basket": ("ann",),
    "after_order": ("17",),
    "subscription": (Ellipsis, 2),
    "top_up": ("ann",),
    "close_books": (date(2026, 11, 28),),
}


@pytest.mark.parametrize("name", CASES)
def test_each_workflow_of_the_guide_completes_and_replays(guide: Any, name: str) -> None:
    order = guide.Order("17", Decimal("9.90"), ["a", "bb"])
    definition: Workflow[..., Any] = getattr(guide, name)
    driver = Driver(
        definition(*[order if one is Ellipsis else one for one in ARGUMENTS.get(name, (Ellipsis,))]),
        signals={"delivered": ["ann"]},
        completions={"send_invoice": [{"cents": 1200}]},
        ends={"17": (Phase.COMPLETED, b'{"order_id":"17","reference":"bank-17"}', 1)},
        decisions={"large-payment": [guide.Verdict(approved=True)]},
    )
    outcome = driver.run()

    assert driver.run() == outcome
    while isinstance(outcome, Continued):
        driver = Driver(outcome.call)
        outcome = driver.run()
    assert isinstance(outcome, Completed), outcome
    value = decode(outcome.payload, outcome.encoding, definition.codec.annotation)
    assert CASES[name] is None or value == CASES[name]


def test_every_workflow_of_the_guide_is_tried(guide: Any) -> None:
    assert {name for name, value in vars(guide).items() if isinstance(value, Workflow)} == {
        *CASES,
        "each_day",  # It never ends, and has a test of its own.
    }


def test_a_run_that_is_the_clock_starts_a_run_a_day(guide: Any, pgwf_env: Environment) -> None:
    pgwf_env.reset(datetime(2026, 11, 28, 12, tzinfo=UTC))
    pgwf_env.start(guide.each_day(date(2026, 11, 28)), run_id="clock")

    pgwf_env.advance(timedelta(days=2))

    # What still runs when a run continues belongs to the next one.
    found = [run for parent in ("clock~2", "clock~3") for run in pgwf_env.client.list(parent_run_id=parent)]
    assert [(run.status, run.created_at.isoformat()) for run in found] == [
        ("completed", "2026-11-28T23:30:00+00:00"),
        ("completed", "2026-11-29T23:30:00+00:00"),
    ]


def test_a_run_that_is_held_back_is_started_once_a_day(guide: Any, pgwf_env: Environment) -> None:
    pgwf_env.reset(datetime(2026, 11, 28, 12, tzinfo=UTC))
    pgwf_env.add(guide.close_books)

    assert guide.close_tonight(pgwf_env.client, date(2026, 11, 28))
    assert not guide.close_tonight(pgwf_env.client, date(2026, 11, 28))
    assert pgwf_env.result(pgwf_env.client.get("books-2026-11-28", guide.close_books)) == 10
    assert pgwf_env.now() == datetime(2026, 11, 28, 23, 30, tzinfo=UTC)
