"""The child's side of steps with `isolate="process"`: one process that runs such steps one after the other.

It speaks with the worker over its standard input and output, in messages with their length in front; what steps print
goes to standard error. When its input ends, the worker is gone, and so is this process, whatever it is doing.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import signal
import sys
import threading
from queue import SimpleQueue
from typing import IO, TYPE_CHECKING, Any, Final

import msgspec

from pgwf_sdk import _failure, _serial
from pgwf_sdk._definition import Step, as_step
from pgwf_sdk._step_context import StepContext, enter_step, heartbeat_json, heartbeat_of, leave_step

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType

LENGTH_BYTES: Final = 4
MAIN: Final = "__pgwf_main__"
"""What the program that the worker was started as is called in here: its main part does not run again."""


class Order(msgspec.Struct, tag="order"):
    """Run a step: the function at `path` in a module, found by its name or else by its file."""

    module: str
    file: str | None
    path: str
    arguments: bytes
    call: str
    attempt: int
    last_heartbeat: str | None
    search: list[str]


class Flags(msgspec.Struct, tag="flags"):
    """What the step may ask about its attempt has changed."""

    draining: bool


class Begun(msgspec.Struct, tag="begun"):
    """The order was taken: from now on the step may have done something."""


class Beat(msgspec.Struct, tag="beat"):
    """The step reported something, as tagged JSON."""

    details: str | None


class Result(msgspec.Struct, tag="result"):
    """The step returned; its result is encoded."""

    payload: bytes | None
    encoding: int


class Raised(msgspec.Struct, tag="raised"):
    """The step raised; `is_unstorable` says that its result or arguments are what cannot be stored."""

    envelope: bytes
    is_unstorable: bool


_requests: msgspec.msgpack.Decoder[Order | Flags] = msgspec.msgpack.Decoder(Order | Flags)


def framed(message: msgspec.Struct) -> bytes:
    """A message with its length in front."""
    body = msgspec.msgpack.encode(message)
    return len(body).to_bytes(LENGTH_BYTES, "big") + body


def main() -> None:
    """Take orders until the worker is gone."""
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # Nothing that a step prints may stand between two messages.
    for number in (signal.SIGTERM, signal.SIGINT):
        # Who tells all processes of a service to stop means the worker. Subprocesses would inherit that it is ignored.
        signal.signal(number, _take_no_notice)
    orders: SimpleQueue[Order] = SimpleQueue()
    link = _Link(answers)
    threading.Thread(target=_listen, args=(sys.stdin.buffer, orders, link), daemon=True).start()
    while True:
        order = orders.get()
        link.send(Begun())
        link.send(_executed(order, link))


def _take_no_notice(_number: int, _frame: FrameType | None) -> None:
    """The worker decides when this process ends."""


class _Link:
    """Says things to the worker, from any thread, and knows the attempt that is running."""

    def __init__(self, answers: IO[bytes]) -> None:
        self._answers = answers
        self._lock = threading.Lock()
        self.attempt: StepContext | None = None

    def send(self, message: msgspec.Struct) -> None:
        with self._lock:
            self._answers.write(framed(message))
            self._answers.flush()

    def beat(self, details: object) -> None:
        self.send(Beat(heartbeat_json(details)))


def _listen(requests: IO[bytes], orders: SimpleQueue[Order], link: _Link) -> None:
    while head := requests.read(LENGTH_BYTES):
        request = _requests.decode(requests.read(int.from_bytes(head, "big")))
        if isinstance(request, Order):
            orders.put(request)
        elif link.attempt is not None:
            link.attempt.draining = request.draining
    os._exit(0)  # The step that is running has nobody left to tell.


def _executed(order: Order, link: _Link) -> Result | Raised:
    try:
        step = _step(order)
        args, kwargs = _serial.decode(order.arguments, _serial.TAGGED_JSON)
        link.attempt = StepContext(
            attempt=order.attempt,
            call=order.call,
            last_heartbeat=heartbeat_of(order.last_heartbeat, order.call),
            beat=link.beat,
        )
        token = enter_step(link.attempt)
        try:
            value = step.fn(*args, **kwargs)
        finally:
            leave_step(token)
            link.attempt = None
    except BaseException as error:  # noqa: BLE001 - told to the worker, who decides
        return Raised(_failure.describe(error), is_unstorable=False)
    try:
        return Result(*step.codec.encode(value, subject="result"))
    except Exception as error:  # noqa: BLE001 - as above
        return Raised(_failure.describe(error), is_unstorable=True)


def _step(order: Order) -> Step[..., Any]:
    for folder in reversed(order.search):
        if folder not in sys.path:
            sys.path.insert(0, folder)
    found: Any = _module(order)
    for part in order.path.split("."):
        found = getattr(found, part)
    return as_step(found)


def _module(order: Order) -> Any:
    name = MAIN if order.module == "__main__" else order.module
    if name in sys.modules:
        return sys.modules[name]
    if order.file is None or name != MAIN:
        try:
            return importlib.import_module(name)
        except ModuleNotFoundError:
            if order.file is None:
                raise
    load: Callable[..., Any] = importlib.util.spec_from_file_location
    spec = load(name, order.file)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    if name == MAIN:
        sys.modules["__main__"] = module  # What is stored names classes by the module they were made in.
    spec.loader.exec_module(module)
    return module


if __name__ == "__main__":
    main()
