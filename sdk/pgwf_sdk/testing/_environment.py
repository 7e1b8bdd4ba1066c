"""The environment of a test: a database, a clock and a worker of its own, all at the test's command."""

from __future__ import annotations

import asyncio
import threading
from contextlib import ExitStack
from datetime import datetime, timedelta
from itertools import count
from typing import TYPE_CHECKING, Any, Never, TypeVar, overload
from uuid import uuid4

from typing_extensions import ParamSpec

from pgwf_sdk._client import Client, Run, _calls
from pgwf_sdk._client._options import check_dsn
from pgwf_sdk._definition import Call, Step, Workflow, as_step
from pgwf_sdk._errors import DefinitionError
from pgwf_sdk._kinds import check_counts, check_instants
from pgwf_sdk._misuse import check_sealing, check_story, check_workflows
from pgwf_sdk._sealing import Sealing
from pgwf_sdk.embedded import EmbeddedServer, default_home
from pgwf_sdk.ops import why_not_running
from pgwf_sdk.ops._source import run as ask
from pgwf_sdk.replay._places import line_of_caller
from pgwf_sdk.testing import _statements
from pgwf_sdk.testing._arguments import check_run, instant_after, mock_answer
from pgwf_sdk.testing._crashes import Appends, CrashReport, WorkerCut
from pgwf_sdk.testing._database import OwnDatabase
from pgwf_sdk.testing._differences import RunStuckError
from pgwf_sdk.testing._exploration import explore
from pgwf_sdk.testing._mocks import StepMock
from pgwf_sdk.testing._recording import Recording
from pgwf_sdk.testing._session import Stage, VirtualSession
from pgwf_sdk.worker._settings import CONCURRENCY, GRACE, POLL, STEP_THREADS, Settings
from pgwf_sql.database import Closing

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from pgwf_journal import Entry

P = ParamSpec("P")
R = TypeVar("R")

LEASE = timedelta(days=3650)  # Nobody tends leases here: they end when their worker is cut off.
SETTINGS = {"fsync": "off", "full_page_writes": "off", "synchronous_commit": "off"}
"""What is in the environment's own server is thrown away."""


class LocalClient(Client):
    """A client whose runs the environment's worker knows; runs that are given no id are `run-1`, `run-2`, …"""

    def __init__(self, dsn: str, stage: Stage, sealing: Sealing | None) -> None:
        super().__init__(dsn, name="test", sealing=sealing)
        self._stage = stage
        self.numbers = count(1)

    def start(self, call: Call[R], /, *excess: Never, run_id: str | None = None, **options: Any) -> Run[R]:
        if isinstance(call, Call):  # pyright: ignore[reportUnnecessaryIsInstance] - if not, the next line says so
            self._stage.learn(call.workflow)
            run_id = f"run-{next(self.numbers)}" if run_id is None else run_id
        return super().start(call, *excess, run_id=run_id, **options)


class Environment(Closing):
    """Runs workflows on a real PostgreSQL, step by step at the test's command, on a clock that it can move.

    Nothing is executed but within `run`, `start`, `result`, `settle` and `advance`. Time stands still while anything
    can go on; `result` moves it to the next instant that something waits for, as often as it takes. Workflow and step
    code is real, but for what is mocked, and so are retries, timeouts, signals and decisions: `client` is a `Client`.

    `server` is an address whose account may create databases; the environment makes one there, and drops it at the end
    (default: an embedded server that the tests of this account share). Unless `replay` is False, each run is replayed
    from its journal after every commit, and a difference fails the test. Close it, or use it as a context manager.
    """

    def __init__(
        self,
        server: str | None = None,
        *,
        workflows: Iterable[Workflow[..., Any]] = (),
        replay: bool = True,
        sealing: Sealing | None = None,
    ) -> None:
        if server is not None:
            check_dsn(server, used="Environment(server)")
        check_sealing(sealing, used="Environment(sealing=…)")
        self._closing = ExitStack()
        self._added = check_workflows(workflows, used="Environment(workflows=…)")
        self._is_replaying = replay
        self._stage = Stage({})
        try:
            if server is None:
                embedded = EmbeddedServer(default_home() / "testing", settings=SETTINGS)
                server = self._closing.enter_context(embedded).dsn
            self.dsn = self._closing.enter_context(OwnDatabase(server)).dsn
            self.client = self._closing.enter_context(LocalClient(self.dsn, self._stage, sealing))
            self._loop = asyncio.new_event_loop()
            self._loop.set_exception_handler(self._stage.failed)
            self._thread = threading.Thread(target=self._loop.run_forever, name="pgwf-environment", daemon=True)
            self._thread.start()
            self._closing.callback(self._end_thread)
            self._closing.callback(self.retire_mocks)
            self._session: VirtualSession | None = None
            self.reset()
        except BaseException:
            self._closing.close()
            raise

    # -- the test's commands --------------------------------------------------------------------------------------

    def start(self, call: Call[R], /, *, run_id: str | None = None, **options: Any) -> Run[R]:
        """Start a run as `client.start` does, work on it until it waits or is over, and return its handle."""
        run = self.client.start(call, run_id=run_id, **options)
        self.settle()
        return run

    def run(self, call: Call[R], /, *, run_id: str | None = None, **options: Any) -> R:
        """Run a workflow to its end, however long it sleeps, and return what it returns. Errors: as `result`."""
        return self.result(self.client.start(call, run_id=run_id, **options))

    def result(self, run: Run[R]) -> R:
        """Go on until `run` is over, moving the clock as far as it takes, and return what it returned.

        Raises as Run.result does; RunStuckError: it waits for something that no clock brings, such as a signal.
        TypeError: it is no run's handle.
        """
        check_run(run, used="env.result")

        seen: list[_calls.Ending] = []

        def is_over() -> bool:
            seen[:] = [ask(self.client, _calls.ending(run.run_id))]
            return seen[0].is_final

        self._settle("infinity", is_over)
        (ended,) = seen
        if not ended.is_final:
            raise RunStuckError(f"run {run.run_id} is not over: {why_not_running(self.client, run.run_id)}")
        name = ask(self.client, _statements.workflow_of(ended.n))
        workflow: Workflow[..., R] | None = self._stage.workflows.get(name)
        return _calls.result_of(ended, workflow)

    def settle(self) -> None:
        """Work until everything waits; the clock does not move."""
        self._settle(None, lambda: False)

    def advance(self, duration: timedelta) -> datetime:
        """Move the clock on, doing what falls due on the way at its time, and return what time it is then.

        TypeError: it is no timedelta. ValueError: it is negative, or leads beyond the last year of a datetime.
        """
        until = instant_after(self.now(), duration, used="env.advance")
        self._settle(until, lambda: False)
        return until

    def now(self) -> datetime:
        """The time of the environment, which stands still."""
        return ask(self.client, _statements.now())

    def reset(self, now: datetime | None = None) -> None:
        """Forget all runs, mocks and differences, and set the clock (default: to the real time, whole seconds).

        ValueError: `now` has no time zone.
        """
        check_instants("env.reset", now=now)
        ask(self.client, _statements.clear(now))
        self.retire_mocks()
        stage = self._stage
        stage.workflows.clear()
        stage.needs.clear()
        stage.failures.clear()
        stage.appends = Appends()
        stage.is_replaying = self._is_replaying
        self.client.numbers = count(1)
        self.add(*self._added)

    # -- what the test sets up ------------------------------------------------------------------------------------

    def add(self, *workflows: Workflow[..., Any]) -> None:
        """Know workflows that neither `client` nor a known workflow starts: those of other programs, or of SQL."""
        for workflow in check_workflows(workflows, used="env.add"):
            self._stage.learn(workflow)

    @overload
    def mock(self, step: Step[P, R] | Callable[P, R], replacement: Callable[P, R], /) -> StepMock[R]: ...
    @overload
    def mock(self, step: Step[P, R] | Callable[P, R], /, *, returns: R) -> StepMock[R]: ...
    @overload
    def mock(self, step: Step[P, R] | Callable[P, R], /, *, outcomes: Sequence[R | BaseException]) -> StepMock[R]: ...
    @overload
    def mock(self, step: str, replacement: Callable[..., Any], /) -> StepMock[Any]: ...
    @overload
    def mock(self, step: str, /, *, returns: object) -> StepMock[Any]: ...
    @overload
    def mock(self, step: str, /, *, outcomes: Sequence[object]) -> StepMock[Any]: ...
    def mock(
        self,
        step: Any,
        replacement: Callable[..., Any] | None = None,
        /,
        **answers: Any,
    ) -> StepMock[Any]:
        """Let something else answer for a step, known by itself or by its name, until the next reset.

        `replacement` is called with the step's arguments; `returns` is returned each time; `outcomes` are what the
        calls and their retries get in turn: an exception is raised, anything else is returned.
        TypeError: there is none of these, or more than one.
        UnusedMockWarning, at this line: nothing called it until the next reset, the end of the test or `close`.
        """
        if isinstance(step, Workflow | Call):
            raise DefinitionError(
                f"env.mock: found {step!r}; expected a step. A child run is a run like any other: mock the steps it"
                " calls, or give the parent another workflow of that name in its place"
            )
        name = step if isinstance(step, str) else as_step(step, used="env.mock").name
        answer = mock_answer(replacement, answers, used=f"env.mock({name!r})")
        self._stage.mocks[name] = StepMock(name, answer, line=line_of_caller())
        return self._stage.mocks[name]

    def retire_mocks(self) -> None:
        """Forget all mocks. UnusedMockWarning: one that nothing called; `reset`, `close` and `pgwf_env` do it too."""
        mocks, executed = list(self._stage.mocks.values()), sorted(self._stage.executed)
        self._stage.mocks.clear()
        self._stage.executed.clear()
        for mock in mocks:
            mock.warn_if_unused(executed)

    # -- journals -------------------------------------------------------------------------------------------------

    def record(self, run: Run[Any]) -> Recording:
        """The run's journal as it is now, to be looked at, or saved and replayed by later versions of the code."""
        check_run(run, used="env.record")
        return Recording.of(self.client, run.run_id)

    def journal(self, run: Run[Any]) -> Sequence[Entry]:
        """The entries of the run's journal."""
        check_run(run, used="env.journal")
        return self.record(run).entries

    def crash_everywhere(
        self,
        story: Call[Any] | Callable[[Environment], object],
        /,
        *,
        now: datetime | None = None,
        cuts_max: int | None = None,
    ) -> CrashReport:
        """Play a story once undisturbed, then once for each append in it with the worker killed before that append,
        and once with it killed after. Another takes over each time; values and journals must be those of the first.

        A story is a workflow's call, or a function that starts runs, sends what they wait for and returns a value. Each
        time it begins in an environment without runs, at one instant, with the mocks that were set up. Of a long story
        at most `cuts_max` cuts are tried, spread evenly over it.
        CrashDifferenceError: what came out differs, and how.
        ValueError: `now` has no time zone, or `cuts_max` is below 1.
        """
        check_story(story, used="env.crash_everywhere")
        check_instants("env.crash_everywhere", now=now)
        check_counts("env.crash_everywhere", cuts_max=cuts_max)
        if cuts_max is not None and cuts_max < 1:
            raise ValueError(f"env.crash_everywhere(cuts_max={cuts_max}): expected 1 or more, or None for all")
        if callable(story):
            return explore(self, story, now, cuts_max)
        return explore(self, lambda environment: environment.run(story), now, cuts_max)

    # -- within ---------------------------------------------------------------------------------------------------

    def check(self) -> None:
        """Raise the first difference that a replay has found, once."""
        if self._stage.failures:
            failure = self._stage.failures[0]
            self._stage.failures.clear()
            raise failure

    def reset_story(self, now: datetime | None, appends: Appends) -> Appends:
        """As `reset`, but what was set up stays: workflows, and mocks, which begin anew. Appends count in `appends`."""
        ask(self.client, _statements.clear(now))
        for mock in self._stage.mocks.values():
            mock.rewind()
        self._stage.appends = appends
        self.client.numbers = count(1)
        return appends

    def run_ids(self) -> list[str]:
        """All runs there are, children included, in the order they were started."""
        return ask(self.client, _statements.run_ids())

    def _settle(self, until: datetime | str | None, is_over: Callable[[], bool]) -> None:
        self._stage.fault = None
        working = asyncio.run_coroutine_threadsafe(self._work(until, is_over), self._loop)
        try:
            working.result()
        except BaseException:
            working.cancel()
            raise
        self.check()

    async def _work(self, until: datetime | str | None, is_over: Callable[[], bool]) -> None:
        while True:
            session = self._session = self._session or self._new_session()
            try:
                return await session.settle(until, is_over)
            except WorkerCut:
                await session.revive()
            except BaseException:
                await self._drop_session()
                raise

    def _new_session(self) -> VirtualSession:
        settings = Settings(
            dsn=self.dsn,
            worker_id=f"test-{uuid4().hex[:6]}",
            workflows=self._stage.workflows,
            capabilities=(),
            concurrency=CONCURRENCY,
            step_threads=STEP_THREADS,
            lease=LEASE,
            poll=POLL,
            grace=GRACE,
            build="",
            sealing=self.client.sealing,
        )
        return VirtualSession(settings, self.client.telemetry, self._stage)

    async def _drop_session(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    def _end_thread(self) -> None:
        asyncio.run_coroutine_threadsafe(self._drop_session(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def close(self) -> None:
        """End the worker and drop the database; idempotent."""
        self._closing.close()
