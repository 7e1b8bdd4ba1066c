"""A worker for generated programs: `python -m tests.system.programs DSN LEASE_SECONDS FLEET [CAPABILITY]`.

The same workflows under the same names exist for each fleet, so that a program can be run by one and by another. A
fleet has workers at home and others `far_from` there: some steps need those.
"""

from __future__ import annotations

import os
import sys
from datetime import timedelta
from typing import TYPE_CHECKING, Any, NamedTuple

from pgwf_sdk import AsyncContext, Client, Context, Worker, workflow
from tests.sdk.replay.interpreters import (
    MILLISECONDS_VARIABLE,
    OUTSIDE_VARIABLE,
    AsyncInterpreter,
    Interpreter,
    away,
    doubled,
)
from tests.sdk.replay.programs import Program

if TYPE_CHECKING:
    from pgwf_sdk import Workflow

MILLISECONDS = 5
"""A second of a program."""
POLL = timedelta(milliseconds=200)


class Fleet(NamedTuple):
    """What the workers of one fleet run."""

    program: Workflow[[Program], list[Any]]
    async_program: Workflow[[Program], list[Any]]
    child: Workflow[[int], int]


def far_from(fleet: str) -> str:
    """The need of the steps for which a run leaves its home."""
    return f"far-{fleet}"


def fleet(need: str) -> Fleet:
    child = workflow(name="doubled", need=need)(doubled.fn)
    step_away = away.options(need=far_from(need))

    @workflow(need=need)
    def program(ctx: Context, source: Program) -> list[Any]:
        return Interpreter(child, step_away).run(ctx, source)

    @workflow(need=need)
    async def async_program(ctx: AsyncContext, source: Program) -> list[Any]:
        return await AsyncInterpreter(child, step_away).run(ctx, source)

    return Fleet(program, async_program, child)


def main() -> None:
    dsn, lease_seconds, name, *capabilities = sys.argv[1:]
    os.environ |= {OUTSIDE_VARIABLE: dsn, MILLISECONDS_VARIABLE: str(MILLISECONDS)}
    with Client(dsn) as client:
        lease = timedelta(seconds=float(lease_seconds))
        offered = capabilities or [name]
        Worker(client, workflows=list(fleet(name)), capabilities=offered, lease=lease, poll=POLL).run()


if __name__ == "__main__":
    main()
