"""Programs that must type-check, and the types they must have. Never run."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from functools import partial
from typing import Literal, assert_type

import msgspec
from psycopg import AsyncConnection, Connection

from pgwf_sdk import (
    AllSettled,
    AsyncAwakeable,
    AsyncChild,
    AsyncClient,
    AsyncContext,
    AsyncRun,
    Awakeable,
    BranchFailed,
    BranchResult,
    BranchResults,
    BranchSucceeded,
    BranchUnfinished,
    Call,
    Child,
    Client,
    Context,
    Decision,
    MinSuccessful,
    RetryPolicy,
    Run,
    ToleratedFailures,
    step,
    workflow,
)


class Order(msgspec.Struct):
    id: str


class Receipt(msgspec.Struct):
    cents: int


class Approve(msgspec.Struct, tag="approve"):
    cents: int


class AskAgain(msgspec.Struct, tag="ask"):
    note: str


class Reject(msgspec.Struct, tag="reject"):
    reason: str


@step(retry=RetryPolicy(max_attempts=5), timeout=timedelta(seconds=30))
def charge(order: Order) -> Receipt:
    return Receipt(len(order.id))


@step(need="gpu")
async def score(receipt: Receipt, *, model: str = "m") -> float:
    return float(receipt.cents + len(model))


@step(durability="deferred")
def guess(order: Order, *, rough: bool = False) -> int:
    return len(order.id) + rough


@step
def bare(x: int) -> str:
    return str(x)


def plain(a: int, b: str = "") -> bytes:
    return b"" if a else b.encode()


async def aplain(a: int) -> bytes:
    return bytes(a)


def insert(conn: Connection, n: int) -> int:
    return n if conn.closed else 0


async def ainsert(conn: AsyncConnection, n: int) -> int:
    return n if conn.closed else 0


@workflow
async def shipped(ctx: AsyncContext, order: Order) -> float:
    assert_type(await ctx.attach(order.id, shipped), float)
    return 0.5


@workflow(need="python")
def checkout(ctx: Context, order: Order, *, fast: bool = False) -> Receipt:
    receipt = ctx.step(charge, order)
    assert_type(receipt, Receipt)
    risk = ctx.step(score, receipt, model="x" if fast else "y")
    assert_type(risk, float)
    assert_type(ctx.step(bare, 1), str)
    assert_type(ctx.step(guess, order, rough=True), int)
    assert_type(ctx.step(bare.options(durability="deferred"), 1), str)
    assert_type(ctx.step(plain, 1, b="x"), bytes)
    assert_type(ctx.step(aplain, 1), bytes)
    assert_type(ctx.step(len, [1]), int)
    assert_type(ctx.step(partial(plain, 1)), bytes)
    assert_type(ctx.step(lambda: 1), int)
    assert_type(ctx.step(score.options(need="gpu2", name="s2"), receipt), float)
    assert_type(ctx.transaction(insert, 1), int)
    assert_type(ctx.attach("order-17", shipped, timeout=timedelta(hours=1)), float)
    ctx.attach("order-17")
    assert_type(ctx.transaction(ainsert, 1), int)
    verdict = ctx.human(
        "review",
        receipt,
        Approve | AskAgain | Reject,
        need="human.risk",
        due=timedelta(hours=4),
        escalate="human.lead",
        on_expire=Reject(reason="x"),
    )
    assert_type(verdict, Decision[Approve | AskAgain | Reject])
    match verdict.value:
        case Approve(cents=c):
            assert_type(c, int)
        case AskAgain(note=n):
            assert_type(n, str)
        case Reject():
            pass
    one = ctx.human("r1", receipt, Approve, need={"human.risk": 2})
    assert_type(one.value, Approve)
    lit = ctx.human("r2", receipt, Literal["yes", "no"], need="h")
    assert_type(lit.value, Literal["yes", "no"])
    assert_type(ctx.wait_signal("delivered", Order), Order)
    assert_type(ctx.wait_signal("d2", Order | None, timeout=timedelta(days=1)), Order | None)
    assert_type(ctx.wait_signal("d3", list[int]), list[int])
    assert_type(ctx.call(refund(order)), int)
    assert_type(ctx.spawn(refund(order)), Child[int])
    assert_type(ctx.spawn(refund(order)).result(), int)
    assert_type(ctx.side_effect(plain, 1), bytes)
    assert_type(ctx.parallel(lambda c: c.step(charge, order), lambda c: c.step(bare, 1)), tuple[Receipt, str])
    assert_type(ctx.map(bare, [1, 2]), list[str])
    assert_type(ctx.map(refund, [order]), list[int])
    assert_type(ctx.map(branch, [order]), list[Receipt])
    return receipt


@step
def tell(token: str, order: Order) -> None:
    del token, order


async def untold(token: str) -> int:
    return len(token)


def left(c: Context) -> Receipt:
    return c.step(charge, Order("1"))


def right(c: Context) -> str:
    return c.step(bare, 1)


def branches(ctx: Context) -> None:
    assert_type(ctx.parallel(left, right), tuple[Receipt, str])
    assert_type(ctx.parallel(left, right, left), tuple[Receipt, str, Receipt])
    assert_type(ctx.map(score, [Receipt(1)]), list[float])
    assert_type(ctx.map(checkout, [Order("1")]), list[Receipt])
    assert_type(checkout.fn(ctx, Order("1"), fast=True), Receipt)


def policies_and_promises(ctx: Context, order: Order) -> None:
    assert_type(ctx.map(bare, [1, 2], policy=AllSettled()), BranchResults[str])
    assert_type(ctx.map(refund, [order], policy=MinSuccessful(1), max_concurrency=2), BranchResults[int])
    assert_type(ctx.map(branch, [order], policy=ToleratedFailures(share=0.5)), BranchResults[Receipt])
    settled = ctx.parallel(left, right, policy=AllSettled(), max_concurrency=1)
    assert_type(settled, tuple[BranchResult[Receipt], BranchResult[str]])
    match settled[0]:
        case BranchSucceeded(value=got):
            assert_type(got, Receipt)
        case BranchFailed(error=error):
            assert_type(error, BaseException)
        case BranchUnfinished():
            pass
    if settled[1].status == "succeeded":
        assert_type(settled[1].value, str)
    results = ctx.map(bare, [1], policy=AllSettled())
    assert_type(results.values, list[str])
    assert_type(results[0], BranchResult[str])
    promise = ctx.awakeable(Order | None, timeout=timedelta(days=1))
    assert_type(promise, Awakeable[Order | None])
    assert_type(promise.token, str)
    assert_type(promise.wait(), Order | None)
    assert_type(ctx.wait_for_callback(tell, Receipt, order, timeout=timedelta(1)), Receipt)
    assert_type(ctx.wait_for_callback(untold, list[int]), list[int])
    ctx.set_attribute("customer", 17)
    day = timedelta(days=1)
    assert_type(ctx.poll(bare, 1, until=lambda text: text == "done", every=day, timeout=day), str)
    assert_type(ctx.poll(aplain, 1, until=bool, every=day, timeout=day), bytes)
    assert_type(ctx.map(lambda c, o: c.step(charge, o), [order]), list[Receipt])


def branch(ctx: Context, order: Order) -> Receipt:
    return ctx.step(charge, order)


@workflow
async def refund(ctx: AsyncContext, order: Order) -> int:
    r = await ctx.step(charge, order)
    assert_type(r, Receipt)
    f = await ctx.step(score, r)
    assert_type(f, float)
    a, b = await asyncio.gather(ctx.step(charge, order), ctx.step(bare, 1))
    assert_type(a, Receipt)
    assert_type(b, str)
    async with asyncio.timeout(5):
        await ctx.sleep(timedelta(1))
    async with asyncio.TaskGroup() as tg:
        t = tg.create_task(ctx.call(checkout(order)))
        t2 = tg.create_task(ctx.step(charge, order))
    assert_type(t.result(), Receipt)
    assert_type(t2.result(), Receipt)
    d = await ctx.human("review", r, Approve | Reject, need="h", due=timedelta(1), escalate="human.b")
    assert_type(d.value, Approve | Reject)
    assert_type(await ctx.wait_signal("d2", Order | None), Order | None)
    assert_type(ctx.spawn(checkout(order)), AsyncChild[Receipt])
    assert_type(await ctx.spawn(checkout(order)).result(), Receipt)
    assert_type(await ctx.transaction(ainsert, 1), int)
    assert_type(await ctx.side_effect(plain, 1), bytes)
    assert_type(await ctx.parallel(lambda c: c.step(charge, order), lambda c: c.step(bare, 1)), tuple[Receipt, str])
    assert_type(await ctx.map(bare, [1]), list[str])
    assert_type(await ctx.map(checkout, [order]), list[Receipt])
    assert_type(await ctx.map(bare, [1], policy=AllSettled()), BranchResults[str])
    day = timedelta(days=1)
    assert_type(await ctx.poll(charge, order, until=lambda found: found.cents > 0, every=day, timeout=day), Receipt)
    promise = ctx.awakeable(list[Order])
    assert_type(promise, AsyncAwakeable[list[Order]])
    assert_type(await promise.wait(), list[Order])
    assert_type(await ctx.wait_for_callback(tell, Receipt, order), Receipt)

    async def first(c: AsyncContext) -> Receipt:
        return await c.step(charge, order)

    async def second(c: AsyncContext) -> str:
        return await c.step(bare, 1)

    assert_type(await ctx.parallel(first, second), tuple[Receipt, str])
    either = await ctx.parallel(first, second, policy=MinSuccessful(1))
    assert_type(either, tuple[BranchResult[Receipt], BranchResult[str]])
    done, _ = await asyncio.wait({asyncio.create_task(ctx.step(bare, 1))}, return_when=asyncio.FIRST_COMPLETED)
    assert_type(done.pop().result(), str)
    assert_type(await asyncio.wait_for(ctx.step(bare, 1), 3), str)
    assert_type(await ctx.map(score, [r]), list[float])
    return 1


assert_type(checkout(Order("1"), fast=True), Call[Receipt])
assert_type(refund(Order("1")), Call[int])


def start(client: Client) -> None:
    run = client.start(checkout(Order("1")), run_id="order-17")
    assert_type(run, Run[Receipt])
    assert_type(run.result(timeout=timedelta(minutes=1)), Receipt)
    found = client.signal_with_start(checkout(Order("1")), "order-17", "paid", 3, attributes={"customer": "ann"})
    assert_type(found, Run[Receipt])
    assert_type(client.complete_awakeable("awk_", Order("1")), bool)


async def astart(client: AsyncClient) -> None:
    run = await client.start(refund(Order("1")))
    assert_type(run, AsyncRun[int])
    assert_type(await run.result(), int)
