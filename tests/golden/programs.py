"""The workflows whose journals are kept in this folder, one a feature of a journal. They are never changed.

A feature that changes what its journal means gets a new workflow and a new journal; the old ones stay.
"""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

from msgspec import Struct

from pgwf_sdk import (
    AllSettled,
    AsyncContext,
    ChildFailedError,
    Context,
    MinSuccessful,
    RetryPolicy,
    RunCancelled,
    RunCycleError,
    RunNotFoundError,
    ToleratedFailures,
    WaitTimeoutError,
    Workflow,
    step,
    workflow,
)

SHORT = timedelta(milliseconds=10)
PAST = datetime(2026, 1, 1, tzinfo=UTC)


class Parcel(Struct):
    code: str
    grams: Decimal
    tags: tuple[str, ...] = ()


@step
def pack(code: str, grams: int) -> Parcel:
    return Parcel(code, Decimal(grams) / 8, ("packed",))


@step
async def label(parcel: Parcel) -> str:
    return f"{parcel.code}:{parcel.grams}"


@step(retry=RetryPolicy(max_attempts=1))
def refuse(reason: str) -> int:
    raise LookupError(reason)


@workflow(name="golden.steps")
def steps(ctx: Context) -> list[Any]:
    parcels = [ctx.step(pack, code, 100 * number) for number, code in enumerate(("a", "b"))]
    return [*(ctx.step(label, parcel) for parcel in parcels), ctx.step(len, parcels)]


@workflow(name="golden.values")
def values(ctx: Context) -> list[Any]:
    ctx.set_attribute("stage", "begun")
    size = ctx.side_effect(len, "abc")
    way = "new" if ctx.patched("way") else "old"
    number = ctx.random.randrange(1_000_000)
    ctx.step(label, Parcel("v", Decimal(1)))
    ctx.set_attribute("stage", "done")
    return [size, way, number, str(ctx.uuid4()), (ctx.now() - PAST).total_seconds() > 0]


@workflow(name="golden.timers")
def timers(ctx: Context) -> str:
    ctx.sleep(SHORT)
    ctx.sleep_until(PAST)
    ctx.sleep(timedelta(0))
    return "slept"


@workflow(name="golden.asyncio")
async def asyncio_timers(ctx: AsyncContext) -> list[str]:
    await asyncio.sleep(0.01)
    parcels = [Parcel("x", Decimal(1)), Parcel("y", Decimal(2))]
    first, second = await asyncio.gather(*(ctx.step(label, parcel) for parcel in parcels))
    try:
        async with asyncio.timeout(0.01):
            await ctx.wait_signal("never", str)
    except TimeoutError:
        return [first, second, "timeout"]
    return [first, second]


@workflow(name="golden.signals")
def signals(ctx: Context) -> list[Any]:
    got: list[Any] = [ctx.wait_signal("parcel", Parcel), ctx.wait_signal("parcel", Parcel)]
    try:
        ctx.wait_signal("never", str, timeout=SHORT)
    except WaitTimeoutError as error:
        got.append(error.name)
    return got


@workflow(name="golden.child")
def child(ctx: Context, number: int) -> int:
    if number < 0:
        ctx.step(refuse, f"{number} is negative")
    return number * number


@workflow(name="golden.children")
def children(ctx: Context) -> list[Any]:
    handle = ctx.spawn(child(3))
    called = ctx.call(child(4))
    try:
        ctx.call(child(-1))
    except ChildFailedError as error:
        return [called, handle.result(), error.status, str(error.__cause__)]
    return []


@workflow(name="golden.parallel")
def parallel(ctx: Context) -> list[Any]:
    def waits(ctx: Context) -> str:
        ctx.sleep(SHORT)
        return ctx.step(label, Parcel("p", Decimal(3)))

    one, two = ctx.parallel(waits, lambda ctx: ctx.step(pack, "q", 8))
    try:
        ctx.parallel(lambda ctx: ctx.step(refuse, "branch"), lambda ctx: ctx.wait_signal("never", str))
    except LookupError as error:
        return [one, two, str(error)]
    return []


@workflow(name="golden.map")
def mapped(ctx: Context) -> list[Any]:
    def each(ctx: Context, number: int) -> str:
        parcel = ctx.step(pack, f"m{number}", number)
        return ctx.step(label, parcel)

    return [
        ctx.map(label, [Parcel("s", Decimal(number)) for number in range(3)], max_concurrency=2),
        ctx.map(child, [1, 2, 3]),
        ctx.map(each, [1, 2, 3], max_concurrency=2),
    ]


@workflow(name="golden.human")
def human(ctx: Context) -> list[Any]:
    decided = ctx.human("release", {"code": "a"}, Parcel | str, need="human.golden", title="Release it?")
    expired = ctx.human("late", "b", str, need="human.golden", expires=SHORT, on_expire="nobody")
    return [decided.value, decided.by, expired.value, expired.timed_out]


@workflow(name="golden.cancel")
def cancel(ctx: Context) -> str:
    ctx.step(label, Parcel("c", Decimal(1)))
    try:
        ctx.sleep(timedelta(days=1))
    except RunCancelled as request:
        ctx.step(label, Parcel(f"undone for {request.by}", Decimal(0)))
        raise
    return "slept"


@workflow(name="golden.failure")
def failure(ctx: Context) -> int:
    try:
        ctx.step(refuse, "caught")
    except LookupError:
        ctx.step(label, Parcel("f", Decimal(1)))
    return ctx.step(refuse, "for good")


TOKENS: list[str] = []
"""What `promises` gave away; whoever records its journal answers with them."""


@step
def hand_out(token: str) -> None:
    TOKENS.append(token)


@workflow(name="golden.promises")
def promises(ctx: Context) -> list[Any]:
    parcel = ctx.awakeable(Parcel, name="parcel", timeout=timedelta(days=1))
    ctx.step(hand_out, parcel.token)
    answer = ctx.wait_for_callback(hand_out, str)
    try:
        ctx.awakeable(int, timeout=SHORT).wait()
    except WaitTimeoutError:
        return [answer, parcel.wait()]
    return []


@workflow(name="golden.policies")
def policies(ctx: Context) -> list[Any]:
    def each(ctx: Context, number: int) -> str:
        return ctx.step(label, Parcel(f"p{number}", Decimal(number))) if number else str(ctx.step(refuse, "zero"))

    def late(ctx: Context) -> str:
        ctx.sleep(timedelta(days=1))
        return "late"

    settled = ctx.map(each, [1, 0, 2], policy=AllSettled())
    first = ctx.parallel(late, lambda ctx: each(ctx, 3), policy=MinSuccessful(1))
    tolerated = ctx.map(child, [4, 5], policy=ToleratedFailures(share=0.5), max_concurrency=1)
    ctx.set_attribute("values", len(settled.values))
    polled = ctx.poll(label, Parcel("q", Decimal(1)), until=bool, every=SHORT, timeout=timedelta(minutes=1))
    return [settled.values, len(settled.errors), [one.status for one in first], tolerated.values, polled]


@step(retry=RetryPolicy(max_attempts=1))
def unpack(parcel: Parcel) -> None:
    if parcel.code == "glued":
        raise LookupError(parcel.code)


@step
def tell(text: str) -> str:
    return text


@step(undo=unpack)
def wrap(code: str) -> Parcel:
    return Parcel(code, Decimal(1))


@workflow(name="golden.saga")
def saga(ctx: Context) -> None:
    ctx.on_exit(tell, "it is over")
    ctx.step(wrap, "s")
    ctx.map(wrap, ["glued"])
    ctx.shield(lambda ctx: ctx.step(refuse, "for good"))


@workflow(name="golden.chain")
def chain(ctx: Context, left: int) -> str:
    ctx.on_exit(tell, f"{left} left")
    ctx.step(wrap, f"c{left}")
    if left:
        ctx.continue_as_new(chain(left - 1))
    return "the last"


@workflow(name="golden.hop")
def hop(ctx: Context) -> list[str]:
    told = [ctx.step(tell, "at home")]
    ctx.hop(ELSEWHERE)
    told.append(ctx.step(tell, "elsewhere"))
    ctx.hop("golden.hop")
    return [*told, ctx.step(tell, "at home again")]


@step(durability="deferred")
def weigh(code: str) -> Decimal:
    return Decimal(len(code)) / 4


@workflow(name="golden.deferred")
def deferred(ctx: Context) -> list[Any]:
    weights = [ctx.step(weigh, code) for code in ("a", "bb")]
    packed = ctx.step(pack, "c", 100)
    stood_still = ctx.now()
    weights += ctx.map(weigh, ["ccc", "dddd"])
    return [weights, packed, ctx.now() == stood_still]


@workflow(name="golden.attach")
def attach(ctx: Context) -> list[Any]:
    ctx.spawn(child(5), run_id="golden.attached", on_close="abandon")
    ctx.spawn(signals(), run_id="golden.long")
    ctx.sleep(SHORT)
    found = [ctx.attach("golden.attached", child), ctx.attach("golden.attached")]
    for run_id in ("golden.attach", "golden.nobody", "golden.long"):
        try:
            ctx.attach(run_id, timeout=SHORT)
        except (RunCycleError, RunNotFoundError, WaitTimeoutError) as error:
            found.append(type(error).__name__)
    return found


ELSEWHERE = "golden.elsewhere"
WORKFLOWS: list[Workflow[..., Any]] = [
    steps, values, timers, asyncio_timers, signals, child, children, parallel, mapped, human, cancel, failure,
    promises, policies, saga, chain, hop, deferred, attach,
]  # fmt: skip
