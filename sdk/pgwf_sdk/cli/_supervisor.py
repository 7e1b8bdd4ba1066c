"""`pgwf worker run --processes N`: N workers as processes of their own, and one that looks after them.

A worker that dies is started again after a pause that doubles, one that was drained stays away; it says so by its exit
code, as 0 is also how a step's code may end a process. Signals are passed on.
The workers read from a pipe that nobody writes to: when this process is killed the pipe ends, and they drain.
"""

import logging
import math
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from types import FrameType

from pgwf_sdk.cli._exit import TOLD_CODE, ExitCode

log = logging.getLogger("pgwf_sdk.worker")

RESTART_SECONDS_MIN = 0.5
RESTART_SECONDS_MAX = 30.0
STEADY_SECONDS = 60.0
"""A worker that has lived for so long is started again without a pause worth the name."""
STOP_SECONDS_MAX = 15.0
"""After the second signal: who is still there then is killed."""

_HOPELESS = frozenset({ExitCode.USAGE, ExitCode.INVALID_INPUT, ExitCode.UNHEALTHY})
"""Exit codes of a worker that would end the same way if it were started again."""

_STOPPED = frozenset({TOLD_CODE, ExitCode.INTERRUPTED, -signal.SIGTERM, -signal.SIGINT})
"""How a worker ends that was told to stop, also before it had begun to listen for that."""


@dataclass(slots=True)
class _Place:
    """One of the N: its process, or when the next one is due."""

    number: int
    process: "subprocess.Popen[bytes] | None" = None
    started_time: float = 0.0
    pause_seconds: float = RESTART_SECONDS_MIN
    due_time: float = -math.inf  # Never again: infinite.


@dataclass(frozen=True, slots=True)
class _Ended:
    place: _Place


@dataclass(frozen=True, slots=True)
class _Signalled:
    number: int


class Supervisor:
    """Runs `count` processes; `command` makes the command line of the k-th (from 1) from the pipe it has to watch.

    `run` belongs into the main thread, and returns the exit code: 0 when all were drained or told to stop and did, that
    of the first worker that cannot work at all (its command line, its code or the schema is at fault), and 1 when one
    had to be killed.
    """

    def __init__(
        self, count: int, command: Callable[[int, int], Sequence[str]], environment: Mapping[str, str]
    ) -> None:
        self._command = command
        self._environment = dict(environment)
        self._places = [_Place(number) for number in range(1, count + 1)]
        self._news: queue.SimpleQueue[_Ended | _Signalled] = queue.SimpleQueue()
        self._signals_count = 0
        self._kill_time = math.inf
        self._code = ExitCode.OK
        self._watched, self._pipe = os.pipe()

    @property
    def running(self) -> list[int]:
        """Numbers of the workers that are there."""
        return [place.number for place in self._places if place.process is not None]

    def run(self) -> int:
        """Look after the workers until all of them are gone for good."""
        before = {number: signal.signal(number, self._on_signal) for number in (signal.SIGTERM, signal.SIGINT)}
        try:
            while any(place.process is not None or place.due_time < math.inf for place in self._places):
                self._start_due()
                with suppress(queue.Empty):
                    self._take(self._news.get(timeout=self._seconds_left()))
                if time.monotonic() >= self._kill_time:
                    self._kill()
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
            self._kill()
            os.close(self._pipe)
            os.close(self._watched)
        return int(self._code)

    def _on_signal(self, number: int, _frame: FrameType | None) -> None:
        self._news.put(_Signalled(number))

    def _start_due(self) -> None:
        now = time.monotonic()
        for place in self._places:
            if place.process is None and place.due_time <= now:
                place.process = subprocess.Popen(
                    self._command(place.number, self._watched),
                    env=self._environment,
                    pass_fds=(self._watched,),
                    # Ctrl-C at a terminal goes to a whole group; they are to hear of it from here, once.
                    process_group=0,
                )
                place.started_time = now
                threading.Thread(target=self._wait, args=(place, place.process), daemon=True).start()
                log.info("worker process %d: started (pid %d)", place.number, place.process.pid)

    def _wait(self, place: _Place, process: "subprocess.Popen[bytes]") -> None:
        process.wait()
        self._news.put(_Ended(place))

    def _take(self, news: _Ended | _Signalled) -> None:
        if isinstance(news, _Signalled):
            self._pass_on(news.number)
            return
        place = news.place
        assert place.process is not None, "a process ends once"
        code, place.process = place.process.returncode, None
        lived_seconds = time.monotonic() - place.started_time
        if code == TOLD_CODE or self._signals_count:
            place.due_time = math.inf
            if code not in _STOPPED:
                self._code = self._code or ExitCode.ERROR
                log.error("worker process %d: died (%s) before it had stopped", place.number, _described(code))
            else:
                log.info("worker process %d: ended", place.number)
        elif code in _HOPELESS:
            self._code = self._code or ExitCode(code)
            log.error("worker process %d: cannot work (exit code %d); all stop", place.number, code)
            self._pass_on(signal.SIGTERM)
        else:
            pause = RESTART_SECONDS_MIN if lived_seconds >= STEADY_SECONDS else place.pause_seconds
            place.pause_seconds = min(pause * 2, RESTART_SECONDS_MAX)
            place.due_time = time.monotonic() + pause
            log.warning("worker process %d: died (%s); started again in %g s", place.number, _described(code), pause)

    def _pass_on(self, number: int) -> None:
        self._signals_count += 1
        if self._signals_count == 2:
            self._kill_time = time.monotonic() + STOP_SECONDS_MAX
        for place in self._places:
            place.due_time = math.inf
            if place.process is not None:
                place.process.send_signal(number)

    def _kill(self) -> None:
        self._kill_time = math.inf
        for place in self._places:
            if place.process is not None and place.process.poll() is None:
                log.error("worker process %d: killed, it did not stop in time", place.number)
                self._code = self._code or ExitCode.ERROR
                place.process.kill()

    def _seconds_left(self) -> float | None:
        """Until there is something to do without any news."""
        due = [place.due_time for place in self._places if place.process is None]
        until = min([*due, self._kill_time])
        return None if until == math.inf else max(until - time.monotonic(), 0)


def end_with_parent(watched: int) -> None:
    """Drain this process when the other end of the pipe `watched` is gone: its parent has been killed."""

    def watch() -> None:
        os.read(watched, 1)
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=watch, name="pgwf-parent", daemon=True).start()


def python_command(*arguments: str) -> list[str]:
    """The command line of this command line in a process of its own."""
    return [sys.executable, "-m", "pgwf_sdk.cli", *arguments]


def _described(code: int) -> str:
    if code == 0:
        return "exit code 0, though nobody told it to stop: code of a step, or a library, has ended the process"
    if code > 0:
        return f"exit code {code}"
    try:
        return signal.Signals(-code).name
    except ValueError:
        return f"signal {-code}"
