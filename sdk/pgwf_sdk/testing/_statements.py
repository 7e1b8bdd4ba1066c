"""What the test kit asks of its database."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from pgwf_sql.database import Statement, read_nothing, read_value


@dataclass(frozen=True, slots=True)
class Moved:
    """Whether anything became ready, and what time it is now."""

    moved: bool
    now_at: datetime


def clear(now: datetime | None) -> Statement[None]:
    """Forget all runs and set the clock; None: to the real time."""
    return Statement("testing_clear", {"now": now}, read_nothing)


def now() -> Statement[datetime]:
    """What time it is."""
    return Statement("testing_now", {}, read_value)


def move(worker_id: str, needs: Sequence[str], until: datetime | str | None) -> Statement[Moved]:
    """Do what is due; when nothing is, nor is work ready that needs one of `needs`, move to the next instant that is
    not past `until` (None: do not move)."""
    parameters = {"worker_id": worker_id, "needs": list(needs), "until": until}
    return Statement("testing_move", parameters, lambda rows: Moved(**rows[0]))


def end_leases(worker_id: str) -> Statement[None]:
    """What a worker that is no more held lapses."""
    return Statement("testing_end_leases", {"worker_id": worker_id}, read_nothing)


def run_ids() -> Statement[list[str]]:
    """All runs, the oldest first."""
    return Statement("testing_runs", {}, lambda rows: [row["run_id"] for row in rows])


def workflow_of(n: int) -> Statement[str]:
    """The name of run `n`'s workflow."""
    return Statement("testing_workflow", {"n": n}, read_value)
