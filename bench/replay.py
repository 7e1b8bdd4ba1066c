"""How fast a journal is replayed, in one process, in entries a second: python bench/replay.py [entries]

Also prints what a step costs from the call to its command and back when nothing is recorded yet. Needs no database.
Seconds are the process's own, so what else the machine does hardly counts; best of five.
"""

from __future__ import annotations

import asyncio
import gc
import sys
import time
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import msgspec

from pgwf_journal import Entry, Kind, Phase
from pgwf_sdk import AsyncContext, Context, step, workflow
from pgwf_sdk.replay import AsyncActivation, Command, Completed, Outcome, RunInfo, SyncActivation

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pgwf_sdk import Workflow

EPOCH = datetime(2026, 1, 1, tzinfo=UTC)
PAYLOAD = b'{"number":1,"name":"abcdef"}'
ROUNDS = 5


class Item(msgspec.Struct):
    number: int
    name: str


@step
def work(index: int) -> Item:
    return Item(index, "abcdef")


@workflow
def sequence(ctx: Context, count: int) -> int:
    return sum(ctx.step(work, index).number for index in range(count))


@workflow
async def async_sequence(ctx: AsyncContext, count: int) -> int:
    total = 0
    for index in range(count):
        total += (await ctx.step(work, index)).number
    return total


@workflow
async def async_gather(ctx: AsyncContext, count: int) -> int:
    return sum(item.number for item in await asyncio.gather(*(ctx.step(work, index) for index in range(count))))


@workflow
def mapped(ctx: Context, count: int) -> int:
    return sum(item.number for item in ctx.map(work, range(count)))


@workflow
async def async_mapped(ctx: AsyncContext, count: int) -> int:
    return sum(item.number for item in await ctx.map(work, range(count)))


def opening(definition: Workflow[[int], int], count: int) -> Entry:
    payload = definition(count).encode()
    return Entry(1, 0, Kind.RUN, Phase.OPENED, "", definition.name, 1, payload, 1, EPOCH)


def result(index: int, scope: str, call: int, occurrence: int) -> Entry:
    at = EPOCH + timedelta(milliseconds=index)
    return Entry(index + 2, call, Kind.STEP, Phase.COMPLETED, scope, "work", occurrence, PAYLOAD, 1, at)


def in_sequence(index: int) -> Entry:
    return result(index, "", index + 1, index + 1)


def in_branches(index: int) -> Entry:
    return result(index, f"/branch:map#1[{index}]", 1, 1)


def replay(definition: Workflow[[int], int], history: Sequence[Entry]) -> Outcome | None:
    run = RunInfo("run", definition.name, 1, EPOCH)
    if definition.is_async:
        activation = AsyncActivation(definition, run, history)
        activation.start()
        return activation.outcome

    def refuse(_commands: list[Command]) -> Sequence[Entry]:
        raise AssertionError("the journal holds every result")

    return SyncActivation(definition, run, history).run(refuse)


def live(definition: Workflow[[int], int], count: int) -> float:
    """Seconds for a run whose steps are answered at once, one after the other."""
    run = RunInfo("run", definition.name, 1, EPOCH)
    first = opening(definition, count)
    done = 0

    def answer(commands: list[Command]) -> Sequence[Entry]:
        nonlocal done
        entries = [in_sequence(done + index) for index in range(len(commands))]
        done += len(commands)
        return entries

    started = time.process_time()
    if definition.is_async:
        activation = AsyncActivation(definition, run, [first])
        commands = activation.start()
        while activation.outcome is None:
            commands = activation.feed(answer(commands))
    else:
        SyncActivation(definition, run, [first]).run(answer)
    return time.process_time() - started


def main() -> None:
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 20_000
    shapes: list[tuple[Workflow[[int], int], Callable[[int], Entry]]] = [
        (sequence, in_sequence),
        (async_sequence, in_sequence),
        (async_gather, in_sequence),
        (mapped, in_branches),
        (async_mapped, in_branches),
    ]
    for definition, entry in shapes:
        history = [opening(definition, count), *(entry(index) for index in range(count))]
        best = float("inf")
        for _ in range(ROUNDS):
            gc.collect()
            started = time.process_time()
            outcome = replay(definition, history)
            best = min(best, time.process_time() - started)
            assert isinstance(outcome, Completed), outcome
        print(f"replay  {definition.name:<16} {count / best:>10,.0f} entries/s")
    for definition in (sequence, async_sequence):
        best = min(live(definition, count) for _ in range(ROUNDS))
        print(f"live    {definition.name:<16} {count / best:>10,.0f} steps/s  {best / count * 1e6:.1f} µs a step")


if __name__ == "__main__":
    main()
