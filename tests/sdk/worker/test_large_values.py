"""Values of many megabytes go through step, journal and result, and the one that is too long is refused by name."""

from __future__ import annotations

import gc
import re
import subprocess
import sys
import textwrap
import threading
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from pgwf_sdk import AsyncContext, Client, Context, RetryPolicy, RunFailedError, current_step, step, workflow
from pgwf_sdk.testing import Environment
from pgwf_sdk.worker._batch import ITEM_BYTES_MAX
from pgwf_sdk.worker._driver import Driver
from pgwf_sdk.worker._leftovers import BYTES_MAX
from tests.support import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pgwf_sdk.embedded import EmbeddedServer
    from tests.sdk.worker.conftest import StartWorker

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


@workflow
def weigh(_ctx: Context, value: str) -> int:
    return len(value)


@workflow
async def weigh_async(_ctx: AsyncContext, value: str) -> int:
    return len(value)


@pytest.fixture
def no_collector() -> Iterator[None]:
    """Python looks for objects that refer to each other in circles only when it is told to."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("no_collector")
@pytest.mark.parametrize("weighing", [weigh, weigh_async], ids=lambda one: one.name)
def test_runs_that_are_over_do_not_fill_the_memory_with_their_payloads(
    weighing: Any, client: Client, start_worker: StartWorker
) -> None:
    """The collector counts objects, and so few with large payloads that gigabytes would wait for its next look."""
    size, places = 4 << 20, 2
    running = start_worker(weighing, concurrency=places)

    for run in [client.start(weighing("x" * size)) for _ in range(2 * BYTES_MAX // size)]:
        assert run.result(timeout=timedelta(seconds=60)) == size

    wait_until(lambda: running.worker.health().runs == 0, "no run is in hand")
    left = [one for one in gc.get_objects() if isinstance(one, Driver)]
    assert len(left) <= BYTES_MAX // size + places


LARGE, SOME = 6 << 20, 8


@workflow
def total(ctx: Context, what: str) -> int:
    if what == "steps":
        results = ctx.map(meet, list(range(SOME)))
        return sum(map(len, results))
    if what == "children":
        return sum(ctx.map(weigh, ["x" * LARGE] * SOME))
    return sum(ctx.map(ask, list(range(SOME))))


def ask(ctx: Context, number: int) -> int:
    return ctx.human(f"look-{number}", "x" * LARGE, int, need="human.x").value


meeting = threading.Barrier(SOME)


@step
def meet(_number: int) -> str:
    meeting.wait(60)
    return "x" * LARGE


@pytest.mark.parametrize(
    ("what", "kind", "phase"),
    [("steps", "step", "completed"), ("children", "child", "opened"), ("people", "human", "opened")],
)
def test_results_and_openings_that_are_large_together_are_recorded_one_after_the_other(
    what: str, kind: str, phase: str, client: Client, start_worker: StartWorker, db: psycopg.Connection[Any]
) -> None:
    """PostgreSQL closes the connection on a message of a gigabyte, and would do so again and again."""
    start_worker(total, weigh)

    run = client.start(total(what))

    if what == "people":
        wait_until(lambda: len(client.human.list()) == SOME, "all are asked")
        for task in client.human.list():
            client.human.decide(task.task_id, LARGE, by="ann")
    assert run.result(timeout=timedelta(seconds=60)) == LARGE * SOME
    commits = db.execute(
        """
        select count(*) * %s
        from pgwf_journal.entries
        where journal_id = %s and kind = %s and phase = %s
        group by recorded_at
        """,
        [LARGE, run.run_id, kind, phase],
    ).fetchall()
    assert sum(size for (size,) in commits) == LARGE * SOME
    assert max(size for (size,) in commits) <= ITEM_BYTES_MAX + LARGE


@pytest.mark.parametrize("isolate", [None, "process"])
def test_a_heartbeat_that_is_too_long_fails_where_it_is_made(
    isolate: Any, client: Client, start_worker: StartWorker
) -> None:
    """A claim brings those of all open steps of a run in one text; many large ones would be too much for it."""
    start_worker(telling)

    run = client.start(telling(isolate == "process", (1 << 20) - 2))
    assert run.result(timeout=timedelta(seconds=60)) == "told"

    run = client.start(telling(isolate == "process", (1 << 20) - 1))
    with pytest.raises(RunFailedError, match="heartbeat is 1048577 bytes long as JSON; expected at most 1048576"):
        run.result(timeout=timedelta(seconds=60))


@step(retry=RetryPolicy(max_attempts=1))
def tell(size: int) -> str:
    current_step().heartbeat("x" * size)
    return "told"


@workflow
def telling(ctx: Context, is_isolated: bool, size: int) -> str:
    return ctx.step(tell.options(isolate="process") if is_isolated else tell, size)
