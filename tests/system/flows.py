"""Workflows for tests that kill processes; as a module it is a worker: `python -m tests.system.flows DSN CAPABILITY…`.

Steps write what they did into the table `effect`, so that a test sees how often each one was executed. A step that is
told to dies with SIGKILL after its effect, or waits until the test says go on or its worker drains.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import time
from datetime import timedelta
from typing import Any

import psycopg

from pgwf_sdk import AsyncContext, Client, Context, RetryAfter, RetryPolicy, Worker, current_step, step, workflow

SCHEMA = """
create table effect (
  id bigint generated always as identity, name text not null, pid int not null, attempt int not null
);
create table deaths_due (name text primary key);
create table held (name text primary key);
create table booked (id bigint generated always as identity, name text not null);
"""
STEPS_COUNT = 5
HOLD_SECONDS_MAX = 60.0


def _dsn() -> str:
    return os.environ["FLOWS_DSN"]


@step
def work(name: str) -> str:
    """Leave a trace; then die, or hold still, if the test wants that."""
    _act(name)
    return name.upper()


@step
def take_back(done: str) -> None:
    """The same, as a compensation of `work`."""
    _act(f"undo {done}")


def _act(name: str) -> None:
    with psycopg.connect(_dsn(), autocommit=True) as conn:
        conn.execute(
            "insert into effect (name, pid, attempt) values (%s, %s, %s)", [name, os.getpid(), current_step().attempt]
        )
        if conn.execute("delete from deaths_due where %s like name returning name", [name]).fetchone():
            os.kill(os.getpid(), signal.SIGKILL)
        until = time.monotonic() + HOLD_SECONDS_MAX
        while conn.execute("select name from held where name = %s", [name]).fetchone() and time.monotonic() < until:
            if current_step().draining:
                break
            time.sleep(0.02)


@workflow(need="python")
def line(ctx: Context, names: list[str]) -> list[str]:
    return [ctx.step(work, name) for name in names]


@step(durability="deferred")
def ponder(name: str) -> str:
    """The same, as a step whose result is recorded with what comes next."""
    return str(work.fn(name))


@workflow(need="python")
def pondered(ctx: Context, names: list[str]) -> list[str]:
    """Steps named in small letters are deferred."""
    return [ctx.step(work if name.isupper() else ponder, name) for name in names]


@workflow(need="python")
def saga(ctx: Context, names: list[str]) -> None:
    for name in names:
        ctx.step(work.options(undo=take_back), name)
    ctx.on_exit(work, "exit")
    raise ValueError("the saga is to be undone")


@step(retry=RetryPolicy(max_attempts=3))
def flaky(name: str) -> str:
    """Leave a trace, and succeed in the third attempt only."""
    _act(f"{name} {current_step().attempt}")
    if current_step().attempt < 3:
        raise RetryAfter(timedelta(seconds=3), "not yet")
    return name.upper()


@workflow(need="python")
def stubborn(ctx: Context) -> str:
    return ctx.step(flaky, "f")


@workflow(need="python")
def napping(ctx: Context, seconds: float) -> list[str]:
    before = ctx.step(work, "before")
    ctx.sleep(timedelta(seconds=seconds))
    return [before, ctx.step(work, "after")]


def book(connection: psycopg.Connection[Any], name: str) -> str:
    """Write a row in the transaction of the step; then die, if the test wants that."""
    connection.execute("insert into booked (name) values (%s)", [name])
    _act(name)
    return name.upper()


@workflow(need="python")
def booking(ctx: Context) -> list[str]:
    return [ctx.transaction(book, "first"), ctx.transaction(book, "second"), ctx.step(work, "third")]


@workflow(need="python")
async def pair(ctx: AsyncContext, names: list[str]) -> list[str]:
    left = await ctx.map(work, names)
    await ctx.sleep(timedelta(milliseconds=1500))
    right = await ctx.map(line, [[f"{name}-child"] for name in names])
    return left + [name for names in right for name in names]


@step
def send(token: str) -> str:
    """Give a token away, as a trace; then die, if the test wants that."""
    return str(work.fn(token))


@workflow(need="python")
def answered(ctx: Context) -> str:
    return ctx.wait_for_callback(send, str)


@workflow(need="watch")
def watching(ctx: Context, run_id: str) -> list[str]:
    """Wait for a run that is not its child, and do something beside that."""
    before = ctx.step(work, "before")
    heard, beside = ctx.parallel(lambda ctx: ctx.attach(run_id, line), lambda ctx: ctx.step(work, "beside"))
    return [before, *heard, beside, ctx.step(work, "after")]


def main() -> None:
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    dsn, lease_seconds, *capabilities = sys.argv[1:]
    os.environ["FLOWS_DSN"] = dsn
    with Client(dsn) as client:
        worker = Worker(
            client,
            workflows=[line, pair, answered, saga, pondered, stubborn, napping, booking, watching],
            capabilities=capabilities,
            lease=timedelta(seconds=float(lease_seconds)),
            poll=timedelta(milliseconds=500),
        )
        worker.run()


if __name__ == "__main__":
    main()
