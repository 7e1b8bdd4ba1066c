"""pgwf_sdk.start_run, start, run_result and result."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any, LiteralString

import psycopg
import pytest

from pgwf_journal import Kind, Phase
from pgwf_sql import query
from tests.sdk.sql.hand import INPUT, Hand, entry, journal, rows, signal, start, status, value

if TYPE_CHECKING:
    from tests.support import Clock, Connect, Session

Conn = psycopg.Connection[Any]


def test_start_run_makes_a_job_a_journal_and_a_run_with_one_number(db: Conn) -> None:
    n, run_id, created = start(db, trace="00-1-2-01", started_by="shop")

    assert (run_id, created) == ("order-1", True)
    assert journal(db) == [(1, "/run:checkout#1", "opened")]
    assert rows(
        db,
        "select n, workflow, need, status, root_run_id, parent_run_id, priority, trace, started_by from pgwf_sdk.runs",
    ) == [(n, "checkout", "python", "ready", "order-1", None, 3, "00-1-2-01", "shop")]
    assert value(db, "select payload from pgwf_journal.entry where n = %s", n) == INPUT


def test_start_run_of_a_known_run_changes_nothing_and_answers_with_it(db: Conn, hand: Hand) -> None:
    n, _, _ = start(db)

    assert start(db) == (n, "order-1", False)
    hand.say(hand.take().end())
    assert start(db) == (n, "order-1", False)
    assert value(db, "select count(*) from pgwf_sdk.run") == 1
    assert status(db) == "completed"


@pytest.mark.parametrize("other", [{"workflow": "refund"}, {"input_": b'{"args":[1],"kwargs":{}}'}])
def test_start_run_refuses_an_id_with_another_workflow_or_input(db: Conn, other: dict[str, Any]) -> None:
    start(db)

    with pytest.raises(psycopg.Error, match="order-1: the id is taken by a run of workflow 'checkout'") as error:
        start(db, **other)

    assert error.value.sqlstate == "WS001"


def test_start_run_refuses_the_id_of_a_job_that_is_no_run(db: Conn) -> None:
    db.execute("select pgwf.submit_job('order-1', 'somebody', 'python')")

    with pytest.raises(psycopg.Error, match="a job that is no run") as error:
        start(db)

    assert error.value.sqlstate == "WS001"


def test_start_run_refuses_the_id_of_a_journal_that_is_no_run(db: Conn) -> None:
    db.execute("select pgwf_journal.open('order-1')")

    with pytest.raises(psycopg.Error, match="a journal that is no run") as error:
        start(db)

    assert error.value.sqlstate == "WS001"
    assert value(db, "select count(*) from pgwf.name") == 0


def test_start_run_refuses_malformed_arguments_and_leaves_nothing(db: Conn) -> None:
    wrong: list[dict[str, Any]] = [
        {"run_id": ""},
        {"run_id": "x" * 513},
        {"run_id": "x" * 1_000_000},
        {"run_id": "a\nb"},
        {"workflow": ""},
        {"workflow": None},
        {"workflow": "x" * 1_000_000},
        {"need": None},
        {"need": "x" * 1_000_000},
        {"priority": 0},
        {"priority": 5},
        {"priority": 70_000},
        {"priority": None},
        {"input_": None},
    ]

    for arguments in wrong:
        with pytest.raises(psycopg.Error) as error:
            start(db, **arguments)
        assert error.value.sqlstate == "WS004", error.value
        assert len(str(error.value)) < 1_000

    for table in ("pgwf.name", "pgwf.job", "pgwf_sdk.run", "pgwf_journal.entry", "pgwf_journal.journal"):
        assert value(db, f"select count(*) from {table}") == 0


def test_start_run_refuses_a_null_id(db: Conn) -> None:
    with pytest.raises(psycopg.Error, match="run NULL") as error:
        db.execute("select pgwf_sdk.start_run(null, 'checkout', 'python', '{}', 1)")

    assert error.value.sqlstate == "WS004"


def test_start_run_with_a_nul_character_never_reaches_the_tables(db: Conn) -> None:
    for argument in ("run_id", "workflow", "need"):
        wrong: Any = {argument: "a\x00b"}
        with pytest.raises(psycopg.DataError):
            start(db, **wrong)

    assert value(db, "select count(*) from pgwf_sdk.run") == 0


def test_start_run_refuses_an_encoding_it_does_not_know(db: Conn) -> None:
    for encoding in (None, 0, 4, 100_000):
        with pytest.raises(psycopg.Error, match="encoding") as error:
            db.execute("select pgwf_sdk.start_run('order-1', 'checkout', 'python', '{}', %s::int)", [encoding])
        assert error.value.sqlstate == "WS004"


def test_start_run_in_a_transaction_that_rolls_back_leaves_nothing(db: Conn) -> None:
    with db.transaction(force_rollback=True):
        start(db)

    for table in ("pgwf.name", "pgwf.job", "pgwf.ready", "pgwf_sdk.run", "pgwf_journal.entry", "pgwf_journal.journal"):
        assert value(db, f"select count(*) from {table}") == 0
    assert start(db)[2]


def test_start_run_twice_at_once_makes_one_run(db: Conn, connect: Connect, session: Any) -> None:
    first: Session = session()
    second: Session = session()
    statement = "select created from pgwf_sdk.start_run('order-1', 'checkout', 'python', '{}', 1)"
    first.run("begin")
    assert first.run(statement) == [(True,)]

    waiting = second.start_blocked(statement)
    first.run("commit")

    assert waiting.result() == [(False,)]


def test_start_run_with_start_at_waits_until_then(db: Conn, clock: Clock, hand: Hand) -> None:
    start(db, start_at=clock.START + timedelta(hours=1))

    assert status(db) == "waiting"
    assert hand.claim(1) == []

    clock.advance(hours=1)
    db.execute("select pgwf.sweep('sweeper')")

    assert hand.take().run_id == "order-1"


def test_a_signal_waits_with_the_run_that_is_held_back(db: Conn, clock: Clock, hand: Hand) -> None:
    start(db, start_at=clock.START + timedelta(hours=1))

    for payload in (b"1", b"2"):
        signal(db, payload=payload)
        assert (status(db), hand.claim(1)) == ("waiting", [])

    clock.advance(hours=1)
    db.execute("select pgwf.sweep('sweeper')")
    assert [row.payload for row in hand.take().claim.inbox] == [b"1", b"2"]


STEERED = {
    "pause": "select pgwf_sdk.pause_run('order-1', 'ann')",
    "resume": "select pgwf_sdk.resume_run('order-1', 'ann')",
    "signal": "select pgwf_sdk.signal('order-1', 'paid')",
    "priority": "select pgwf.set_priority('order-1', 'ann', 1)",
    "start again": "select pgwf_sdk.start('checkout', '[17]', 'order-1', 'python')",
}


@pytest.mark.parametrize(
    "steps",
    [
        ["pause", "resume"],
        ["pause", "pause", "signal", "priority", "resume", "resume", "signal"],
        ["pause", "resume", "pause", "resume", "start again"],
        ["priority"],
        ["start again"],
    ],
    ids=lambda steps: " ".join(steps),
)
def test_a_run_that_is_steered_before_its_start_at_begins_then(
    db: Conn, clock: Clock, hand: Hand, steps: list[LiteralString]
) -> None:
    start_at = clock.START + timedelta(hours=1)
    value(db, "select pgwf_sdk.start('checkout', '[17]', 'order-1', 'python', p_start_at => %s)", start_at)

    for step in steps:
        db.execute(STEERED[step])

    assert rows(db, "select status, available_at from pgwf_sdk.runs") == [("waiting", start_at)]
    assert hand.claim(1) == []
    clock.advance(hours=1)
    db.execute("select pgwf.sweep('sweeper')")
    assert hand.take().run_id == "order-1"


def test_a_run_that_is_resumed_after_its_start_at_begins_at_once(db: Conn, clock: Clock, hand: Hand) -> None:
    start(db, start_at=clock.START + timedelta(hours=1))
    db.execute("select pgwf_sdk.pause_run('order-1', 'ann')")
    clock.advance(hours=1)
    db.execute("select pgwf.sweep('sweeper')")
    assert hand.claim(1) == []

    db.execute("select pgwf_sdk.resume_run('order-1', 'ann')")

    assert hand.take().run_id == "order-1"


def test_a_run_that_has_begun_goes_on_at_once_when_it_is_resumed_whatever_it_waits_for(
    db: Conn, clock: Clock, hand: Hand
) -> None:
    start(db, start_at=clock.START + timedelta(hours=1))
    db.execute("select pgwf_sdk.pause_run('order-1', 'ann'), pgwf_sdk.resume_run('order-1', 'ann')")
    clock.advance(hours=1)
    db.execute("select pgwf.sweep('sweeper')")
    hand.say(
        hand.take().item("park", entry(kind=Kind.TIMER, phase=Phase.OPENED), until=clock.now() + timedelta(days=1))
    )

    db.execute("select pgwf_sdk.pause_run('order-1', 'ann')")
    db.execute("select pgwf_sdk.resume_run('order-1', 'ann')")

    assert hand.take().run_id == "order-1"


@pytest.mark.parametrize("steer", ["cancel_run('order-1', 'ann')", "terminate_run('order-1', 'ann')"])
def test_a_run_paused_before_its_start_at_can_be_ended(
    db: Conn, clock: Clock, hand: Hand, steer: LiteralString
) -> None:
    start(db, start_at=clock.START + timedelta(hours=1))
    db.execute("select pgwf_sdk.pause_run('order-1', 'ann')")

    assert value(db, "select pgwf_sdk." + steer) in {"cancelled", "terminated"}
    clock.advance(hours=1)
    db.execute("select pgwf.sweep('sweeper')")
    assert hand.claim(1) == []


def test_start_run_hands_deadline_build_trace_and_seed_to_whoever_claims(db: Conn, clock: Clock, hand: Hand) -> None:
    deadline = clock.START + timedelta(days=1)
    db.execute(
        """
        select pgwf_sdk.start_run(
          'order-1', 'checkout', 'python', '{}', 1, p_deadline => %s, p_build => 'b7', p_trace => 't')
        """,
        [deadline],
    )

    claim = hand.take().claim

    assert (claim.deadline, claim.build, claim.trace, claim.workflow, claim.need) == (
        deadline,
        "b7",
        "t",
        "checkout",
        "python",
    )
    assert claim.seed == value(db, "select seed from pgwf_sdk.run")
    assert [(one.seq, one.key, one.payload) for one in claim.history] == [(1, "/run:checkout#1", b"{}")]


def test_start_run_makes_the_urgent_run_the_first_claimed(db: Conn, hand: Hand) -> None:
    start(db, "order-1", priority=4)
    start(db, "order-2", priority=1)

    assert [held.run_id for held in hand.claim(2)] == ["order-2", "order-1"]


@pytest.mark.parametrize(
    ("arguments", "recorded"),
    [
        ("[1, 2]", '{"args": [1, 2], "kwargs": {}}'),
        ('{"order": 7}', '{"args": [], "kwargs": {"order": 7}}'),
    ],
)
def test_start_records_a_json_array_or_object_as_the_sdk_does(db: Conn, arguments: str, recorded: str) -> None:
    run_id = value(db, "select pgwf_sdk.start('checkout', %s::jsonb)", arguments)

    assert rows(db, "select payload, encoding from pgwf_journal.entries where journal_id = %s", run_id) == [
        (recorded, 1)
    ]
    assert rows(db, "select workflow, need from pgwf_sdk.runs where run_id = %s", run_id) == [("checkout", "checkout")]


@pytest.mark.parametrize("arguments", ["3", "null", None])
def test_start_refuses_arguments_that_are_neither_array_nor_object(db: Conn, arguments: str | None) -> None:
    with pytest.raises(psycopg.Error, match="expected a JSON array or object") as error:
        db.execute("select pgwf_sdk.start('checkout', %s::jsonb)", [arguments])

    assert error.value.sqlstate == "WS004"


def test_result_tells_the_status_of_a_run_that_goes_on_and_the_value_or_error_of_one_that_is_over(
    db: Conn, hand: Hand
) -> None:
    for run_id in ("order-1", "order-2", "order-3"):
        start(db, run_id)
    assert value(db, "select pgwf_sdk.result('order-1')") == {"status": "ready"}
    first, second, third = hand.claim(3)
    hand.say(
        first.end("complete", b'{"paid": true}'), second.end("fail", b'{"type": "m:E"}'), third.end("cancel", None)
    )

    assert [value(db, "select pgwf_sdk.result(%s)", f"order-{i}") for i in (1, 2, 3)] == [
        {"status": "completed", "value": {"paid": True}},
        {"status": "failed", "error": {"type": "m:E"}},
        {"status": "cancelled"},
    ]


def test_run_result_gives_the_bytes_of_the_last_entry_once_the_run_is_over(db: Conn, clock: Clock, hand: Hand) -> None:
    n, _, _ = start(db)
    statement = query("sdk_run_result").encode()
    assert db.execute(statement, {"run_id": "order-1"}).fetchall() == [(n, "order-1", "ready", None, 0, None, n)]
    hand.say(hand.take().end("complete", b"42"))

    assert db.execute(statement, {"run_id": "order-1"}).fetchall() == [
        (n, "order-1", "completed", b"42", 1, clock.START, n)
    ]


def test_run_result_of_an_unknown_run_says_so(db: Conn) -> None:
    with pytest.raises(psycopg.Error, match="no run 'order-1'") as error:
        db.execute("select pgwf_sdk.run_result('order-1')")

    assert error.value.sqlstate == "WS002"
