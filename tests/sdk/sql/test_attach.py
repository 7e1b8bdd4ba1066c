"""Attaching: a run hears of the end of another one that it does not own, once, whichever of the two comes first."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from pgwf_journal import Kind, Phase
from tests.sdk.sql.hand import Hand, Held, Item, child, entry, inbox, journal, rows, signal, start, status, value
from tests.sdk.sql.race import act, advance, both_orders, race
from tests.sdk.sql.test_chains import continuing

if TYPE_CHECKING:
    from pgwf_sdk.worker._advance import Disposition
    from tests.sdk.sql.conftest import MakeHand
    from tests.support import Clock, Session

    Sessions = tuple[Session, Session]

Conn = psycopg.Connection[Any]

pytestmark = pytest.mark.usefixtures("patient")


def attach(held: Held, target: str, number: int = 1, disposition: Disposition = "park", **options: Any) -> Item:
    """The run waits for the end of `target`."""
    opened = entry("run", number, kind=Kind.ATTACH, phase=Phase.OPENED, occurrence=number, payload=b"{}")
    return held.item(disposition, opened, attaches=[{"key": f"/attach:run#{number}", "run_id": target}], **options)


def give_up(held: Held, number: int = 1, disposition: Disposition = "keep") -> Item:
    """Nobody waits for that any more."""
    return held.item(disposition, attaches=[{"key": f"/attach:run#{number}", "run_id": None}])


def started(db: Conn, hand: Hand, *run_ids: str) -> list[Held]:
    """Leased runs of these ids."""
    for run_id in run_ids:
        start(db, run_id)
    return hand.claim(len(run_ids))


def attached(db: Conn) -> list[tuple[str, str, str]]:
    """Who waits with which call for whom."""
    return rows(
        db,
        "select w.run_id, a.key, t.run_id from pgwf_sdk.attachment a join pgwf_sdk.run w on w.n = a.n"
        " join pgwf_sdk.run t on t.n = a.target order by 1, 2",
    )


def heard(held: Held) -> list[tuple[str, str, bytes | None]]:
    """What is in the inbox of a run that was claimed."""
    return [(row.name, row.phase.label, row.payload) for row in held.claim.inbox]


@pytest.mark.parametrize(
    ("ending", "phase", "payload"),
    [("complete", "completed", b"42"), ("fail", "failed", b'{"type": "m:E"}'), ("cancel", "cancelled", None)],
)
def test_the_end_of_a_run_lands_once_in_the_inbox_of_who_is_attached_and_wakes_it(
    db: Conn, hand: Hand, ending: Any, phase: str, payload: bytes | None
) -> None:
    waiter, target = started(db, hand, "waiter", "target")
    assert hand.say(attach(waiter, "target")) == ["ok"]
    assert (status(db, "waiter"), attached(db)) == ("waiting", [("waiter", "/attach:run#1", "target")])

    item = target.end(ending, payload)
    assert [hand.say(item), hand.say(item)] == [["ok"], ["fenced"]]

    assert heard(hand.take()) == [("/attach:run#1", phase, payload)]
    assert attached(db) == []


def test_a_terminated_run_is_heard_of_as_terminated(db: Conn, hand: Hand) -> None:
    waiter, _ = started(db, hand, "waiter", "target")
    hand.say(attach(waiter, "target"))

    value(db, "select pgwf_sdk.terminate_run('target', 'ann')")

    ((name, phase, payload),) = heard(hand.take())
    assert (name, phase) == ("/attach:run#1", "terminated")
    assert b"RunTerminatedError" in (payload or b"")


def test_a_run_that_is_over_keeps_who_attaches_to_it_awake_with_its_end(db: Conn, hand: Hand) -> None:
    waiter, target = started(db, hand, "waiter", "target")
    hand.say(target.end("complete", b"42"))

    answer = hand.answer(attach(waiter, "target"))

    assert answer.status == "unread"
    assert [(row.kind, row.name, row.phase, row.payload) for row in answer.inbox] == [
        (Kind.ATTACH, "/attach:run#1", Phase.COMPLETED, b"42")
    ]
    assert journal(db, "waiter")[1:] == [(2, "/attach:run#1", "opened")]
    assert attached(db) == []


def test_a_run_that_was_terminated_before_is_heard_of_as_terminated(db: Conn, hand: Hand) -> None:
    waiter, _ = started(db, hand, "waiter", "target")
    value(db, "select pgwf_sdk.terminate_run('target', 'ann')")

    (row,) = hand.answer(attach(waiter, "target")).inbox

    assert row.phase is Phase.TERMINATED


def test_several_calls_and_several_runs_hear_of_one_end(db: Conn, hand: Hand) -> None:
    one, two, target = started(db, hand, "one", "two", "target")
    hand.say(attach(one, "target", 1, "keep"), attach(two, "target"))
    hand.say(attach(one, "target", 2))

    hand.say(target.end())

    assert inbox(db, "one") == [("attach", f"/attach:run#{number}", "completed") for number in (1, 2)]
    assert inbox(db, "two") == [("attach", "/attach:run#1", "completed")]
    assert (status(db, "one"), status(db, "two")) == ("ready", "ready")


@pytest.mark.parametrize("disposition", ["keep", "park", "release"])
def test_a_run_that_is_not_there_cannot_be_attached_to_and_nothing_is_written(
    db: Conn, hand: Hand, disposition: Any
) -> None:
    waiter, other = started(db, hand, "waiter", "other")
    db.execute("select pgwf.submit_job('a job', 'w', 'python')")
    first = attach(waiter, "nobody", 1, disposition)
    both = waiter.item(
        disposition,
        *first.entries,
        attaches=[*first.attaches, {"key": "/attach:run#2", "run_id": "a job"}, {"key": "/x", "run_id": "other"}],
    )

    answers, _ = hand.call(both, attach(other, "waiter"))

    assert [(answer.status, sorted(answer.taken)) for answer in answers] == [
        ("no_run", ["/attach:run#1", "/attach:run#2"]),
        ("ok", []),
    ]
    assert journal(db, "waiter")[1:] == []
    assert attached(db) == [("other", "/attach:run#1", "waiter")]


def test_a_run_that_was_forgotten_is_not_there_and_one_that_is_forgotten_later_was_heard_of(
    db: Conn, clock: Clock, hand: Hand
) -> None:
    early, late, target = started(db, hand, "early", "late", "target")
    hand.say(attach(early, "target"))
    hand.say(target.end("complete", b"42"))
    clock.advance(days=3)
    db.execute("select pgwf_sdk.retain('1 day', 100, '0')")
    assert rows(db, "select from pgwf_sdk.run where run_id = 'target'") == []

    assert hand.answer(attach(late, "target")).status == "no_run"
    assert heard(hand.take()) == [("/attach:run#1", "completed", b"42")]


# -- what does not end, and what goes on


def test_a_run_that_continues_is_followed_to_the_end_of_its_chain(db: Conn, hand: Hand) -> None:
    waiter, target = started(db, hand, "waiter", "target")
    hand.say(attach(waiter, "target"))
    hand.say(continuing(target))
    assert (status(db, "waiter"), attached(db)) == ("waiting", [("waiter", "/attach:run#1", "target~2")])
    second = hand.take()
    hand.say(continuing(second))

    hand.say(hand.take().end("complete", b"3"))

    assert heard(hand.take()) == [("/attach:run#1", "completed", b"3")]


def test_any_id_of_a_chain_leads_to_its_live_end(db: Conn, hand: Hand) -> None:
    waiter, target = started(db, hand, "waiter", "target")
    hand.say(continuing(target))

    assert hand.say(attach(waiter, "target")) == ["ok"]

    assert attached(db) == [("waiter", "/attach:run#1", "target~2")]


def test_a_failed_run_that_was_retried_is_waited_for_anew(db: Conn, hand: Hand) -> None:
    waiter, target = started(db, hand, "waiter", "target")
    hand.say(target.end("fail", b'{"type": "m:E"}'))
    value(db, "select run_id from pgwf_sdk.retry_run('target', 'ann')")

    assert hand.say(attach(waiter, "target")) == ["ok"]

    assert attached(db) == [("waiter", "/attach:run#1", "target~2")]


def test_a_call_that_is_given_up_hears_nothing_and_the_run_goes_on(db: Conn, hand: Hand) -> None:
    waiter, target = started(db, hand, "waiter", "target")
    hand.say(attach(waiter, "target", 1, "keep"))

    assert hand.say(give_up(waiter, disposition="park")) == ["ok"]

    assert attached(db) == []
    assert hand.say(target.end()) == ["ok"]
    assert (status(db, "waiter"), inbox(db, "waiter")) == ("waiting", [])


@pytest.mark.parametrize("ending", ["complete", "fail", "cancel", "continue", "terminate"])
def test_however_a_run_ends_what_it_was_attached_to_goes_on(db: Conn, hand: Hand, ending: Any) -> None:
    waiter, target = started(db, hand, "waiter", "target")
    hand.say(attach(waiter, "target", 1, "keep"))

    if ending == "terminate":
        value(db, "select pgwf_sdk.terminate_run('waiter', 'ann')")
    else:
        hand.say(continuing(waiter) if ending == "continue" else waiter.end(ending, b"{}"))

    assert (status(db, "target"), inbox(db, "target"), attached(db)) == ("running", [], [])
    assert hand.say(target.end()) == ["ok"]


def test_two_runs_of_one_call_that_end_together_hear_of_nothing(db: Conn, hand: Hand) -> None:
    waiter, target = started(db, hand, "waiter", "target")
    hand.say(attach(waiter, "target", 1, "keep"))

    assert hand.say(waiter.end(), target.end()) == ["ok", "ok"]

    assert (inbox(db, "waiter"), attached(db)) == ([], [])


def test_a_child_that_is_terminated_with_its_parent_is_heard_of(db: Conn, hand: Hand) -> None:
    waiter, parent = started(db, hand, "waiter", "parent")
    called = entry("ship", kind=Kind.CHILD, phase=Phase.OPENED, payload=None)
    hand.say(parent.item("keep", called, children=[child("kid")._replace(close="terminate")]))
    hand.say(attach(waiter, "kid"))

    hand.say(parent.end())

    assert inbox(db, "waiter") == [("attach", "/attach:run#1", "terminated")]
    assert status(db, "waiter") == "ready"


# -- circles


def test_a_run_cannot_wait_for_itself_nor_for_one_that_waits_for_it(db: Conn, hand: Hand) -> None:
    one, two, three = started(db, hand, "one", "two", "three")
    assert hand.answer(attach(one, "one")).status == "cycle"
    assert hand.say(attach(one, "two", 1, "keep"), attach(two, "three", 1, "keep")) == ["ok", "ok"]

    answer = hand.answer(attach(three, "one"))

    assert (answer.status, answer.taken) == ("cycle", ["/attach:run#1"])
    assert journal(db, "three")[1:] == []
    hand.say(give_up(two))
    assert hand.say(attach(three, "one")) == ["ok"]


def test_a_circle_within_one_call_is_seen(db: Conn, hand: Hand) -> None:
    one, two = started(db, hand, "one", "two")

    assert hand.say(attach(one, "two"), attach(two, "one")) == ["ok", "cycle"]


def test_a_run_cannot_wait_for_an_earlier_run_of_its_own_chain(db: Conn, hand: Hand) -> None:
    (first,) = started(db, hand, "one")
    hand.say(continuing(first))

    assert hand.answer(attach(hand.take(), "one")).status == "cycle"


def test_a_child_cannot_wait_for_its_parent_which_waits_for_it_unless_that_lets_it_run_on(db: Conn, hand: Hand) -> None:
    parent, other = started(db, hand, "parent", "other")
    calls = [
        entry("ship", number, kind=Kind.CHILD, phase=Phase.OPENED, occurrence=number, payload=None) for number in (1, 2)
    ]
    children = [child("kid"), child("free", "/child:ship#2")._replace(close="abandon")]
    hand.say(parent.item("keep", *calls, children=children))
    kid, free = hand.claim(2)

    assert hand.answer(attach(kid, "parent")).status == "cycle"
    assert hand.say(attach(kid, "other", 2, "keep")) == ["ok"]
    assert hand.answer(attach(other, "parent")).status == "cycle"
    assert hand.say(attach(free, "parent")) == ["ok"]
    hand.say(parent.end())
    assert inbox(db, "free") == [("attach", "/attach:run#1", "completed")]


# -- two sessions at once


@pytest.fixture
def two(db: Conn, hand: Hand, make_hand: MakeHand) -> tuple[Held, Held, Hand]:
    """A waiter and a target, leased by workers of their own; the target's worker."""
    waiter, target = started(db, hand, "waiter", "target")
    return waiter, target, hand


def test_a_run_that_ends_before_the_attach_is_recorded_is_heard_of_at_once(
    db: Conn, hand: Hand, two: tuple[Held, Held, Hand], two_sessions: Sessions
) -> None:
    waiter, target, _ = two

    found = race(two_sessions, advance(hand, target.end()), advance(hand, attach(waiter, "target")))

    assert found == (["ok"], ["unread"])
    assert (inbox(db, "waiter"), attached(db)) == ([("attach", "/attach:run#1", "completed")], [])


def test_a_run_that_ends_after_the_attach_was_recorded_wakes_who_is_attached(
    db: Conn, hand: Hand, two: tuple[Held, Held, Hand], two_sessions: Sessions
) -> None:
    waiter, target, _ = two

    found = race(two_sessions, advance(hand, attach(waiter, "target")), advance(hand, target.end()))

    assert found == (["ok"], ["ok"])
    assert (inbox(db, "waiter"), attached(db)) == ([("attach", "/attach:run#1", "completed")], [])
    assert status(db, "waiter") == "ready"


@pytest.mark.parametrize("first", ["ends", "attaches"])
def test_what_was_rolled_back_did_not_happen(
    db: Conn, hand: Hand, two: tuple[Held, Held, Hand], two_sessions: Sessions, first: str
) -> None:
    waiter, target, _ = two
    calls = [advance(hand, target.end()), advance(hand, attach(waiter, "target"))]

    one, other = calls if first == "ends" else calls[::-1]
    assert race(two_sessions, one, other, end="rollback") == (["ok"], ["ok"])

    if first == "ends":
        assert (status(db, "waiter"), attached(db)) == ("waiting", [("waiter", "/attach:run#1", "target")])
    else:
        assert (inbox(db, "waiter"), attached(db)) == ([], [])


@both_orders
def test_a_run_that_is_terminated_while_another_attaches_to_it_is_heard_of(
    db: Conn, hand: Hand, two: tuple[Held, Held, Hand], two_sessions: Sessions, order: int
) -> None:
    waiter, _, _ = two
    calls = [act("terminate_run", "target", "ann"), advance(hand, attach(waiter, "target"))][::order]

    race(two_sessions, calls[0], calls[1])

    assert inbox(db, "waiter") == [("attach", "/attach:run#1", "terminated")]
    assert status(db, "waiter") == ("ready" if order == -1 else "running")


@both_orders
def test_a_run_that_continues_while_another_attaches_to_it_is_followed(
    db: Conn, hand: Hand, two: tuple[Held, Held, Hand], two_sessions: Sessions, order: int
) -> None:
    waiter, target, _ = two
    calls = [advance(hand, continuing(target)), advance(hand, attach(waiter, "target"))][::order]

    assert race(two_sessions, calls[0], calls[1]) == (["ok"], ["ok"])

    assert attached(db) == [("waiter", "/attach:run#1", "target~2")]
    assert status(db, "waiter") == "waiting"


@both_orders
def test_a_run_that_ends_while_who_is_attached_gives_up(
    db: Conn, hand: Hand, two: tuple[Held, Held, Hand], two_sessions: Sessions, order: int
) -> None:
    waiter, target, _ = two
    hand.say(attach(waiter, "target", 1, "keep"))
    calls = [advance(hand, target.end()), advance(hand, give_up(waiter))][::order]

    assert race(two_sessions, calls[0], calls[1]) == (["ok"], ["ok"])

    heard_of = [("attach", "/attach:run#1", "completed")] if order == 1 else []
    assert (inbox(db, "waiter"), attached(db)) == (heard_of, [])


@both_orders
def test_a_run_and_who_is_attached_to_it_that_end_at_once_both_end(
    db: Conn, hand: Hand, two: tuple[Held, Held, Hand], two_sessions: Sessions, order: int
) -> None:
    waiter, target, _ = two
    hand.say(attach(waiter, "target", 1, "keep"))
    calls = [advance(hand, target.end()), advance(hand, waiter.end())][::order]

    assert race(two_sessions, calls[0], calls[1]) == (["ok"], ["ok"])

    assert (status(db, "waiter"), status(db, "target"), attached(db)) == ("completed", "completed", [])


@both_orders
def test_two_runs_that_attach_to_each_other_at_once_do_not_both(
    db: Conn, hand: Hand, two: tuple[Held, Held, Hand], two_sessions: Sessions, order: int
) -> None:
    waiter, target, _ = two
    calls = [advance(hand, attach(waiter, "target")), advance(hand, attach(target, "waiter"))][::order]

    assert race(two_sessions, calls[0], calls[1]) == (["ok"], ["cycle"])


@both_orders
def test_a_circle_of_four_that_two_sessions_would_close_between_them_is_not_closed(
    db: Conn, hand: Hand, two_sessions: Sessions, order: int
) -> None:
    a, b, c, d = started(db, hand, "a", "b", "c", "d")
    hand.say(attach(a, "b", 1, "keep"), attach(c, "d", 1, "keep"))
    calls = [advance(hand, attach(b, "c")), advance(hand, attach(d, "a"))][::order]

    assert race(two_sessions, calls[0], calls[1]) == (["ok"], ["cycle"])


def test_a_signal_before_the_park_keeps_a_run_that_attaches_awake(
    db: Conn, hand: Hand, two: tuple[Held, Held, Hand]
) -> None:
    waiter, target, _ = two
    signal(db, "go", "waiter")

    assert hand.say(attach(waiter, "target")) == ["unread"]

    assert attached(db) == [("waiter", "/attach:run#1", "target")]
    hand.say(target.end())
    assert inbox(db, "waiter")[1:] == [("attach", "/attach:run#1", "completed")]


def test_a_run_whose_row_somebody_holds_is_busy_and_nobody_else_waits(
    db: Conn, hand: Hand, connect: Any, clock: Clock
) -> None:
    waiter, other, _ = started(db, hand, "waiter", "other", "target")
    holder = connect()
    holder.execute("begin")
    holder.execute("select from pgwf_sdk.run where run_id = 'target' for update")

    answers, _ = hand.call(attach(waiter, "target"), other.item("keep", entry()), busy_ok=True)

    assert [answer.status for answer in answers] == ["busy", "ok"]
    holder.execute("rollback")
    assert hand.say(attach(waiter, "target")) == ["ok"]
    clock.advance(seconds=timedelta(hours=1).total_seconds())
