"""The context of a `def` workflow. Every method that waits returns when it has what it waits for."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from threading import get_ident
from typing import TYPE_CHECKING, Any, Concatenate, Generic, Never, ParamSpec, TypeVar, overload

from typing_extensions import TypeForm

from pgwf_sdk._definition import Call, Step, StepLike, Workflow
from pgwf_sdk._errors import ContextError, Suspend
from pgwf_sdk.replay._calls import Settled
from pgwf_sdk.replay._core import ContextCore, checked_items
from pgwf_sdk.replay._fibers import Branches, Fiber, Fibers
from pgwf_sdk.replay._human import Decision

if TYPE_CHECKING:
    from psycopg import AsyncConnection, Connection

    from pgwf_sdk.replay._calls import ChildCall
    from pgwf_sdk.replay._machine import Machine
    from pgwf_sdk.replay._scope import Scope

__all__ = ["Child", "Context"]

P = ParamSpec("P")
R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)
T = TypeVar("T")
A = TypeVar("A")
B = TypeVar("B")
C = TypeVar("C")
D = TypeVar("D")
E = TypeVar("E")


class Child(Generic[R_co]):
    """A child run that was started and not waited for."""

    __slots__ = ("_call", "_fibers", "_watches")

    def __init__(self, call: ChildCall, fibers: Fibers) -> None:
        self._call = call
        self._fibers = fibers
        self._watches: list[_Watch] = []
        call.waiter = self

    def result(self) -> R_co:
        """Return what the child returned. ChildFailedError: it failed, was cancelled or was terminated."""
        fiber = self._fibers.current
        if fiber.ident != get_ident():
            raise ContextError("a child's result was asked for outside the code of its parent run")
        watch = _Watch()
        if self._call.is_done:
            watch.take(self._call)
        else:
            self._watches.append(watch)
        result: R_co = self._fibers.wait(fiber, watch)
        return result

    def wake(self, settled: Settled) -> None:
        for watch in self._watches:
            watch.take(settled)
            if watch.waiter is not None:
                watch.waiter.wake(watch)


class _Watch(Settled):
    """One wait for a child that others may wait for too: giving it up leaves the child alone."""

    __slots__ = ()

    def take(self, settled: Settled) -> None:
        self.value, self.error, self.is_done = settled.value, settled.error, True

    def abandon(self) -> None:
        self.waiter = None


class Context(ContextCore):
    """What a `def` workflow does through its first parameter. A branch of `parallel` or `map` has its own.

    ContextError, from every method: used outside its run, in another thread, or in a branch that has its own context.
    """

    __slots__ = ("_fiber", "_fibers")

    def __init__(self, machine: Machine, scope: Scope, fibers: Fibers, fiber: Fiber) -> None:
        super().__init__(machine, scope)
        self._fibers = fibers
        self._fiber = fiber

    def _check(self) -> None:
        if get_ident() != self._fiber.ident:
            raise ContextError(
                f"the context of run {self._machine.run.run_id}, scope {self._scope.path or '/'}, was used elsewhere:"
                " in another thread or branch, in a step, or after its end; expected each branch to use the ctx it is"
                " given, as in ctx.parallel(lambda ctx: ctx.step(…)), and threads to live inside steps"
            )
        if self._machine.is_latched:
            raise Suspend

    def _wait(self, settled: Settled) -> Any:
        return self._fibers.wait(self._fiber, settled)

    @overload
    def step(self, fn: Step[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R: ...
    @overload
    def step(self, fn: Callable[P, Coroutine[Any, Any, R]], /, *args: P.args, **kwargs: P.kwargs) -> R: ...
    @overload
    def step(self, fn: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R: ...
    def step(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        """Run a step and record its result, or return what it returned before.

        Raises what the step raised last, when no retry is left. StepTimeoutError, StepInterruptedError: it did not end.
        """
        self._check()
        return self._fibers.wait(self._fiber, self._open_step(fn, args, kwargs))

    @overload
    def transaction(
        self,
        fn: Callable[Concatenate[AsyncConnection, P], Coroutine[Any, Any, R]],
        /,
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> R: ...
    @overload
    def transaction(self, fn: Callable[Concatenate[Connection, P], R], /, *args: P.args, **kwargs: P.kwargs) -> R: ...
    def transaction(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        """Run a step in a transaction of the run's database that commits together with the record of its result.

        The function gets the connection first. What it writes there is done exactly once.
        """
        self._check()
        return self._wait(self._open_transaction(fn, args, kwargs))

    def sleep(self, duration: timedelta, /) -> None:
        """Wait; the run gives its worker back meanwhile. Zero and less wait for nothing but are recorded."""
        self._check()
        self._wait(self._open_sleep(duration))

    def sleep_until(self, until: datetime, /) -> None:
        """Wait for an instant of the database's clock. ValueError: `until` has no time zone."""
        self._check()
        self._wait(self._open_sleep_until(until))

    def wait_signal(
        self,
        name: str,
        payload_type: TypeForm[T],
        /,
        *,
        timeout: timedelta | None = None,
    ) -> T:
        """Wait for the oldest signal of that name that was not taken yet; one that came earlier counts.

        WaitTimeoutError: none came in time. A later one stays for the next wait.
        """
        self._check()
        received: T = self._wait(self._open_signal(name, payload_type, timeout))
        return received

    def human(
        self,
        name: str,
        subject: object,
        decision: TypeForm[T],
        /,
        *,
        need: str | Mapping[str, int],
        title: str | None = None,
        due: timedelta | None = None,
        expires: timedelta | None = None,
        on_expire: T | None = None,
        prefill: T | None = None,
        exclude: Sequence[str] = (),
        assign: str | None = None,
        notify: Sequence[str] = (),
    ) -> Decision[T]:
        """Ask people who offer `need` to decide about `subject`; the answer is of type `decision`.

        `name` is part of the journal, `title` is not. When `expires` has passed the decision is `on_expire`, or
        WaitTimeoutError is raised without one.
        """
        self._check()
        decided: Decision[T] = self._wait(
            self._open_human(
                name, subject, decision, need=need, title=title, due=due, expires=expires, on_expire=on_expire,
                prefill=prefill, exclude=exclude, assign=assign, notify=notify,
            )
        )  # fmt: skip
        return decided

    def call(self, call: Call[R], /, *excess: Never, run_id: str | None = None) -> R:
        """Run a workflow as a child and wait for what it returns. ChildFailedError: it did not complete."""
        self._check()
        result: R = self._wait(self._open_child(call, excess, run_id, is_spawned=False))
        return result

    def spawn(self, call: Call[R], /, *excess: Never, run_id: str | None = None) -> Child[R]:
        """Start a workflow as a child and go on; the child is started before this run can end."""
        self._check()
        return Child(self._open_child(call, excess, run_id, is_spawned=True), self._fibers)

    def side_effect(self, fn: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R:
        """Call a quick function here, record what it returns, and return that in every replay. Not for slow work."""
        self._check()
        value: R = self._wait(self._open_value(fn, args, kwargs))
        return value

    @overload
    def parallel(self, a: Callable[[Context], A], /) -> tuple[A]: ...
    @overload
    def parallel(self, a: Callable[[Context], A], b: Callable[[Context], B], /) -> tuple[A, B]: ...
    @overload
    def parallel(
        self,
        a: Callable[[Context], A],
        b: Callable[[Context], B],
        c: Callable[[Context], C],
        /,
    ) -> tuple[A, B, C]: ...
    @overload
    def parallel(
        self,
        a: Callable[[Context], A],
        b: Callable[[Context], B],
        c: Callable[[Context], C],
        d: Callable[[Context], D],
        /,
    ) -> tuple[A, B, C, D]: ...
    @overload
    def parallel(
        self,
        a: Callable[[Context], A],
        b: Callable[[Context], B],
        c: Callable[[Context], C],
        d: Callable[[Context], D],
        e: Callable[[Context], E],
        /,
    ) -> tuple[A, B, C, D, E]: ...
    @overload
    def parallel(
        self,
        a: Callable[[Context], R],
        b: Callable[[Context], R],
        c: Callable[[Context], R],
        d: Callable[[Context], R],
        e: Callable[[Context], R],
        f: Callable[[Context], R],
        /,
        *more: Callable[[Context], R],
    ) -> tuple[R, ...]: ...
    def parallel(self, *branches: Callable[[Context], Any]) -> Any:
        """Run functions side by side, each with a context of its own, and return their results in order.

        The first that fails cancels the others; all have ended before its error is raised.
        """
        self._check()
        path = self._machine.open_branches("parallel", self._scope)
        return tuple(self._branch(path, [(branch, ()) for branch in branches], None))

    @overload
    def map(self, each: StepLike[T, R], items: Iterable[T], /, *, max_concurrency: int | None = None) -> list[R]: ...
    @overload
    def map(
        self, each: Callable[[T], Call[R]], items: Iterable[T], /, *, max_concurrency: int | None = None
    ) -> list[R]: ...
    @overload
    def map(
        self,
        each: Callable[[Context, T], R],
        items: Iterable[T],
        /,
        *,
        max_concurrency: int | None = None,
    ) -> list[R]: ...
    def map(self, each: Any, items: Iterable[Any], /, *, max_concurrency: int | None = None) -> Any:
        """Run a Step, a Workflow (a child run an item) or `each(ctx, item)` over items; results in the items' order.

        At most `max_concurrency` items are under way, waiting ones included. Failures as in `parallel`.
        """
        self._check()
        listed = checked_items(items, max_concurrency)
        if isinstance(each, Step | Workflow):
            return self._wait(self._open_map(each, listed, max_concurrency))
        path = self._machine.open_branches("map", self._scope)
        return self._branch(path, [(each, (item,)) for item in listed], max_concurrency)

    def _branch(
        self, path: str, branches: Sequence[tuple[Callable[..., Any], tuple[Any, ...]]], width: int | None
    ) -> list[Any]:
        def body(fn: Callable[..., Any], args: tuple[Any, ...]) -> Callable[[Fiber], Any]:
            return lambda fiber: fn(Context(self._machine, fiber.scope, self._fibers, fiber), *args)

        bodies = [body(fn, args) for fn, args in branches]
        results: list[Any] = self._fibers.join(self._fiber, Branches(self._fibers, path, bodies, width=width))
        return results
