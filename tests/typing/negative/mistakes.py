"""Mistakes. Both type checkers must find exactly the lines with an N; the two with an R are beyond them (T becomes a wider
union, R a coroutine) and are found when the module is imported or the call is made: tests/sdk/test_definition.py.
"""

from __future__ import annotations

from datetime import timedelta

from tests.typing.positive import (
    Approve,
    Order,
    Receipt,
    Reject,
    bare,
    charge,
    checkout,
    guess,
    left,
    plain,
    right,
    score,
    tell,
)

from pgwf_sdk import AllSettled, AsyncContext, Client, Context, workflow

HOUR = timedelta(hours=1)


@workflow
def w(ctx: Context, n: int) -> int:
    ctx.step(charge, 1)                                           # N1 wrong argument type
    ctx.step(charge)                                              # N2 missing argument
    ctx.step(charge, Order("1"), 2)                               # N3 too many arguments
    ctx.step(plain, 1, c=2)                                       # N4 unknown keyword
    ctx.step(score, Receipt(1), model=1)                          # N5 keyword's type
    ctx.step(plain("x"))                                          # N6 called instead of passed
    ctx.human("r", 1, Approve | Reject, need="h", on_expire=3)    # R7 on_expire not in the union
    ctx.human("r", 1, Approve | Reject)                           # N8 need missing
    ctx.wait_signal("x", 3)                                       # N9 not a type
    ctx.call(checkout)                                            # N10 workflow instead of a call
    ctx.call(checkout(1))                                         # N11 wrong argument
    ctx.map(bare, ["x"])                                          # N12 wrong item type
    ctx.transaction(plain, 1)                                     # N13 no connection parameter
    ctx.sleep(5)                                                  # N14 a number
    r: str = ctx.step(charge, Order("1"))                         # N15 result type
    return n + len(r)


def start(client: Client) -> None:
    checkout()                                                    # N16 missing argument
    checkout(Order("1"), fats=True)                               # N17 unknown keyword
    client.start(checkout)                                        # N18 workflow instead of a call
    x: int = client.start(checkout(Order("1"))).result()          # N19 result type
    x += 1


@workflow                                                         # R20 async def with the sync Context
async def bad(ctx: Context, n: int) -> int:
    return n


@workflow                                                         # N21 def with AsyncContext
def bad2(ctx: AsyncContext, n: int) -> int:
    return n


@workflow                                                         # N22 no context
def bad3(n: int) -> int:
    return n


@workflow(ned="x")                                                # N23 unknown option
def bad4(ctx: Context) -> int:
    return 1


def policies(ctx: Context) -> None:
    ctx.map(bare, [1], policy=AllSettled)                         # N26 the class, no policy
    x: list[str] = ctx.map(bare, [1], policy=AllSettled())        # N27 results, no list
    ctx.parallel(left, right, policy=AllSettled())[0].value       # N28 not known to have succeeded
    ctx.wait_for_callback(tell, Receipt, 1)                       # N29 wrong argument
    ctx.wait_for_callback(bare, Receipt)                          # N30 takes no token
    ctx.awakeable(3)                                              # N31 not a type
    ctx.set_attribute("tags", ["a"])                              # N32 nothing a list could find
    ctx.poll(bare, 1, every=HOUR, timeout=HOUR)                   # N34 until missing
    ctx.poll(bare, "x", until=bool, every=HOUR, timeout=HOUR)     # N35 wrong argument
    ctx.step(guess, 1)                                            # N36 wrong argument of a deferred step
    ctx.step(bare.options(durability="never"), 1)                 # N37 no such durability
    ctx.attach(checkout(Order("1")))                              # N38 a call, no id
    y: int = ctx.attach("a", checkout)                            # N39 result type
    x.append("" * y)


async def promises(ctx: AsyncContext) -> None:
    r: Receipt = ctx.awakeable(Receipt).wait()                    # N33 await forgotten
    r.cents += 1


async def body(ctx: AsyncContext) -> None:
    r: Receipt = ctx.step(charge, Order("1"))                     # N24 await forgotten
    r.cents += 1
    ctx.step(charge, Order("1"))                                  # N25 result unused, await forgotten
