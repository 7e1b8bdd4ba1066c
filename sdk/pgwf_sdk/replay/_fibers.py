"""Threads that run one at a time: the root of a `def` workflow on the thread that called it, and one for each branch.

Whoever runs holds the baton. When it has to wait it hands the baton to a fiber that can go on; when none can, it takes
the next entry of the journal; when there is none, it asks the worker and waits for the answer in place of all others.
A run without branches therefore never changes threads. A fiber that may bring about nothing more is left by Suspend.
"""

from __future__ import annotations

from collections import deque
from contextvars import Context as Variables
from contextvars import copy_context
from threading import Lock, Thread, get_ident
from typing import TYPE_CHECKING, Any, Final, NoReturn, TypeVar

from pgwf_sdk._errors import BranchCancelled, RunCancelled, Suspend, UsageError
from pgwf_sdk.replay._calls import Settled
from pgwf_sdk.replay._machine import CancelRequest, Machine
from pgwf_sdk.replay._places import line_of_thread

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pgwf_journal import Entry
    from pgwf_sdk.replay._commands import Command
    from pgwf_sdk.replay._places import Line
    from pgwf_sdk.replay._policy import Tally
    from pgwf_sdk.replay._scope import Scope

__all__ = ["BRANCH_THREADS_MAX", "Branches", "Fiber", "Fibers"]

T = TypeVar("T")

BRANCH_THREADS_MAX: Final = 1_000
"""Branches of one run that may be under way at once in a `def` workflow, as each needs a thread."""


class Fiber:
    """One line of execution: the root or a branch. `ident` is its thread's, 0 while it has none."""

    __slots__ = ("_fibers", "gate", "ident", "interrupt", "is_queued", "scope", "shields_count", "thread")

    def __init__(self, fibers: Fibers, scope: Scope) -> None:
        self._fibers = fibers
        self.scope = scope
        self.ident = 0
        self.thread: Thread | None = None
        self.gate = Lock()
        self.gate.acquire()
        self.interrupt: BaseException | None = None
        self.is_queued = False
        self.shields_count = 0

    @property
    def is_interrupted(self) -> bool:
        """True when it is to leave what it waits for."""
        return self.interrupt is not None and not self.shields_count

    def raise_interrupt(self) -> NoReturn:
        """Raise what interrupts it, once."""
        error, self.interrupt = self.interrupt, None
        assert error is not None
        raise error

    def wake(self, _settled: Settled | None = None) -> None:
        """Let it go on when its turn comes."""
        if not self.is_queued:
            self.is_queued = True
            self._fibers.queue.append(self)

    def stop(self, error: BaseException) -> None:
        """Raise `error` where it waits, or from what it waits for next."""
        if self.interrupt is None:
            self.interrupt = error
            self.wake()


class Fibers:
    """The scheduler of one activation."""

    def __init__(self, machine: Machine, exchange: Callable[[list[Command]], Sequence[Entry]]) -> None:
        self.machine = machine
        self.queue: deque[Fiber] = deque()
        self.failure: BaseException | None = None
        """What the worker raised instead of an answer, or what no workflow may handle (KeyboardInterrupt)."""
        self.branch_count = 0
        self._exchange = exchange
        # What the worker does in an exchange must not count as code of the workflow.
        self._outside: Variables = copy_context()
        self.root = Fiber(self, machine.root)
        self.current = self.root
        self._alive: list[Fiber] = [self.root]
        machine.stands_at = self.stands_at

    def stands_at(self) -> list[Line]:
        """Where its fibers wait."""
        lines = [line_of_thread(fiber.ident) for fiber in self._alive if fiber.ident]
        return [line for line in lines if line is not None]

    def wait(self, fiber: Fiber, settled: Settled) -> Any:
        """Return the value of `settled`, or raise its error, once it has one. Suspend: this activation is over."""
        settled.waiter = fiber
        machine = self.machine
        while True:
            if machine.blocked is not None:
                machine.is_latched = True
            if machine.is_latched:
                raise Suspend
            if fiber.is_interrupted:
                # What must come to its end is waited for, and the outcome does not matter any more.
                if settled.is_done or not settled.abandon():
                    fiber.raise_interrupt()
            elif settled.is_done:
                return settled.outcome()
            self._park(fiber)

    def join(self, fiber: Fiber, branches: Branches) -> Any:
        """Return the results of branches, or raise the first error, once all of them have ended."""
        branches.waiter = fiber
        interrupted: BaseException | None = None
        while True:
            if not self.machine.is_latched and fiber.is_interrupted and fiber.interrupt is not None:
                error, fiber.interrupt = fiber.interrupt, None
                interrupted = interrupted or error
                branches.stop(error)
            if self.machine.is_latched:
                branches.stop(BranchCancelled())  # Those that never got to run have nobody to leave.
            if branches.is_done:
                break
            self._park(fiber)
        if self.machine.is_latched:
            raise Suspend
        if interrupted is not None:
            raise interrupted
        return branches.outcome()

    def shield(self, fiber: Fiber, body: Callable[[], T]) -> T:
        """Return what `body` returns, undisturbed; then raise what was to interrupt it."""
        fiber.shields_count += 1
        try:
            return body()
        finally:
            fiber.shields_count -= 1
            if fiber.is_interrupted and not self.machine.is_latched:
                fiber.raise_interrupt()

    def spawn(self, scope: Scope, body: Callable[[Fiber], None]) -> Fiber:
        """Queue a fiber that will run `body` on a thread of its own."""
        fiber = Fiber(self, scope)

        def main() -> None:
            fiber.ident = get_ident()
            body(fiber)
            fiber.ident = 0
            self._hand_over(self._choose())

        fiber.thread = Thread(target=main, name=f"pgwf {self.machine.run.run_id}{scope.path}", daemon=True)
        self.branch_count += 1
        fiber.wake()
        return fiber

    def ended(self, fiber: Fiber) -> None:
        """A branch has ended, or will never start."""
        self.branch_count -= 1
        if fiber in self._alive:
            self._alive.remove(fiber)
        if fiber.is_queued:
            self.queue.remove(fiber)

    def fail(self, error: BaseException) -> None:
        """End the activation and let `error` out of it."""
        if self.failure is None:
            self.failure = error
        self.machine.is_latched = True

    def _park(self, fiber: Fiber) -> None:
        following = self._choose()
        if following is not fiber:
            self._hand_over(following)
            fiber.gate.acquire()

    def _hand_over(self, fiber: Fiber) -> None:
        if fiber.ident == 0 and fiber.thread is not None:
            # All is said before the thread starts: from then on it holds the baton.
            self.current = fiber
            self._alive.append(fiber)
            try:
                fiber.thread.start()
            except RuntimeError as error:  # The system gives this process no further thread.
                self._alive.remove(fiber)
                self.fail(error)
                fiber = self._alive[-1]
            else:
                return
        self.current = fiber
        fiber.gate.release()

    def _choose(self) -> Fiber:
        """Return who runs next; takes entries and asks the worker until somebody can."""
        machine, queue = self.machine, self.queue
        while True:
            if machine.blocked is not None:
                machine.is_latched = True
            if machine.is_latched:
                return self._alive[-1]  # The youngest first, so that a parent is left after its branches.
            if queue:
                fiber = queue.popleft()
                fiber.is_queued = False
                return fiber
            try:
                settled = machine.advance()
                if settled is None:
                    if machine.blocked is None:
                        self._ask()
                elif isinstance(settled, CancelRequest):
                    self.root.stop(settled.error)
                elif settled.waiter is not None:
                    settled.waiter.wake(settled)
            except BaseException as error:  # noqa: BLE001 - leaves the activation through `run`, whichever thread this is
                self.fail(error)

    def _ask(self) -> None:
        machine = self.machine
        commands = machine.take_commands()
        if not commands and not machine.is_waiting:
            machine.stall()
            return
        machine.feed(self._outside.run(self._exchange, commands))


class Branches(Settled):
    """Runs bodies, `width` at a time. Those that can change nothing more are cancelled; all are joined."""

    __slots__ = ("_bodies", "_fibers", "_is_stopped", "_next", "_path", "_running", "_tally", "_width")

    def __init__(
        self, fibers: Fibers, path: str, bodies: Sequence[Callable[[Fiber], Any]], *, tally: Tally, width: int | None
    ) -> None:
        super().__init__()
        self._tally = tally
        self._fibers = fibers
        self._path = path
        self._bodies = bodies
        self._width = len(bodies) if width is None else min(width, len(bodies))
        if fibers.branch_count + self._width > BRANCH_THREADS_MAX:
            raise UsageError(
                f"{path} would bring the run to {fibers.branch_count + self._width} branches at once, each on a thread;"
                f" expected at most {BRANCH_THREADS_MAX}: pass max_concurrency, map a Step or Workflow instead of a"
                " function, or make the workflow an async def"
            )
        self._next = 0
        self._running: dict[Fiber, int] = {}
        self._is_stopped = tally.is_over
        self._fill()
        if not self._running:
            self.finish(*self._tally.outcome())

    def abandon(self) -> bool:
        self.stop(BranchCancelled())
        return True

    def stop(self, error: BaseException) -> None:
        """Raise such an error in every branch that runs, and start no further one."""
        self._is_stopped = True
        for fiber in list(self._running):
            if fiber.ident == 0:  # It never got to run, so there is nothing to clean up.
                self._ended(fiber)
            else:
                fiber.stop(_another(error))

    def _fill(self) -> None:
        fibers = self._fibers
        while not self._is_stopped and self._next < len(self._bodies) and len(self._running) < self._width:
            index = self._next
            self._next += 1
            fiber = fibers.spawn(fibers.machine.scope(f"{self._path}[{index}]"), self._body(index, copy_context()))
            self._running[fiber] = index

    def _body(self, index: int, variables: Variables) -> Callable[[Fiber], None]:
        def body(fiber: Fiber) -> None:
            try:
                value = variables.run(self._bodies[index], fiber)
            except (KeyboardInterrupt, SystemExit) as error:
                self._fibers.fail(error)
            except BaseException as error:  # noqa: BLE001 - raised again where the branches are joined
                if not self._is_stopped and not self._fibers.machine.is_latched:
                    self._tally.failed(index, error)
            else:
                if not self._is_stopped:
                    self._tally.succeeded(index, value)
            if self._tally.is_over and not self._is_stopped:
                del self._running[fiber]
                self.stop(BranchCancelled(self._tally.why_over))
            self._ended(fiber)

        return body

    def _ended(self, fiber: Fiber) -> None:
        self._running.pop(fiber, None)
        self._fibers.ended(fiber)
        if self._fibers.machine.is_latched:
            self._is_stopped = True
        self._fill()
        if not self._running:
            self.finish(*self._tally.outcome())


def _another(error: BaseException) -> BaseException:
    """A copy for each branch: one exception raised on several threads would mix their tracebacks."""
    if isinstance(error, RunCancelled):
        return RunCancelled(str(error), by=error.by, reason=error.reason)
    return BranchCancelled(str(error))
