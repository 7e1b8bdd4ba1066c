"""The program of docs/sdk-guide.md: its blocks run in order, and its workflows do what the page says."""

from __future__ import annotations

import re
import sys
from decimal import Decimal
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from pgwf_journal import Phase
from pgwf_sdk import Workflow
from pgwf_sdk._serial import decode
from pgwf_sdk.replay import Completed, Continued
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
}


ARGUMENTS: dict[str, tuple[Any, ...]] = {
    "basket": ("ann",),
    "after_order": ("17",),
    "subscription": (Ellipsis, 2),
    "top_up": ("ann",),
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
    assert {name for name, value in vars(guide).items() if isinstance(value, Workflow)} == set(CASES)
