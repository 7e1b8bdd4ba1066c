"""Measure pgwf beside its peers on one PostgreSQL of its own.

quick takes at most 20 minutes, full some hours; docs/performance.md says what is measured and how to read it.
"""

from __future__ import annotations

import argparse
import os
import platform
import signal
import sys
import time
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from bench.limits import CommitProbe, limits
from bench.plan import PLANS, cells
from bench.report import Result, write
from bench.rounds import measure, say
from bench.server import running
from bench.subjects import Subjects

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bench.rounds import Measured

ROOT = Path(__file__).resolve().parents[1]


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(prog="run.py bench", description=__doc__)
    parser.add_argument("plan", choices=sorted(PLANS))
    parser.add_argument("--peers", default="all", help="names with commas, 'all' that are installed, or 'none'")
    parser.add_argument("--pgmq", type=Path, metavar="PATH", help="a checkout of pgmq to measure too")
    parser.add_argument("--pgwf-upstream", type=Path, metavar="PATH", help="a checkout of the SQL-only pgwf")
    parser.add_argument("--only", default="", metavar="TEXT", help="only cells with one of these words (with commas)")
    parser.add_argument("--rounds", type=int, help="how often each subject is asked (default: as the plan says)")
    parser.add_argument("--data", type=Path, metavar="FOLDER", help="where the server's data goes: on the disk to test")
    parser.add_argument("--out", type=Path, default=ROOT / "bench-results", metavar="FOLDER", help="for the results")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str]) -> int:
    """Measure, and write what was found; what was measured before an interrupt is written too."""
    options = parse(arguments)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that the server is stopped and its data removed
    subjects = Subjects.chosen(options.peers, pgmq_path=options.pgmq, upstream_path=options.pgwf_upstream)
    plan = PLANS[options.plan]
    only = [word for word in options.only.split(",") if word]
    started = time.monotonic()
    with running(options.data) as server:
        probe = CommitProbe(server)
        measured: list[Measured] = []
        left_out: list[str] = []
        result = Result(
            {
                "plan": options.plan,
                "measured": f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC",
                "machine": f"{os.cpu_count()} CPUs, {platform.machine()}, Python {platform.python_version()}",
                "versions": ", ".join(subjects.versions()),
                "server": ", ".join(f"{name} {value}" for name, value in server.settings().items()),
            },
            limits(server, probe),
            measured,
            left_out,
        )
        try:
            rounds = options.rounds or plan.rounds
            # One by one, because a cell's databases are there only until the next is asked for.
            with closing(cells(server, subjects, plan, only, left_out)) as found:
                measured.extend(measure(cell, rounds=rounds, probe=probe) for cell in found)
        finally:
            for path in write(result, options.out):
                print(path)
            probe.close()
    say(f"done after {(time.monotonic() - started) / 60:.1f} minutes")
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except KeyboardInterrupt:
        sys.exit(130)
