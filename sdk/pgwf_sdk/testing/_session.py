"""A worker's session that works only when it is told to, on a clock that stands still."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

from pgwf_sdk._wording import instant_words
from pgwf_sdk.replay import RunInfo, RunStep
from pgwf_sdk.testing._crashes import Appends, WorkerCut
from pgwf_sdk.testing._differences import RunStuckError
from pgwf_sdk.testing._statements import end_leases, move
from pgwf_sdk.testing._watch import Watch, WatchedAsyncEngine, WatchedSyncEngine
from pgwf_sdk.worker._clock import DatabaseClock
from pgwf_sdk.worker._detector import DetectingAsyncActivation, DetectingSyncActivation
from pgwf_sdk.worker._flusher import Flusher, Sent
from pgwf_sdk.worker._session import Session
from pgwf_sdk.worker._tender import keepalive

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Sequence

    from psycopg import AsyncConnection

    from pgwf_sdk._definition import Workflow
    from pgwf_sdk._telemetry import Telemetry
    from pgwf_sdk.testing._crashes import Side
    from pgwf_sdk.testing._mocks import StepMock
    from pgwf_sdk.worker._advance import Claim, Item, ItemAnswer
    from pgwf_sdk.worker._driver import Driver
    from pgwf_sdk.worker._engine import Engine
    from pgwf_sdk.worker._port import Handle
    from pgwf_sdk.worker._settings import Settings
    from pgwf_sdk.worker._steps import StepAttempt

MOVES_MAX: Final = 10_000
"""The clock is moved at most so often at one go: a workflow may wait again and again for ever."""

_LOOK_SECONDS: Final = 0.05  # How often a step that takes long hears of a cancel request.
_CLAIMS_MAX: Final = 20  # So often a claim is made again that brings nothing although something is ready.
_CLAIM_SECONDS: Final = 0.01
_CLOSE_SECONDS_MAX: Final = 5.0


@dataclass(slots=True)
class Stage:
    """What the test has set up: which workflows and needs there are, which steps are mocked, what went wrong."""

    workflows: dict[str, Workflow[..., Any]]
    needs: list[str] = field(default_factory=list[str])
    mocks: dict[str, StepMock[Any]] = field(default_factory=dict[str, "StepMock[Any]"])
    executed: set[str] = field(default_factory=set[str])
    """The names of the steps that runs executed."""
    failures: list[AssertionError] = field(default_factory=list[AssertionError])
    appends: Appends = field(default_factory=Appends)
    is_replaying: bool = True
    connection: AsyncConnection[Any] | None = None
    fault: BaseException | None = None
    """What went wrong in the SDK itself, where nobody waits for it."""

    def failed(self, _loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """A callback of the loop raised."""
        self.fault = context.get("exception") or RuntimeError(context["message"])

    def learn(self, workflow: Workflow[..., Any]) -> None:
        """Know a workflow, in place of another of its name, and offer what its runs need."""
        self.workflows[workflow.name] = workflow
        self.offer(workflow.home)

    def offer(self, need: str) -> None:
        """Offer a need from the next claim on."""
        if need not in self.needs:
            self.needs.append(need)


class StandingClock(DatabaseClock):
    """The database's time, which moves only when it is moved."""

    def now(self) -> datetime:
        assert self._known_at is not None, "asked before any answer of the database"
        return self._known_at


class CountingFlusher(Flusher):
    """Counts what it appends, and is cut off where the test says."""

    def __init__(self, *args: Any, stage: Stage, **options: Any) -> None:
        super().__init__(*args, **options)
        self._stage = stage

    def _goes_alone(self, sent: Sent) -> bool:
        return False  # Whatever appends is counted where calls are sent.

    async def _send(
        self, items: Sequence[Item], needs: Sequence[str], slots: int
    ) -> tuple[list[ItemAnswer], list[Claim]]:
        if not any(item.entries for item in items):
            return await super()._send(items, needs, slots)
        self._stage.appends.count += 1
        self._end_if("before")
        answer = await super()._send(items, needs, slots)
        self._end_if("after")
        return answer

    def _end_if(self, side: Side) -> None:
        if self._stage.appends.ends(side):
            # Whoever comes after finds it: a session of PostgreSQL has made its plans, and is worth keeping.
            self._stage.connection, self._connection = self._connection, None
            raise WorkerCut


class _Never:
    """An alarm of a clock that stands still while anything is at work."""

    def cancel(self) -> None:
        """There is nothing to call off."""


class VirtualSession(Session):
    """Works on runs within `settle`, and only there. No thread tends leases, which no clock ends."""

    linger = timedelta(0)

    def __init__(self, settings: Settings, telemetry: Telemetry, stage: Stage) -> None:
        super().__init__(settings, telemetry, needs=stage.needs)
        self._stage = stage
        self._clock = StandingClock(self._loop)
        self._begin_flushing()

    def _begin_flushing(self) -> None:
        self._flusher = CountingFlusher(
            self._connect,
            worker_id=self._settings.worker_id,
            room=self._room,
            lease=self._settings.lease,
            clock=self._clock,
            claimed=self._claimed,
            seal=self._seal,
            stage=self._stage,
        )
        self._flushing = asyncio.create_task(self._flusher.run(), name="pgwf-flusher")

    async def _connect(self) -> AsyncConnection[Any]:
        kept, self._stage.connection = self._stage.connection, None
        return kept or await super()._connect()

    @property
    def worker_id(self) -> str:
        """The name it holds leases under."""
        return self._settings.worker_id

    async def settle(self, until: datetime | str | None, is_over: Callable[[], bool]) -> None:
        """Work until everything waits and nothing is due by `until`, or `is_over`. WorkerCut: see `revive`."""
        fruitless_count, seen_at = 0, None
        for _ in range(MOVES_MAX):
            brought = await self._unless_cut(self._claim_and_work())
            fruitless_count = 0 if brought else fruitless_count + 1
            if self._stage.failures or (until is not None and await asyncio.to_thread(is_over)):
                return
            # Steps of a worker that was cut off may still be busy on their threads, and lock what is to be claimed.
            claims_max = _CLAIMS_MAX if self._stage.appends.is_cut else 1
            needs = self._stage.needs if fruitless_count < claims_max else []
            found = await self._database.run(move(self._settings.worker_id, needs, until))
            self._clock.told(found.now_at)
            if not found.moved:
                return
            if found.now_at != seen_at:
                fruitless_count, seen_at = 0, found.now_at
            elif fruitless_count:
                await asyncio.sleep(_CLAIM_SECONDS)
        raise RunStuckError(
            f"the clock was moved {MOVES_MAX} times, to {instant_words(self._clock.now())}, and the runs still wait for"
            " it; bound the time: advance(timedelta(…))"
        )

    async def revive(self) -> None:
        """The worker was killed: forget what it knew. Its leases are the caller's to end; then another begins here."""
        for driver in list(self._drivers.values()):
            driver.lose("the worker was killed by the test")
        self._reading.clear()
        await self._database.run(end_leases(self._settings.worker_id))
        self._begin_flushing()

    async def close(self) -> None:
        """Be gone, as if killed: nothing is handed back."""
        for driver in list(self._drivers.values()):
            driver.lose("the environment ends")
        self._flusher.close()
        await asyncio.wait({self._flushing}, timeout=_CLOSE_SECONDS_MAX)
        self._flushing.cancel()
        await asyncio.gather(self._flushing, return_exceptions=True)
        if self._stage.connection is not None:
            await self._stage.connection.close()
        await self._database.close()
        await self._transactions.close()
        await self._processes.close()
        self._threads.shutdown(wait=False, cancel_futures=True)
        self._step_pool.shutdown()

    async def _claim_and_work(self) -> bool:
        brought = await self._flusher.claim()
        while self._drivers or self._reading:
            try:
                async with asyncio.timeout(_LOOK_SECONDS):
                    await self._drained.wait()
            except TimeoutError:
                if self._stage.fault is not None:
                    raise self._stage.fault from None
                if held := self._leases():
                    self._kept(
                        await self._database.run(keepalive(self._settings.worker_id, held, self._settings.lease))
                    )
        return brought > 0

    async def _unless_cut(self, work: Coroutine[Any, Any, bool]) -> bool:
        task = asyncio.create_task(work)
        waited: set[asyncio.Future[Any]] = {task, self._flushing}
        await asyncio.wait(waited, return_when=asyncio.FIRST_COMPLETED)
        if not self._flushing.done():
            return task.result()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        self._flushing.result()
        raise AssertionError("the session is closed")

    # -- what differs from a worker in production -----------------------------------------------------------------

    def offers(self, need: str, driver: Driver) -> bool:
        self._stage.offer(need)
        return True

    def call_at(self, instant: datetime, act: Callable[[], None]) -> Handle:
        return _Never()

    def start_step(self, driver: Driver, command: RunStep, **options: Any) -> StepAttempt:
        self._stage.executed.add(command.step.name)
        mock = self._stage.mocks.get(command.step.name)
        if mock is not None:
            step = mock.stand_in(command.step, driver.claim.run_id, command.id.key, options["number"])
            command = RunStep(command.id, step, command.args, command.kwargs)
        return super().start_step(driver, command, **options)

    def _engine(self, driver: Driver, workflow: Workflow[..., Any]) -> Engine:
        claim = driver.claim
        started_at = claim.history[0].recorded_at
        info = RunInfo(claim.run_id, claim.workflow, claim.seed, started_at, token_key=self._token_key)
        watch = Watch(
            driver,
            workflow,
            info,
            claim.history,
            learn=self._stage.learn,
            offer=self._stage.offer,
            failed=self._stage.failures.append,
            is_replaying=self._stage.is_replaying,
        )
        if workflow.is_async:
            return WatchedAsyncEngine(DetectingAsyncActivation(workflow, info, claim.history), watch)
        activation = DetectingSyncActivation(workflow, info, claim.history)
        return WatchedSyncEngine(activation, watch, loop=self._loop, threads=self._threads)

    def _return_unknown(self, claim: Claim) -> None:
        self._stage.failures.append(
            RunStuckError(
                f"run {claim.run_id}: the environment does not know workflow {claim.workflow!r}; workflows that it"
                f" starts are known, others are to be added: Environment.add({claim.workflow})"
            )
        )
        super()._return_unknown(claim)
