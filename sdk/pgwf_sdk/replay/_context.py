"""The context of a `def` workflow. Every method that waits returns when it has what it waits for."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from threading import get_ident
from typing import (
    TYPE_CHECKING,
    Any,
    Concatenate,
    Never,
    NoReturn,
    ParamSpec,
    TypeAlias,
    TypeVar,
    TypeVarTuple,
    overload,
)

from typing_extensions import TypeForm

from pgwf_sdk._definition import Call, Step, StepLike, Workflow
from pgwf_sdk._errors import ContextError, Suspend
from pgwf_sdk.replay._attach import open_attach
from pgwf_sdk.replay._calls import Settled
from pgwf_sdk.replay._commands import OnClose
from pgwf_sdk.replay._core import ContextCore, check_body, check_parallel, checked_items, map_tally
from pgwf_sdk.replay._fibers import Branches, Fiber, Fibers
from pgwf_sdk.replay._handles import Awakeable, Child
from pgwf_sdk.replay._human import Decision
from pgwf_sdk.replay._moves import continuation, open_hop
from pgwf_sdk.replay._policy import BranchResult, BranchResults, Policy, Tally

if TYPE_CHECKING:
    from psycopg import AsyncConnection, Connection

    from pgwf_sdk.replay._machine import Machine
    from pgwf_sdk.replay._scope import Scope

__all__ = ["Context"]

P = ParamSpec("P")
R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)
T = TypeVar("T")
A = TypeVar("A")
B = TypeVar("B")
C = TypeVar("C")
D = TypeVar("D")
E = TypeVar("E")
Ts = TypeVarTuple("Ts")

Body: TypeAlias = Callable[["Context"], R]
"""What a branch of `parallel` runs."""


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

        WaitTimeoutError: none came in time (zero and less: none had come). A later one stays for the next wait.
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
        escalate: str | None = None,
        expires: timedelta | None = None,
        on_expire: T | None = None,
        prefill: T | None = None,
        exclude: Sequence[str] = (),
        assign: str | None = None,
        notify: Sequence[str] = (),
    ) -> Decision[T]:
        """Ask people who offer `need` (one seat: one of them decides) about `subject`; the answer is a `decision`.

        `name` is part of the journal, `title` is not. When `due` has passed and nobody holds the task, it goes to those
        who offer `escalate`. When `expires` has passed the decision is `on_expire`, or WaitTimeoutError is raised.
        """
        self._check()
        decided: Decision[T] = self._wait(
            self._open_human(
                name, subject, decision, need=need, title=title, due=due, escalate=escalate, expires=expires,
                on_expire=on_expire, prefill=prefill, exclude=exclude, assign=assign, notify=notify,
            )
        )  # fmt: skip
        return decided

    @overload
    def poll(
        self,
        check: Callable[[*Ts], Coroutine[Any, Any, R]],
        /,
        *args: *Ts,
        until: Callable[[R], object],
        every: timedelta,
        timeout: timedelta,
    ) -> R: ...
    @overload
    def poll(
        self,
        check: Callable[[*Ts], R],
        /,
        *args: *Ts,
        until: Callable[[R], object],
        every: timedelta,
        timeout: timedelta,
    ) -> R: ...
    def poll(
        self,
        check: Callable[[*Ts], Any],
        /,
        *args: *Ts,
        until: Callable[[Any], object],
        every: timedelta,
        timeout: timedelta,
    ) -> Any:
        """Run the step `check(*args)` again and again until `until` accepts what it returns, and return that.

        Between two looks, `every` apart, the run is in no worker; the journal gets the last one only. A look that
        raises what the step's retry policy allows is one in vain; what it does not allow is raised. WaitTimeoutError:
        `timeout`, counted from the first look, would pass before the next.
        """
        self._check()
        return self._wait(self._open_poll(check, args, until=until, every=every, timeout=timeout))

    def call(self, call: Call[R], /, *excess: Never, run_id: str | None = None) -> R:
        """Run a workflow as a child and wait for what it returns. ChildFailedError: it did not complete."""
        self._check()
        result: R = self._wait(self._open_child(call, excess, run_id, is_spawned=False))
        return result

    def spawn(
        self, call: Call[R], /, *excess: Never, run_id: str | None = None, on_close: OnClose = "request_cancel"
    ) -> Child[R]:
        """Start a workflow as a child and go on; the child is started before this run can end.

        `on_close` says what becomes of a child that still runs when this run ends: it is asked to cancel, terminated,
        or left to run on ("abandon").
        """
        self._check()
        return Child(self._open_child(call, excess, run_id, is_spawned=True, on_close=on_close), self._fibers)

    @overload
    def attach(self, run_id: str, workflow: Workflow[..., R], /, *, timeout: timedelta | None = None) -> R: ...
    @overload
    def attach(self, run_id: str, /, *, timeout: timedelta | None = None) -> Any: ...
    def attach(
        self, run_id: str, workflow: Workflow[..., Any] | None = None, /, *, timeout: timedelta | None = None
    ) -> Any:
        """Wait until a run that exists already is over, and return what it returned, as `workflow` declares it.

        This run does not own it: however this one ends or gives up waiting, that one goes on. An id of a chain leads to
        its live end, and a run that continues is followed. RunFailedError (`__cause__` is its own error),
        RunCancelledError, RunTerminatedError: it ended otherwise. WaitTimeoutError: it was not over within `timeout`.
        RunNotFoundError: there is no such run. RunCycleError: it waits for this one.
        """
        self._check()
        return self._wait(open_attach(self._scope, run_id, workflow, timeout))

    def hop(self, need: str, /) -> None:
        """Go on with a worker that offers `need`, and stay with such workers until the next hop. Not in a branch."""
        self._check()
        self._wait(open_hop(self._scope, need))

    def continue_as_new(self, call: Call[Any], /, *excess: Never) -> NoReturn:
        """End this run and go on as the next one of its chain, `<id>~2`, with an empty journal and what `call` says.

        Signals nobody has received, attributes, priority and deadline move over. Not in a branch.
        """
        self._check()
        raise continuation(self._scope, call, excess)

    def shield(self, fn: Callable[[Context], R], /) -> R:
        """Return `fn(ctx)`; a cancellation that comes meanwhile is raised when it has ended."""
        self._check()
        check_body(fn, used="ctx.shield")
        return self._fibers.shield(self._fiber, lambda: fn(self))

    def awakeable(
        self, payload_type: TypeForm[T], /, *, timeout: timedelta | None = None, name: str = "awakeable"
    ) -> Awakeable[T]:
        """Make a promise that somebody outside completes with its `token`: pass that on with a step, then `wait()`.

        It is recorded before a step that is called after it begins. `timeout` counts from then, in the database's time.
        """
        self._check()
        return Awakeable(self._open_awakeable(name, payload_type, timeout), self._fibers)

    def wait_for_callback(
        self,
        start: Callable[[str, *Ts], object],
        payload_type: TypeForm[T],
        /,
        *args: *Ts,
        timeout: timedelta | None = None,
    ) -> T:
        """Run the step `start(token, *args)`, which asks somebody for an answer, and wait for that answer.

        Raises what the step raises when no retry is left, and then waits for nothing. WaitTimeoutError: no answer came
        in time, counted from before the step. See `awakeable`.
        """
        self._check()
        awakeable, call = self._open_callback(start, payload_type, args, timeout)
        try:
            self._wait(call)
            answer: T = self._wait(awakeable)
        finally:
            awakeable.abandon()
        return answer

    def side_effect(self, fn: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R:
        """Call a quick function here, record what it returns, and return that in every replay. Not for slow work."""
        self._check()
        value: R = self._wait(self._open_value(fn, args, kwargs))
        return value

    @overload
    def parallel(self, a: Body[A], /, *, max_concurrency: int | None = None, policy: None = None) -> tuple[A]: ...
    @overload
    def parallel(
        self, a: Body[A], b: Body[B], /, *, max_concurrency: int | None = None, policy: None = None
    ) -> tuple[A, B]: ...
    @overload
    def parallel(
        self, a: Body[A], b: Body[B], c: Body[C], /, *, max_concurrency: int | None = None, policy: None = None
    ) -> tuple[A, B, C]: ...
    @overload
    def parallel(
        self,
        a: Body[A],
        b: Body[B],
        c: Body[C],
        d: Body[D],
        /,
        *,
        max_concurrency: int | None = None,
        policy: None = None,
    ) -> tuple[A, B, C, D]: ...
    @overload
    def parallel(
        self,
        a: Body[A],
        b: Body[B],
        c: Body[C],
        d: Body[D],
        e: Body[E],
        /,
        *,
        max_concurrency: int | None = None,
        policy: None = None,
    ) -> tuple[A, B, C, D, E]: ...
    @overload
    def parallel(
        self,
        a: Body[R],
        b: Body[R],
        c: Body[R],
        d: Body[R],
        e: Body[R],
        f: Body[R],
        /,
        *more: Body[R],
        max_concurrency: int | None = None,
        policy: None = None,
    ) -> tuple[R, ...]: ...
    @overload
    def parallel(
        self, a: Body[A], /, *, max_concurrency: int | None = None, policy: Policy
    ) -> tuple[BranchResult[A]]: ...
    @overload
    def parallel(
        self, a: Body[A], b: Body[B], /, *, max_concurrency: int | None = None, policy: Policy
    ) -> tuple[BranchResult[A], BranchResult[B]]: ...
    @overload
    def parallel(
        self, a: Body[A], b: Body[B], c: Body[C], /, *, max_concurrency: int | None = None, policy: Policy
    ) -> tuple[BranchResult[A], BranchResult[B], BranchResult[C]]: ...
    @overload
    def parallel(
        self, a: Body[A], b: Body[B], c: Body[C], d: Body[D], /, *, max_concurrency: int | None = None, policy: Policy
    ) -> tuple[BranchResult[A], BranchResult[B], BranchResult[C], BranchResult[D]]: ...
    @overload
    def parallel(
        self,
        a: Body[A],
        b: Body[B],
        c: Body[C],
        d: Body[D],
        e: Body[E],
        /,
        *,
        max_concurrency: int | None = None,
        policy: Policy,
    ) -> tuple[BranchResult[A], BranchResult[B], BranchResult[C], BranchResult[D], BranchResult[E]]: ...
    @overload
    def parallel(
        self,
        a: Body[R],
        b: Body[R],
        c: Body[R],
        d: Body[R],
        e: Body[R],
        f: Body[R],
        /,
        *more: Body[R],
        max_concurrency: int | None = None,
        policy: Policy,
    ) -> tuple[BranchResult[R], ...]: ...
    def parallel(self, *branches: Body[Any], max_concurrency: int | None = None, policy: Policy | None = None) -> Any:
        """Run functions side by side, each with a context of its own, and return their results in order.

        The first that fails cancels the others; all have ended before its error is raised. With a `policy` the results
        are a BranchResult for each: see AllSettled, MinSuccessful, ToleratedFailures. At most `max_concurrency`
        branches are under way, waiting ones included.
        """
        self._check()
        check_parallel(branches, policy, max_concurrency)
        path = self._machine.open_branches("parallel", self._scope)
        tally = Tally(policy, len(branches), path=path, shape=tuple)
        return self._branch(path, [(branch, ()) for branch in branches], tally, max_concurrency)

    @overload
    def map(
        self, each: StepLike[T, R], items: Iterable[T], /, *, max_concurrency: int | None = None, policy: None = None
    ) -> list[R]: ...
    @overload
    def map(
        self,
        each: Callable[[T], Call[R]],
        items: Iterable[T],
        /,
        *,
        max_concurrency: int | None = None,
        policy: None = None,
    ) -> list[R]: ...
    @overload
    def map(
        self,
        each: Callable[[Context, T], R],
        items: Iterable[T],
        /,
        *,
        max_concurrency: int | None = None,
        policy: None = None,
    ) -> list[R]: ...
    @overload
    def map(
        self, each: StepLike[T, R], items: Iterable[T], /, *, max_concurrency: int | None = None, policy: Policy
    ) -> BranchResults[R]: ...
    @overload
    def map(
        self, each: Callable[[T], Call[R]], items: Iterable[T], /, *, max_concurrency: int | None = None, policy: Policy
    ) -> BranchResults[R]: ...
    @overload
    def map(
        self,
        each: Callable[[Context, T], R],
        items: Iterable[T],
        /,
        *,
        max_concurrency: int | None = None,
        policy: Policy,
    ) -> BranchResults[R]: ...
    def map(
        self,
        each: Any,
        items: Iterable[Any],
        /,
        *,
        max_concurrency: int | None = None,
        policy: Policy | None = None,
    ) -> Any:
        """Run a Step, a Workflow (a child run an item) or `each(ctx, item)` over items; results in the items' order.

        At most `max_concurrency` items are under way, waiting ones included. Failures and `policy` as in `parallel`.
        """
        self._check()
        listed = checked_items(each, items, policy, max_concurrency)
        if isinstance(each, Step | Workflow):
            return self._wait(self._open_map(each, listed, max_concurrency, policy))
        path = self._machine.open_branches("map", self._scope)
        tally = map_tally(policy, len(listed), path)
        return self._branch(path, [(each, (item,)) for item in listed], tally, max_concurrency)

    def _branch(
        self,
        path: str,
        branches: Sequence[tuple[Callable[..., Any], tuple[Any, ...]]],
        tally: Tally,
        width: int | None,
    ) -> Any:
        def body(fn: Callable[..., Any], args: tuple[Any, ...]) -> Callable[[Fiber], Any]:
            return lambda fiber: fn(Context(self._machine, fiber.scope, self._fibers, fiber), *args)

        bodies = [body(fn, args) for fn, args in branches]
        return self._fibers.join(self._fiber, Branches(self._fibers, path, bodies, tally=tally, width=width))
