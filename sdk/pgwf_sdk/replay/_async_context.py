"""The context of an `async def` workflow. Every method that waits returns at once; what it returns is to be awaited."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from contextvars import ContextVar, copy_context
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Concatenate, Final, Generic, Never, ParamSpec, TypeVar, overload

from typing_extensions import TypeForm

from pgwf_sdk._definition import Call, Step, StepLike, Workflow
from pgwf_sdk._errors import ContextError
from pgwf_sdk.replay._branches import BranchTasks, JoinFuture
from pgwf_sdk.replay._core import ContextCore, checked_items
from pgwf_sdk.replay._future import CallFuture
from pgwf_sdk.replay._human import Decision

if TYPE_CHECKING:
    from psycopg import AsyncConnection, Connection

    from pgwf_sdk.replay._calls import ChildCall, Settled
    from pgwf_sdk.replay._loop import WorkflowLoop
    from pgwf_sdk.replay._machine import Machine
    from pgwf_sdk.replay._scope import Scope

__all__ = ["AsyncChild", "AsyncContext", "current_scope"]

P = ParamSpec("P")
R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)
T = TypeVar("T")
A = TypeVar("A")
B = TypeVar("B")
C = TypeVar("C")
D = TypeVar("D")
E = TypeVar("E")

current_scope: Final[ContextVar[Scope]] = ContextVar("pgwf_scope")
"""The scope whose code runs in this task: whose timers the loop sets, and whose context may be used."""


class AsyncChild(Generic[R_co]):
    """A child run that was started and not waited for."""

    __slots__ = ("_call", "_future")

    def __init__(self, call: ChildCall, loop: WorkflowLoop) -> None:
        self._call = call
        self._future: asyncio.Future[Any] = loop.create_future()
        call.waiter = self

    def result(self) -> Awaitable[R_co]:
        """What the child returned. ChildFailedError: it failed, was cancelled or was terminated."""
        # Shielded: several may wait, and one of them giving up is no reason to cancel the child.
        return asyncio.shield(self._future)

    def wake(self, settled: Settled) -> None:
        if settled.error is None:
            self._future.set_result(settled.value)
        else:
            self._future.set_exception(settled.error)
            self._future.exception()  # Marked as read: not every parent asks how its child ended.


class AsyncContext(ContextCore):
    """What an `async def` workflow does through its first parameter. A branch of `parallel` or `map` has its own.

    Calls count from the moment the method is called, so `gather(ctx.step(a), ctx.step(b))` is the same in every replay.
    ContextError, from every method: used outside its run, in another thread, or in a branch that has its own context.
    """

    __slots__ = ("_loop",)

    def __init__(self, machine: Machine, scope: Scope, loop: WorkflowLoop) -> None:
        super().__init__(machine, scope)
        self._loop = loop

    def _check(self) -> None:
        if asyncio._get_running_loop() is not self._loop:  # pyright: ignore[reportPrivateUsage] - one look, no raise
            raise ContextError(
                f"the context of run {self._machine.run.run_id} was used outside the run's own code: after it ended, in"
                " a thread, or in a step; expected its methods to be called by the workflow and its branches only"
            )
        scope = current_scope.get(None)
        if scope is not self._scope:
            raise ContextError(
                f"the context of scope {self._scope.path or '/'} was used in {scope.path if scope else 'no branch'};"
                " expected each branch to use the ctx it is given: ctx.parallel(lambda ctx: ctx.step(…))"
            )

    def _future(self, settled: Settled) -> Coroutine[None, None, Any]:
        future: Any = CallFuture(settled, loop=self._loop)
        waiting: Coroutine[None, None, Any] = future
        return waiting

    @overload
    def step(self, fn: Step[P, R], /, *args: P.args, **kwargs: P.kwargs) -> Coroutine[None, None, R]: ...
    @overload
    def step(
        self, fn: Callable[P, Coroutine[Any, Any, R]], /, *args: P.args, **kwargs: P.kwargs
    ) -> Coroutine[None, None, R]: ...
    @overload
    def step(self, fn: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> Coroutine[None, None, R]: ...
    def step(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        """Run a step and record its result, or return what it returned before.

        Raises what the step raised last, when no retry is left. StepTimeoutError, StepInterruptedError: it did not end.
        """
        self._check()
        return CallFuture(self._open_step(fn, args, kwargs), loop=self._loop)

    @overload
    def transaction(
        self,
        fn: Callable[Concatenate[AsyncConnection, P], Coroutine[Any, Any, R]],
        /,
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> Coroutine[None, None, R]: ...
    @overload
    def transaction(
        self, fn: Callable[Concatenate[Connection, P], R], /, *args: P.args, **kwargs: P.kwargs
    ) -> Coroutine[None, None, R]: ...
    def transaction(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        """Run a step in a transaction of the run's database that commits together with the record of its result.

        The function gets the connection first. What it writes there is done exactly once.
        """
        self._check()
        return self._future(self._open_transaction(fn, args, kwargs))

    def sleep(self, duration: timedelta, /) -> Coroutine[None, None, None]:
        """Wait; the run gives its worker back meanwhile. Zero and less wait for nothing but are recorded."""
        self._check()
        return self._future(self._open_sleep(duration))

    def sleep_until(self, until: datetime, /) -> Coroutine[None, None, None]:
        """Wait for an instant of the database's clock. ValueError: `until` has no time zone."""
        self._check()
        return self._future(self._open_sleep_until(until))

    def wait_signal(
        self,
        name: str,
        payload_type: TypeForm[T],
        /,
        *,
        timeout: timedelta | None = None,
    ) -> Coroutine[None, None, T]:
        """Wait for the oldest signal of that name that was not taken yet; one that came earlier counts.

        WaitTimeoutError: none came in time. A later one stays for the next wait.
        """
        self._check()
        return self._future(self._open_signal(name, payload_type, timeout))

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
    ) -> Coroutine[None, None, Decision[T]]:
        """Ask people who offer `need` to decide about `subject`; the answer is of type `decision`.

        `name` is part of the journal, `title` is not. When `expires` has passed the decision is `on_expire`, or
        WaitTimeoutError is raised without one.
        """
        self._check()
        return self._future(
            self._open_human(
                name, subject, decision, need=need, title=title, due=due, expires=expires, on_expire=on_expire,
                prefill=prefill, exclude=exclude, assign=assign, notify=notify,
            )
        )  # fmt: skip

    def call(self, call: Call[R], /, *excess: Never, run_id: str | None = None) -> Coroutine[None, None, R]:
        """Run a workflow as a child and wait for what it returns. ChildFailedError: it did not complete."""
        self._check()
        return self._future(self._open_child(call, excess, run_id, is_spawned=False))

    def spawn(self, call: Call[R], /, *excess: Never, run_id: str | None = None) -> AsyncChild[R]:
        """Start a workflow as a child and go on; the child is started before this run can end. Not awaited."""
        self._check()
        return AsyncChild(self._open_child(call, excess, run_id, is_spawned=True), self._loop)

    def side_effect(self, fn: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> Coroutine[None, None, R]:
        """Call a quick function here, record what it returns, and return that in every replay. Not for slow work."""
        self._check()
        return self._future(self._open_value(fn, args, kwargs))

    @overload
    def parallel(self, a: Callable[[AsyncContext], Awaitable[A]], /) -> Coroutine[None, None, tuple[A]]: ...
    @overload
    def parallel(
        self, a: Callable[[AsyncContext], Awaitable[A]], b: Callable[[AsyncContext], Awaitable[B]], /
    ) -> Coroutine[None, None, tuple[A, B]]: ...
    @overload
    def parallel(
        self,
        a: Callable[[AsyncContext], Awaitable[A]],
        b: Callable[[AsyncContext], Awaitable[B]],
        c: Callable[[AsyncContext], Awaitable[C]],
        /,
    ) -> Coroutine[None, None, tuple[A, B, C]]: ...
    @overload
    def parallel(
        self,
        a: Callable[[AsyncContext], Awaitable[A]],
        b: Callable[[AsyncContext], Awaitable[B]],
        c: Callable[[AsyncContext], Awaitable[C]],
        d: Callable[[AsyncContext], Awaitable[D]],
        /,
    ) -> Coroutine[None, None, tuple[A, B, C, D]]: ...
    @overload
    def parallel(
        self,
        a: Callable[[AsyncContext], Awaitable[A]],
        b: Callable[[AsyncContext], Awaitable[B]],
        c: Callable[[AsyncContext], Awaitable[C]],
        d: Callable[[AsyncContext], Awaitable[D]],
        e: Callable[[AsyncContext], Awaitable[E]],
        /,
    ) -> Coroutine[None, None, tuple[A, B, C, D, E]]: ...
    @overload
    def parallel(
        self,
        a: Callable[[AsyncContext], Awaitable[R]],
        b: Callable[[AsyncContext], Awaitable[R]],
        c: Callable[[AsyncContext], Awaitable[R]],
        d: Callable[[AsyncContext], Awaitable[R]],
        e: Callable[[AsyncContext], Awaitable[R]],
        f: Callable[[AsyncContext], Awaitable[R]],
        /,
        *more: Callable[[AsyncContext], Awaitable[R]],
    ) -> Coroutine[None, None, tuple[R, ...]]: ...
    def parallel(self, *branches: Callable[[AsyncContext], Awaitable[Any]]) -> Any:
        """Run functions side by side, each with a context of its own, and return their results in order.

        The first that fails cancels the others; all have ended before its error is raised.
        """
        self._check()
        path = self._machine.open_branches("parallel", self._scope)
        return self._branches(path, [(branch, ()) for branch in branches], None, tuple)

    @overload
    def map(
        self, each: StepLike[T, R], items: Iterable[T], /, *, max_concurrency: int | None = None
    ) -> Coroutine[None, None, list[R]]: ...
    @overload
    def map(
        self, each: Callable[[T], Call[R]], items: Iterable[T], /, *, max_concurrency: int | None = None
    ) -> Coroutine[None, None, list[R]]: ...
    @overload
    def map(
        self,
        each: Callable[[AsyncContext, T], Awaitable[R]],
        items: Iterable[T],
        /,
        *,
        max_concurrency: int | None = None,
    ) -> Coroutine[None, None, list[R]]: ...
    def map(self, each: Any, items: Iterable[Any], /, *, max_concurrency: int | None = None) -> Any:
        """Run a Step, a Workflow (a child run an item) or `each(ctx, item)` over items; results in the items' order.

        At most `max_concurrency` items are under way, waiting ones included. Failures as in `parallel`.
        """
        self._check()
        listed = checked_items(items, max_concurrency)
        if isinstance(each, Step | Workflow):
            return self._future(self._open_map(each, listed, max_concurrency))
        path = self._machine.open_branches("map", self._scope)
        return self._branches(path, [(each, (item,)) for item in listed], max_concurrency, list)

    def _branches(
        self,
        path: str,
        branches: list[tuple[Callable[..., Awaitable[Any]], tuple[Any, ...]]],
        width: int | None,
        collect: Callable[[list[Any]], Any],
    ) -> JoinFuture:
        def start(index: int) -> asyncio.Task[Any]:
            scope = self._machine.scope(f"{path}[{index}]")
            context = copy_context()
            context.run(current_scope.set, scope)
            fn, args = branches[index]
            body = _run_branch(fn, AsyncContext(self._machine, scope, self._loop), args)
            return self._loop.create_task(body, name=scope.path, context=context)

        return JoinFuture(BranchTasks(start, len(branches), width=width, collect=collect), loop=self._loop)


async def _run_branch(fn: Callable[..., Awaitable[Any]], ctx: AsyncContext, args: tuple[Any, ...]) -> Any:
    return await fn(ctx, *args)
