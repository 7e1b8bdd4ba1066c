"""Runs with a singleton key: what is leased of a key at a time, who inherits it, and calls that move several keys."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from pgwf_journal import Kind, Phase
from tests.sdk.sql.hand import ADVANCE, Hand, child, entry, rows, start, status, value
from tests.sdk.sql.test_chains import continuing

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.support import Session

Conn = psycopg.Connection[Any]


def keys(db: Conn) -> list[tuple[str, str | None]]:
    return rows(db, "select run_id, singleton_key from pgwf_sdk.runs order by n")


def limit(db: Conn, key: str, max_active: int | None = None) -> None:
    value(db, "select pgwf.limit_key(%s, 'op', %s::int)", key, max_active)


def test_one_run_of_a_key_is_leased_at_a_time_and_a_parked_one_lets_the_next_pass(db: Conn, hand: Hand) -> None:
    for run_id in "abc":
        start(db, run_id, singleton_key="K")
    start(db, "free")

    claimed = {held.run_id: held for held in hand.claim(9)}
    assert sorted(claimed) == ["a", "free"]
    hand.say(claimed["a"].item("keep", entry()))
    assert hand.claim(9) == []
    hand.say(claimed["a"].item("park"))

    second = hand.take()
    assert second.run_id == "b"
    value(db, "select pgwf_sdk.signal_run('a', 'go', '1', 1)")
    assert hand.claim(9) == []
    hand.say(second.end())
    # Who came back queues behind those that waited, and both look for the key.
    third = hand.take()
    assert hand.claim(9) == []
    hand.say(third.end())
    assert {third.run_id, hand.take().run_id} == {"a", "c"}


def test_as_many_runs_of_a_key_are_leased_as_its_limit_says(db: Conn, hand: Hand) -> None:
    for run_id in "abcde":
        start(db, run_id, singleton_key="K")
    limit(db, "K", 3)

    held = hand.claim(9)

    assert [one.run_id for one in held] == ["a", "b", "c"]
    assert [one.run_id for one in hand.call(held[0].item("park"), held[1].end(), slots=9)[1]] == ["d", "e"]


def test_the_key_goes_on_to_successors_retries_and_forks_and_not_to_children(db: Conn, hand: Hand) -> None:
    start(db, "a", singleton_key="K")
    held = hand.take()
    opened = entry("ship", kind=Kind.CHILD, phase=Phase.OPENED, payload=None)
    assert hand.say(held.item("keep", opened, children=[child("part")])) == ["ok"]
    assert hand.say(continuing(held)) == ["ok"]
    again = {one.run_id: one for one in hand.claim(9)}["a~2"]
    assert hand.say(again.end("fail", b'{"type":"E","message":"no"}')) == ["ok"]

    value(db, "select run_id from pgwf_sdk.retry_run('a~2', 'ann')")
    value(db, "select run_id from pgwf_sdk.fork_run('a~2', '2')")

    assert keys(db) == [("a", "K"), ("part", None), ("a~2", "K"), ("a~3", "K"), ("a~2~fork1", "K")]
    assert [one.run_id for one in hand.claim(9)] == ["a~3"]


def test_a_known_run_keeps_the_key_it_was_started_with(db: Conn) -> None:
    start(db, "a", singleton_key="K")

    assert start(db, "a", singleton_key="L")[2] is False

    assert keys(db) == [("a", "K")]


def test_sql_starts_runs_with_a_key(db: Conn) -> None:
    value(db, "select pgwf_sdk.start('checkout', '[1]', 'a', p_singleton_key => 'K')")
    value(db, "select pgwf_sdk.signal_with_start('checkout', 'b', 'go', p_singleton_key => 'K')")

    assert keys(db) == [("a", "K"), ("b", "K")]


@pytest.mark.parametrize("key", ["", "x" * 513, "é" * 257, "a\nb", "\x7f"])
def test_a_key_that_is_none_is_refused(db: Conn, key: str) -> None:
    with pytest.raises(psycopg.Error, match="expected 1 to 512 bytes without control characters") as error:
        start(db, "a", singleton_key=key)

    assert error.value.sqlstate == "WS004"
    assert keys(db) == []
    start(db, "a", singleton_key="x" * 512)


def test_a_run_that_is_paused_terminated_or_cancelled_in_the_core_gives_its_place_up(db: Conn, hand: Hand) -> None:
    for run_id in "abcd":
        start(db, run_id, singleton_key="K")
    assert [one.run_id for one in hand.claim(9)] == ["a"]

    value(db, "select pgwf_sdk.terminate_run('a', 'ann')")
    value(db, "select pgwf_sdk.pause_run('b', 'ann')")
    third = hand.take()
    assert third.run_id == "c"
    value(db, "select pgwf.cancel_job('c', 'ann')")
    assert hand.say(third.item("park")) == ["ok"]

    assert status(db, "c") == "terminated"
    assert hand.take().run_id == "d"


def test_a_run_whose_key_somebody_holds_is_left_out_in_busy_mode_and_keeps_nobody_waiting(
    db: Conn, hand: Hand, session: Callable[[], Session]
) -> None:
    start(db, "a", singleton_key="K")
    start(db, "b", singleton_key="L")
    first, second = hand.claim(9)
    holder = session()
    holder.run("begin")
    holder.run("select pgwf.limit_key('K', 'op', 2)")

    with pytest.raises(psycopg.errors.LockNotAvailable):
        hand.call(first.item("park"), second.end())
    answered, _ = hand.call(first.item("park"), second.end(), busy_ok=True)
    assert [answer.status for answer in answered] == ["busy", "ok"]
    holder.run("commit")

    assert hand.say(first.item("park")) == ["ok"]
    assert (status(db, "a"), status(db, "b")) == ("waiting", "completed")


def test_a_change_of_the_limit_waits_for_a_call_that_gives_the_key_up(
    db: Conn, hand: Hand, session: Callable[[], Session]
) -> None:
    for run_id in "abcd":
        start(db, run_id, singleton_key="K")
    held = hand.take()
    assert hand.claim(9) == []
    ending, limiting = session(), session()
    ending.run("begin")
    ending.run(ADVANCE, hand.parameters(held.end()))

    changed = limiting.start_blocked("select pgwf.limit_key('K', 'op', 2)")
    ending.run("commit")
    changed.result(timeout=20)

    assert [one.run_id for one in hand.claim(9)] == ["b", "c"]


def test_end_overdue_leaves_a_run_whose_key_somebody_holds_for_the_next_time(
    db: Conn, hand: Hand, session: Callable[[], Session]
) -> None:
    start(db, "a", singleton_key="K")
    start(db, "b", singleton_key="L")
    for held in hand.claim(9):
        hand.say(held.item("keep", entry("ann", 0, kind=Kind.CANCEL, payload=b'{"grace_seconds": 0}')))
    holder = session()
    holder.run("begin")
    holder.run("select pgwf.limit_key('K', 'op', 2)")

    assert value(db, "select pgwf_sdk.end_overdue('w')") == 1
    assert (status(db, "a"), status(db, "b")) == ("running", "terminated")
    holder.run("commit")

    assert value(db, "select pgwf_sdk.end_overdue('w')") == 1
