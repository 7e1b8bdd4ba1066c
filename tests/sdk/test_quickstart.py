"""The programs of docs/quickstart.md do what the page says."""

from __future__ import annotations

import importlib
import re
import runpy
import sys
import threading
from pathlib import Path
from types import ModuleType

import pytest

from pgwf_sdk.testing import Environment
from tests.support import wait_until

QUICKSTART = Path(__file__).parents[2] / "docs" / "quickstart.md"
DELIVERED = "receipt for o-18; parcel of o-18, delivered to the neighbour"


def test_an_order_is_started_by_one_program_and_delivered_by_another(
    pgwf_env: Environment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    blocks = re.findall(r"^```python\n(.*?)^```$", QUICKSTART.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    for name, block in zip(("shop.py", "orders.py"), blocks, strict=True):
        (tmp_path / name).write_text(block, encoding="utf-8")
    monkeypatch.setenv("PGWF_DSN", pgwf_env.dsn)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(sys.modules, "shop", ModuleType("shop"))  # Whatever has that name comes back after the test.
    del sys.modules["shop"]
    checkout = importlib.import_module("shop").checkout
    pgwf_env.add(checkout)

    ordering = threading.Thread(target=runpy.run_path, args=[str(tmp_path / "orders.py")], daemon=True)
    ordering.start()
    wait_until(lambda: pgwf_env.client.list(workflow="checkout"), "the order is placed")
    pgwf_env.client.signal("order-18", "delivered", "the neighbour")

    assert pgwf_env.result(pgwf_env.client.get("order-18", checkout)) == DELIVERED
    ordering.join(30)
    assert DELIVERED in capsys.readouterr().out
