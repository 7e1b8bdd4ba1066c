"""Random workflows as data, and the same interpreter twice: as a `def` and as an `async def` workflow."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace
from datetime import timedelta
from itertools import count
from typing import TYPE_CHECKING, Any, TypeAlias

from hypothesis import strategies as st

from pgwf_sdk import AsyncContext, Context, WaitTimeoutError, step, workflow

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hypothesis.strategies import SearchStrategy

DEPTH_MAX = 3
SIGNALS_SENT = 100


@dataclass(frozen=True)
class Do:
    """A step; a negative number makes it fail."""

    number: int


@dataclass(frozen=True)
class Sleep:
    seconds: int


@dataclass(frozen=True)
class Receive:
    """Wait for a signal; all that are sent under a name are equal, so it does not matter which branch takes which."""

    seconds: int | None
    comes: bool
    name: str = ""


@dataclass(frozen=True)
class Draw:
    """Take a random number of the scope."""


@dataclass(frozen=True)
class Record:
    number: int


@dataclass(frozen=True)
class Child:
    number: int


@dataclass(frozen=True)
class Book:
    """A step with an undo."""

    number: int


@dataclass(frozen=True)
class Finish:
    """A step that comes to its end although its run is cancelled."""

    number: int


@dataclass(frozen=True)
class Defer:
    """A step that is recorded with what comes next; a negative number makes it fail."""

    number: int


@dataclass(frozen=True)
class Exit:
    """Plan a step for the end of the run."""

    number: int


@dataclass(frozen=True)
class Shield:
    """A part that is not told of a cancellation."""

    body: Program


@dataclass(frozen=True)
class Guard:
    """Go on after a failure inside."""

    body: Program


@dataclass(frozen=True)
class Fork:
    bodies: tuple[Program, ...]


@dataclass(frozen=True)
class MapSteps:
    numbers: tuple[int, ...]
    width: int | None


@dataclass(frozen=True)
class MapBody:
    count: int
    body: Program
    width: int | None


@dataclass(frozen=True)
class Race:
    """Only in async programs: the first of several bodies wins, the others are cancelled."""

    bodies: tuple[Program, ...]


@dataclass(frozen=True)
class Limit:
    """Only in async programs: a body that may take so many seconds."""

    seconds: int
    body: Program


@dataclass(frozen=True)
class Tasks:
    """Only in async programs: bodies side by side in one scope."""

    bodies: tuple[Program, ...]


Op: TypeAlias = (
    Do | Sleep | Receive | Draw | Record | Child | Book | Finish | Defer | Exit | Shield | Guard | Fork | MapSteps
    | MapBody | Race | Limit | Tasks
)  # fmt: skip
Program: TypeAlias = tuple[Op, ...]


@step
def work(number: int) -> int:
    if number < 0:
        raise ValueError(number)
    return number * 10


@step
def take_back(result: int) -> None:
    if result == 0:
        raise ValueError(result)


book = work.options(name="book", undo=take_back)
finish = work.options(name="finish", on_cancel="finish")
defer = work.options(name="defer", durability="deferred")


@workflow
def doubled(ctx: Context, number: int) -> int:
    return 2 * ctx.step(work, number)


def run(ctx: Context, program: Program) -> list[Any]:
    trace: list[Any] = []
    for op in program:
        match op:
            case Do(number):
                trace.append(ctx.step(work, number))
            case Sleep(seconds):
                ctx.sleep(timedelta(seconds=seconds))
            case Receive(seconds, _, name):
                try:
                    trace.append(
                        ctx.wait_signal(name, int, timeout=None if seconds is None else timedelta(seconds=seconds))
                    )
                except WaitTimeoutError:
                    trace.append("late")
            case Draw():
                trace.append(ctx.random.randrange(1000))
            case Record(number):
                trace.append(ctx.side_effect(lambda: number))
            case Child(number):
                trace.append(ctx.call(doubled(number)))
            case Book(number):
                trace.append(ctx.step(book, number))
            case Finish(number):
                trace.append(ctx.step(finish, number))
            case Defer(number):
                trace.append(ctx.step(defer, number))
            case Exit(number):
                ctx.on_exit(work, number)
            case Shield(body):
                trace.append(ctx.shield(lambda c, body=body: run(c, body)))  # type: ignore[misc]
            case Guard(body):
                try:
                    trace.append(run(ctx, body))
                except ValueError as error:
                    trace.append(f"caught {error}")
            case Fork(bodies):
                trace.append(ctx.parallel(*[lambda c, body=body: run(c, body) for body in bodies]))
            case MapSteps(numbers, width):
                trace.append(ctx.map(work, numbers, max_concurrency=width))
            case MapBody(times, body, width):
                trace.append(ctx.map(lambda c, _i: run(c, body), range(times), max_concurrency=width))  # noqa: B023
            case _:
                raise AssertionError(op)
    return trace


async def arun(ctx: AsyncContext, program: Program) -> list[Any]:
    trace: list[Any] = []
    for op in program:
        match op:
            case Do(number):
                trace.append(await ctx.step(work, number))
            case Sleep(seconds):
                await ctx.sleep(timedelta(seconds=seconds))
            case Receive(seconds, _, name):
                timeout = None if seconds is None else timedelta(seconds=seconds)
                try:
                    trace.append(await ctx.wait_signal(name, int, timeout=timeout))
                except WaitTimeoutError:
                    trace.append("late")
            case Draw():
                trace.append(ctx.random.randrange(1000))
            case Record(number):
                trace.append(await ctx.side_effect(lambda: number))
            case Child(number):
                trace.append(await ctx.call(doubled(number)))
            case Book(number):
                trace.append(await ctx.step(book, number))
            case Finish(number):
                trace.append(await ctx.step(finish, number))
            case Defer(number):
                trace.append(await ctx.step(defer, number))
            case Exit(number):
                ctx.on_exit(work, number)
            case Shield(body):
                trace.append(await ctx.shield(lambda c, body=body: arun(c, body)))  # type: ignore[misc]
            case Guard(body):
                try:
                    trace.append(await arun(ctx, body))
                except ValueError as error:
                    trace.append(f"caught {error}")
            case Fork(bodies):
                trace.append(await ctx.parallel(*[lambda c, body=body: arun(c, body) for body in bodies]))
            case MapSteps(numbers, width):
                trace.append(await ctx.map(work, numbers, max_concurrency=width))
            case MapBody(times, body, width):
                trace.append(await ctx.map(lambda c, _i: arun(c, body), range(times), max_concurrency=width))  # noqa: B023
            case _:
                trace.append(await _asyncio_only(ctx, op))
    return trace


async def _asyncio_only(ctx: AsyncContext, op: Op) -> Any:
    match op:
        case Race(bodies):
            tasks = [asyncio.create_task(arun(ctx, body)) for body in bodies]
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in tasks:
                task.cancel()
            results = await asyncio.gather(*tasks, return_exceptions=True)
            return [repr(result) for result in results]
        case Limit(seconds, body):
            try:
                async with asyncio.timeout(seconds):
                    return await arun(ctx, body)
            except TimeoutError:
                return "out of time"
        case Tasks(bodies):
            async with asyncio.TaskGroup() as group:
                started = [group.create_task(arun(ctx, body)) for body in bodies]
            return [task.result() for task in started]
        case _:
            raise AssertionError(op)


def named(program: Program, names: Iterator[str]) -> Program:
    """The program with a signal name of its own for each place that waits for one."""
    return tuple(_named(op, names) for op in program)


def _named(op: Op, names: Iterator[str]) -> Op:
    match op:
        case Receive():
            return replace(op, name=next(names))
        case Guard(body) | Shield(body) | MapBody(_, body) | Limit(_, body):
            return replace(op, body=named(body, names))
        case Fork(bodies) | Race(bodies) | Tasks(bodies):
            return replace(op, bodies=tuple(named(body, names) for body in bodies))
        case _:
            return op


def signals_of(program: Program) -> dict[str, list[Any]]:
    """What is sent to the run, by name."""
    sent: dict[str, list[Any]] = {}
    for op in program:
        match op:
            case Receive(_, comes, name):
                sent[name] = [len(name)] * SIGNALS_SENT if comes else []
            case Guard(body) | Shield(body) | MapBody(_, body) | Limit(_, body):
                sent |= signals_of(body)
            case Fork(bodies) | Race(bodies) | Tasks(bodies):
                for body in bodies:
                    sent |= signals_of(body)
            case _:
                pass
    return sent


def programs(*, with_asyncio: bool = False, failures_escape: bool = True) -> SearchStrategy[Program]:
    """Programs; without `failures_escape` every branch handles its own failures, so no order decides what happens."""
    numbers = st.integers(0, 5)
    widths = st.none() | st.integers(1, 2)
    safe: list[SearchStrategy[Op]] = [
        st.builds(Do, numbers),
        st.builds(Sleep, st.integers(0, 50)),
        st.builds(Receive, st.integers(1, 50), st.booleans()),
        st.just(Receive(None, comes=True)),
        st.builds(Draw),
        st.builds(Record, numbers),
        st.builds(Child, numbers),
        st.builds(Book, numbers),
        st.builds(Finish, numbers),
        st.builds(Defer, numbers),
        st.builds(Exit, numbers),
        st.builds(MapSteps, st.lists(numbers, max_size=4).map(tuple), widths),
    ]
    failing: SearchStrategy[Op] = st.builds(Do, st.integers(-3, -1)) | st.builds(Defer, st.integers(-3, -1))

    def body(depth: int) -> SearchStrategy[Program]:
        inside = [*safe, failing] if failures_escape else safe
        if depth == 0:
            return st.lists(st.one_of(inside), max_size=3).map(tuple)
        inner = body(depth - 1)
        caught = st.builds(lambda before, fault: Guard((*before, fault)), inner, failing)
        bodies = st.lists(inner, max_size=3).map(tuple)
        nested: list[SearchStrategy[Op]] = [
            caught,
            st.builds(Guard, inner),
            st.builds(Shield, inner),
            st.builds(Fork, bodies),
            st.builds(MapBody, st.integers(0, 3), inner, widths),
        ]
        if with_asyncio:
            several = st.lists(inner, min_size=1, max_size=3).map(tuple)
            nested += [
                st.builds(Race, several),
                st.builds(Limit, st.integers(1, 40), inner),
                st.builds(Tasks, bodies),
            ]
        return st.lists(st.one_of([*inside, *nested]), max_size=4).map(tuple)

    return body(DEPTH_MAX).map(lambda program: named(program, (f"signal-{n}" for n in count())))
