"""What a generated program means: the same interpreter twice, for a `def` and for an `async def` workflow."""

from __future__ import annotations

import asyncio
import os
import time
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from pgwf_sdk import (
    AllSettled,
    AsyncContext,
    BranchFailed,
    BranchSucceeded,
    BranchUnfinished,
    Client,
    Context,
    MinSuccessful,
    RetryPolicy,
    Step,
    ToleratedFailures,
    WaitTimeoutError,
    Workflow,
    current_step,
    step,
    workflow,
)
from tests.sdk.replay.programs import (
    Answer,
    Attach,
    Away,
    Book,
    Child,
    Dawdle,
    Defer,
    Do,
    Draw,
    Exit,
    Finally,
    Finish,
    Flaky,
    Fork,
    Guard,
    How,
    Limit,
    MapBody,
    MapChildren,
    MapSteps,
    Op,
    Policy,
    Program,
    Promise,
    Race,
    Receive,
    Record,
    Rival,
    Shield,
    Sleep,
    Swallow,
    Tasks,
)

if TYPE_CHECKING:
    AnyPolicy = AllSettled | MinSuccessful | ToleratedFailures

OUTSIDE_VARIABLE = "PGWF_LAWS_OUTSIDE"
"""Where programs that real workers run find their database: then whoever is asked answers at once."""
MILLISECONDS_VARIABLE = "PGWF_LAWS_MILLISECONDS"
"""How long a second of a program takes real workers."""

ATTEMPT = timedelta(milliseconds=250)
"""Long enough for what takes no time, on a busy machine too; an attempt that has bad luck is made again."""
LONG_SECONDS = 60.0

AT_ONCE = RetryPolicy(max_attempts=3, initial=timedelta(milliseconds=10), no_retry_on=(ValueError,))


def seconds(number: int) -> timedelta:
    return number * timedelta(milliseconds=int(os.environ.get(MILLISECONDS_VARIABLE, "1000")))


@step(retry=AT_ONCE)
def work(number: int) -> int:
    if number < 0:
        raise ValueError(number)
    return number * 10


@step(retry=AT_ONCE)
def labour(number: int, failures: int) -> int:
    """The same, after so many failed attempts."""
    if current_step().attempt <= failures:
        raise OSError(f"not yet {number}")
    return number * 10


@step(retry=RetryPolicy(max_attempts=6, initial=timedelta(milliseconds=10)), timeout=ATTEMPT)
async def dawdle(number: int, attempts: int) -> int:
    """The same, after so many attempts that outlast their time; all of them, with a negative number."""
    if number < 0 or current_step().attempt <= attempts:
        _mind_the_time()
        await asyncio.sleep(LONG_SECONDS)
    return number * 10


@step(retry=dawdle.retry, timeout=ATTEMPT)
def linger(number: int, attempts: int) -> int:
    """The same on a thread, which nobody can end but itself."""
    if current_step().attempt <= attempts:
        _mind_the_time()
        until = time.monotonic() + LONG_SECONDS
        while not current_step().cancelled and time.monotonic() < until:
            time.sleep(0.01)
    return number * 10


def _mind_the_time() -> None:
    """Who plays a worker heeds no time limits."""
    if OUTSIDE_VARIABLE not in os.environ:
        raise TimeoutError("out of time")


@step(retry=AT_ONCE)
def take_back(result: int) -> None:
    if result == 0:
        raise ValueError(result)


@step(retry=AT_ONCE)
def ask(token: str, how: How, value: int) -> None:
    """Ask the outside, which does what the program says; without a database the driver plays it."""
    dsn = os.environ.get(OUTSIDE_VARIABLE)
    if dsn is None or how == "never":
        return
    with Client(dsn) as client:
        if how == "value":
            client.complete_awakeable(token, value)
        else:
            client.fail_awakeable(token, ValueError("refused"))


in_vain = dawdle.options(name="in_vain", retry=RetryPolicy(max_attempts=2, initial=timedelta(milliseconds=10)))
book = work.options(name="book", undo=take_back)
finish = work.options(name="finish", on_cancel="finish")
away = work.options(name="away", need="far")
defer = work.options(name="defer", durability="deferred")


@workflow
def doubled(ctx: Context, number: int) -> int:
    return 2 * ctx.step(work, number)


def policy_of(policy: Policy | None) -> AnyPolicy | None:
    match policy:
        case None:
            return None
        case Policy("all settled"):
            return AllSettled()
        case Policy("min successful", count):
            return MinSuccessful(count)
        case Policy(count=count):
            return ToleratedFailures(count=count)


def told(results: Any) -> list[Any]:
    """The results of a fork or a map, in what JSON has."""
    return [_told(result) for result in results]


def _told(result: Any) -> Any:
    match result:
        case BranchSucceeded(value):
            return ["succeeded", value]
        case BranchFailed(error):
            return ["failed", said(error)]
        case BranchUnfinished():
            return ["unfinished"]
        case _:
            return result


def said(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"


class Interpreter:
    """Runs programs as `def` code. `child` is the workflow of their children, `away` a step for another fleet."""

    def __init__(self, child: Workflow[[int], int] = doubled, away: Step[[int], int] = away) -> None:
        self.child = child
        self.away = away

    def run(self, ctx: Context, program: Program) -> list[Any]:
        return [self._one(ctx, op) for op in program]

    def _one(self, ctx: Context, op: Op) -> Any:
        match op:
            case Do(number):
                return ctx.step(work, number)
            case Flaky(number, failures):
                return ctx.step(labour, number, failures)
            case Dawdle(number, attempts, is_plain):
                return ctx.step(in_vain if number < 0 else linger if is_plain else dawdle, number, attempts)
            case Sleep(number):
                return ctx.sleep(seconds(number))
            case Draw():
                return ctx.random.randrange(1000)
            case Record(number):
                return ctx.side_effect(lambda: work.fn(number))
            case Child(number):
                return ctx.call(self.child(number))
            case Book(number):
                return ctx.step(book, number)
            case Finish(number):
                return ctx.step(finish, number)
            case Defer(number):
                return ctx.step(defer, number)
            case Away(number):
                return ctx.step(self.away, number)
            case Attach(run_id, limit):
                return ctx.attach(run_id, timeout=None if limit is None else seconds(limit))
            case Exit(number):
                return ctx.on_exit(work, number)
            case Receive() | Answer() | Promise() | Rival():
                return self._await(ctx, op)
            case Shield(body):
                return ctx.shield(lambda ctx: self.run(ctx, body))
            case Guard(body):
                try:
                    return self.run(ctx, body)
                except Exception as error:  # noqa: BLE001 - whatever a program raises
                    return f"caught {said(error)}"
            case Swallow(body):
                try:
                    return self.run(ctx, body)
                except BaseException as error:  # noqa: BLE001 - it is what is tried
                    return f"swallowed {type(error).__name__}"
            case Finally(body, last):
                trace: list[Any] = []
                try:
                    trace += self.run(ctx, body)
                finally:
                    trace += self.run(ctx, last)
                return trace
            case _:
                return told(self._branch(ctx, op))

    def _await(self, ctx: Context, op: Receive | Answer | Promise | Rival) -> Any:
        timeout = None if op.seconds is None else seconds(op.seconds)
        match op:
            case Receive(name=name):
                try:
                    return ctx.wait_signal(name, int, timeout=timeout)
                except WaitTimeoutError:
                    return "late"
            case Answer(how, name=name):
                return ctx.wait_for_callback(ask.options(name=name), int, how, len(name), timeout=timeout)
            case Promise(how, body=body, name=name):
                promise = ctx.awakeable(int, timeout=timeout, name=name)
                ctx.step(ask.options(name=name), promise.token, how, len(name))
                return [*self.run(ctx, body), promise.wait()]
            case Rival(number, name=name):
                results = ctx.parallel(
                    lambda ctx: ctx.wait_signal(name, int),
                    lambda ctx: ctx.sleep(seconds(number)),
                    policy=MinSuccessful(1),
                )
                return [result.status for result in results]

    def _branch(self, ctx: Context, op: Op) -> Any:
        match op:
            case Fork(bodies, policy, width):
                branches = [lambda ctx, body=body: self.run(ctx, body) for body in bodies]
                return ctx.parallel(*branches, policy=policy_of(policy), max_concurrency=width)
            case MapSteps(numbers, width, policy):
                return ctx.map(work, numbers, max_concurrency=width, policy=policy_of(policy))
            case MapChildren(numbers, width, policy):
                return ctx.map(self.child, numbers, max_concurrency=width, policy=policy_of(policy))
            case MapBody(times, body, width, policy):
                chosen = policy_of(policy)
                return ctx.map(lambda ctx, _: self.run(ctx, body), range(times), max_concurrency=width, policy=chosen)
            case _:
                raise AssertionError(op)


class AsyncInterpreter:
    """Runs programs as `async def` code."""

    def __init__(self, child: Workflow[[int], int] = doubled, away: Step[[int], int] = away) -> None:
        self.child = child
        self.away = away

    async def run(self, ctx: AsyncContext, program: Program) -> list[Any]:
        return [await self._one(ctx, op) for op in program]

    async def _one(self, ctx: AsyncContext, op: Op) -> Any:
        match op:
            case Do(number):
                return await ctx.step(work, number)
            case Flaky(number, failures):
                return await ctx.step(labour, number, failures)
            case Dawdle(number, attempts, is_plain):
                return await ctx.step(in_vain if number < 0 else linger if is_plain else dawdle, number, attempts)
            case Sleep(number):
                return await ctx.sleep(seconds(number))
            case Draw():
                return ctx.random.randrange(1000)
            case Record(number):
                return await ctx.side_effect(lambda: work.fn(number))
            case Child(number):
                return await ctx.call(self.child(number))
            case Book(number):
                return await ctx.step(book, number)
            case Finish(number):
                return await ctx.step(finish, number)
            case Defer(number):
                return await ctx.step(defer, number)
            case Away(number):
                return await ctx.step(self.away, number)
            case Attach(run_id, limit):
                return await ctx.attach(run_id, timeout=None if limit is None else seconds(limit))
            case Exit(number):
                return ctx.on_exit(work, number)
            case Receive() | Answer() | Promise() | Rival():
                return await self._await(ctx, op)
            case Shield(body):
                return await ctx.shield(lambda ctx: self.run(ctx, body))
            case Guard(body):
                try:
                    return await self.run(ctx, body)
                except Exception as error:  # noqa: BLE001 - whatever a program raises
                    return f"caught {said(error)}"
            case Swallow(body):
                try:
                    return await self.run(ctx, body)
                except BaseException as error:  # noqa: BLE001 - it is what is tried
                    return f"swallowed {type(error).__name__}"
            case Finally(body, last):
                trace: list[Any] = []
                try:
                    trace += await self.run(ctx, body)
                finally:
                    trace += await self.run(ctx, last)
                return trace
            case Race() | Limit() | Tasks():
                return await self._asyncio(ctx, op)
            case _:
                return told(await self._branch(ctx, op))

    async def _await(self, ctx: AsyncContext, op: Receive | Answer | Promise | Rival) -> Any:
        timeout = None if op.seconds is None else seconds(op.seconds)
        match op:
            case Receive(name=name):
                try:
                    return await ctx.wait_signal(name, int, timeout=timeout)
                except WaitTimeoutError:
                    return "late"
            case Answer(how, name=name):
                return await ctx.wait_for_callback(ask.options(name=name), int, how, len(name), timeout=timeout)
            case Promise(how, body=body, name=name):
                promise = ctx.awakeable(int, timeout=timeout, name=name)
                await ctx.step(ask.options(name=name), promise.token, how, len(name))
                return [*await self.run(ctx, body), await promise.wait()]
            case Rival(number, name=name):
                results = await ctx.parallel(
                    lambda ctx: ctx.wait_signal(name, int),
                    lambda ctx: ctx.sleep(seconds(number)),
                    policy=MinSuccessful(1),
                )
                return [result.status for result in results]

    async def _branch(self, ctx: AsyncContext, op: Op) -> Any:
        match op:
            case Fork(bodies, policy, width):
                branches = [lambda ctx, body=body: self.run(ctx, body) for body in bodies]
                return await ctx.parallel(*branches, policy=policy_of(policy), max_concurrency=width)
            case MapSteps(numbers, width, policy):
                return await ctx.map(work, numbers, max_concurrency=width, policy=policy_of(policy))
            case MapChildren(numbers, width, policy):
                return await ctx.map(self.child, numbers, max_concurrency=width, policy=policy_of(policy))
            case MapBody(times, body, width, policy):
                chosen = policy_of(policy)
                each = range(times)
                return await ctx.map(lambda ctx, _: self.run(ctx, body), each, max_concurrency=width, policy=chosen)
            case _:
                raise AssertionError(op)

    async def _asyncio(self, ctx: AsyncContext, op: Race | Limit | Tasks) -> Any:
        match op:
            case Race(bodies):
                tasks = [asyncio.create_task(self.run(ctx, body)) for body in bodies]
                await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
                for task in tasks:
                    task.cancel()
                results = await asyncio.gather(*tasks, return_exceptions=True)
                return [repr(result) for result in results]
            case Limit(number, body, is_task):
                limit = seconds(number).total_seconds()
                try:
                    if is_task:
                        return await asyncio.wait_for(self.run(ctx, body), limit)
                    async with asyncio.timeout(limit):
                        return await self.run(ctx, body)
                except TimeoutError:
                    return "out of time"
            case Tasks(bodies):
                async with asyncio.TaskGroup() as group:
                    started = [group.create_task(self.run(ctx, body)) for body in bodies]
                return [task.result() for task in started]
