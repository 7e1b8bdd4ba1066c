"""Sagas, promises, hops and chains where values are sealed: all works as without, and nothing is at rest in clear."""

from __future__ import annotations

import os
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from pgwf_sdk import CleanupFailedError, Context, RetryPolicy, RunFailedError, Sealing, step, workflow
from pgwf_sdk.testing import Environment
from tests.sdk.sealing.at_rest import in_clear

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pgwf_sdk.embedded import EmbeddedServer

pytest.importorskip("cryptography")

KEY = os.urandom(32)
SECRET = "s3cret"
TOKENS: list[str] = []
UNDONE: list[str] = []


@step(retry=RetryPolicy(max_attempts=1))
def cancel(booking: str) -> None:
    UNDONE.append(booking)
    if booking.endswith("flight"):
        raise LookupError(f"{booking} is gone")


@step(undo=cancel)
def book(card: str, what: str) -> str:
    return f"{card} {what}"


@step
def tell(card: str) -> None:
    UNDONE.append(f"told {card}")


@step
def send(token: str) -> None:
    TOKENS.append(token)


@workflow
def trip(ctx: Context, card: str, left: int) -> str:
    ctx.on_exit(tell, f"{card} {left}")
    ctx.hop("elsewhere")
    if left:
        ctx.continue_as_new(trip(f"{card}+", left - 1))
    booked = [ctx.step(book, card, what) for what in ("flight", "hotel")]
    paid = ctx.wait_for_callback(send, str, timeout=timedelta(days=1))
    note = ctx.wait_signal("note", str)
    raise ValueError(f"{booked} {paid} {note}")


@pytest.fixture(scope="module")
def sealed_environment(server: EmbeddedServer) -> Iterator[Environment]:
    with Environment(server.dsn, sealing=Sealing({"k1": KEY})) as environment:
        yield environment


@pytest.fixture
def env(sealed_environment: Environment) -> Iterator[Environment]:
    sealed_environment.reset()
    TOKENS.clear()
    UNDONE.clear()
    yield sealed_environment
    sealed_environment.check()


def play(env: Environment) -> Any:
    """Start a chain, signal its first run, complete the promise of its second, and tell how it ended."""
    run = env.client.start(trip(SECRET, 1), run_id="trip")
    run.signal("note", f"{SECRET} noted")
    env.settle()
    env.client.complete_awakeable(TOKENS[-1], f"{SECRET} paid")
    with pytest.raises(RunFailedError) as failed:
        env.result(run)
    error = failed.value.__cause__
    assert isinstance(error, CleanupFailedError)
    return error


def test_sagas_promises_hops_and_chains_are_sealed_at_rest_and_read_again(env: Environment) -> None:
    error = play(env)

    undoing = "/compensation:cancel#2, undoing /step:book#1"
    assert f"{undoing}: LookupError: {SECRET}+ flight is gone" in str(error)
    assert str(error.__cause__) == f"['{SECRET}+ flight', '{SECRET}+ hotel'] {SECRET} paid {SECRET} noted"
    assert [f"told {SECRET} 1", f"{SECRET}+ hotel", f"{SECRET}+ flight", f"told {SECRET}+ 0"] == UNDONE
    assert env.client.get("trip").run_id == "trip~2"
    assert in_clear(env.dsn, SECRET) == []


def test_a_sealed_chain_ends_alike_wherever_its_worker_is_killed(env: Environment) -> None:
    assert env.crash_everywhere(lambda env: str(play(env))).append_count > 10
