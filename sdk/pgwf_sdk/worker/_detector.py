"""Warns when a workflow's code reads a clock, draws, or does I/O: while developing, without a sandbox.

The interpreter reports calls of C functions to a profile function, which is set only on a thread that runs workflow
code, and only for a worker that detects. Such a worker's other threads, and any other worker, pay nothing.
"""

from __future__ import annotations

import gc
import linecache
import logging
import random
import sys
import sysconfig
import threading
import traceback
import warnings
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from datetime import date
from pathlib import Path
from socket import socket
from typing import TYPE_CHECKING, Any, Final

from pgwf_sdk._errors import DeterminismWarning
from pgwf_sdk.replay import AsyncActivation, SyncActivation

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import FrameType

    from pgwf_journal import Entry
    from pgwf_sdk.replay import Command, Outcome

_CLOCK: Final = "reads the clock; use ctx.now()"
_RANDOM: Final = "draws at random; use ctx.random or ctx.uuid4()"
_IO: Final = "does input or output; do it in a step"
_SLEEP: Final = "blocks its worker; use ctx.sleep"

_BY_NAME: Final[Mapping[str, Mapping[str, str]]] = {
    "time": {
        **dict.fromkeys(
            ("time", "time_ns", "monotonic", "monotonic_ns", "perf_counter", "perf_counter_ns", "localtime", "gmtime"),
            _CLOCK,
        ),
        "sleep": _SLEEP,
    },
    "posix": {
        "urandom": _RANDOM,
        **dict.fromkeys(
            ("listdir", "scandir", "stat", "lstat", "open", "remove", "unlink", "rename", "replace", "mkdir", "rmdir",
             "system", "fork", "posix_spawn"),
            _IO,
        ),
    },
    "_io": {"open": _IO, "open_code": _IO},
    "builtins": {"input": _IO},
    "_socket": {"getaddrinfo": _IO, "gethostbyname": _IO},
    "_posixsubprocess": {"fork_exec": _IO},
    "_sqlite3": {"connect": _IO},
    "_uuid": {"generate_time_safe": _RANDOM},
}  # fmt: skip
_METHODS: Final[Mapping[str, str]] = {
    **dict.fromkeys(("now", "utcnow", "today"), _CLOCK),
    **dict.fromkeys(("connect", "connect_ex", "sendall"), _IO),
}
_DRAWS: Final = frozenset(("random", "getrandbits", "seed"))
_NAMES: Final = frozenset(name for names in _BY_NAME.values() for name in names) | frozenset(_METHODS) | _DRAWS

BRANCH_PREFIX: Final = "pgwf "
"""How the threads of a `def` workflow's branches are called."""
_SHARED_RANDOM: Final = getattr(random.random, "__self__", None)
_QUIET: Final = frozenset(str(module.__file__) for module in (linecache, logging, traceback, warnings))
_SDK: Final = str(Path(__file__).parent.parent) + "/"
_LIBRARIES: Final = (
    *(f"{sysconfig.get_path(name)}/" for name in ("stdlib", "platstdlib", "purelib", "platlib")),
    "<frozen ",
)
_IMPORTING: Final = "<frozen importlib"
_RECORDED: Final = "_open_value"  # What ctx.side_effect runs is recorded.


@contextmanager
def detecting() -> Generator[None]:
    """Watch the calling thread, unless a profiler has it already."""
    if sys.getprofile() is not None:
        yield
        return
    sys.setprofile(_profile)
    try:
        yield
    finally:
        sys.setprofile(None)


class DetectingAsyncActivation(AsyncActivation):
    """An async activation whose code is watched while it runs."""

    def start(self) -> list[Command]:
        with detecting():
            return super().start()

    def feed(self, entries: Sequence[Entry]) -> list[Command]:
        with detecting():
            return super().feed(entries)


class DetectingSyncActivation(SyncActivation):
    """A sync activation whose code is watched, on the threads of its branches too."""

    def run(self, exchange: Callable[[list[Command]], Sequence[Entry]]) -> Outcome:
        if threading.getprofile() is None:
            threading.setprofile(_adopt)
        with detecting():
            return super().run(exchange)


def _adopt(frame: FrameType, event: str, arg: Any) -> None:
    """The first event of a new thread: branches of a workflow are watched, other threads let go for good."""
    is_branch = threading.current_thread().name.startswith(BRANCH_PREFIX)
    sys.setprofile(_profile if is_branch else None)


def _profile(frame: FrameType, event: str, arg: Any) -> None:
    if event != "c_call" or getattr(arg, "__name__", None) not in _NAMES:
        return
    what = _offence(arg)
    at = None if what is None else _users_frame(frame)
    if at is not None:
        name = f"{_owner_of(arg)}.{arg.__name__}"
        warnings.warn_explicit(
            f"{name}() is called by a workflow: it {what}. A replay would see something else",
            DeterminismWarning,
            at.f_code.co_filename,
            at.f_lineno,
            module=at.f_globals.get("__name__"),
            registry=at.f_globals.setdefault("__warningregistry__", {}),
        )


def _offence(function: Any) -> str | None:
    """What a call of a C function does that a workflow must not; None: it does nothing of that kind."""
    name, owner = function.__name__, getattr(function, "__self__", None)
    if name in _DRAWS and owner is _SHARED_RANDOM:
        return _RANDOM
    if name in _METHODS:
        is_clock = isinstance(owner, type) and issubclass(owner, date)
        return _METHODS[name] if is_clock or isinstance(owner, socket) else None
    return _BY_NAME.get(getattr(function, "__module__", None) or "", {}).get(name)


def _owner_of(function: Any) -> str:
    owner = getattr(function, "__self__", None)
    if isinstance(owner, type):
        return owner.__name__
    module: str = getattr(function, "__module__", None) or type(owner).__module__
    return {"posix": "os", "_io": "io", "_socket": "socket"}.get(module, module)


def _is_collectors(frame: FrameType) -> bool:
    """Whether the garbage collector called this function: at a moment of its own, whatever code runs."""
    return any(getattr(callback, "__code__", None) is frame.f_code for callback in gc.callbacks)


def _users_frame(frame: FrameType | None) -> FrameType | None:
    """The user's code that brought the call about; None: pgwf itself did, or what ctx.side_effect records."""
    user: FrameType | None = None
    while frame is not None:
        file = frame.f_code.co_filename
        if file.startswith(_SDK):
            return None if frame.f_code.co_name == _RECORDED else user
        if file.startswith(_IMPORTING) or file in _QUIET or _is_collectors(frame):
            return None
        if user is None and not file.startswith(_LIBRARIES):
            user = frame
        frame = frame.f_back
    return user
