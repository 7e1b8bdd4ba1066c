"""Count what was executed and what was recorded, each from the source that cannot be talked into anything.

Recorded: the rows of the view pgwf_journal.entries. Executed: the lines in which the SDK's worker says that an attempt
of a step starts; it writes them to the worker's log before it calls the step, so that they outlive a SIGKILL.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec
from psycopg.rows import class_row

from examples.licence_audit.inventory import Item

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence
    from pathlib import Path

    from pgwf_sdk import Client

_ATTEMPT = re.compile(r"run (\S+): (\S+): attempt \d+ starts$")

_STEPS = """
select r.run_id, e.key, coalesce(e.lease_no, 0)::int as lease_no
from pgwf_sdk.runs r
join pgwf_journal.entries e on e.n = r.n
where r.root_run_id = %(run_id)s and e.kind = 'step' and e.phase in ('completed', 'failed')
"""

_INPUTS = """
select r.run_id, e.payload
from pgwf_sdk.runs r
join pgwf_journal.entries e on e.n = r.n
where r.run_id = any(%(run_ids)s) and e.seq = 1
"""


@dataclass(frozen=True, slots=True)
class Tally:
    """Attempts of steps that began, results in the journals, and how many different steps these results are of."""

    executed: int
    recorded: int
    distinct: int


@dataclass(frozen=True, slots=True)
class Held:
    """An unfinished run of a worker that died: its steps recorded until then, the last under lease `lease_no`."""

    run_id: str
    label: str  # The distribution it audits.
    steps: int
    lease_no: int


@dataclass(frozen=True, slots=True)
class _Step:
    run_id: str
    key: str
    lease_no: int


class _Input(msgspec.Struct):
    args: tuple[Item]


def tally(client: Client, run_id: str, logs: Path) -> Tally:
    """Count the steps of a run and its children; the logs are those of every worker that ever worked on it."""
    steps = _steps(client, run_id)
    distinct = {(step.run_id, step.key) for step in steps}
    return Tally(executed=_attempts(logs, run_id), recorded=len(steps), distinct=len(distinct))


def held(client: Client, run_id: str, children: Collection[str]) -> list[Held]:
    """Return what is recorded of those children of a run that have recorded a step."""
    steps = [step for step in _steps(client, run_id) if step.run_id in children]
    with client.connection() as connection:
        rows: list[Any] = connection.execute(_INPUTS, {"run_ids": list(children)}).fetchall()
    labels = {str(row[0]): msgspec.json.decode(row[1], type=_Input).args[0].label for row in rows}
    found: list[Held] = []
    for child in sorted({step.run_id for step in steps}):
        leases = [step.lease_no for step in steps if step.run_id == child]
        found.append(Held(child, labels[child], len(leases), max(leases)))
    return found


def steps_since(client: Client, run_id: str, since: Sequence[Held]) -> dict[str, int]:
    """Return, by run, how many steps were recorded under a later lease than then."""
    steps = _steps(client, run_id)
    return {
        each.run_id: sum(step.run_id == each.run_id and step.lease_no > each.lease_no for step in steps)
        for each in since
    }


def _steps(client: Client, run_id: str) -> list[_Step]:
    with client.connection() as connection, connection.cursor(row_factory=class_row(_Step)) as cursor:
        return cursor.execute(_STEPS, {"run_id": run_id}).fetchall()


def _attempts(logs: Path, run_id: str) -> int:
    count = 0
    for path in logs.glob("*.log"):
        with open(path, encoding="utf-8", errors="replace") as log:
            for line in log:
                found = _ATTEMPT.search(line.rstrip("\n"))
                if found and (found[1] == run_id or found[1].startswith(f"{run_id}/")):
                    count += 1
    return count
