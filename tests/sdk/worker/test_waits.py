"""Which of inbox and clock resolves a wait: pure, with times and rows as values."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import pytest

from pgwf_journal import Entry, Kind, Phase
from pgwf_sdk.replay import AwaitSignal, CallId, StartTimer
from pgwf_sdk.worker._advance import InboxRow
from pgwf_sdk.worker._waits import Waits, opening

if TYPE_CHECKING:
    from pgwf_sdk.worker._waits import Wait

START = datetime(2030, 1, 1, 12, tzinfo=UTC)
HOUR = timedelta(hours=1)


def timer(call: int, duration: timedelta) -> StartTimer:
    return StartTimer(CallId("", call, Kind.TIMER, "sleep", call), duration, None, None)


def signal_wait(call: int, name: str, timeout: timedelta | None = None) -> AwaitSignal:
    return AwaitSignal(CallId("", call, Kind.SIGNAL, name, call), name, timeout, None)


def row(row_id: int, name: str, received_at: datetime, payload: bytes = b"1") -> InboxRow:
    return InboxRow(row_id, Kind.SIGNAL, name, Phase.COMPLETED, payload, 1, received_at)


def record(waits: Waits, opened_at: datetime = START) -> list[Wait]:
    """Commit the opened entries that are due."""
    opened = waits.unopened()
    for seq, wait in enumerate(opened, 2):
        new = opening(wait).entry
        waits.opened(
            Entry(
                seq,
                new.call,
                new.kind,
                new.phase,
                new.scope,
                new.name,
                new.occurrence,
                new.payload,
                new.encoding,
                opened_at,
            )
        )
    return opened


def test_a_timer_fires_when_its_duration_has_passed_since_it_was_recorded() -> None:
    waits = Waits()
    waits.open(timer(1, HOUR))
    record(waits)

    assert waits.resolve(START + HOUR - timedelta(microseconds=1)).drafts == []
    (fired,) = waits.resolve(START + HOUR).drafts
    assert (fired.entry.kind, fired.entry.phase) == (Kind.TIMER, Phase.COMPLETED)


def test_a_wait_has_no_deadline_before_its_entry_is_recorded() -> None:
    waits = Waits()
    waits.open(timer(1, HOUR))

    assert waits.resolve(START + 100 * HOUR).drafts == []
    assert waits.next_instant() is None


def test_a_signal_that_came_by_the_deadline_wins_however_late_the_run_looks() -> None:
    waits = Waits()
    waits.open(signal_wait(1, "go", HOUR))
    record(waits)
    waits.arrive([row(1, "go", START + HOUR)])

    found = waits.resolve(START + 100 * HOUR)

    assert [one.entry.phase for one in found.drafts] == [Phase.COMPLETED]
    assert found.consumed == [1]
    assert found.by_deadline == []


def test_a_signal_that_came_after_the_deadline_stays_for_the_next_wait() -> None:
    waits = Waits()
    waits.open(signal_wait(1, "go", HOUR))
    record(waits)
    waits.arrive([row(1, "go", START + 2 * HOUR)])

    found = waits.resolve(START + 2 * HOUR)
    waits.open(signal_wait(2, "go"))
    later = waits.resolve(START + 2 * HOUR)

    assert [one.entry.phase for one in found.drafts] == [Phase.TIMED_OUT]
    assert found.consumed == []
    assert [wait.id.call for wait in found.by_deadline] == [1]
    assert later.consumed == [1]


def test_what_only_the_clock_decided_is_open_again_when_the_decision_did_not_hold() -> None:
    waits = Waits()
    waits.open(signal_wait(1, "go", HOUR))
    record(waits)
    found = waits.resolve(START + 2 * HOUR)

    waits.reopen(found.by_deadline)
    waits.arrive([row(7, "go", START + timedelta(minutes=59))])

    assert [one.entry.phase for one in waits.resolve(START + 2 * HOUR).drafts] == [Phase.COMPLETED]
    assert waits.inbox_seen == 7


def test_signals_of_one_name_go_to_the_waits_in_the_order_both_came() -> None:
    waits = Waits([row(1, "go", START, b'"a"'), row(2, "go", START, b'"b"'), row(3, "stop", START)])
    waits.open(signal_wait(1, "go"))
    waits.open(signal_wait(2, "go"))

    found = waits.resolve(START)

    assert [(one.entry.call, one.entry.payload) for one in found.drafts] == [(1, b'"a"'), (2, b'"b"')]
    assert found.consumed == [1, 2]


def test_what_is_due_together_is_resolved_in_the_order_it_happened() -> None:
    waits = Waits()
    waits.open(timer(1, 3 * HOUR))
    waits.open(timer(2, HOUR))
    waits.open(signal_wait(3, "go"))
    record(waits)
    waits.arrive([row(1, "go", START + 2 * HOUR)])

    found = waits.resolve(START + 9 * HOUR)

    assert [one.entry.call for one in found.drafts] == [2, 3, 1]


@pytest.mark.parametrize(("timeout", "is_silent"), [(None, True), (HOUR, False)])
def test_a_wait_without_a_deadline_is_recorded_only_when_the_run_parks(
    timeout: timedelta | None, is_silent: bool
) -> None:
    waits = Waits()
    waits.open(signal_wait(1, "go", timeout))

    assert bool(waits.unopened()) is not is_silent
    assert bool(waits.silent()) is is_silent
    assert waits.unopened() == waits.silent() == []
