"""One call of `Worker.run`: the runs in hand and the tasks around them."""

import asyncio
import contextlib
import logging
import signal
import threading
from collections.abc import Callable, Coroutine, Generator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from datetime import datetime, timedelta
from functools import partial
from types import FrameType
from typing import Any, Final

import psycopg
from msgspec.structs import replace
from psycopg import AsyncConnection
from psycopg.conninfo import make_conninfo

from pgwf_sdk._definition import Workflow
from pgwf_sdk._errors import SealedError
from pgwf_sdk._telemetry import Telemetry
from pgwf_sdk.ops._statements import history_statement
from pgwf_sdk.replay import AsyncActivation, RunInfo, RunStep, SyncActivation
from pgwf_sdk.worker._advance import Claim, InboxRow, Item
from pgwf_sdk.worker._clock import DatabaseClock
from pgwf_sdk.worker._detector import DetectingAsyncActivation, DetectingSyncActivation
from pgwf_sdk.worker._driver import Driver
from pgwf_sdk.worker._engine import AsyncEngine, Engine, NoEngine, SyncEngine
from pgwf_sdk.worker._flusher import Flusher
from pgwf_sdk.worker._health import Checkup, Pulse
from pgwf_sdk.worker._leftovers import Leftovers
from pgwf_sdk.worker._lines import Lines
from pgwf_sdk.worker._port import Handle
from pgwf_sdk.worker._processes import Processes
from pgwf_sdk.worker._recall import Recall
from pgwf_sdk.worker._recovery import Recovery
from pgwf_sdk.worker._room import Occupant, Room
from pgwf_sdk.worker._seals import opened_claim, opened_for, sealed
from pgwf_sdk.worker._settings import Settings
from pgwf_sdk.worker._sleeper import Sleeper
from pgwf_sdk.worker._step_threads import StepThreads
from pgwf_sdk.worker._steps import StepAttempt
from pgwf_sdk.worker._tender import Held, Kept, Tender
from pgwf_sdk.worker._tether import StepConnection
from pgwf_sdk.worker._transactions import Transactions
from pgwf_sql.database import AsyncDatabase, Database, Statement, prepare_if_direct, read_value

log = logging.getLogger("pgwf_sdk.worker")

_HISTORY_PAGE: Final = 10_000
_UNREAD_DELAY: Final = timedelta(seconds=1)
_SEALED_DELAY: Final = timedelta(seconds=30)  # Somebody has to give a worker the key.
_CANCEL_SECONDS: Final = 1.0
_CLOSE_SECONDS_MAX: Final = 5.0  # A worker that is told to stop does not wait for a database that is gone.
_TOKEN_KEY: Final[Statement[bytes]] = Statement("sdk_token_key", {}, read_value, is_repeatable=True)


class Session:
    """Wires the parts of a worker together, and is the Port of its drivers."""

    linger: timedelta = timedelta(seconds=1)
    _token_key: bytes = b""

    def __init__(self, settings: Settings, telemetry: Telemetry, *, needs: Sequence[str] | None = None) -> None:
        self._settings = settings
        self._telemetry = telemetry
        self._loop = asyncio.get_running_loop()
        self._context = copy_context()
        self._clock = DatabaseClock(self._loop)
        self._drivers: dict[int, Driver] = {}
        self._held: dict[int, Driver] = {}
        self._reading: dict[int, Claim] = {}
        self._held_lock = threading.Lock()
        self._leftovers = Leftovers()
        self.journal_limits = settings.journal_limits
        self._drained, self._stopping, self._hurrying = asyncio.Event(), asyncio.Event(), asyncio.Event()
        self._stops_count = 0
        self._is_closing = False
        self._tasks: set[asyncio.Task[None]] = set()
        self._threads = ThreadPoolExecutor(settings.concurrency, thread_name_prefix="pgwf-workflow")
        self._step_pool = StepThreads(settings.step_threads)
        # Operators tell the connections apart by name; the hot one is the one whose round trips and commits count.
        self._hot = AsyncDatabase(_named(settings.dsn, "pgwf worker"), translate=_as_is)
        self._database = AsyncDatabase(
            _named(settings.dsn, "pgwf worker side"),
            translate=_as_is,
            listen_dsn=_named(settings.listen_dsn or settings.dsn, "pgwf worker side"),
        )
        sealing = settings.sealing
        self._seal: Callable[[Item], Item] | None = None if sealing is None else partial(sealed, sealing)
        self.opened_inbox: Callable[[Driver, list[InboxRow]], list[InboxRow]] = partial(opened_for, sealing)
        self._transactions = _transactions(settings, self._seal)
        self._processes = Processes(settings.step_processes)
        offered = settings.capabilities if needs is None else needs
        self._room = _room_of(settings, offered, self._drivers, self._reading)
        is_discreet = settings.sealing is not None
        lines = Lines(self._database, build=settings.build, is_discreet=is_discreet, spawn=self._spawn)
        self.code_numbers, self.explain = lines.numbers, lines.explain
        self.recall = Recall(self._database, sealing, spawn=self._spawn).ask
        self._flusher = Flusher(
            self._connect,
            worker_id=settings.worker_id,
            room=self._room,
            lease=settings.lease,
            clock=self._clock,
            claimed=self._claimed,
            seal=self._seal,
            recovery=Recovery(
                settings.worker_id, known=lambda: [*self._drivers, *self._reading], give_back=self._return
            ),
        )
        self._room.changed = self._flusher.hunger
        self._tender = Tender(
            Database(_named(settings.dsn, "pgwf worker tender"), translate=_as_is),
            worker_id=settings.worker_id,
            capabilities=settings.capabilities,
            build=settings.build,
            slots=settings.concurrency,
            lease=settings.lease,
            held=self._leases,
            kept=lambda kept: self._call_threadsafe(self._kept, kept),
            drain=lambda: self._call_threadsafe(self.stop),
            limited=lambda needs: self._call_threadsafe(self._room.limit, needs),
        )

        self.checkup = Checkup(
            settings,
            self._tender,
            Pulse(self._call_threadsafe),
            runs=lambda: len(self._drivers) + len(self._reading),
            is_stopping=self._stopping.is_set,
        )

    # -- life -----------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        sleeper = Sleeper(
            self._database,
            self._flusher,
            self._room,
            worker_id=self._settings.worker_id,
            capabilities=self._settings.capabilities,
            poll=self._settings.poll,
            tend=self._tender.rouse,
            watch=lambda has_found: self._tender.watch(has_found=has_found),
        )
        # The first connection is made here, so that a wrong address or an old schema is an error and not a retry.
        async with await self._connect() as first:
            self._token_key = await self._database.run(_TOKEN_KEY, first)
            self._room.limit(await self._database.run(_limited_needs(self._settings.capabilities), first))
        log.info("worker %s: offers %s", self._settings.worker_id, ", ".join(self._settings.capabilities))
        self._tender.start()
        flushing = asyncio.create_task(self._flusher.run(), name="pgwf-flusher")
        sleeping = asyncio.create_task(sleeper.run(), name="pgwf-sleeper")
        try:
            stopping = asyncio.create_task(self._stopping.wait())
            await asyncio.wait({stopping, flushing, sleeping}, return_when=asyncio.FIRST_COMPLETED)
            for task in (flushing, sleeping):
                if task.done():
                    task.result()
            await self._drain()
        finally:
            self._is_closing = True
            for driver in list(self._drivers.values()):
                driver.lose("the worker ends; the lease will run out")
            sleeping.cancel()
            self._flusher.close()
            # What cannot be sent by now is lost with this worker, as if it had been killed: leases run out.
            await asyncio.wait({flushing, sleeping}, timeout=_CLOSE_SECONDS_MAX)
            await _end(flushing, sleeping)
            self._room.close()
            await asyncio.gather(
                asyncio.to_thread(self._tender.stop),
                self._database.close(),
                self._transactions.close(),
                self._processes.close(),
            )
            self._threads.shutdown(wait=False, cancel_futures=True)
            self._step_pool.shutdown()
        log.info("worker %s: stopped", self._settings.worker_id)

    def stop(self) -> None:
        """Drain; called again: hand everything back at once."""
        self._stops_count += 1
        self._flusher.stop_claiming()
        self._stopping.set()
        if self._stops_count > 1:
            self._hurrying.set()
            for driver in list(self._drivers.values()):
                driver.leave_now()

    def stop_threadsafe(self) -> None:
        """`stop`, from any thread."""
        self._call_threadsafe(self.stop)

    @contextlib.contextmanager
    def signals(self) -> Generator[None]:
        """SIGTERM and SIGINT drain, where this thread may say so; afterwards they do what they did before."""
        caught = (signal.SIGTERM, signal.SIGINT) if threading.current_thread() is threading.main_thread() else ()
        before = {number: signal.getsignal(number) for number in caught}
        late: list[int] = []

        # Handlers of the loop would lose what comes after its last round, and leave the system's own in their place.
        def told(number: int, _frame: FrameType | None) -> None:
            if self._is_closing:
                late.append(number)
            self.stop_threadsafe()

        for number in caught:
            signal.signal(number, told)
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
            for again in late:  # There was nothing left to drain: it is for whoever goes on.
                signal.raise_signal(again)

    async def _drain(self) -> None:
        count = len(self._drivers) + len(self._reading)
        if not count:
            return
        log.info("worker %s: drains; %d runs in hand", self._settings.worker_id, count)
        for driver in list(self._drivers.values()):
            driver.leave("release")
        await _first(self._drained, self._hurrying, seconds=self._settings.grace.total_seconds())
        if not self._drained.is_set():
            log.warning("worker %s: steps of %d runs go on too long", self._settings.worker_id, len(self._drivers))
            for driver in list(self._drivers.values()):
                driver.leave_now()
            await _first(self._drained, seconds=_CLOSE_SECONDS_MAX)

    async def _connect(self) -> AsyncConnection[Any]:
        connection = await self._hot.connect()
        await prepare_if_direct(connection)
        return connection

    def _call_threadsafe(self, act: Callable[..., None], *args: Any) -> None:
        # The loop may be closed already when a thread has the last word.
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(act, *args)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # -- leases ---------------------------------------------------------------------------------------------------

    def _leases(self) -> list[Held]:
        with self._held_lock:
            drivers, claims = list(self._held.values()), list(self._reading.values())
        return [
            *(Held(driver.claim.n, driver.claim.lease_id, driver.waits.inbox_seen) for driver in drivers),
            *(Held(claim.n, claim.lease_id, 0) for claim in claims),
        ]

    def _kept(self, kept: Sequence[Kept]) -> None:
        for one in kept:
            driver = self._drivers.get(one.n)
            # The run may have been given back and taken again since the question was asked.
            if driver is None or driver.claim.lease_id != one.lease_id:
                continue
            if one.lost and driver.is_giving_back:
                continue  # Its answer is on its way, and says what became of the lease.
            if one.lost:
                driver.lose("its lease ended; another worker may have it")
            elif one.paused:
                driver.leave("release")
            elif one.unread:
                driver.look()

    def _claimed(self, claims: Sequence[Claim]) -> None:
        self._telemetry.look_up()
        for claim in claims:
            workflow = self._settings.workflows.get(claim.workflow)
            if self._stopping.is_set():  # The call was on its way when the worker was told to stop.
                self._return(claim)
            elif workflow is None:
                self._return_unknown(claim)
            elif claim.head > len(claim.history):
                with self._held_lock:
                    self._reading[claim.n] = claim
                self._drained.clear()
                self._spawn(self._read_on(claim, workflow))
            else:
                self._begin(claim, workflow)

    def _begin(self, claim: Claim, workflow: Workflow[..., Any]) -> None:
        try:
            claim = opened_claim(self._settings.sealing, claim)
        except SealedError as error:
            log.error("run %s: given back for %s: %s", claim.run_id, _SEALED_DELAY, error)
            self._return(claim, delay=_SEALED_DELAY, note=str(error))
            return
        trace = self._telemetry.run_trace(
            claim.run_id,
            claim.workflow,
            claim.trace,
            lease_no=claim.lease_no,
            worker_id=self._settings.worker_id,
            history=claim.history,
        )
        driver = Driver(claim, lambda driver: self._engine(driver, workflow), self, trace)
        self._drivers[claim.n] = driver
        with self._held_lock:
            self._held[claim.n] = driver
        self._drained.clear()
        driver.start()

    def _engine(self, driver: Driver, workflow: Workflow[..., Any]) -> Engine:
        claim = driver.claim
        started_at = claim.history[0].recorded_at
        info = RunInfo(claim.run_id, claim.workflow, claim.seed, started_at, token_key=self._token_key)
        if workflow.is_async:
            make_async = DetectingAsyncActivation if self._settings.detects else AsyncActivation
            return AsyncEngine(make_async(workflow, info, claim.history), driver)
        make_sync = DetectingSyncActivation if self._settings.detects else SyncActivation
        return SyncEngine(make_sync(workflow, info, claim.history), driver, loop=self._loop, threads=self._threads)

    async def _read_on(self, claim: Claim, workflow: Workflow[..., Any]) -> None:
        """The journal is longer than what a claim brings."""
        history = list(claim.history)
        error: psycopg.Error | None = None
        try:
            while len(history) < claim.head and not self._stopping.is_set():
                history += await self._database.run(
                    history_statement(claim.run_id, after_seq=len(history), limit=_HISTORY_PAGE)
                )
        except psycopg.Error as fault:
            log.warning("run %s: its journal could not be read to its end: %s", claim.run_id, fault)
            error = fault
        with self._held_lock:
            del self._reading[claim.n]
        if error is not None or self._stopping.is_set():
            self._return(claim, delay=timedelta(0) if error is None else _UNREAD_DELAY)
        else:
            self._begin(replace(claim, history=history), workflow)

    def _return_unknown(self, claim: Claim) -> None:
        """A run this worker was handed by a shared need, of a workflow it does not know."""
        pause = self._room.turn_away(claim.n, claim.current_need)
        note = (
            f"worker {self._settings.worker_id} does not know workflow {claim.workflow!r}; deploy a worker that offers"
            f" {claim.need!r} and knows it"
        )
        log.error("run %s: given back, for somebody else to take within %s: %s", claim.run_id, pause, note)
        self._return(claim, delay=pause, note=note)

    def _return(self, claim: Claim, *, delay: timedelta = timedelta(0), note: str | None = None) -> None:
        """Give back a run of which no code is run here."""
        trace = self._telemetry.run_trace(
            claim.run_id, claim.workflow, claim.trace, lease_no=claim.lease_no, worker_id=self._settings.worker_id
        )
        driver = Driver(claim, lambda _: NoEngine(), self, trace)
        self._drivers[claim.n] = driver
        self._drained.clear()
        driver.leave("release", delay=delay, note=note)

    # -- the drivers' port ----------------------------------------------------------------------------------------

    def now(self) -> datetime:
        return self._clock.now()

    def offers(self, need: str, driver: Driver) -> bool:
        return self._room.offers(need, driver.occupant)

    def submit(self, driver: Driver, item: Item) -> None:
        if item.disposition == "park":
            due = [item.delay.total_seconds()] if item.delay is not None else []
            if item.until is not None:
                due.append((item.until - self.now()).total_seconds())
            if due:
                self._tender.due_in(min(due))
        self._flusher.put(driver, item)

    def call_at(self, instant: datetime, act: Callable[[], None]) -> Handle:
        return self._loop.call_at(self._clock.loop_time(instant), act)

    def start_step(
        self, driver: Driver, command: RunStep, *, number: int, elapsed: timedelta, last_heartbeat: str | None
    ) -> StepAttempt:
        return StepAttempt(
            command,
            run_id=driver.claim.run_id,
            number=number,
            elapsed=elapsed,
            trace=driver.trace,
            threads=self._step_pool,
            transactions=self._transactions,
            processes=self._processes,
            last_heartbeat=last_heartbeat,
            outside=self._context,
            report=driver.step_reported
            if command.step.need is None
            else self._room.watched(command.step.need, driver.step_reported),
        )

    def released(self, driver: Driver, status: str) -> None:
        if self._drivers.get(driver.claim.n) is driver:
            del self._drivers[driver.claim.n]
        with self._held_lock:
            if self._held.get(driver.claim.n) is driver:
                del self._held[driver.claim.n]
        if not self._drivers and not self._reading:
            self._drained.set()
        self._leftovers.add(driver.size.payload_bytes)
        if status == "lost":
            self._flusher.hunger()  # All other ways to leave go through a call, which asks for more work by itself.


def _room_of(
    settings: Settings, offered: Sequence[str], drivers: Mapping[int, Driver], reading: Mapping[int, Claim]
) -> Room:
    return Room(
        offered,
        concurrency=settings.concurrency,
        limits=settings.limits,
        build=settings.build,
        occupied_count=lambda: len(drivers) + len(reading),
        occupants=lambda: [
            *(driver.occupant for driver in drivers.values()),
            *(Occupant(claim.current_need) for claim in reading.values()),
        ],
    )


async def _first(*events: asyncio.Event, seconds: float) -> None:
    """Wait for one of the events, at most so long."""
    waiting = [asyncio.ensure_future(event.wait()) for event in events]
    try:
        await asyncio.wait(waiting, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for one in waiting:
            one.cancel()


async def _end(*tasks: asyncio.Task[None]) -> None:
    """Cancel tasks until they have ended: a cancellation is lost in a statement whose answer comes at that moment."""
    pending = {task for task in tasks if not task.done()}
    while pending:
        for task in pending:
            task.cancel()
        _, pending = await asyncio.wait(pending, timeout=_CANCEL_SECONDS)
    await asyncio.gather(*tasks, return_exceptions=True)


def _limited_needs(capabilities: Sequence[str]) -> Statement[list[str]]:
    return Statement("sdk_limited_needs", {"capabilities": list(capabilities)}, read_value, is_repeatable=True)


def _transactions(settings: Settings, seal: Callable[[Item], Item] | None) -> Transactions:
    """Steps that commit with their SQL, on connections that user code may hold for long: nothing else waits there."""
    dsn = _named(settings.dsn, "pgwf worker transactions")
    return Transactions(
        Database(dsn, translate=_as_is, connection_class=StepConnection),
        AsyncDatabase(dsn, translate=_as_is),
        worker_id=settings.worker_id,
        lease=settings.lease,
        seal=seal,
    )


def _named(dsn: str, application: str) -> str:
    return make_conninfo(dsn, application_name=application)


def _as_is(error: Exception) -> Exception:
    return error
