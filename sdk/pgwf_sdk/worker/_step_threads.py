"""Threads for plain steps: as many as are wanted at a time, and those beside them that nobody can stop.

An attempt that is given up (its time is over, its run is cancelled or lost) goes on until its function returns, but its
place is free at once: steps that hang would take one place after the other, until no plain step of any run begins.
"""

from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from threading import Lock
from typing import Final

LEFT_BEHIND_MAX: Final = 256
"""Attempts that were given up and go on; beyond that they keep their places: a process bears only so many threads."""

Work = Callable[[], None]


class StepThreads:
    """At most `count` attempts at a time, beside those that were given up; the others wait in order. Safe from any
    thread."""

    def __init__(self, count: int) -> None:
        self._executor = ThreadPoolExecutor(count + LEFT_BEHIND_MAX, thread_name_prefix="pgwf-step")
        self._lock = Lock()
        self._free_count = count
        self._left_behind_count = 0
        self._waiting: deque[Work] = deque()
        self._in_place: set[Work] = set()

    def submit(self, work: Work) -> None:
        """Call `work`, which raises nothing, as soon as there is a place. The same one is not submitted twice."""
        with self._lock:
            self._waiting.append(work)
            self._begin()

    def give_up(self, work: Work) -> None:
        """Nobody waits for `work` any more."""
        with self._lock:
            if work in self._waiting:
                self._waiting.remove(work)
            elif work in self._in_place and self._left_behind_count < LEFT_BEHIND_MAX:
                self._in_place.remove(work)
                self._left_behind_count += 1
                self._free_count += 1
                self._begin()

    def shutdown(self) -> None:
        """Begin nothing more."""
        with self._lock:
            self._waiting.clear()
        self._executor.shutdown(wait=False, cancel_futures=True)

    def _begin(self) -> None:
        while self._free_count and self._waiting:
            self._free_count -= 1
            work = self._waiting.popleft()
            self._in_place.add(work)
            self._executor.submit(self._run, work)

    def _run(self, work: Work) -> None:
        try:
            work()
        finally:
            with self._lock:
                if work in self._in_place:
                    self._in_place.remove(work)
                    self._free_count += 1
                    self._begin()
                else:
                    self._left_behind_count -= 1
