"""The two ways to run a workflow's code: on the host loop's thread, or on a thread of its own.

Either engine tells its driver, on the host loop's thread, what the code asks for and how it ended, and takes committed
entries in return. `is_busy` is True while user code may be running.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from contextvars import copy_context
from queue import SimpleQueue
from typing import Protocol

from pgwf_journal import Entry
from pgwf_sdk import _failure
from pgwf_sdk._errors import Suspend
from pgwf_sdk.replay import AsyncActivation, Command, Failed, Outcome, SyncActivation

log = logging.getLogger("pgwf_sdk.worker")

_EXITS = (SystemExit, KeyboardInterrupt)
"""What a replay lets out although the run's code raised it. The run has failed; the worker is not to end for it."""


class Listener(Protocol):
    """Who an engine reports to."""

    def asked(self, commands: Sequence[Command], /) -> None:
        """The code cannot go on before something of this, or of what it asked for earlier, is resolved."""

    def ended(self, outcome: Outcome, /) -> None:
        """The code ended, or was suspended after `close`."""

    def broke(self, error: Exception) -> None:
        """Running the code failed in the SDK itself."""


class Engine(Protocol):
    """What a driver needs of either engine."""

    is_busy: bool

    @property
    def is_ending(self) -> bool:
        """True when the code has returned, and the run ends as soon as all it asked for without waiting is recorded."""
        ...

    @property
    def wake_after(self) -> int:
        """How many children have to end before the code can go on, if it waits for nothing else."""
        ...

    def start(self) -> None:
        """Replay the history and run on."""

    def feed(self, entries: Sequence[Entry]) -> None:
        """Entries were committed."""

    def close(self) -> None:
        """Suspend the code; nothing of it reaches the journal any more."""


class AsyncEngine:
    """Runs an async workflow in its own event loop, from callbacks of the host loop."""

    def __init__(self, activation: AsyncActivation, listener: Listener) -> None:
        self._activation = activation
        self._listener = listener
        self.is_busy = False

    @property
    def is_ending(self) -> bool:
        return self._activation.is_ending

    @property
    def wake_after(self) -> int:
        return self._activation.wake_after

    def start(self) -> None:
        self._run(self._activation.start)

    def feed(self, entries: Sequence[Entry]) -> None:
        self._run(self._activation.feed, entries)

    def close(self) -> None:
        self._activation.close()

    def _run(self, go: Callable[..., Sequence[Command]], *entries: Sequence[Entry]) -> None:
        try:
            commands = go(*entries)
        except _EXITS as error:
            self._listener.ended(Failed(_failure.describe(error)))
            return
        except Exception as error:  # noqa: BLE001 - the driver logs it and gives the run back
            self._listener.broke(error)
            return
        if self._activation.outcome is not None:
            self._listener.ended(self._activation.outcome)
        else:
            self._listener.asked(commands)


class SyncEngine:
    """Runs a sync workflow on a thread of the pool; entries reach it through a mailbox."""

    def __init__(
        self, activation: SyncActivation, listener: Listener, *, loop: asyncio.AbstractEventLoop, threads: Executor
    ) -> None:
        self._activation = activation
        self._listener = listener
        self._loop = loop
        self._threads = threads
        self._mailbox: SimpleQueue[Sequence[Entry] | None] = SimpleQueue()
        self._fed_count = 0  # by the loop's thread
        self._taken_count = 0  # by the workflow's thread
        self._is_over = False
        self.is_busy = False

    @property
    def is_ending(self) -> bool:
        return self._activation.is_ending

    @property
    def wake_after(self) -> int:
        return self._activation.wake_after

    def start(self) -> None:
        self.is_busy = True
        self._threads.submit(copy_context().run, self._live)

    def feed(self, entries: Sequence[Entry]) -> None:
        if self._is_over:
            return
        self.is_busy = True
        self._fed_count += 1
        self._mailbox.put(entries)

    def close(self) -> None:
        self._mailbox.put(None)

    def _live(self) -> None:
        try:
            outcome = self._activation.run(self._exchange)
        except _EXITS as error:
            self._loop.call_soon_threadsafe(self._over, Failed(_failure.describe(error)))
        except Exception as error:  # noqa: BLE001 - the driver logs it and gives the run back
            self._loop.call_soon_threadsafe(self._broke, error)
        else:
            self._loop.call_soon_threadsafe(self._over, outcome)

    def _exchange(self, commands: list[Command]) -> Sequence[Entry]:
        self._loop.call_soon_threadsafe(self._quiet, commands, self._taken_count)
        entries = self._mailbox.get()
        if entries is None:
            raise Suspend
        self._taken_count += 1
        return entries

    def _quiet(self, commands: list[Command], taken_count: int) -> None:
        # What was fed while this call was on its way has set the code going again.
        self.is_busy = taken_count != self._fed_count
        self._listener.asked(commands)

    def _over(self, outcome: Outcome) -> None:
        self.is_busy, self._is_over = False, True
        self._listener.ended(outcome)

    def _broke(self, error: Exception) -> None:
        self.is_busy, self._is_over = False, True
        self._listener.broke(error)


class NoEngine:
    """Stands in where no code of the run is here to be run."""

    is_busy = False
    is_ending = False
    wake_after = 1

    def start(self) -> None:
        """There is nothing to start."""

    def feed(self, entries: Sequence[Entry]) -> None:
        """Nobody waits for entries."""

    def close(self) -> None:
        """There is nothing to suspend."""
