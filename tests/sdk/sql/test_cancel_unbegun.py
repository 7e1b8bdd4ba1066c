"""A cancel request to a run of which nothing was executed ends it at once; whatever happens to it meanwhile."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from msgspec import json

from pgwf_journal import ENCODING_JSON, Kind, NewEntry, Phase
from pgwf_sdk.replay._input import cancelled_unbegun
from tests.sdk.sql.hand import Hand, child, entry, inbox, journal, rows, signal, start, status, value
from tests.sdk.sql.race import Call, act, advance, race

if TYPE_CHECKING:
    from tests.support import Clock, Session

    Sessions = tuple[Session, Session]

Conn = psycopg.Connection[Any]

pytestmark = pytest.mark.usefixtures("patient")

CANCEL = act("cancel_run", "order-1", "ann", "not needed")
CANCEL_CHILD = act("cancel_run", "order-1/ship#1", "ann")
ENTRIES = [(1, "/run:checkout#1", "opened"), (2, "/cancel:cancel#1", "completed"), (3, "/run:checkout#1", "cancelled")]
IS_REQUESTED = ("requested", [("cancel", "ann", "completed")])


def cancel(db: Conn, run_id: str = "order-1", **options: Any) -> str:
    by, reason, grace = options.get("by", "ann"), options.get("reason"), options.get("grace")
    return str(value(db, "select pgwf_sdk.cancel_run(%s, %s, %s, %s)", run_id, by, reason, grace))


def family(db: Conn, hand: Hand, *, is_parked: bool = True) -> Any:
    """A parent that waits for its child, which nobody has claimed."""
    start(db)
    held = hand.take()
    call = entry("ship", kind=Kind.CHILD, phase=Phase.OPENED, payload=None)
    hand.say(held.item("park" if is_parked else "keep", call, children=[child("order-1/ship#1", need="elsewhere")]))
    return held


@pytest.mark.parametrize("state", ["ready", "later", "paused", "given back", "signalled", "with a key"])
def test_a_cancel_ends_a_run_of_which_nothing_was_executed_at_once(
    db: Conn, clock: Clock, hand: Hand, state: str
) -> None:
    later = clock.now() + timedelta(days=1) if state == "later" else None
    n, _, _ = start(db, start_at=later, singleton_key="k" if state == "with a key" else None)
    match state:
        case "paused":
            db.execute("select pgwf_sdk.pause_run('order-1', 'ann')")
        case "given back":
            hand.say(hand.take().item("release", note="worker-1 does not know workflow 'checkout'"))
        case "signalled":
            signal(db)

    assert [cancel(db, reason="not needed"), cancel(db, by="bob")] == ["cancelled", "cancelled"]

    assert journal(db) == ENTRIES
    assert rows(db, "select status, finished_at from pgwf_sdk.runs") == [("cancelled", clock.now())]
    assert rows(db, "select n, outcome from pgwf.archive") == [(n, "completed")]
    assert (inbox(db), hand.claim(1)) == ([], [])


@pytest.mark.parametrize("reason", [None, "not needed", "", "zß水"])
@pytest.mark.parametrize("by", [None, "ann", ""])
def test_it_leaves_what_a_worker_would_have_recorded(db: Conn, by: str | None, reason: str | None) -> None:
    start(db)

    cancel(db, by=by, reason=reason, grace=90)

    (request, end) = rows(db, "select payload, encoding from pgwf_journal.entry where seq > 1 order by seq")
    assert json.decode(request[0]) == {"by": by, "reason": reason, "grace_seconds": 90}
    cancelled = cancelled_unbegun("order-1", NewEntry(0, Kind.CANCEL, Phase.COMPLETED, "", "cancel", 1, *request))
    expected = json.decode(cancelled.payload)
    del expected["args"]
    assert (json.decode(end[0]), end[1]) == ({"attributes": {}} | expected, ENCODING_JSON)


def test_a_grace_period_that_is_none_is_refused_before_anything_ends(db: Conn) -> None:
    start(db)

    with pytest.raises(psycopg.Error, match="grace_seconds is -1, expected 0 to 1e9") as error:
        cancel(db, grace=-1)

    assert (error.value.sqlstate, status(db)) == ("WS004", "ready")
    assert cancel(db, grace=0) == "cancelled"


@pytest.mark.parametrize("state", ["held", "lost", "tried", "away", "recorded"])
def test_a_run_of_which_something_may_have_been_executed_is_asked(
    db: Conn, clock: Clock, hand: Hand, state: str
) -> None:
    start(db)
    held = hand.take()
    match state:
        case "lost":
            clock.advance(hours=1)
            db.execute("select pgwf.sweep('sweeper')")
            db.execute("select pgwf.clear_crash_concern('order-1', 'ann', 'mended')")
        case "tried":
            note: Any = {"key": "/step:charge#1", "no": 1, "next_seconds": 60.0, "error": None, "heartbeat": None}
            hand.say(held.item("park", attempts=[note], delay=timedelta(minutes=1)))
        case "away":
            hand.say(held.item("hop", need="gpu"))
        case "recorded":
            hand.say(held.item("release", entry()))

    assert (cancel(db), inbox(db)) == IS_REQUESTED

    assert status(db) == ("running" if state == "held" else "ready")


def test_a_parent_that_waits_gets_the_cancellation_and_goes_on(db: Conn, hand: Hand) -> None:
    family(db, hand)

    assert cancel(db, "order-1/ship#1", reason="no lorry") == "cancelled"

    assert status(db) == "ready"
    (row,) = hand.take().claim.inbox
    assert (row.kind, row.name, row.phase) == (Kind.CHILD, "/child:ship#1", Phase.CANCELLED)
    assert json.decode(row.payload or b"")["message"] == "run order-1/ship#1 was cancelled by ann: no lorry"


def test_who_is_attached_hears_of_it(db: Conn, hand: Hand) -> None:
    start(db, "waiter")
    opened = entry("run", kind=Kind.ATTACH, phase=Phase.OPENED, payload=None)
    waiter = hand.take()
    start(db)
    hand.say(waiter.item("park", opened, attaches=[{"key": "/attach:run#1", "run_id": "order-1"}]))

    assert cancel(db) == "cancelled"

    assert inbox(db, "waiter") == [("attach", "/attach:run#1", "cancelled")]
    assert status(db, "waiter") == "ready"


def test_the_next_run_of_its_key_comes_up(db: Conn, hand: Hand) -> None:
    for run_id in ("order-1", "order-2", "order-3"):
        start(db, run_id, singleton_key="k")
    held = hand.take()
    assert hand.claim(1) == []
    assert cancel(db, "order-2") == "cancelled"

    hand.say(held.end())

    assert hand.take().run_id == "order-3"


def test_a_claim_before_the_cancel_has_the_run_and_hears_of_the_request(
    db: Conn, hand: Hand, two_sessions: Sessions
) -> None:
    start(db)

    (_, answer) = race(two_sessions, advance(hand, slots=1), CANCEL)

    assert (answer[0], inbox(db)) == IS_REQUESTED
    assert status(db) == "running"


def test_a_claim_that_is_undone_before_the_cancel_leaves_it_the_run(
    db: Conn, hand: Hand, two_sessions: Sessions
) -> None:
    start(db)

    (_, answer) = race(two_sessions, advance(hand, slots=1), CANCEL, end="rollback")

    assert (answer, journal(db)) == (["cancelled"], ENTRIES)


@pytest.mark.parametrize("end", ["commit", "rollback"])
def test_a_claim_passes_over_a_run_that_is_being_cancelled(
    db: Conn, hand: Hand, two_sessions: Sessions, end: Any
) -> None:
    start(db)
    one, _ = two_sessions
    one.run("begin")
    one.run(CANCEL.statement, CANCEL.parameters)

    assert hand.claim(1) == []

    one.run(end)
    assert [held.run_id for held in hand.claim(1)] == ([] if end == "commit" else ["order-1"])


def test_a_run_that_is_being_started_cannot_be_cancelled_yet(db: Conn, two_sessions: Sessions) -> None:
    one, _ = two_sessions
    one.run("begin")
    one.run("select pgwf_sdk.start('checkout', p_run_id => 'order-1')")

    with pytest.raises(psycopg.Error) as error:
        cancel(db)
    one.run("commit")

    assert error.value.sqlstate == "WS002"
    assert cancel(db) == "cancelled"


def test_a_start_of_its_id_finds_the_run_that_is_being_cancelled(db: Conn, two_sessions: Sessions) -> None:
    start(db)
    one, _ = two_sessions
    one.run("begin")
    one.run(CANCEL.statement, CANCEL.parameters)

    _, run_id, is_new = start(db)
    one.run("commit")

    assert (run_id, is_new, status(db)) == ("order-1", False, "cancelled")


@pytest.mark.parametrize(
    ("other", "second_is_cancel", "second_is_other"),
    [
        (CANCEL, "cancelled", "cancelled"),
        (act("terminate_run", "order-1", "bob"), "terminated", "cancelled"),
        (act("signal_run", "order-1", "delivered", b"1", 1), "cancelled", "WS003"),
        (act("pause_run", "order-1", "bob"), "cancelled", "cancelled"),
        (act("resume_run", "order-1", "bob"), "cancelled", "cancelled"),
    ],
    ids=["cancel", "terminate", "signal", "pause", "resume"],
)
def test_of_two_calls_at_once_the_second_finds_what_the_first_did(
    db: Conn, two_sessions: Sessions, other: Call, second_is_cancel: str, second_is_other: str
) -> None:
    start(db)
    _, answer = race(two_sessions, other, CANCEL)
    assert answer == [second_is_cancel]

    start(db, "order-2")
    switched = Call(other.statement, ("order-2", *other.parameters[1:]))
    _, answer = race(two_sessions, act("cancel_run", "order-2", "ann"), switched)
    assert answer in ([second_is_other], second_is_other)


@pytest.mark.parametrize("is_first", [True, False], ids=["cancel first", "end first"])
def test_a_child_is_cancelled_while_its_parent_ends(
    db: Conn, hand: Hand, two_sessions: Sessions, is_first: bool
) -> None:
    end = advance(hand, family(db, hand, is_parked=False).end())

    if is_first:
        assert race(two_sessions, CANCEL_CHILD, end) == (["cancelled"], ["ok"])
    else:
        assert race(two_sessions, end, CANCEL_CHILD) == (["ok"], ["already_requested"])

    assert status(db) == "completed"
    assert status(db, "order-1/ship#1") == ("cancelled" if is_first else "ready")


@pytest.mark.parametrize("is_first", [True, False], ids=["cancel first", "park first"])
def test_a_child_is_cancelled_while_its_parent_parks(
    db: Conn, hand: Hand, two_sessions: Sessions, is_first: bool
) -> None:
    park = advance(hand, family(db, hand, is_parked=False).item("park"))

    if is_first:
        assert race(two_sessions, CANCEL_CHILD, park) == (["cancelled"], ["unread"])
    else:
        assert race(two_sessions, park, CANCEL_CHILD) == (["ok"], ["cancelled"])

    assert status(db) == ("running" if is_first else "ready")
    assert inbox(db) == [("child", "/child:ship#1", "cancelled")]


@pytest.mark.parametrize("is_first", [True, False], ids=["cancel first", "terminate first"])
def test_a_child_is_cancelled_while_its_parent_is_terminated(
    db: Conn, hand: Hand, two_sessions: Sessions, is_first: bool
) -> None:
    family(db, hand)
    terminate = act("terminate_run", "order-1", "bob")

    if is_first:
        assert race(two_sessions, CANCEL_CHILD, terminate) == (["cancelled"], ["terminated"])
    else:
        assert race(two_sessions, terminate, CANCEL_CHILD) == (["terminated"], ["already_requested"])

    assert status(db) == "terminated"
