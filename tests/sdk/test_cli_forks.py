"""What `pgwf fork` says of a run before it is forked."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tests.sdk.sql.hand import Hand, Kind, Phase, entry, start
from tests.sdk.test_cli_commands import Pgwf, pgwf

if TYPE_CHECKING:
    import psycopg

    Conn = psycopg.Connection[Any]

__all__ = ["pgwf"]


def test_the_price_of_a_fork_tells_that_the_source_has_undone_something(pgwf: Pgwf, db: Conn) -> None:
    start(db, "order-1")
    held = Hand(db, "w", ["python"]).take()
    done = [entry("book", 1), entry("pay", 2, phase=Phase.FAILED, payload=b'{"type":"x:Y","message":""}')]
    undone = entry("cancel_booking", 3, kind=Kind.COMPENSATION)
    Hand(db, "w", ["python"]).say(held.end("fail", b'{"type":"x:Y","message":""}', entries=[*done, undone]))

    price = pgwf("fork", "order-1", "--before", "/step:pay#1", "--price")

    assert "steps that run again: /step:pay#1, /compensation:cancel_booking#1\n" in price.out
    assert "the fork may undo again if it takes over the step's result; `pgwf retry order-1`" in price.out
