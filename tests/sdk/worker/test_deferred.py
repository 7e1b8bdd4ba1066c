"""Steps recorded with what comes next: what a driver says about them, and what time it is for their code."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING

import pytest

from pgwf_journal import Kind, Phase
from pgwf_sdk import Context, step, workflow
from pgwf_sdk.replay import (
    Abandon,
    AwaitSignal,
    Blocked,
    CallId,
    Completed,
    Failed,
    Hop,
    RecordValue,
    RunStep,
    StartChild,
)
from pgwf_sdk.worker._batch import DEFERRED_BYTES_MAX, DEFERRED_ENTRIES_MAX
from pgwf_sdk.worker._steps import StepCommitted, StepRaised, StepReady, StepReturned
from tests.sdk.worker.test_driver import NOW, SIGNAL, StillEngine, StillPort, answer, driver_of
from tests.support import wait_for_status

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from pgwf_sdk import Client
    from pgwf_sdk.replay import Command
    from pgwf_sdk.worker._advance import Item
    from pgwf_sdk.worker._driver import Driver
    from tests.sdk.worker.conftest import StartWorker


@workflow
def child(ctx: Context) -> None: ...


PURE = step(name="pure", durability="deferred")(abs)
PLAIN = step(name="plain")(abs)


def pure(number: int) -> CallId:
    return CallId("", number, Kind.STEP, "pure", number)


def plain(number: int) -> CallId:
    return CallId("", number, Kind.STEP, "plain", number)


@dataclass
class Play:
    """A driver whose code does nothing by itself, and the calls that were made in its name."""

    port: StillPort = field(default_factory=StillPort)
    engine: StillEngine = field(default_factory=StillEngine)

    def __post_init__(self) -> None:
        self.driver: Driver = driver_of(self.port, self.engine)
        self.driver.start()

    def ask(self, *calls: CallId) -> None:
        """The code calls these steps, the deferred one or the plain one by their names."""
        self.driver.asked([RunStep(call, PURE if call.name == "pure" else PLAIN, (), {}) for call in calls])

    def end(self, *calls: CallId, payload: bytes = b"1") -> None:
        """These steps have returned."""
        for call in calls:
            self.driver.step_reported(call, 1, StepReturned(payload, 1))

    def settle(self, status: str = "ok", **more: Any) -> None:
        """The last item has been answered."""
        self.driver.settled(self.port.items[-1], answer(status, **more))

    @property
    def fed(self) -> list[tuple[int, str]]:
        """What the code was told, by number in the journal."""
        return [(entry.seq, entry.key) for entry in self.engine.fed]

    @property
    def said(self) -> list[tuple[list[str], int]]:
        """What was sent: the keys of each item's entries, and how many of them the code knew before."""
        return [(keys(item.entries), item.told) for item in self.port.items]


def keys(entries: Sequence[Any]) -> list[str]:
    return [entry.key for entry in entries]


def test_a_deferred_result_is_told_at_once_and_said_with_the_next_step() -> None:
    play = Play()
    play.ask(pure(1))
    play.end(pure(1))
    assert (play.fed, play.said) == ([(2, "/step:pure#1")], [])

    play.ask(plain(2))
    play.end(plain(2))

    assert play.said == [(["/step:pure#1", "/step:plain#2"], 1)]
    play.settle()
    assert play.fed == [(2, "/step:pure#1"), (3, "/step:plain#2")], "and nothing is told twice"
    play.driver.ended(Completed(b"1", 1))
    assert play.port.items[-1].expected_seq == 3


def test_a_deferred_failure_is_told_at_once_and_said_with_the_end() -> None:
    play = Play()
    play.ask(pure(1))
    play.driver.step_reported(pure(1), 1, StepRaised(ValueError("no"), b'{"type":"ValueError"}', None))
    assert [entry.phase for entry in play.engine.fed] == [Phase.FAILED]

    play.driver.ended(Failed(b"{}"))

    (item,) = play.port.items
    assert (item.disposition, item.told) == ("fail", 1)
    assert [(entry.kind, entry.phase) for entry in item.entries] == [
        (Kind.STEP, Phase.FAILED),
        (Kind.RUN, Phase.FAILED),
    ]


def test_a_deferred_result_does_not_overtake_what_is_on_its_way() -> None:
    play = Play()
    play.ask(plain(1), pure(2))
    play.end(plain(1))
    play.end(pure(2))
    assert (play.fed, play.said) == ([], [(["/step:plain#1"], 0)])

    play.settle()

    assert play.fed == [(2, "/step:plain#1"), (3, "/step:pure#2")]
    assert len(play.port.items) == 1


def test_a_deferred_result_that_comes_after_what_is_to_be_said_is_recorded_with_it_and_told_then() -> None:
    play = Play()
    play.port.numbers = None  # Source lines are being numbered, so both gather.
    play.ask(plain(1), pure(2))
    line = ("flow.py", 7)
    numbered = CallId("", 3, Kind.VALUE, "noted", 1, line)
    play.driver.asked([RecordValue(numbered, b"1", 1)])
    play.end(plain(1))
    play.end(pure(2))

    play.port.numbers = {line: 70}
    play.port.thens[0]()

    assert play.said == [(["/value:noted#1", "/step:plain#1", "/step:pure#2"], 0)]
    assert play.fed == []


def test_what_the_code_was_told_stays_first_when_an_item_is_refused() -> None:
    play = Play()
    play.ask(pure(1))
    play.end(pure(1))
    play.driver.look()
    assert play.said == [(["/step:pure#1"], 1)]

    play.settle("undecided", inbox=[SIGNAL])
    play.ask(plain(2))
    play.end(plain(2))

    assert play.said[1:] == [(["/step:pure#1", "/step:plain#2"], 1)]
    assert play.fed == [(2, "/step:pure#1")]


def test_giving_a_call_up_does_not_take_back_what_the_code_was_told_of_it() -> None:
    play = Play()
    play.ask(pure(1))
    play.end(pure(1))

    play.driver.asked([Abandon(pure(1))])
    play.driver.ended(Completed(b"1", 1))

    assert play.said == [(["/step:pure#1", "/run:asking#1"], 1)]


def test_a_transaction_takes_what_the_code_was_told_with_it_and_gives_it_back_when_it_rolls_back() -> None:
    play = Play()
    play.ask(pure(1), plain(2))
    play.end(pure(1))
    first, second = turns(2)

    play.driver.step_reported(plain(2), 1, StepReady(b"1", 1, first))
    assert (keys(first.result().entries), first.result().told) == (["/step:pure#1", "/step:plain#2"], 1)
    play.driver.step_reported(plain(2), 1, StepRaised(OSError("gone"), b"{}", None))

    assert play.said == [(["/step:pure#1", "/step:plain#2"], 1)], "its failure is recorded after it"
    play.settle()
    play.ask(pure(3), plain(4))
    play.end(pure(3))
    play.driver.step_reported(plain(4), 1, StepReady(b"1", 1, second))
    play.driver.step_reported(plain(4), 1, StepCommitted(second.result(), answer("ok")))
    assert [seq for seq, _ in play.fed] == [2, 3, 4, 5]


def turns(count: int) -> list[asyncio.Future[Item]]:
    loop = asyncio.new_event_loop()
    made: list[asyncio.Future[Item]] = [loop.create_future() for _ in range(count)]
    loop.close()
    return made


def test_a_run_that_is_blocked_keeps_what_its_code_was_told_and_nothing_else() -> None:
    play = Play()
    play.ask(pure(1), plain(2))
    play.end(pure(1))

    play.driver.ended(Blocked({"text": "undecodable"}))

    (item,) = play.port.items
    assert (item.disposition, keys(item.entries), item.told) == ("block", ["/step:pure#1"], 1)


def test_a_worker_that_leaves_records_what_the_code_was_told_and_tells_it_no_more() -> None:
    play = Play()
    play.ask(pure(1), pure(2))
    play.end(pure(1))
    play.driver.leave("release")

    play.engine.is_busy = False
    play.end(pure(2))

    assert play.said == [(["/step:pure#1", "/step:pure#2"], 1)]
    assert play.port.items[0].disposition == "release"
    assert play.fed == [(2, "/step:pure#1")]


@pytest.mark.parametrize(
    ("command", "disposition"),
    [
        (StartChild(CallId("", 2, Kind.CHILD, "child", 1), child(), None, None), "park"),
        (AwaitSignal(CallId("", 2, Kind.SIGNAL, "go", 1), "go", None, None), "park"),
        (Hop(CallId("", 2, Kind.HOP, "gpu", 1), "gpu"), "hop"),
        (RunStep(CallId("", 2, Kind.STEP, "far", 1), step(name="far", need="gpu")(abs), (), {}), "hop"),
        (RunStep(CallId("", 2, Kind.STEP, "once", 1), step(name="once", at_most_once=True)(abs), (), {}), "keep"),
    ],
    ids=["child", "signal", "hop", "step of another fleet", "at most once"],
)
def test_whatever_is_said_next_takes_it_with_it(command: Command, disposition: str) -> None:
    play = Play()
    play.ask(pure(1))
    play.end(pure(1))
    play.engine.is_busy = False

    play.driver.asked([command])

    (item,) = play.port.items
    assert (item.disposition, keys(item.entries)[0], item.told) == (disposition, "/step:pure#1", 1)


def test_so_many_results_are_recorded_and_no_more_is_told_until_they_are() -> None:
    play = Play()
    for number in range(1, DEFERRED_ENTRIES_MAX + 1):
        play.ask(pure(number))
        play.end(pure(number))
    assert (len(play.fed), play.said) == (DEFERRED_ENTRIES_MAX, [])

    play.ask(pure(DEFERRED_ENTRIES_MAX + 1))
    play.end(pure(DEFERRED_ENTRIES_MAX + 1))

    (item,) = play.port.items
    assert (len(item.entries), item.told) == (DEFERRED_ENTRIES_MAX + 1, DEFERRED_ENTRIES_MAX)
    play.settle()
    assert len(play.fed) == DEFERRED_ENTRIES_MAX + 1


def test_so_much_payload_is_recorded_at_once() -> None:
    play = Play()
    play.ask(pure(1))

    play.end(pure(1), payload=b"1" * (DEFERRED_BYTES_MAX + 1))

    assert play.said == [(["/step:pure#1"], 0)]


def test_a_result_after_failed_attempts_is_recorded_at_once_because_they_are_taken_back_with_it() -> None:
    play = Play()
    play.ask(pure(1))
    play.driver.step_reported(pure(1), 1, StepRaised(OSError("down"), b"{}", NOW - NOW))
    play.settle()

    play.driver.look()
    play.settle()
    play.driver.step_reported(pure(1), 2, StepReturned(b"1", 1))

    last = play.port.items[-1]
    assert (keys(last.entries), last.told) == (["/step:pure#1"], 0)
    assert [note["next_seconds"] for note in last.attempts] == [None]


@step(durability="deferred")
def look(number: int) -> int:
    return number + 1


@step
def note(number: int) -> int:
    return number


seen: list[tuple[str, list[str]]] = []


@workflow
def timed(ctx: Context) -> list[str]:
    times = [ctx.now()]
    for one in (note, look, look, note, look):
        ctx.step(one, 1)
        times.append(ctx.now())
    seen.append((ctx.run_id, [str(time) for time in times]))
    ctx.wait_signal("go", int)
    return [str(time) for time in times]


@workflow(name="timed")
def timed_durably(ctx: Context) -> list[str]:
    times = [ctx.now()]
    for one in (note, look, look, note, look):
        ctx.step(step(name=one.name)(one.fn), 1)
        times.append(ctx.now())
    ctx.wait_signal("go", int)
    return [str(time) for time in times]


def test_the_time_stands_still_at_a_deferred_step_and_is_the_same_in_a_replay(
    client: Client, start_worker: StartWorker
) -> None:
    start_worker(timed)
    run = client.start(timed())
    wait_for_status(run, "waiting")

    run.signal("go", 1)

    result = run.result(timeout=timedelta(seconds=30))
    first, second = [times for run_id, times in seen if run_id == run.run_id]
    assert first == second == result
    start, noted, *rest = result
    assert (start < noted, rest[0], rest[1], noted < rest[2], rest[3]) == (True, noted, noted, True, rest[2])


def test_a_journal_says_the_same_to_code_that_defers_its_steps_no_longer(
    client: Client, start_worker: StartWorker
) -> None:
    running = start_worker(timed)
    run = client.start(timed())
    wait_for_status(run, "waiting")
    running.stop()

    start_worker(timed_durably)
    run.signal("go", 1)

    result = run.result(timeout=timedelta(seconds=30))
    assert [times for run_id, times in seen if run_id == run.run_id] == [result]
