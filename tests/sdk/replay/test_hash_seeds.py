"""Journals are written and replayed alike whatever PYTHONHASHSEED a worker happens to have."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
PROGRAM = """
import sys
from pgwf_sdk import Context, step, workflow
from pgwf_sdk.replay import Failed
from tests.sdk.replay.driver import Driver
from tests.sdk.replay.test_unwinding import async_trip, book, tell, trip

@workflow
def mixed(ctx: Context) -> None:
    ctx.hop("gpu")
    ctx.on_exit(tell, "office")
    ctx.shield(lambda ctx: ctx.map(book, ["hotel", "flight", "train"]))
    ctx.parallel(lambda ctx: ctx.step(book, "car"), lambda ctx: ctx.step(book, "sold out"))

for call in (trip(["hotel", "flight", "sold out"]), async_trip(["hotel", "stuck", "sold out"]), mixed()):
    driver = Driver(call)
    outcome = driver.run()
    assert isinstance(outcome, Failed)
    assert isinstance(driver.run(), Failed)
    print([(entry.key, entry.phase.label) for entry in driver.journal])
"""


def test_sagas_hops_and_shields_write_the_same_journal_under_any_hash_seed() -> None:
    journals = {
        subprocess.run(
            [sys.executable, "-c", PROGRAM],
            cwd=ROOT,
            env={**os.environ, "PYTHONHASHSEED": seed},
            check=True,
            capture_output=True,
            text=True,
        ).stdout
        for seed in ("0", "1", "4242")
    }

    assert len(journals) == 1
    assert "/compensation:cancel_booking#3" in journals.pop()
