"""The pytest plugin, in a pytest of its own."""

from __future__ import annotations

import re
import resource
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pgwf_sdk.embedded import EmbeddedServer

SUITE = """
    from datetime import timedelta

    import pytest

    from pgwf_sdk import Context, step, workflow


    @step
    def weigh(parcel: int) -> int:
        return parcel * 100


    @workflow
    def pack(ctx: Context, parcel: int) -> int:
        grams = ctx.step(weigh, parcel)
        ctx.sleep(timedelta(days=parcel))
        ctx.wait_signal("packed", int, timeout=timedelta(days=30))
        return grams + sum(ctx.map(weigh, range(3)))


    @pytest.mark.parametrize("parcel", range({count}))
    def test_pack(pgwf_env, parcel):
        run = pgwf_env.start(pack(parcel), run_id="parcel")
        pgwf_env.client.signal("parcel", "packed", 1)
        assert pgwf_env.result(run) == parcel * 100 + 300
"""


PAGE = Path(__file__).resolve().parents[3] / "docs/testing.md"
CPU_SECONDS_MAX = 40.0  # Three to five on an idle machine; a busy one counts more for the same work.


def play(folder: Path, server: EmbeddedServer, source: str, *options: str) -> str:
    (folder / "test_suite.py").write_text(textwrap.dedent(source))
    (folder / "pytest.ini").write_text(f"[pytest]\npgwf_server = {server.dsn}\n")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "pgwf_sdk.pytest_plugin", "-q", *options, "test_suite.py"],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stdout + done.stderr


def cpu_seconds() -> float:
    """What processes that this one started, and that have ended, have computed."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


@pytest.mark.timeout(300)
def test_two_hundred_workflow_tests_take_seconds(tmp_path: Path, server: EmbeddedServer) -> None:
    before = cpu_seconds()

    said = play(tmp_path, server, SUITE.format(count=200))

    assert re.search(r"200 passed", said), said
    assert cpu_seconds() - before < CPU_SECONDS_MAX


@pytest.mark.timeout(300)
def test_the_page_about_testing_is_a_suite_that_passes(tmp_path: Path, server: EmbeddedServer) -> None:
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)

    said = play(tmp_path, server, "\n\n".join(blocks))

    assert re.search(r"(\d+) passed", said), said
    assert "failed" not in said, said


def test_a_difference_in_a_replay_fails_the_test_that_led_to_it(tmp_path: Path, server: EmbeddedServer) -> None:
    said = play(
        tmp_path,
        server,
        """
        import random

        from pgwf_sdk import Context, workflow


        @workflow
        def gamble(ctx: Context) -> int:
            return ctx.step(abs, random.random())


        def test_gamble(pgwf_env):
            pgwf_env.start(gamble())


        def test_another(pgwf_env):
            assert pgwf_env.client.list() == ()
        """,
    )

    assert "ReplayDifferenceError" in said
    assert "1 failed, 1 passed" in said
    assert "1 passed" in play(tmp_path, server, SUITE.format(count=1), "--pgwf-no-replay")


def test_a_mock_of_a_name_that_nothing_has_is_warned_of_and_may_be_made_a_failure(
    tmp_path: Path, server: EmbeddedServer
) -> None:
    source = (
        textwrap.dedent(SUITE.format(count=2))
        + """
@pytest.fixture(autouse=True)
def scales(pgwf_env, request):
    pgwf_env.mock("weigh" if "[0]" in request.node.name else "wiegh", lambda parcel: parcel * 100)
"""
    )

    told = play(tmp_path, server, source)
    refused = play(tmp_path, server, source, "-W", "error::pgwf_sdk.testing.UnusedMockWarning")

    assert "2 passed, 1 warning" in told
    assert "mock of step 'wiegh' was not called: the steps executed were 'weigh'" in told
    assert "2 passed, 1 error" in refused


def test_without_an_environment_nothing_is_loaded() -> None:
    asked = "import sys, pgwf_sdk.pytest_plugin; print('psycopg' in sys.modules, 'msgspec' in sys.modules)"

    said = subprocess.run([sys.executable, "-c", asked], capture_output=True, text=True, check=True).stdout

    assert said.split() == ["False", "False"]
