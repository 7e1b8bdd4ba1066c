"""A worker for generated programs: `python -m tests.system.programs DSN LEASE_SECONDS NEED`.

The same workflows under the same names exist for each need, so that a program can be run by one fleet and by another.
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
    doubled,
)
from tests.sdk.replay.programs import Program

if TYPE_CHECKING:
    from pgwf_sdk import Workflow

MILLISECONDS = 5
"""A second of a program."""
POLL = timedelta(milliseconds=200)


class Fleet(NamedTuple):
    """What workers of one need run."""

    program: Workflow[[Program], list[Any]]
    async_program: Workflow[[Program], list[Any]]
    child: Workflow[[int], int]


def fleet(need: str) -> Fleet:
    child = workflow(name="doubled", need=need)(doubled.fn)

    @workflow(need=need)
    def program(ctx: Context, source: Program) -> list[Any]:
        return Interpreter(child).run(ctx, source)

    @workflow(need=need)
    async def async_program(ctx: AsyncContext, source: Program) -> list[Any]:
        return await AsyncInterpreter(child).run(ctx, source)

    return Fleet(program, async_program, child)


def main() -> None:
    dsn, lease_seconds, need = sys.argv[1:]
    os.environ |= {OUTSIDE_VARIABLE: dsn, MILLISECONDS_VARIABLE: str(MILLISECONDS)}
    with Client(dsn) as client:
        lease = timedelta(seconds=float(lease_seconds))
        Worker(client, workflows=list(fleet(need)), capabilities=[need], lease=lease, poll=POLL).run()


if __name__ == "__main__":
    main()
