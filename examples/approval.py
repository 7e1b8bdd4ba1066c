"""A payment that a person has to approve. The run waits for as long as that takes, in no worker's memory.

pgwf dev examples/approval.py
pgwf start examples/approval.py:pay -P order=A-17 -P cents:=250000 --id pay-17
pgwf human list
pgwf human show TASK                                        # what it is about, and the answers it takes
pgwf human decide TASK approve -P cents:=200000
"""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated

from msgspec import Meta, Struct

from pgwf_sdk import Context, step, workflow


class Payment(Struct, frozen=True):
    order: str
    cents: int


class Approve(Struct, frozen=True, tag="approve"):
    """Pay this amount."""

    cents: Annotated[int, Meta(ge=1)]


class Reject(Struct, frozen=True, tag="reject"):
    """Do not pay."""

    reason: Annotated[str, Meta(min_length=3)]


@step
def transfer(order: str, cents: int) -> str:
    return f"paid {cents / 100:.2f} for {order}"


@workflow
def pay(ctx: Context, order: str, cents: int) -> str:
    decision = ctx.human(
        "large-payment",
        Payment(order, cents),
        Approve | Reject,
        need="human.payments",
        title=f"Pay {cents / 100:.2f} for {order}?",
        due=timedelta(hours=4),
        expires=timedelta(days=3),
        on_expire=Reject("nobody decided in time"),
        prefill=Approve(cents),
    )
    match decision.value:
        case Approve(approved):
            return ctx.step(transfer, order, approved)
        case Reject(reason):
            return f"not paid: {reason}"
