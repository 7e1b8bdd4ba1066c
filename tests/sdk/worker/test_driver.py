"""What a driver says about a run when the database answers otherwise than it hoped: pure, with answers as values."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from uuid import UUID

from pgwf_journal import Entry, Kind, Phase
from pgwf_sdk import step
from pgwf_sdk._telemetry import Telemetry
from pgwf_sdk.replay import Abandon, CallId, Completed, HumanRequest, OpenHuman, RunStep
from pgwf_sdk.worker._advance import Claim, InboxRow, ItemAnswer
from pgwf_sdk.worker._driver import Driver
from pgwf_sdk.worker._settings import JournalLimits
from pgwf_sdk.worker._steps import StepCommitted, StepReady, StepReturned

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pgwf_sdk.worker._advance import Item

NOW = datetime(2030, 1, 1, 12, tzinfo=UTC)
SIGNAL = InboxRow(7, Kind.SIGNAL, "go", Phase.COMPLETED, b"1", 1, NOW)
FIRST = Entry(1, 0, Kind.RUN, Phase.OPENED, "", "asking", 1, b'{"args":[],"kwargs":{}}', 1, NOW)


class StillEngine:
    """Code that does nothing by itself."""

    is_ending = False
    wake_after = 1

    def __init__(self) -> None:
        self.is_busy = True
        self.fed: list[Entry] = []

    def start(self) -> None:
        pass

    def feed(self, entries: Sequence[Entry]) -> None:
        self.fed += entries

    def close(self) -> None:
        pass


class Attempt:
    """An attempt of a step that reports when the test does it in its name."""

    def __init__(self, command: RunStep, number: int) -> None:
        self.command = command
        self.number = number
        self.context = SimpleNamespace(lease_lost=False, draining=False)
        self.is_dropped = False

    def begin(self) -> None:
        """The test reports for it."""

    def drop(self) -> None:
        self.is_dropped = True


class StillPort:
    """A worker in which time stands still; it keeps what drivers submit."""

    linger = timedelta(seconds=1)
    journal_limits = JournalLimits()

    def __init__(self) -> None:
        self.items: list[Item] = []
        self.attempts: list[Attempt] = []
        self.numbers: dict[tuple[str, int], int] | None = {}
        self.thens: list[Callable[[], None]] = []
        self.recalled: list[Item] = []

    def now(self) -> datetime:
        return NOW

    def offers(self, need: str, _driver: Driver) -> bool:
        return need == "asking"

    def submit(self, driver: Driver, item: Item) -> None:
        self.items.append(item)

    def call_at(self, instant: datetime, act: Callable[[], None]) -> Any:
        raise AssertionError("nothing here has a time")

    def start_step(self, *args: Any, **options: Any) -> Any:
        attempt = Attempt(args[1], options["number"])
        self.attempts.append(attempt)
        return attempt

    def code_numbers(self, codes: set[tuple[str, int]], then: Callable[[], None]) -> dict[tuple[str, int], int] | None:
        self.thens.append(then)
        return self.numbers

    def explain(self, n: int, report: dict[str, Any], then: Callable[[dict[str, Any]], None]) -> None:
        then(report)

    def recall(self, driver: Driver, item: Item) -> None:
        self.recalled.append(item)

    def opened_inbox(self, driver: Driver, rows: list[InboxRow]) -> list[InboxRow]:
        return rows

    def released(self, driver: Driver, status: str) -> None:
        pass


def driver_of(port: StillPort, engine: StillEngine) -> Driver:
    claim = Claim(
        n=1,
        run_id="r",
        workflow="asking",
        need="asking",
        current_need="asking",
        build=None,
        seed=1,
        trace=None,
        deadline=None,
        lease_id=UUID(int=1),
        lease_no=1,
        streak=0,
        head=1,
        history=[FIRST],
        inbox=[],
        attempts={},
        now_at=NOW,
    )
    return Driver(claim, lambda _: engine, port, Telemetry().run_trace("r", "asking", None, lease_no=1))


def answer(
    status: Any, *, inbox: Sequence[InboxRow] = (), taken: Sequence[str] = (), entries: list[Entry] | None = None
) -> ItemAnswer:
    return ItemAnswer(status, NOW, list(inbox), list(taken), entries)


def test_a_run_whose_end_is_undecided_ends_with_one_entry() -> None:
    port, engine = StillPort(), StillEngine()
    driver = driver_of(port, engine)
    driver.start()
    driver.look()
    driver.look()
    driver.ended(Completed(b"1", 1))
    driver.settled(port.items[0], answer("ok"))
    assert [(item.disposition, item.decides) for item in port.items] == [("keep", True), ("complete", True)]

    driver.settled(port.items[1], answer("undecided", inbox=[SIGNAL]))

    last = port.items[2]
    assert last.disposition == "complete"
    assert [(entry.kind, entry.phase) for entry in last.entries] == [(Kind.RUN, Phase.COMPLETED)]


class BrokenPort(StillPort):
    """A worker that cannot begin a step."""

    def start_step(self, *args: Any, **options: Any) -> Any:
        raise ValueError("no attempt can be made of this")


def test_a_run_whose_step_cannot_even_begin_is_given_back() -> None:
    port, engine = BrokenPort(), StillEngine()
    driver = driver_of(port, engine)
    driver.start()
    engine.is_busy = False

    driver.asked([RunStep(CallId("", 1, Kind.STEP, "work", 1), step(name="work")(print), (), {})])

    (item,) = port.items
    assert (item.disposition, item.entries, item.delay) == ("release", [], timedelta(seconds=5))


def test_a_transaction_that_has_its_turn_when_nobody_waits_for_it_any_more_is_recorded_and_the_run_goes_on() -> None:
    port, engine = StillPort(), StillEngine()
    driver = driver_of(port, engine)
    driver.start()
    move = CallId("", 1, Kind.STEP, "move", 1)
    loop = asyncio.new_event_loop()
    turn: asyncio.Future[Item] = loop.create_future()
    loop.close()
    driver.asked([RunStep(move, step(name="move")(print), (), {})])
    driver.step_reported(move, 1, StepReady(b"1", 1, turn))

    driver.asked([Abandon(move)])
    (attempt,) = port.attempts
    assert not attempt.is_dropped
    driver.step_reported(move, 1, StepCommitted(turn.result(), answer("ok")))

    assert [entry.key for entry in engine.fed] == ["/step:move#1"]
    driver.ended(Completed(b"1", 1))
    assert [(item.disposition, item.expected_seq) for item in port.items] == [("complete", 2)]


def test_what_steps_return_while_their_lines_are_numbered_is_recorded_at_once_afterwards() -> None:
    port, engine = StillPort(), StillEngine()
    driver = driver_of(port, engine)
    driver.start()
    line = ("flow.py", 7)
    calls = [CallId("", number, Kind.STEP, "work", number, line) for number in (1, 2, 3)]
    driver.asked([RunStep(call, step(name="work")(print), (), {}) for call in calls])
    port.numbers = None
    for call in calls:
        driver.step_reported(call, 1, StepReturned(b"1", 1))
    assert (len(port.thens), port.items) == (1, [])

    port.numbers = {line: 70}
    port.thens[0]()

    (item,) = port.items
    assert [(entry.call, entry.code) for entry in item.entries] == [(1, 70), (2, 70), (3, 70)]


def beside_each_other(port: StillPort, engine: StillEngine) -> tuple[Driver, Item]:
    """A run with two steps, of which one has returned; its answer is lost, and its item refused when it comes again."""
    driver = driver_of(port, engine)
    driver.start()
    calls = [CallId("", number, Kind.STEP, "work", number) for number in (1, 2)]
    driver.asked([RunStep(call, step(name="work")(print), (), {}) for call in calls])
    driver.step_reported(calls[0], 1, StepReturned(b"1", 1))
    (item,) = port.items
    driver.settled(item, answer("conflict"))
    assert port.recalled == port.items == [item]
    return driver, item


def test_what_an_earlier_try_has_recorded_is_told_and_what_runs_beside_it_goes_on() -> None:
    port, engine = StillPort(), StillEngine()
    driver, item = beside_each_other(port, engine)
    there = Entry(2, 1, Kind.STEP, Phase.COMPLETED, "", "work", 1, b"1", 1, NOW + timedelta(hours=1), 1)

    driver.settled(item, answer("ok", entries=[there]))

    assert engine.fed == [there]
    assert [attempt.is_dropped for attempt in port.attempts] == [False, False]
    driver.step_reported(CallId("", 2, Kind.STEP, "work", 2), 1, StepReturned(b"2", 1))
    assert [(one.disposition, one.expected_seq) for one in port.items] == [("keep", 1), ("keep", 2)]


def test_a_run_whose_journal_has_something_else_is_replayed_from_it() -> None:
    port, engine = StillPort(), StillEngine()
    driver, item = beside_each_other(port, engine)
    engine.is_busy = False

    driver.settled(item, answer("unknown"))

    assert engine.fed == []
    assert port.attempts[1].is_dropped
    assert [(one.disposition, one.expected_seq, one.entries) for one in port.items[1:]] == [("release", None, [])]


def test_a_run_that_could_not_be_given_back_by_an_earlier_try_looks_at_what_came_first() -> None:
    port, engine = StillPort(), StillEngine()
    driver = driver_of(port, engine)
    driver.start()
    engine.is_busy = False
    driver.asked([OpenHuman(CallId("", 1, Kind.HUMAN, "sure", 1), HumanRequest("sure", "?", str, "human.any"), None)])
    (park,) = port.items
    opened = Entry(2, 1, Kind.HUMAN, Phase.OPENED, "", "sure", 1, b"{}", 1, NOW, 1)

    driver.settled(park, answer("conflict"))
    driver.settled(park, answer("unread", entries=[opened]))

    assert [(one.disposition, one.expected_seq, one.decides) for one in port.items] == [
        ("park", 1, False),
        ("park", 2, True),
    ]


def test_a_question_whose_id_is_taken_fails_where_it_was_asked() -> None:
    port, engine = StillPort(), StillEngine()
    driver = driver_of(port, engine)
    driver.start()
    request = HumanRequest("sure", "?", str, "human.any", expires=timedelta(hours=1))
    driver.asked([OpenHuman(CallId("", 1, Kind.HUMAN, "sure", 1), request, None)])
    engine.is_busy = False
    (asked,) = port.items
    assert [task.get("task_id") for task in asked.tasks] == ["r/human:sure#1"]

    driver.settled(asked, answer("child_exists", taken=["r/human:sure#1"]))

    again = port.items[1]
    assert again.tasks == []
    assert [(entry.key, entry.phase) for entry in again.entries] == [("/human:sure#1", Phase.FAILED)]
