"""The worker's side of steps with `isolate="process"`: child processes that are kept, reused and killed."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

import msgspec

from pgwf_sdk import _failure, _serial
from pgwf_sdk._errors import SerialisationError, StepProcessError
from pgwf_sdk.worker._isolated import LENGTH_BYTES, Beat, Begun, Flags, Order, Raised, Result, framed

if TYPE_CHECKING:
    from asyncio.subprocess import Process

    from pgwf_sdk._definition import Step
    from pgwf_sdk._step_context import StepContext
    from pgwf_sdk.replay import RunStep

_LOOK_SECONDS: Final = 0.25
"""How often a running child is told what became of its attempt."""

_answers: msgspec.msgpack.Decoder[Begun | Beat | Result | Raised] = msgspec.msgpack.Decoder(
    Begun | Beat | Result | Raised
)


class _DiedIdleError(Exception):
    """The child was dead before it took the order, as may be known only when it is asked."""


class Processes:
    """At most `limit` children; those that are idle wait for the next step. Used on one event loop."""

    def __init__(self, limit: int) -> None:
        self._free = asyncio.Semaphore(limit)
        self._idle: list[Process] = []

    async def run(
        self, command: RunStep, context: StepContext, beat: Callable[[str | None], None]
    ) -> tuple[bytes | None, int]:
        """Run a step in a child and return its encoded result. Cancelled: the child is killed.

        StepProcessError: the child died. SerialisationError: an argument or the result cannot be stored. Otherwise
        what the step raised, made anew.
        """
        order = _order(command, context)
        answer: Result | Raised | None = None
        async with self._free:
            while answer is None:
                is_new = not self._idle
                child = await _spawn() if is_new else self._idle.pop()
                try:
                    answer = await self._ask(child, order, context, command.step, beat)
                    self._idle.append(child)
                except _DiedIdleError as died:  # While it waited: no step's failure.
                    if is_new:
                        raise died.__cause__ or died from None
                finally:
                    if answer is None:
                        _kill(child)
        if isinstance(answer, Result):
            return answer.payload, answer.encoding
        raise _error(answer)

    async def _ask(
        self,
        child: Process,
        order: Order,
        context: StepContext,
        step: Step[..., Any],
        beat: Callable[[str | None], None],
    ) -> Result | Raised:
        assert child.stdin is not None
        assert child.stdout is not None
        told = Flags(draining=False)
        is_begun = False
        reading: asyncio.Task[bytes] | None = None
        try:
            child.stdin.write(framed(order))
            await child.stdin.drain()
            while True:
                reading = reading or asyncio.create_task(_message(child.stdout))
                await asyncio.wait({reading}, timeout=_LOOK_SECONDS)
                if context.draining != told.draining:
                    told = Flags(draining=context.draining)
                    child.stdin.write(framed(told))
                if not reading.done():
                    continue
                answer = _answers.decode(reading.result())
                reading, is_begun = None, True
                if isinstance(answer, Result | Raised):
                    return answer
                if isinstance(answer, Beat):
                    beat(answer.details)
        except (asyncio.IncompleteReadError, ConnectionError) as error:
            code = await child.wait()
            how = f"was killed by signal {-code}" if code < 0 else f"ended with code {code} before the step did"
            death = StepProcessError(
                f"step {step.name!r}: the process of attempt {context.attempt} {how}; what it did is unknown",
                step=step.name,
                exit_code=code,
            )
            if not is_begun:
                raise _DiedIdleError from death
            raise death from error
        finally:
            if reading is not None:
                reading.cancel()

    async def close(self) -> None:
        """End idle children; those that work are ended by whoever waits for them."""
        for child in self._idle:
            _kill(child)
        children, self._idle = self._idle, []
        for child in children:
            await child.wait()


async def _spawn() -> Process:
    return await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        "from pgwf_sdk.worker._isolated import main; main()",
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        limit=1 << 20,
        process_group=0,  # Ctrl-C at a terminal is for the worker, which lets its steps end.
    )


def _kill(child: Process) -> None:
    with contextlib.suppress(ProcessLookupError):
        child.kill()


async def _message(answers: asyncio.StreamReader) -> bytes:
    length = int.from_bytes(await answers.readexactly(LENGTH_BYTES), "big")
    return await answers.readexactly(length)


def _order(command: RunStep, context: StepContext) -> Order:
    step = command.step
    module: str = step.fn.__module__
    arguments, encoding = _serial.encode((list(command.args), dict(command.kwargs)), None, subject="arguments")
    assert encoding == _serial.TAGGED_JSON
    heard, _ = _serial.encode(context.last_heartbeat)
    return Order(
        module=module,
        file=getattr(sys.modules.get(module), "__file__", None),
        path=step.fn.__qualname__,
        arguments=arguments or b"",
        call=context.call,
        attempt=context.attempt,
        last_heartbeat=None if heard is None else heard.decode(),
        search=[folder for folder in sys.path if folder],
    )


def _error(raised: Raised) -> Exception:
    error = _failure.rebuild(raised.envelope)
    if raised.is_unstorable and not isinstance(error, SerialisationError):
        return SerialisationError(str(error), path="result")
    return error
