"""Generated programs on real workers that are killed: each ends as on a worker that is left alone, with its journal."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import ExitStack, suppress
from datetime import timedelta
from pathlib import Path
from random import Random
from threading import Thread
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import psycopg
import pytest
from hypothesis import HealthCheck, Phase, assume, example, given, settings
from hypothesis import strategies as st

from pgwf_sdk import CleanupFailedError, Client, ResultTimeoutError, RunCancelledError, RunFailedError, RunFinishedError
from pgwf_sdk.ops import why_not_running
from pgwf_sdk.testing import Recording
from tests.sdk.replay.entries import Scopes, booked, by_scope, taken_back
from tests.sdk.replay.interpreters import MILLISECONDS_VARIABLE
from tests.sdk.replay.programs import Away, Dawdle, Fork, Guard, Program, Receive, Rival, awaited, programs, size
from tests.support import wait_until
from tests.system.programs import MILLISECONDS, far_from, fleet

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hypothesis.strategies import SearchStrategy

    from pgwf_sdk import Run, Workflow

    Definition: TypeAlias = Workflow[[Program], list[Any]]
    Started: TypeAlias = tuple[Definition, Run[list[Any]]]

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = int(os.environ.get("PGWF_KILLS_EXAMPLES", "2"))
PROGRAMS_MAX = 6
SIZE_MIN = 20
"""Less is not worth the while of killing workers."""
KILLS = 3
SEED = 17
CALM, ROUGH = fleet("calm"), fleet("rough")
CALM_LEASE_SECONDS = 60.0
ROUGH_LEASE_SECONDS = 1.0
ROUGH_CAPABILITIES = ("rough", "rough", far_from("rough"))
FINAL = {"completed", "failed", "cancelled"}
SOON = timedelta(seconds=60)

# A failure says which program it is; to find a smaller one with real workers takes too long.
kills = settings(
    max_examples=EXAMPLES,
    deadline=None,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=list(HealthCheck),
)


AWAY_AND_LATE: Program = (
    Fork(((Dawdle(1), Away(2)), (Away(3), Dawdle(4, 2, is_plain=True)), (Guard((Dawdle(-1),)),))),
    Away(5),
    Dawdle(2, is_plain=True),
)
"""What few generated programs have much of: steps that outlast their time, and steps far from home."""


class Told(NamedTuple):
    """How a run ended, and the journals of it and of its children, by the calls that started them."""

    ended: object
    journals: dict[str, Scopes]


class Ground:
    """A database, worker processes on it, and the runs of programs."""

    def __init__(self, dsn: str, logs: Path, closing: ExitStack) -> None:
        self.dsn = dsn
        self._logs = logs
        self._closing = closing
        self.client = closing.enter_context(Client(dsn))
        self.db: psycopg.Connection[Any] = closing.enter_context(psycopg.connect(dsn, autocommit=True))
        self._started = 0
        self._examples = 0
        for capability in ("calm", far_from("calm")):
            self._worker(CALM_LEASE_SECONDS, "calm", capability)
        self._rough = [(self._rough_worker(capability), capability) for capability in ROUGH_CAPABILITIES]

    def _rough_worker(self, capability: str) -> subprocess.Popen[bytes]:
        return self._worker(ROUGH_LEASE_SECONDS, "rough", capability)

    def _worker(self, lease_seconds: float, fleet: str, capability: str) -> subprocess.Popen[bytes]:
        self._started += 1
        log = self._closing.enter_context((self._logs / f"{capability}-{self._started}.log").open("wb"))
        command = [sys.executable, "-m", "tests.system.programs", self.dsn, str(lease_seconds), fleet, capability]
        process = subprocess.Popen(command, cwd=ROOT, stdout=log, stderr=subprocess.STDOUT)
        self._closing.callback(_end, process)
        return process

    def example(self) -> str:
        """The beginning of ids that no run has yet."""
        self._examples += 1
        return f"example-{self._examples}"

    def start(self, definition: Definition, source: Program, run_id: str) -> Run[list[Any]]:
        """Start a program, with the signals that it waits for and with the seed that all have."""
        with self.db.transaction():
            run = self.client.start(definition(source), run_id=run_id, connection=self.db)
            self.db.execute("update pgwf_sdk.run set seed = %s where n = %s", [SEED, run.n])
            for op, times in awaited(source):
                if isinstance(op, Receive | Rival) and op.comes:
                    for _ in range(times):
                        self.client.signal(run_id, op.name, len(op.name), connection=self.db)
        return run

    def start_each(self, definition: Definition, sources: list[Program], prefix: str) -> list[Started]:
        return [
            (definition, self.start(definition, source, f"{prefix}-{number}")) for number, source in enumerate(sources)
        ]

    def unfinished(self) -> list[str]:
        """The runs that are not over."""
        found = self.db.execute("select run_id from pgwf_sdk.run where finished_at is null").fetchall()
        return [run_id for (run_id,) in found]

    def entry_count(self, runs: list[Run[Any]]) -> int:
        """How many entries there are in the journals of runs and of their children."""
        found = self.db.execute(
            "select count(*) from pgwf_sdk.run r join pgwf_journal.entry e using (n) where r.root = any (%s)",
            [[run.n for run in runs]],
        ).fetchone()
        assert found is not None
        return int(found[0])

    def disturb(self, runs: list[Run[Any]], entry_count: int, random: Random) -> None:
        """Kill rough workers while these runs record so many entries. While another comes up, one is there at home."""
        for reached in sorted(random.randrange(entry_count) for _ in range(KILLS)):
            self._await_entries(runs, reached)
            victim, capability = self._rough.pop(random.randrange(len(self._rough)))
            victim.kill()
            victim.wait()
            self._rough.append((self._rough_worker(capability), capability))

    def _await_entries(self, runs: list[Run[Any]], count: int) -> None:
        wait_until(
            lambda: self.entry_count(runs) >= count or all(run.status() in FINAL for run in runs),
            f"there are {count} entries",
            seconds=90,
        )

    def cancel_some(self, runs: list[Run[Any]], random: Random) -> None:
        """Ask some of the runs to stop, each once it has recorded so much."""
        for run in random.sample(runs, random.randint(1, len(runs))):
            self._await_entries([run], random.randrange(1, 10))
            with suppress(RunFinishedError):
                run.cancel(reason="changed her mind")

    def told(self, run: Run[Any]) -> Told:
        ended = self.ending(run)
        family = self.db.execute("select coalesce(parent_key, ''), run_id from pgwf_sdk.run where root = %s", [run.n])
        journals = {key: by_scope(Recording.of(self.client, run_id).entries) for key, run_id in family.fetchall()}
        return Told(ended, journals)

    def ending(self, run: Run[Any]) -> object:
        """What a run returned, or how it failed; in which order concurrent bookings were undone is left out."""
        try:
            return run.result(timeout=SOON)
        except RunFailedError as failed:
            cause = failed.__cause__
            return "cleanup failed" if isinstance(cause, CleanupFailedError) else repr(cause)
        except RunCancelledError:
            return "cancelled"
        except ResultTimeoutError as error:
            raise AssertionError(f"{run.run_id}: {why_not_running(self.client, run.run_id)}") from error


def _end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait()


@pytest.fixture
def ground(dsn: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Ground]:
    monkeypatch.setenv(MILLISECONDS_VARIABLE, str(MILLISECONDS))  # Replays say time limits as the workers do.
    with ExitStack() as closing:
        yield Ground(dsn, tmp_path, closing)


def sources(programs: SearchStrategy[Program]) -> SearchStrategy[list[Program]]:
    return st.lists(programs, min_size=1, max_size=PROGRAMS_MAX)


randoms = st.randoms(use_true_random=True)


def played(ground: Ground, sources: list[Program], random: Random) -> Iterator[tuple[Program, Told, Told]]:
    """Run programs on a worker that is left alone, and on workers that are killed: what came out of each."""
    assume(sum(map(size, sources)) >= SIZE_MIN)
    name = ground.example()
    calm = [
        *ground.start_each(CALM.program, sources, f"{name}-calm-sync"),
        *ground.start_each(CALM.async_program, sources, f"{name}-calm-async"),
    ]
    expected = [ground.told(run) for _, run in calm]
    rough = [
        *ground.start_each(ROUGH.program, sources, f"{name}-rough-sync"),
        *ground.start_each(ROUGH.async_program, sources, f"{name}-rough-async"),
    ]
    handles = [run for _, run in rough]
    ground.disturb(handles, ground.entry_count([run for _, run in calm]), random)
    for source, (definition, run), wanted in zip([*sources, *sources], rough, expected, strict=True):
        found = ground.told(run)
        Recording.of(ground.client, run.run_id).replay(definition)
        yield source, wanted, found
    assert ground.db.execute("select * from pgwf.check()").fetchall() == []


@pytest.mark.timeout(120 + 60 * EXAMPLES)
@kills
@example([AWAY_AND_LATE] * 3, Random(17))
@given(sources(programs(is_ordered=True, is_timed=False)), randoms)
def test_programs_whose_workers_are_killed_end_alike_with_the_same_journals(
    ground: Ground, sources: list[Program], random: Random
) -> None:
    told = list(played(ground, sources, random))
    for source, wanted, found in told:
        assert found.ended == wanted.ended, source
        assert found.journals == wanted.journals, source
    for (source, sync, _), (_, asynchronous, _) in zip(told[: len(sources)], told[len(sources) :], strict=True):
        assert sync == asynchronous, source


@pytest.mark.timeout(120 + 60 * EXAMPLES)
@kills
@given(sources(programs(is_ordered=True, is_timed=False, escapes=True)), randoms)
def test_a_failure_that_leaves_a_scope_leads_to_the_same_end_however_workers_are_killed(
    ground: Ground, sources: list[Program], random: Random
) -> None:
    for source, wanted, found in played(ground, sources, random):
        assert found.ended == wanted.ended, source
        assert found.journals[""].get("") == wanted.journals[""].get(""), source


@pytest.mark.timeout(120 + 60 * EXAMPLES)
@kills
@example([AWAY_AND_LATE] * 2, [AWAY_AND_LATE] * 2, Random(17))
@given(sources(programs(is_timed=False)), sources(programs(is_timed=False, with_asyncio=True)), randoms)
def test_programs_that_are_cancelled_while_their_workers_are_killed_undo_once_what_they_did(
    ground: Ground, sources: list[Program], async_sources: list[Program], random: Random
) -> None:
    assume(sum(map(size, [*sources, *async_sources])) >= SIZE_MIN)
    name = ground.example()
    runs = ground.start_each(ROUGH.program, sources, f"{name}-sync")
    runs += ground.start_each(ROUGH.async_program, async_sources, f"{name}-async")
    handles = [run for _, run in runs]
    disturbing = Thread(target=ground.disturb, args=(handles, 10 * len(runs), random))
    disturbing.start()
    ground.cancel_some(handles, random)
    disturbing.join()

    for definition, run in runs:
        ended = ground.ending(run)
        recorded = Recording.of(ground.client, run.run_id)
        recorded.replay(definition)
        is_completed = run.status() == "completed"
        assert taken_back(recorded.entries) == (0 if is_completed else booked(recorded.entries)), ended
    wait_until(lambda: not ground.unfinished(), "their children have ended", seconds=60)
    assert ground.db.execute("select * from pgwf.check()").fetchall() == []
