"""Commands on runs that go on as others, and on runs that are told to stop."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.sdk.sql.hand import Hand, begin, start, value
from tests.sdk.sql.test_chains import continuing
from tests.sdk.test_cli_commands import SHOP, Pgwf, pgwf

if TYPE_CHECKING:
    import psycopg

    Conn = psycopg.Connection[Any]

__all__ = ["pgwf"]


def test_a_retry_of_a_chain_that_has_completed_says_so_and_starts_nothing(pgwf: Pgwf, db: Conn) -> None:
    hand = Hand(db, "w", ["python"])
    start(db, "order-1")
    hand.say(continuing(hand.take()))
    live = pgwf("retry", "order-1")
    hand.say(hand.take().end())

    over = pgwf("retry", "order-1")
    itself = pgwf("retry", "order-1~2")

    assert (live.code, live.out) == (0, "order-1~2\n")
    assert (over.code, over.out) == (5, "")
    assert "run order-1 went on as order-1~2, which is completed: there is nothing to retry" in over.err
    assert (itself.code, itself.out) == (5, "")
    assert "it is completed, expected failed, cancelled or terminated" in itself.err
    assert value(db, "select count(*) from pgwf_sdk.runs") == 2


def test_a_cancel_may_say_how_long_the_cleanup_may_take(pgwf: Pgwf, db: Conn) -> None:
    begin(db)

    wrong = pgwf("cancel", "order-1", "--grace", "soon")
    said = pgwf("cancel", "order-1", "--grace", "90s", "--reason", "enough")
    again = pgwf("cancel", "order-1")

    assert wrong.code == 2
    assert "--grace" in wrong.err
    assert "expected a duration such as 90s" in wrong.err
    assert (said.code, again.code) == (0, 0)
    assert "run order-1: asked to stop" in said.err
    assert "was asked to stop before" in again.err
    payload = value(db, "select convert_from(payload, 'UTF8')::jsonb from pgwf_sdk.inbox")
    assert (payload["reason"], payload["grace_seconds"]) == ("enough", 90)


def test_a_cancel_says_that_it_ended_a_run_which_had_not_begun(pgwf: Pgwf, db: Conn) -> None:
    start(db, "order-1")

    said, again = pgwf("cancel", "order-1"), pgwf("cancel", "order-1")

    assert (said.code, said.err) == (0, "run order-1: cancelled before it began\n")
    assert (again.code, again.err) == (0, "run order-1: was over already: cancelled\n")


def test_show_prints_the_attributes_of_a_run(pgwf: Pgwf, db: Conn) -> None:
    start(db, "order-1", attributes={"customer": "ann", "total": 17})
    start(db, "order-2")

    assert "attributes: customer=ann, total=17\n" in pgwf("show", "order-1").out
    assert "attributes" not in pgwf("show", "order-2").out


@pytest.mark.parametrize("input_", ['["x"]', '{"number": ["x"]}'])
def test_an_argument_that_does_not_fit_is_named_and_nobody_is_told_to_deploy(pgwf: Pgwf, db: Conn, input_: str) -> None:
    said = pgwf("start", f"{SHOP}:doubling", "-i", input_)

    assert said.code == 6
    assert "workflow 'doubling': argument number: " in said.err
    assert " is no int: Expected `int`, got `" in said.err
    assert "deploy" not in said.err
    assert value(db, "select count(*) from pgwf_sdk.runs") == 0


@pytest.mark.parametrize("command", ["cancel", "terminate"])
def test_a_run_that_is_over_is_stopped_already(pgwf: Pgwf, db: Conn, command: str) -> None:
    hand = Hand(db, "w", ["python"])
    start(db, "order-1")
    hand.say(hand.take().end())

    said = pgwf(command, "order-1")

    assert (said.code, said.err) == (0, "run order-1: was over already: completed\n")


@pytest.mark.parametrize("status", ["blocked", "paused"])
def test_a_wait_for_a_run_that_is_stuck_says_so_before_it_waits(pgwf: Pgwf, db: Conn, status: str) -> None:
    start(db, "order-1")
    if status == "paused":
        pgwf("pause", "order-1")
    else:
        hand = Hand(db, "w", ["python"])
        hand.say(hand.take().item("block", note='{"text": "it made another call"}'))

    said = pgwf("result", "order-1", "--wait", "--timeout", "1s")

    first, last = said.err.splitlines()
    assert said.code == 7
    assert first.startswith(f"run order-1 is {status}: it ")
    assert first.endswith("; waiting all the same")
    assert last.startswith(f"pgwf: run order-1 is {status} after 1.0 s, expected it to be over; ")


def test_show_names_the_runs_before_and_after_it_in_its_chain(pgwf: Pgwf, db: Conn) -> None:
    hand = Hand(db, "w", ["python"])
    start(db, "order-1")
    hand.say(continuing(hand.take()))
    hand.say(hand.take().end("fail"))
    db.execute("select pgwf_sdk.retry_run('order-1~2', 'ann')")
    db.execute("select pgwf_sdk.terminate_run('order-1~3', 'ann')")
    db.execute("select pgwf_sdk.retry_run('order-1~3', 'ann')")

    def headline(run_id: str) -> str:
        return pgwf("show", run_id).out.splitlines()[0]

    assert "; goes on as order-1~2; 2 entries" in headline("order-1")
    assert "; continues order-1; retried as order-1~3; " in headline("order-1~2")
    assert "; retry of order-1~2; retried as order-1~4; " in headline("order-1~3")
    assert headline("order-1~4").endswith("; retry of order-1~3; 1 entry")
    start(db, "order-2")
    assert headline("order-2").endswith("; need python; 1 entry")
