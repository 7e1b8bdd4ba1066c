"""Runs attempts of steps: async functions as tasks of the host loop, plain ones on threads."""

import asyncio
import contextlib
import logging
import math
import random
import time
from collections.abc import Callable, Coroutine
from contextvars import Context, copy_context
from datetime import timedelta
from functools import partial
from typing import Any, Final

from msgspec import Struct

from pgwf_sdk import _failure
from pgwf_sdk._definition import Step
from pgwf_sdk._errors import ContextError, SerialisationError, StepTimeoutError
from pgwf_sdk._step_context import StepContext, enter_step, heartbeat_json, heartbeat_of, leave_step
from pgwf_sdk._telemetry import RunTrace
from pgwf_sdk._wording import count_words, limit_words
from pgwf_sdk.replay import CallId, RunStep
from pgwf_sdk.worker import _eager_task
from pgwf_sdk.worker._advance import Item, ItemAnswer
from pgwf_sdk.worker._processes import Processes
from pgwf_sdk.worker._step_threads import StepThreads
from pgwf_sdk.worker._tether import Tether
from pgwf_sdk.worker._transactions import Transactions

log = logging.getLogger("pgwf_sdk.worker")

HEARTBEAT_SECONDS: Final = 5.0
"""What a step reports is written at most so often; the first report at once."""


class StepReturned(Struct, frozen=True):
    """The attempt succeeded; its result as it goes into the journal."""

    payload: bytes | None
    encoding: int


class StepRaised(Struct, frozen=True):
    """The attempt failed. `retry_in` is the pause before the next one; None: there is none, the step has failed."""

    error: BaseException
    envelope: bytes
    retry_in: timedelta | None


class StepBeat(Struct, frozen=True):
    """The attempt goes on; what it reported, as JSON, is to be known to the next one if it does not end well."""

    details: str


class StepReady(Struct, frozen=True):
    """A step in a transaction has returned and waits for its turn: `turn` takes the item that records the result."""

    payload: bytes | None
    encoding: int
    turn: "asyncio.Future[Item]"


class StepCommitted(Struct, frozen=True):
    """A step in a transaction has committed, or was refused with its item."""

    item: Item
    answer: ItemAnswer


StepNews = StepReturned | StepRaised | StepBeat | StepReady
StepReport = StepNews | StepCommitted


class StepAttempt:
    """One attempt, from `begin` on. Until dropped it reports heartbeats and result, on the host loop's thread."""

    __slots__ = (
        "_elapsed",
        "_end_time",
        "_has_ended",
        "_is_dropped",
        "_limit",
        "_loop",
        "_outside",
        "_processes",
        "_report",
        "_reported_time",
        "_task",
        "_threads",
        "_trace",
        "_transactions",
        "_waited_turn",
        "command",
        "context",
        "number",
    )

    def __init__(
        self,
        command: RunStep,
        *,
        run_id: str,
        number: int,
        elapsed: timedelta,
        trace: RunTrace,
        threads: StepThreads,
        transactions: Transactions,
        processes: Processes,
        last_heartbeat: str | None,
        outside: Context,
        report: Callable[[CallId, int, StepReport], None],
    ) -> None:
        self.command = command
        self.number = number
        call = f"{run_id}{command.id.key}"
        self.context = StepContext(
            attempt=number, call=call, last_heartbeat=heartbeat_of(last_heartbeat, call), beat=self._beat
        )
        self._elapsed = elapsed
        self._trace = trace
        self._threads = threads
        self._transactions = transactions
        self._processes = processes
        self._outside = outside
        self._report = report
        self._is_dropped = False
        self._has_ended = False
        self._loop = asyncio.get_running_loop()
        self._end_time = math.inf  # of the attempt, on the loop's clock
        self._limit: asyncio.Timeout | None = None
        self._reported_time = -math.inf
        self._waited_turn: asyncio.Future[Item] | None = None
        self._task: asyncio.Task[None] | None = None
        log.debug("run %s: %s: attempt %d starts", run_id, command.id.key, number)

    def begin(self) -> None:
        """Start. What ends without a wait has been reported when this returns."""
        # Whoever calls may do so where another step has just reported, and left what that set in its context.
        self._task = _eager_task.begin(
            self._run(), loop=self._loop, name=self.command.id.key, context=self._outside.copy()
        )

    def drop(self) -> None:
        """Nobody wants the result any more. An async step is cancelled; a plain one sees it in its `current_step()`."""
        self._is_dropped = True
        self.context.cancelled = True
        self._give_turn_up()
        if self._task is not None:
            self._task.cancel()

    async def _run(self) -> None:
        try:
            report = await self._outcome()
        except Exception as error:  # noqa: BLE001 - an attempt that says nothing would keep its run waiting for ever
            report = StepRaised(error, _failure.describe(error), None)
        if self._waited_turn is not None:
            self._give_turn_up()
        self.context.end()
        if not self._is_dropped:
            self._has_ended = True
            self._tell(report)

    def _tell(self, report: StepReport) -> None:
        """Report, outside of what the step's code has made of its context: the worker goes on from there."""
        self._outside.copy().run(self._report, self.command.id, self.number, report)

    async def _outcome(self) -> StepReturned | StepRaised | StepCommitted:
        step = self.command.step
        started = time.monotonic()
        is_bounded = not (step.timeout is None and step.total_timeout is None and step.heartbeat_timeout is None)
        try:
            return await (self._bounded(step) if is_bounded else self._call(step))
        except SerialisationError as error:
            return self._raised(error, None, "what cannot be stored cannot be in another attempt either")
        except ContextError as error:
            return self._raised(error, None, "what is mistaken in its code is so in another attempt too")
        except BaseException as error:
            if isinstance(error, asyncio.CancelledError) and self._is_dropped:
                raise  # Otherwise it is the step's own, be it that its code cancelled the task in which it runs.
            spent = self._elapsed + timedelta(seconds=time.monotonic() - started)
            return self._raised(error, *self._pause(step, error, spent))

    def _raised(self, error: BaseException, pause: timedelta | None, verdict: str) -> StepRaised:
        """The failure, with a note of why there is no other attempt, if there is none."""
        note = f"step {self.command.step.name!r}: attempt {self.number}, the last: {verdict}"
        return StepRaised(error, _failure.describe(error, note=note if pause is None else ""), pause)

    async def _bounded(self, step: Step[..., Any]) -> StepReturned | StepCommitted:
        bounds = [bound for bound in (step.timeout, self._left(step)) if bound is not None]
        seconds = max(min(bounds).total_seconds(), 0) if bounds else math.inf
        self._end_time = self._loop.time() + seconds
        try:
            async with asyncio.timeout(None) as self._limit:
                self._extend()
                return await self._call(step)
        except TimeoutError:
            if self._limit is None or not self._limit.expired():
                raise
            silence = "" if self._loop.time() >= self._end_time else f"was silent for {step.heartbeat_timeout}"
            raise StepTimeoutError(
                f"step {step.name!r}: attempt {self.number} {silence or f'did not end within {seconds:g} s'}",
                step=step.name,
                attempt=self.number,
            ) from None

    def _beat(self, details: object) -> None:
        """Called by the step's code, on whatever thread that runs."""
        self._loop.call_soon_threadsafe(self._beaten, heartbeat_json(details))

    def _beaten(self, details: str | None) -> None:
        if self._is_dropped or self._has_ended:
            return
        if self._limit is not None:
            if self._limit.expired():
                return
            self._extend()
        now = self._loop.time()
        if details is not None and now - self._reported_time >= HEARTBEAT_SECONDS:
            self._reported_time = now
            self._tell(StepBeat(details))

    def _extend(self) -> None:
        silence = self.command.step.heartbeat_timeout
        until = self._end_time if silence is None else min(self._end_time, self._loop.time() + silence.total_seconds())
        assert self._limit is not None
        self._limit.reschedule(None if until == math.inf else until)

    def _call(self, step: Step[..., Any]) -> Coroutine[Any, Any, StepReturned | StepCommitted]:
        if step.isolate is not None:
            return self._call_in_process(step)
        return self._call_async(step) if step.is_async else self._call_on_thread(step)

    async def _call_async(self, step: Step[..., Any]) -> StepReturned | StepCommitted:
        command = self.command
        token = enter_step(self.context)
        try:
            with self._trace.attempt(command.id.key, step.name, self.number):
                if step.is_transaction:
                    return StepCommitted(
                        *await self._transactions.run_async(step, command.args, command.kwargs, self._turn)
                    )
                value = await step.fn(*command.args, **command.kwargs)
                return StepReturned(*step.codec.encode(value, subject="result"))
        finally:
            leave_step(token)

    async def _call_on_thread(self, step: Step[..., Any]) -> StepReturned | StepCommitted:
        command, tether = self.command, Tether()

        def call() -> StepReturned | StepCommitted | BaseException:
            if self.context.cancelled:  # It has waited for its thread so long that nobody wants it any more.
                return StepTimeoutError(f"step {step.name!r}: attempt {self.number} never began", step=step.name)
            token = enter_step(self.context)
            try:
                with self._trace.attempt(command.id.key, step.name, self.number):
                    if step.is_transaction:
                        return StepCommitted(
                            *self._transactions.run_on_thread(
                                step, command.args, command.kwargs, self._turn_on_thread, tether
                            )
                        )
                    value = step.fn(*command.args, **command.kwargs)
                    return StepReturned(*step.codec.encode(value, subject="result"))
            except BaseException as error:  # noqa: BLE001 - a StopIteration cannot pass through a future: it is returned
                return error
            finally:
                leave_step(token)

        # A thread cannot be stopped: when time is up, its result goes nowhere.
        done: asyncio.Future[StepReturned | StepCommitted | BaseException] = self._loop.create_future()

        def tell(result: StepReturned | StepCommitted | BaseException) -> None:
            if not done.done():
                done.set_result(result)
            elif isinstance(result, BaseException):
                log.info("an abandoned attempt of a step ended with %s: %s", type(result).__name__, result)

        def call_and_tell() -> None:
            result = call()
            with contextlib.suppress(RuntimeError):  # The loop is closed: nobody waits.
                self._loop.call_soon_threadsafe(tell, result)

        work = partial(copy_context().run, call_and_tell)
        self._threads.submit(work)
        try:
            result = await done
        except asyncio.CancelledError:
            self.context.cancelled = True
            self._threads.give_up(work)
            if step.is_transaction:
                tether.cut()
            raise
        if isinstance(result, BaseException):
            raise result
        return result

    async def _call_in_process(self, step: Step[..., Any]) -> StepReturned:
        with self._trace.attempt(self.command.id.key, step.name, self.number):
            return StepReturned(*await self._processes.run(self.command, self.context, self._beaten))

    async def _turn(self, payload: bytes | None, encoding: int) -> Item:
        if self._is_dropped or self._has_ended:
            raise asyncio.CancelledError
        self._waited_turn = self._loop.create_future()
        self._tell(StepReady(payload, encoding, self._waited_turn))
        return await self._waited_turn

    def _give_turn_up(self) -> None:
        """A thread that has outlived its attempt must not append any more."""
        if self._waited_turn is not None:
            self._waited_turn.cancel()

    def _turn_on_thread(self, payload: bytes | None, encoding: int) -> Item:
        return asyncio.run_coroutine_threadsafe(self._turn(payload, encoding), self._loop).result()

    def _left(self, step: Step[..., Any]) -> timedelta | None:
        return None if step.total_timeout is None else step.total_timeout - self._elapsed

    def _pause(self, step: Step[..., Any], error: BaseException, spent: timedelta) -> tuple[timedelta | None, str]:
        """The pause before the next attempt, or None and why there is none."""
        pause = step.retry.delay_after(self.number, error, random.SystemRandom())
        bounds = [bound for bound in (step.total_timeout, step.retry.max_elapsed) if bound is not None]
        if not step.retry.allows(error):
            return None, f"its retry policy allows none after {type(error).__name__}"
        if pause is None:
            return None, f"its retry policy allows {count_words(step.retry.max_attempts, 'attempt')}"
        if bounds and spent + pause >= min(bounds):
            return None, f"another would begin after its time of {limit_words(min(bounds))}"
        return pause, ""
