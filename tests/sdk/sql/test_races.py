"""Two sessions at once on one run: each pair in both orders, the second waiting for the first."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, LiteralString

import psycopg
import pytest

from pgwf_journal import Kind, Phase
from tests.sdk.sql.hand import ADVANCE, Hand, begin, child, entry, inbox, journal, rows, signal, start, status, value
from tests.sdk.sql.race import Call, act, advance, both_orders, race

if TYPE_CHECKING:
    from tests.sdk.sql.conftest import MakeHand
    from tests.support import Clock, Session

    Sessions = tuple[Session, Session]

Conn = psycopg.Connection[Any]

pytestmark = pytest.mark.usefixtures("patient")

SIGNAL = act("signal_run", "order-1", "delivered", b"1", 1)
CANCEL = act("cancel_run", "order-1", "ann")
TERMINATE = act("terminate_run", "order-1", "ann")
PAUSE = act("pause_run", "order-1", "ann")
RESUME = act("resume_run", "order-1", "ann")
LIMIT = Call("select pgwf.limit_need('python', 'ann', p_max_active => 1)")
CALL = entry("ship", kind=Kind.CHILD, phase=Phase.OPENED, payload=None)


def test_a_signal_before_a_park_keeps_the_run_awake(db: Conn, hand: Hand, two_sessions: Sessions) -> None:
    start(db)
    park = advance(hand, hand.take().item("park"))

    assert race(two_sessions, SIGNAL, park) == ([True], ["unread"])

    assert status(db) == "running"


def test_a_signal_after_a_park_wakes_the_run(db: Conn, hand: Hand, two_sessions: Sessions) -> None:
    start(db)
    park = advance(hand, hand.take().item("park"))

    assert race(two_sessions, park, SIGNAL) == (["ok"], [True])

    assert [row.name for row in hand.take().claim.inbox] == ["delivered"]


def test_a_cancel_request_before_the_end_is_too_late_for_the_run(db: Conn, hand: Hand, two_sessions: Sessions) -> None:
    start(db)
    end = advance(hand, hand.take().end())

    assert race(two_sessions, CANCEL, end) == (["requested"], ["ok"])

    assert (status(db), inbox(db)) == ("completed", [])


def test_a_cancel_request_after_the_end_tells_how_the_run_ended(db: Conn, hand: Hand, two_sessions: Sessions) -> None:
    start(db)
    end = advance(hand, hand.take().end())

    assert race(two_sessions, end, CANCEL) == (["ok"], ["completed"])


def test_two_cancel_requests_at_once_are_one(db: Conn, two_sessions: Sessions) -> None:
    begin(db)

    assert race(two_sessions, CANCEL, CANCEL) == (["requested"], ["already_requested"])

    assert len(inbox(db)) == 1


def test_a_signal_before_the_end_is_taken_and_dropped_with_the_run(
    db: Conn, hand: Hand, two_sessions: Sessions
) -> None:
    start(db)
    end = advance(hand, hand.take().end())

    assert race(two_sessions, SIGNAL, end) == ([True], ["ok"])

    assert (status(db), inbox(db)) == ("completed", [])


def test_a_signal_after_the_end_is_refused(db: Conn, hand: Hand, two_sessions: Sessions) -> None:
    start(db)
    end = advance(hand, hand.take().end())

    assert race(two_sessions, end, SIGNAL) == (["ok"], "WS003")


def test_two_signals_with_one_id_at_once_are_one(db: Conn, two_sessions: Sessions) -> None:
    start(db)
    send = act("signal_run", "order-1", "delivered", b"1", 1, "d-1")

    assert race(two_sessions, send, send) == ([True], [False])
    assert len(inbox(db)) == 1


START_AND_SIGNAL = act("signal_with_start_run", "order-1", "checkout", "python", b"{}", 1, "delivered", b"1", 1, "d-1")


def test_two_signals_with_a_start_at_once_start_one_run_with_one_signal(db: Conn, two_sessions: Sessions) -> None:
    first, second = race(two_sessions, START_AND_SIGNAL, START_AND_SIGNAL)

    assert [answer[2:] for answer in first] == [("t", "t")]
    assert [answer[2:] for answer in second] == [("f", "f")]
    assert inbox(db) == [("signal", "delivered", "completed")]


def test_a_signal_with_a_start_whose_twin_rolled_back_does_both(db: Conn, two_sessions: Sessions) -> None:
    _, second = race(two_sessions, START_AND_SIGNAL, START_AND_SIGNAL, end="rollback")

    assert [answer[2:] for answer in second] == [("t", "t")]
    assert inbox(db) == [("signal", "delivered", "completed")]


def test_a_signal_with_a_start_after_the_end_of_the_run_starts_and_sends_nothing(
    db: Conn, hand: Hand, two_sessions: Sessions
) -> None:
    start(db, input_=b"{}")
    end = advance(hand, hand.take().end())

    assert race(two_sessions, end, START_AND_SIGNAL) == (["ok"], "WS003")

    assert rows(db, "select run_id from pgwf_sdk.run") == [("order-1",)]


def test_a_signal_with_a_start_before_the_end_of_the_run_is_dropped_with_it(
    db: Conn, hand: Hand, two_sessions: Sessions
) -> None:
    start(db, input_=b"{}")
    end = advance(hand, hand.take().end())

    (answer,), ended = race(two_sessions, START_AND_SIGNAL, end)

    assert (answer[2:], ended) == (("f", "t"), ["ok"])
    assert (status(db), inbox(db)) == ("completed", [])


def test_a_signal_whose_twin_rolled_back_is_delivered(db: Conn, two_sessions: Sessions) -> None:
    start(db)
    send = act("signal_run", "order-1", "delivered", b"1", 1, "d-1")

    assert race(two_sessions, send, send, end="rollback") == ([True], [True])
    assert len(inbox(db)) == 1


def test_a_sweep_leaves_a_lease_alone_while_its_holder_speaks(
    db: Conn, clock: Clock, hand: Hand, two_sessions: Sessions
) -> None:
    start(db)
    held = hand.take()
    clock.advance(hours=1)
    speaking, sweeping = two_sessions
    speaking.run("begin")
    call = advance(hand, held.item("keep", entry()))
    assert call.answer(speaking.run(call.statement, call.parameters)) == ["ok"]

    sweeping.run("select pgwf.sweep('sweeper')")
    assert value(db, "select count(*) from pgwf.lease") == 1
    speaking.run("commit")

    sweeping.run("select pgwf.sweep('sweeper')")
    assert value(db, "select count(*) from pgwf.lease") == 0
    assert len(journal(db)) == 2


@pytest.mark.parametrize(("end", "answer", "entries"), [("commit", "fenced", 1), ("rollback", "ok", 2)])
def test_what_a_holder_says_while_a_sweep_ends_its_lease_depends_on_the_sweep(
    db: Conn, clock: Clock, hand: Hand, two_sessions: Sessions, end: Any, answer: str, entries: int
) -> None:
    start(db)
    held = hand.take()
    clock.advance(hours=1)
    sweeping, speaking = two_sessions
    sweeping.run("begin")
    assert sweeping.run("select pgwf.sweep('sweeper')") == [(1,)]
    call = advance(hand, held.item("keep", entry()))

    waiting = speaking.start_blocked(call.statement, call.parameters)
    sweeping.run(end)

    assert call.answer(waiting.result()) == [answer]
    assert len(journal(db)) == entries


@pytest.mark.parametrize(("end", "answer"), [("commit", "conflict"), ("rollback", "ok")])
def test_a_call_sent_again_while_the_first_is_in_flight_counts_once(
    db: Conn, hand: Hand, two_sessions: Sessions, end: Any, answer: str
) -> None:
    start(db)
    call = advance(hand, hand.take().item("keep", entry()))

    assert race(two_sessions, call, call, end=end) == (["ok"], [answer])

    assert len(journal(db)) == 2


@pytest.mark.parametrize(("end", "answer"), [("commit", "fenced"), ("rollback", "ok")])
def test_the_end_of_a_run_sent_again_while_the_first_is_in_flight_counts_once(
    db: Conn, hand: Hand, two_sessions: Sessions, end: Any, answer: str
) -> None:
    start(db)
    call = advance(hand, hand.take().end())

    assert race(two_sessions, call, call, end=end) == (["ok"], [answer])

    assert len(journal(db)) == 2


def test_a_call_that_starts_a_child_sent_again_while_the_first_is_in_flight_starts_it_once(
    db: Conn, hand: Hand, two_sessions: Sessions
) -> None:
    start(db)
    call = advance(hand, hand.take().item("keep", CALL, children=[child("order-1/ship#1")]))

    assert race(two_sessions, call, call) == (["ok"], ["conflict"])

    assert rows(db, "select run_id from pgwf_sdk.runs where parent_run_id is not null") == [("order-1/ship#1",)]


@pytest.mark.parametrize(("end", "answer", "created"), [("commit", "child_exists", 0), ("rollback", "ok", 1)])
def test_a_child_whose_id_somebody_starts_just_now_is_taken_only_if_that_commits(
    db: Conn, hand: Hand, two_sessions: Sessions, end: Any, answer: str, created: int
) -> None:
    start(db)
    call = advance(hand, hand.take().item("keep", CALL, children=[child("ship-7")]))
    started = act("start_run", "ship-7", "other", "elsewhere", b"{}", 1)

    assert race(two_sessions, started, call, end=end)[1] == [answer]

    assert value(db, "select count(*) from pgwf_sdk.run where run_id = 'ship-7' and parent is not null") == created


@pytest.mark.parametrize("end", ["commit", "rollback"])
def test_a_start_with_the_id_of_a_child_that_is_being_started_waits_for_it(
    db: Conn, hand: Hand, two_sessions: Sessions, end: Any
) -> None:
    start(db)
    call = advance(hand, hand.take().item("keep", CALL, children=[child("ship-7")]))
    started = act("start_run", "ship-7", "other", "elsewhere", b"{}", 1)

    answer = race(two_sessions, call, started, end=end)[1]

    assert (answer == "WS001") == (end == "commit")
    assert rows(db, "select workflow from pgwf_sdk.runs where run_id = 'ship-7'") == [
        ("ship" if end == "commit" else "other",)
    ]


@pytest.mark.parametrize("disposition", ["keep", "park", "hop", "release", "complete", "block"])
def test_an_item_of_a_run_that_is_terminated_just_now_is_fenced(
    db: Conn, hand: Hand, two_sessions: Sessions, disposition: Any
) -> None:
    start(db)
    held = hand.take()
    item = held.end() if disposition == "complete" else held.item(disposition, entry(), need="gpu", note="{}")

    assert race(two_sessions, TERMINATE, advance(hand, item)) == (["terminated"], ["fenced"])

    assert journal(db)[1:] == [(2, "/run:checkout#1", "terminated")]


@pytest.mark.parametrize("disposition", ["keep", "park", "hop", "release", "block"])
def test_a_termination_waits_for_an_item_and_then_ends_the_run_behind_its_entries(
    db: Conn, hand: Hand, two_sessions: Sessions, disposition: Any
) -> None:
    start(db)
    item = hand.take().item(disposition, entry(), need="gpu", note="{}")

    assert race(two_sessions, advance(hand, item), TERMINATE) == (["ok"], ["terminated"])

    assert [phase for _, _, phase in journal(db)] == ["opened", "completed", "terminated"]


def test_a_termination_of_a_run_that_ends_just_now_tells_how_it_ended(
    db: Conn, hand: Hand, two_sessions: Sessions
) -> None:
    start(db)

    assert race(two_sessions, advance(hand, hand.take().end()), TERMINATE) == (["ok"], ["completed"])


def test_a_termination_knows_of_a_child_that_is_started_just_now(db: Conn, hand: Hand, two_sessions: Sessions) -> None:
    start(db)
    item = hand.take().item("keep", CALL, children=[child("order-1/ship#1")])

    assert race(two_sessions, advance(hand, item), TERMINATE) == (["ok"], ["terminated"])

    assert inbox(db, "order-1/ship#1") == [("cancel", "parent", "completed")]


def test_a_child_of_a_run_that_is_terminated_just_now_is_not_started(
    db: Conn, hand: Hand, two_sessions: Sessions
) -> None:
    start(db)
    item = hand.take().item("keep", CALL, children=[child("order-1/ship#1")])

    assert race(two_sessions, TERMINATE, advance(hand, item)) == (["terminated"], ["fenced"])

    assert value(db, "select count(*) from pgwf.name") == 1


def test_two_terminations_at_once_are_one(db: Conn, two_sessions: Sessions) -> None:
    start(db)

    assert race(two_sessions, TERMINATE, TERMINATE) == (["terminated"], ["terminated"])

    assert len(journal(db)) == 2


@both_orders
def test_a_pause_and_a_park_at_once_leave_the_run_paused_and_parked(
    db: Conn, hand: Hand, two_sessions: Sessions, order: int
) -> None:
    start(db)
    calls = [PAUSE, advance(hand, hand.take().item("park"))][::order]

    assert race(two_sessions, calls[0], calls[1]) == tuple([["paused"], ["ok"]][::order])

    assert (status(db), hand.claim(1)) == ("paused", [])
    signal(db)
    assert hand.claim(1) == []
    assert value(db, "select pgwf_sdk.resume_run('order-1', 'ann')") == "resumed"
    assert hand.take().run_id == "order-1"


def test_a_pause_during_a_claim_leaves_the_lease_and_parks_behind_it(
    db: Conn, clock: Clock, hand: Hand, two_sessions: Sessions
) -> None:
    start(db)

    assert race(two_sessions, advance(hand, slots=1), PAUSE) == (["claimed"], ["paused"])

    clock.advance(hours=1)
    db.execute("select pgwf.sweep('sweeper')")
    assert (status(db), hand.claim(1)) == ("paused", [])


def test_a_claim_during_a_pause_goes_away_empty(db: Conn, hand: Hand, two_sessions: Sessions) -> None:
    start(db)
    pausing, _ = two_sessions
    pausing.run("begin")
    pausing.run(PAUSE.statement, PAUSE.parameters)

    assert hand.claim(1) == []
    pausing.run("commit")
    assert hand.claim(1) == []


@both_orders
def test_a_resume_and_a_signal_at_once_leave_the_run_ready_with_the_signal(
    db: Conn, hand: Hand, two_sessions: Sessions, order: int
) -> None:
    start(db)
    hand.say(hand.take().item("park"))
    db.execute("select pgwf_sdk.pause_run('order-1', 'ann')")
    calls = [RESUME, SIGNAL][::order]

    assert race(two_sessions, calls[0], calls[1]) == tuple([["resumed"], [True]][::order])

    assert [row.name for row in hand.take().claim.inbox] == ["delivered"]


def test_two_retries_at_once_give_the_same_run(db: Conn, hand: Hand, two_sessions: Sessions) -> None:
    start(db)
    hand.say(hand.take().end("fail", b"{}"))
    retry = act("retry_run", "order-1", "ann")

    first, second = race(two_sessions, retry, retry)

    assert first == second
    assert value(db, "select count(*) from pgwf_sdk.run") == 2


def test_a_retry_whose_twin_rolled_back_makes_the_run(db: Conn, hand: Hand, two_sessions: Sessions) -> None:
    start(db)
    hand.say(hand.take().end("fail", b"{}"))
    retry = act("retry_run", "order-1", "ann")

    race(two_sessions, retry, retry, end="rollback")

    assert rows(db, "select run_id from pgwf_sdk.run order by n") == [("order-1",), ("order-1~2",)]


def test_a_retry_waits_for_the_run_to_end(db: Conn, hand: Hand, two_sessions: Sessions) -> None:
    start(db)
    end = advance(hand, hand.take().end("fail", b"{}"))

    assert race(two_sessions, end, act("retry_run", "order-1", "ann"))[0] == ["ok"]

    assert status(db, "order-1~2") == "ready"


def test_advance_gives_up_on_a_row_that_a_long_transaction_holds(
    db: Conn, make_hand: MakeHand, connect: Any, two_sessions: Sessions
) -> None:
    db.execute(
        """
        do $$
        begin
          execute format(
            'alter function %s set lock_timeout = ''10ms''', 'pgwf_sdk.advance'::regproc::oid::regprocedure);
        end
        $$
        """
    )
    start(db)
    start(db, "order-2")
    hand = make_hand()
    one, two = hand.claim(2)
    holder, _ = two_sessions
    holder.run("begin")
    holder.run("select from pgwf_sdk.run where run_id = 'order-1' for update")

    with pytest.raises(psycopg.errors.LockNotAvailable):
        hand.say(one.item("park"), two.item("park"))

    assert hand.say(two.item("park")) == ["ok"]
    holder.run("rollback")
    assert hand.say(one.item("park")) == ["ok"]


def test_what_is_committed_while_a_claim_is_under_way_is_in_its_answer(
    db: Conn, hand: Hand, two_sessions: Sessions
) -> None:
    """The other order is every other test of a claim. An attempt that is missed would not count."""
    start(db)
    note: Any = {"key": "/step:charge#1", "no": 3, "next_seconds": 0.0, "error": None}
    release = advance(hand, hand.take().item("release", attempts=[note]))
    holder, worker = two_sessions
    holder.run("begin")
    holder.run("lock table pgwf.need_setting in access exclusive mode")  # the first table a claim reads
    claiming = worker.start_blocked(ADVANCE, hand.parameters(slots=1))

    holder.run(release.statement, release.parameters)
    holder.run(SIGNAL.statement, SIGNAL.parameters)
    holder.run("commit")

    (claimed,) = claiming.result()
    *_, inbox_rows, attempts, _taken, _position = claimed
    assert [row["name"] for row in inbox_rows] == ["delivered"]
    assert [attempt["no"] for attempt in attempts] == [3]


@pytest.mark.parametrize("end", ["commit", "rollback"])
def test_a_call_that_claims_waits_for_the_first_limit_of_a_need_and_goes_by_it(
    db: Conn, hand: Hand, two_sessions: Sessions, end: LiteralString
) -> None:
    for run_id in ("order-1", "order-2"):
        start(db, run_id)

    _, claimed = race(two_sessions, LIMIT, advance(hand, slots=9), end=end)

    assert claimed.count("claimed") == (1 if end == "commit" else 2)


@pytest.mark.parametrize("end", ["commit", "rollback"])
def test_the_first_limit_of_a_need_counts_what_a_call_under_way_has_claimed(
    db: Conn, hand: Hand, two_sessions: Sessions, end: LiteralString
) -> None:
    for run_id in ("order-1", "order-2"):
        start(db, run_id)

    race(two_sessions, advance(hand, slots=1), LIMIT, end=end)

    assert len(hand.claim(9)) == (0 if end == "commit" else 1)
