"""Where the user's code stands, as file and line. Looked for only where nothing is recorded yet, or it differs."""

from __future__ import annotations

import asyncio
import inspect
import sys
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType

__all__ = ["Line", "line_of_caller", "line_of_error", "line_of_function", "line_of_task", "line_of_thread"]

Line: TypeAlias = tuple[str, int]
"""A file and a line in it."""

_OWN_FILES: Final = (str(Path(__file__).parent.parent) + "/", str(Path(asyncio.__file__).parent) + "/", "<frozen ")


def line_of_caller() -> Line | None:
    """The line of the user's code that called into the SDK."""
    return _innermost(sys._getframe(2))  # pyright: ignore[reportPrivateUsage] - documented in sys, and the only cheap way


def line_of_thread(ident: int) -> Line | None:
    """The line of the user's code at which another thread, or this one, waits inside the SDK."""
    return _innermost(sys._current_frames().get(ident))  # pyright: ignore[reportPrivateUsage] - as documented in sys


def line_of_task(task: asyncio.Task[Any]) -> Line | None:
    """The line of the user's code at which a task awaits."""
    found: Line | None = None
    awaited: Any = task.get_coro()
    while awaited is not None:
        frame: FrameType | None = getattr(awaited, "cr_frame", None)
        if frame is not None and not _is_own(frame.f_code.co_filename):
            found = (frame.f_code.co_filename, frame.f_lineno)
        awaited = getattr(awaited, "cr_await", None)
    return found


def line_of_error(error: BaseException) -> Line | None:
    """The line of the user's code that an error came from."""
    found: Line | None = None
    trace = error.__traceback__
    while trace is not None:
        name = trace.tb_frame.f_code.co_filename
        if not _is_own(name):
            found = (name, trace.tb_lineno)
        trace = trace.tb_next
    return found


def line_of_function(fn: Callable[..., Any]) -> Line | None:
    """The line a function begins at."""
    code = getattr(inspect.unwrap(fn), "__code__", None)
    return None if code is None else (code.co_filename, code.co_firstlineno)


@cache
def _is_own(file: str) -> bool:
    return file.startswith(_OWN_FILES)


def _innermost(frame: FrameType | None) -> Line | None:
    while frame is not None:
        name = frame.f_code.co_filename
        if not _is_own(name):
            return name, frame.f_lineno
        frame = frame.f_back
    return None
