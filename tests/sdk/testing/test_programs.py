"""Generated programs in the kit: cut off at appends of theirs, they end alike, and each commit is replayed."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from hypothesis import HealthCheck, Phase, given, settings

from pgwf_sdk import AsyncContext, Context, RunFailedError, workflow
from tests.sdk.replay.interpreters import OUTSIDE_VARIABLE, AsyncInterpreter, Interpreter
from tests.sdk.replay.programs import Program, Receive, Rival, awaited, programs

if TYPE_CHECKING:
    import pytest

    from pgwf_sdk.testing import Environment

EXAMPLES = int(os.environ.get("PGWF_KILLS_EXAMPLES", "5"))
CUTS_MAX = 6


@workflow
def program(ctx: Context, source: Program) -> list[Any]:
    return Interpreter().run(ctx, source)


@workflow
async def async_program(ctx: AsyncContext, source: Program) -> list[Any]:
    return await AsyncInterpreter().run(ctx, source)


@settings(
    max_examples=EXAMPLES,
    deadline=None,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=list(HealthCheck),
)
@given(programs(is_ordered=True, is_timed=False))
def test_programs_end_alike_wherever_their_worker_is_cut_off(
    env: Environment, monkeypatch: pytest.MonkeyPatch, source: Program
) -> None:
    monkeypatch.setenv(OUTSIDE_VARIABLE, env.dsn)
    for definition in (program, async_program):

        def story(env: Environment) -> object:
            run = env.client.start(definition(source), run_id="program")  # noqa: B023 - played within this iteration
            for op, times in awaited(source):
                if isinstance(op, Receive | Rival) and op.comes:
                    for _ in range(times):
                        run.signal(op.name, len(op.name))
            try:
                return env.result(run)
            except RunFailedError as failed:
                return type(failed.__cause__).__name__

        env.reset()
        env.crash_everywhere(story, cuts_max=CUTS_MAX)
