"""Values of many megabytes go through step, journal and result, and the one that is too long is refused by name."""

from __future__ import annotations

import re
import subprocess
import sys
import textwrap
from typing import TYPE_CHECKING

import pytest

from pgwf_sdk import Context, RunFailedError, step, workflow
from pgwf_sdk.testing import Environment

if TYPE_CHECKING:
    from pgwf_sdk.embedded import EmbeddedServer

MEGABYTES = 50
COPIES_MAX = 14
"""How often the value may be in memory at once: as value, JSON, parameter and answer, in worker and client."""

PROGRAM = """
import resource
from pgwf_sdk import Context, step, workflow
from pgwf_sdk.testing import Environment

@step
def make(megabytes: int) -> str:
    return "x" * (megabytes << 20)

@workflow
def carry(ctx: Context, megabytes: int) -> str:
    return ctx.step(make, megabytes)

with Environment({server!r}, replay=False) as env:
    env.run(carry(0))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert len(env.run(carry({megabytes}))) == {megabytes} << 20
    print("grew by", resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before, "kB")
"""


@step
def make(megabytes: int) -> str:
    return "x" * (megabytes << 20)


@workflow
def carry(ctx: Context, megabytes: int) -> str:
    return ctx.step(make, megabytes)


@pytest.mark.timeout(200)
def test_a_value_of_fifty_megabytes_comes_back_in_bounded_memory(server: EmbeddedServer) -> None:
    program = textwrap.dedent(PROGRAM).format(server=server.dsn, megabytes=MEGABYTES)

    said = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)

    grown = re.search(r"grew by (\d+) kB", said.stdout)
    assert grown, said.stderr
    assert int(grown[1]) < COPIES_MAX * MEGABYTES * 1024


def test_a_value_that_is_too_long_fails_its_step_with_the_limit(server: EmbeddedServer) -> None:
    expected = pytest.raises(RunFailedError, match=r"result is 65 MiB long as JSON; expected at most 64 MiB")
    with Environment(server.dsn, replay=False) as env, expected:
        env.run(carry(65))
