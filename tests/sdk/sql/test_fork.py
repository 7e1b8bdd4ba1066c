"""fork_run: a new run that begins with a copy of another one's journal; and one thing done to many runs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from pgwf_journal import Kind, Phase
from tests.sdk.sql.hand import Hand, child, entry, journal, rows, signal, start, status, task, value
from tests.sdk.sql.race import Call, act, advance, race
from tests.sdk.sql.test_retry import error, failed

if TYPE_CHECKING:
    from tests.support import Clock, Session

    Sessions = tuple[Session, Session]

Conn = psycopg.Connection[Any]


def fork(db: Conn, before: str | int, new_id: str | None = None, run_id: str = "order-1") -> tuple[int, str, bool]:
    row = db.execute(
        "select n, run_id, created from pgwf_sdk.fork_run(%s, %s, %s, 'ann')", [run_id, str(before), new_id]
    ).fetchone()
    assert row is not None
    return row[0], row[1], row[2]


def price(db: Conn, before: str | int) -> dict[str, Any]:
    with db.cursor(row_factory=psycopg.rows.dict_row) as cursor:
        row = cursor.execute("select * from pgwf_sdk.fork_price('order-1', %s)", [str(before)]).fetchone()
    assert row is not None
    return row


def worked(db: Conn, hand: Hand) -> Any:
    """A run that goes on: two steps, a child that returned, a signal it waits for, a task nobody decided."""
    start(db, priority=2, trace="t")
    held = hand.take()
    hand.say(held.item("keep", entry("reserve", 1, payload=b'"r-1"')))
    started = entry("ship", 2, kind=Kind.CHILD, phase=Phase.OPENED, payload=None)
    hand.say(held.item("keep", started, children=[child("order-1/ship#1")]))
    hand.say(held.item("keep", entry("ship", 2, kind=Kind.CHILD, payload=b"7")))
    hand.say(held.item("keep", entry("go", 3, kind=Kind.SIGNAL, phase=Phase.OPENED, payload=None)))
    opened = entry("review", 4, kind=Kind.HUMAN, phase=Phase.OPENED, payload=None)
    hand.say(held.item("keep", opened, tasks=[task("order-1/review#1")]))
    hand.say(held.item("keep", entry("charge", 5)))
    return held


def test_a_fork_takes_over_what_stands_before_the_entry_without_calls_that_were_not_finished(
    db: Conn, clock: Clock, hand: Hand
) -> None:
    worked(db, hand)
    clock.advance(minutes=1)

    n, run_id, created = fork(db, "/step:charge#1")

    assert (run_id, created) == ("order-1~fork1", True)
    assert journal(db, run_id) == [
        (1, "/run:checkout#1", "opened"),
        (2, "/step:reserve#1", "completed"),
        (3, "/child:ship#1", "opened"),
        (4, "/child:ship#1", "completed"),
    ]
    assert rows(
        db, "select payload, encoding, recorded_at, lease_no from pgwf_journal.entry where n = %s and seq = 2", n
    ) == [(b'"r-1"', 1, clock.START, None)]
    assert rows(
        db,
        """
        select workflow, need, priority, trace, status, started_by, root_run_id, parent_run_id,
          fork_of_run_id, fork_before
        from pgwf_sdk.runs where n = %s
        """,
        n,
    ) == [("checkout", "python", 2, "t", "ready", "ann", run_id, None, "order-1", 7)]
    assert value(db, "select count(distinct seed) from pgwf_sdk.run where workflow = 'checkout'") == 1


def test_a_source_goes_on_as_if_nothing_had_been_forked(db: Conn, hand: Hand) -> None:
    held = worked(db, hand)
    before = journal(db)

    fork(db, "/step:charge#1")

    assert journal(db) == before
    assert hand.say(held.end()) == ["ok"]
    assert status(db) == "completed"
    assert status(db, "order-1~fork1") == "ready"


def test_a_fork_by_number_begins_before_that_entry(db: Conn, hand: Hand) -> None:
    worked(db, hand)

    assert len(journal(db, fork(db, 3)[1])) == 2
    assert len(journal(db, fork(db, 2)[1])) == 1
    assert len(journal(db, fork(db, 8)[1])) == 5
    for before in ("9", "1", "0", "/step:refund#1", "/run:checkout#1", ""):
        with pytest.raises(psycopg.Error, match="cannot be forked before") as refused:
            fork(db, before)
        assert refused.value.sqlstate == "WS006"


def test_the_price_says_what_is_copied_and_what_is_done_again(db: Conn, hand: Hand) -> None:
    worked(db, hand)

    assert price(db, "/child:ship#1") == {
        "run_id": "order-1",
        "before_seq": 4,
        "entry_count": 2,
        "payload_bytes": len(b'"r-1"') + len(b'{"args":[],"kwargs":{}}'),
        "steps_again": ["/step:charge#1"],
        "steps_again_count": 1,
        "calls_again": ["/child:ship#1", "/signal:go#1", "/human:review#1"],
        "calls_again_count": 3,
        "results_kept": [],
        "results_kept_count": 0,
    }
    later = price(db, "/step:charge#1")
    assert (later["entry_count"], later["steps_again"]) == (4, ["/step:charge#1"])
    assert (later["calls_again"], later["results_kept"]) == (["/signal:go#1", "/human:review#1"], ["/child:ship#1"])


@pytest.mark.parametrize("before", ["/step:reserve#1", "/child:ship#1", "/step:charge#1", "8"])
def test_the_price_is_what_the_fork_copies(db: Conn, hand: Hand, before: str) -> None:
    worked(db, hand)

    said = price(db, before)
    n, _, _ = fork(db, before)

    assert rows(
        db, "select count(*), sum(coalesce(octet_length(payload), 0)) from pgwf_journal.entry where n = %s", n
    ) == [(said["entry_count"], said["payload_bytes"])]


def test_a_run_that_is_over_can_be_forked_whatever_became_of_it(db: Conn, hand: Hand) -> None:
    start(db)
    hand.say(hand.take().end(entries=[entry("reserve", 1), entry("charge", 2)]))

    _, run_id, _ = fork(db, "/step:charge#1")

    assert journal(db, run_id)[1:] == [(2, "/step:reserve#1", "completed")]
    assert hand.take().run_id == run_id


def test_a_fork_of_a_cancelled_run_goes_on_from_before_the_request(db: Conn, hand: Hand) -> None:
    start(db)
    hand.say(
        hand.take().end(
            "cancel",
            None,
            entries=[entry("reserve", 1), entry("cancel", 0, kind=Kind.CANCEL, payload=None), entry("undo", 2)],
        )
    )

    _, run_id, _ = fork(db, "/step:undo#1")

    assert journal(db, run_id)[1:] == [(2, "/step:reserve#1", "completed")]


def test_a_patch_that_was_decided_stays_decided_in_a_fork(db: Conn, hand: Hand) -> None:
    start(db)
    hand.say(hand.take().item("park", entry("coupon", 0, kind=Kind.PATCH, payload=None), entry("reserve", 1)))

    _, run_id, _ = fork(db, "/step:reserve#1")

    assert journal(db, run_id)[1:] == [(2, "/patch:coupon#1", "completed")]


def test_forking_again_with_the_same_id_gives_the_same_run_and_another_fork_is_refused_it(db: Conn, hand: Hand) -> None:
    worked(db, hand)
    start(db, "order-2")

    first = fork(db, "/step:charge#1", "retried")
    again = fork(db, "/step:charge#1", "retried")
    assert (first[:2], first[2], again[2]) == (again[:2], True, False)
    for before, taken in (("/child:ship#1", "retried"), ("/step:charge#1", "order-2")):
        with pytest.raises(psycopg.Error, match="the id is taken by a run that is not this fork") as refused:
            fork(db, before, taken)
        assert refused.value.sqlstate == "WS001"
    assert fork(db, 3)[1] == "order-1~fork1"
    assert fork(db, 3)[1] == "order-1~fork2"


def test_a_fork_copies_no_signals_that_nobody_received(db: Conn, hand: Hand) -> None:
    start(db)
    held = hand.take()
    signal(db)
    hand.say(held.item("keep", entry("reserve", 1)))

    n, _, _ = fork(db, "3")

    assert value(db, "select count(*) from pgwf_sdk.inbox where n = %s", n) == 0


@pytest.mark.usefixtures("patient")
def test_a_source_is_recorded_and_ended_while_it_is_forked_in_both_orders(
    db: Conn, hand: Hand, two_sessions: Sessions
) -> None:
    held = worked(db, hand)
    one, two = two_sessions
    one.run("begin")
    one.run("select run_id from pgwf_sdk.fork_run('order-1', '7', 'first', 'ann')")

    keep = advance(hand, held.item("keep", entry("mail", 6)))
    assert keep.answer(two.run(keep.statement, keep.parameters)) == ["ok"]
    one.run("commit")
    held.head += 1
    one.run("begin")
    one.run("select run_id from pgwf_sdk.fork_run('order-1', '7', 'second', 'ann')")
    end = advance(hand, held.end())
    assert end.answer(two.run(end.statement, end.parameters)) == ["ok"]
    one.run("commit")

    assert status(db) == "completed"
    assert (
        journal(db, "first")[1:]
        == journal(db, "second")[1:]
        == [
            (2, "/step:reserve#1", "completed"),
            (3, "/child:ship#1", "opened"),
            (4, "/child:ship#1", "completed"),
        ]
    )


@pytest.mark.usefixtures("patient")
def test_of_two_equal_forks_at_once_the_second_finds_the_first(db: Conn, hand: Hand, two_sessions: Sessions) -> None:
    worked(db, hand)
    same = Call("select created from pgwf_sdk.fork_run('order-1', '7', 'retried', 'ann')")

    assert race(two_sessions, same, same) == ([True], [False])

    assert value(db, "select count(*) from pgwf_sdk.run where run_id = 'retried'") == 1


@pytest.mark.usefixtures("patient")
def test_a_source_cannot_be_removed_while_it_is_forked(db: Conn, hand: Hand, two_sessions: Sessions) -> None:
    worked(db, hand)
    one, two = two_sessions
    one.run("begin")
    one.run("select run_id from pgwf_sdk.fork_run('order-1', '7', 'copy', 'ann')")

    removing = two.start_blocked("delete from pgwf_sdk.run where run_id = 'order-1'")
    one.run("commit")
    removing.result()

    assert len(journal(db, "copy")) == 4
    with pytest.raises(psycopg.Error, match="no run 'order-1'"):
        fork(db, 2)


def block(db: Conn, hand: Hand, run_id: str, workflow: str = "checkout") -> None:
    start(db, run_id, workflow=workflow)
    hand.say(hand.take().item("block", note='{"text": "it differs"}'))


def test_resume_runs_takes_blocked_runs_of_a_workflow_page_by_page_the_newest_first(db: Conn, hand: Hand) -> None:
    for number in range(5):
        block(db, hand, f"order-{number}")
    block(db, hand, "refund-1", workflow="refund")
    start(db, "paused-1")
    db.execute("select pgwf_sdk.pause_run('paused-1', 'ann')")

    page = rows(db, "select n, run_id from pgwf_sdk.resume_runs('checkout', 'ann', null, 3)")
    rest = rows(db, "select n, run_id from pgwf_sdk.resume_runs('checkout', 'ann', %s, 3)", page[0][0])

    assert [run_id for _, run_id in page + rest] == ["order-2", "order-3", "order-4", "order-0", "order-1"]
    assert {status(db, f"order-{number}") for number in range(5)} == {"ready"}
    assert (status(db, "refund-1"), status(db, "paused-1")) == ("blocked", "paused")
    assert rows(db, "select run_id from pgwf_sdk.resume_runs(null, 'ann')") == [("refund-1",)]
    assert value(db, "select count(*) from pgwf_sdk.blocked") == 0


def test_retry_runs_takes_failed_runs_that_were_not_retried(db: Conn, hand: Hand) -> None:
    failed(db, hand, entry("charge"), payload=error("no funds"))
    start(db, "order-2")
    hand.say(hand.take().end("fail", error("no funds")))
    start(db, "order-3")
    hand.say(hand.take().end())
    db.execute("select pgwf_sdk.retry_run('order-2', 'ann')")

    assert rows(db, "select run_id, next_run_id from pgwf_sdk.retry_runs('checkout', 'ann')") == [
        ("order-1", "order-1~2")
    ]
    assert rows(db, "select run_id from pgwf_sdk.retry_runs('checkout', 'ann')") == []


@pytest.mark.usefixtures("patient")
@pytest.mark.parametrize("is_first", [True, False])
def test_a_run_resumed_by_two_at_once_is_resumed_once(
    db: Conn, hand: Hand, two_sessions: Sessions, is_first: bool
) -> None:
    block(db, hand, "order-1")
    many = Call("select run_id from pgwf_sdk.resume_runs('checkout', 'ann')")
    one = act("resume_run", "order-1", "bob")
    first, second = (many, one) if is_first else (one, many)

    answers = race(two_sessions, first, second)

    assert answers == ((["order-1"], ["ready"]) if is_first else (["resumed"], ["order-1"]))
    assert status(db) == "ready"
    assert hand.take().run_id == "order-1"
