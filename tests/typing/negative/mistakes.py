"""Mistakes. Both type checkers must find exactly the lines with an N; the two with an R are beyond them (T becomes a wider
union, R a coroutine) and are found when the module is imported or the call is made: tests/sdk/test_definition.py.
"""

from __future__ import annotations

from tests.typing.positive import Approve, Order, Receipt, Reject, bare, charge, checkout, plain, score

from pgwf_sdk import AsyncContext, Client, Context, workflow


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


async def body(ctx: AsyncContext) -> None:
    r: Receipt = ctx.step(charge, Order("1"))                     # N24 await forgotten
    r.cents += 1
    ctx.step(charge, Order("1"))                                  # N25 result unused, await forgotten
