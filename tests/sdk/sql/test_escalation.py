"""Human tasks that are due go to another need: by a sweep, or by who gives them back; never from under their holder."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any, LiteralString

import psycopg
import pytest

import pgwf_sql
from pgwf_journal import Kind, Phase
from tests.sdk.sql.hand import Hand, Held, entry, inbox, rows, start, status, task, value
from tests.sdk.sql.race import act, advance, race

if TYPE_CHECKING:
    from tests.support import Clock, Connect, Session

    Sessions = tuple[Session, Session]

Conn = psycopg.Connection[Any]

TASK = "order-1/human:review#1"
SWEEP = act("escalate_tasks", "sweeper")
CLAIM = act("claim_task", TASK, "ann", 600)
DECIDE = act("decide_task", TASK, "ann", b"true", 1)

patient = pytest.mark.usefixtures("patient")


def opened(db: Conn, hand: Hand, run_id: str = "order-1", **options: Any) -> Held:
    """A run that waits for a decision, due in an hour and then for `human.lead`."""
    start(db, run_id)
    held = hand.take()
    asked = entry("review", 1, kind=Kind.HUMAN, phase=Phase.OPENED, payload=None)
    question = task(f"{run_id}/human:review#1", **{"due_seconds": 3600.0, "escalate": "human.lead", **options})
    assert hand.say(held.item("park", asked, tasks=[question])) == ["ok"]
    return held


@pytest.fixture
def due(db: Conn, hand: Hand, clock: Clock) -> Held:
    """The same, an hour later."""
    held = opened(db, hand)
    clock.advance(hours=1)
    return held


def sweep(db: Conn, limit: int | None = 500) -> int:
    return int(value(db, "select pgwf_sdk.escalate_tasks('sweeper', %s)", limit))


def call(db: Conn, function: LiteralString, *arguments: Any) -> Any:
    marks: LiteralString = ", ".join(["%s"] * len(arguments))
    return value(db, f"select pgwf_sdk.{function}({marks})", *arguments)


def needs(db: Conn) -> list[tuple[Any, ...]]:
    """First need, need, whether it was handed on; and what the seat's job needs."""
    return rows(
        db,
        """
        select t.first_need, t.need, t.escalated_at is not null, j.next_need
        from pgwf_sdk.tasks t left join pgwf.jobs j on j.job_id = t.task_id
        order by t.task_id
        """,
    )


FIRST = ("human.review", "human.review", False, "human.review")
HANDED_ON = ("human.review", "human.lead", True, "human.lead")


def traced(db: Conn) -> list[tuple[Any, ...]]:
    """What the trace says of the seat's job: event, who, and the needs before and after."""
    return rows(
        db,
        """
        select event_type, worker_id, output_data -> 'previous' ->> 'next_need', output_data ->> 'next_need'
        from pgwf.jobs_trace where job_id = %s and event_type = 'reschedule_job' order by event_at, trace_id
        """,
        TASK,
    )


def test_a_task_that_is_due_goes_to_its_second_need_and_the_trace_says_who_did_it(
    db: Conn, clock: Clock, hand: Hand
) -> None:
    held = opened(db, hand)
    clock.advance(timedelta(hours=1) - timedelta(seconds=1))
    assert (sweep(db), needs(db)) == (0, [FIRST])
    assert call(db, "next_overdue") == clock.START + timedelta(hours=1)

    clock.advance(seconds=1)
    assert (sweep(db), sweep(db)) == (1, 0)

    assert needs(db) == [HANDED_ON]
    assert rows(db, "select escalated_at, due_at, state from pgwf_sdk.tasks") == [(clock.now(), clock.now(), "open")]
    assert traced(db) == [("reschedule_job", "sweeper", "human.review", "human.lead")]
    assert call(db, "next_overdue") is None
    assert status(db) == "waiting"
    assert value(db, "select count(*) from pgwf_journal.entry where n = %s", held.n) == 2


def test_a_task_without_a_second_need_is_only_overdue(db: Conn, clock: Clock, hand: Hand) -> None:
    opened(db, hand, escalate=None)
    clock.advance(hours=2)

    assert (sweep(db), call(db, "next_overdue")) == (0, None)
    assert needs(db) == [FIRST]


@pytest.mark.own_session
def test_who_sleeps_on_the_second_need_is_woken(db: Conn, due: Held, connect: Connect) -> None:
    listening = connect()
    listening.execute('listen "pgwf.need.human.lead"; listen "pgwf.need.human.review"')
    db.execute("select pgwf.sleep_on('lead', '{need.human.lead}'), pgwf.sleep_on('risk', '{need.human.review}')")

    assert sweep(db) == 1

    listening.execute("select")
    assert [word.channel for word in listening.notifies(timeout=0)] == ["pgwf.need.human.lead"]


def test_a_task_that_somebody_holds_is_handed_on_when_it_is_given_back(db: Conn, clock: Clock, hand: Hand) -> None:
    opened(db, hand)
    call(db, "claim_task", TASK, "ann", 7200)
    clock.advance(minutes=90)
    assert (sweep(db), needs(db)) == (0, [FIRST])
    assert call(db, "next_overdue") == clock.START + timedelta(hours=2)

    call(db, "release_task", TASK, "ann")

    assert needs(db) == [HANDED_ON]
    assert traced(db) == [("reschedule_job", "human:ann", "human.review", "human.lead")]
    assert rows(db, "select state, holder, escalated_at from pgwf_sdk.tasks") == [("open", None, clock.now())]
    call(db, "claim_task", TASK, "bob", 60)


def test_a_task_that_is_given_back_before_it_is_due_is_handed_on_when_it_is(db: Conn, clock: Clock, hand: Hand) -> None:
    opened(db, hand)
    call(db, "claim_task", TASK, "ann", 7200)

    call(db, "release_task", TASK, "ann")

    assert (needs(db), call(db, "next_overdue")) == ([FIRST], clock.START + timedelta(hours=1))
    clock.advance(hours=1)
    assert (sweep(db), needs(db)) == (1, [HANDED_ON])


@pytest.mark.parametrize("swept", [False, True], ids=["by the sweep of tasks", "after the sweep of leases"])
def test_a_task_whose_claim_has_run_out_is_handed_on(db: Conn, clock: Clock, hand: Hand, swept: bool) -> None:
    opened(db, hand)
    call(db, "claim_task", TASK, "ann", 5400)
    clock.advance(minutes=90)
    if swept:
        db.execute("select pgwf.sweep('sweeper')")

    assert (sweep(db), needs(db)) == (1, [HANDED_ON])

    assert rows(db, "select state, holder from pgwf_sdk.tasks") == [("open", None)]
    assert value(db, "select lease_expiration_count from pgwf.jobs where job_id = %s", TASK) == 0
    call(db, "claim_task", TASK, "bob", 60)


def test_the_holder_keeps_a_task_that_is_due_for_as_long_as_he_prolongs_his_claim(
    db: Conn, clock: Clock, hand: Hand
) -> None:
    opened(db, hand)
    call(db, "claim_task", TASK, "ann", 5400)
    clock.advance(minutes=80)
    call(db, "claim_task", TASK, "ann", 5400)
    clock.advance(minutes=80)
    assert sweep(db) == 0

    call(db, "decide_task", TASK, "ann", b"true", 1)

    assert (sweep(db), call(db, "next_overdue")) == (0, None)
    assert rows(db, "select state, decided_by, escalated_at from pgwf_sdk.tasks") == [("decided", "ann", None)]


def test_a_task_that_is_handed_on_is_nobodys_in_particular_but_excludes_whom_it_did(
    db: Conn, clock: Clock, hand: Hand
) -> None:
    opened(db, hand, assigned="ann", excluded=["eve"])
    clock.advance(hours=1)
    sweep(db)

    with pytest.raises(psycopg.Error, match="eve is excluded from it"):
        call(db, "claim_task", TASK, "eve", 60)
    call(db, "decide_task", TASK, "bob", b"true", 1)

    assert rows(db, "select assigned, decided_by from pgwf_sdk.tasks") == [(None, "bob")]
    assert len(inbox(db)) == 1


def test_a_sweep_is_bounded_and_takes_what_was_due_first(db: Conn, clock: Clock, hand: Hand) -> None:
    for number in range(1, 6):
        opened(db, hand, f"order-{number}", due_seconds=60.0 * number, escalate=f"human.lead-{number % 2}")
    clock.advance(hours=1)

    assert [sweep(db, limit) for limit in (0, None, -1, 2)] == [0, 0, 0, 2]
    assert [handed for _, _, handed, _ in needs(db)] == [True, True, False, False, False]
    assert call(db, "next_overdue") < clock.now()
    assert [sweep(db, 2), sweep(db, 2)] == [2, 1]
    assert [need for *_, need in needs(db)] == [f"human.lead-{number % 2}" for number in range(1, 6)]


def test_a_seat_that_was_leased_past_the_sdk_is_handed_on_when_that_lease_ends(
    db: Conn, clock: Clock, due: Held
) -> None:
    db.execute("select pgwf.get_work('vendor', '{human.review}', 600)")

    assert (sweep(db), needs(db)) == (0, [FIRST])
    assert call(db, "next_overdue") == clock.now() + timedelta(minutes=10)
    clock.advance(minutes=10)
    assert (sweep(db), needs(db)) == (1, [HANDED_ON])


def test_a_seat_that_was_put_off_in_the_leasing_core_is_handed_on_once_it_is_ready(
    db: Conn, clock: Clock, due: Held
) -> None:
    (job_id, lease_id) = rows(db, "select job_id, lease_id from pgwf.get_work('vendor', '{human.review}', 600)")[0]
    db.execute("select pgwf.release_job(%s, %s, 'vendor', p_delay_seconds => 60)", [job_id, lease_id])

    assert (sweep(db), call(db, "next_overdue")) == (0, clock.now() + timedelta(seconds=1))
    clock.advance(minutes=1)
    db.execute("select pgwf.sweep('sweeper')")
    assert (sweep(db), needs(db)) == (1, [HANDED_ON])


def test_an_escalation_needs_a_due_time_and_a_need_that_there_can_be(db: Conn, hand: Hand) -> None:
    start(db)
    held = hand.take()
    for options in ({"escalate": "human.lead"}, {"escalate": "x" * 513, "due_seconds": 1.0}):
        with pytest.raises(psycopg.Error, match="tasks are not an array of objects") as caught:
            hand.say(held.item("keep", tasks=[task(TASK, **options)]))
        assert caught.value.sqlstate == "WS004"


# -- at once ----------------------------------------------------------------------------------------------------------


def after(db: Conn, sessions: Sessions, first: Any, *, end: LiteralString = "commit") -> Any:
    """A sweep while `first` is not yet committed waits for nothing and hands nothing on; the answer of `first`."""
    one, two = sessions
    one.run("begin")
    answer = first.answer(one.run(first.statement, first.parameters))
    assert SWEEP.answer(two.run(SWEEP.statement, SWEEP.parameters)) == [0]
    one.run(end)
    return answer


@patient
def test_a_claim_before_the_sweep_keeps_the_task(db: Conn, clock: Clock, due: Held, two_sessions: Sessions) -> None:
    after(db, two_sessions, CLAIM)

    assert (sweep(db), needs(db)) == (0, [FIRST])
    assert call(db, "next_overdue") == clock.now() + timedelta(minutes=10)


@patient
def test_a_claim_that_is_rolled_back_keeps_nothing(db: Conn, due: Held, two_sessions: Sessions) -> None:
    after(db, two_sessions, CLAIM, end="rollback")

    assert (sweep(db), needs(db)) == (1, [HANDED_ON])


@patient
def test_a_claim_after_the_sweep_has_the_task_under_its_second_need(
    db: Conn, due: Held, two_sessions: Sessions
) -> None:
    answers = race(two_sessions, SWEEP, CLAIM)

    assert (answers[0], needs(db)) == ([1], [HANDED_ON])
    assert rows(db, "select holder from pgwf_sdk.tasks") == [("ann",)]


@patient
def test_a_claim_after_a_sweep_that_rolled_back_has_it_under_its_first(
    db: Conn, due: Held, two_sessions: Sessions
) -> None:
    race(two_sessions, SWEEP, CLAIM, end="rollback")

    assert (sweep(db), needs(db)) == (0, [FIRST])
    assert rows(db, "select holder from pgwf_sdk.tasks") == [("ann",)]


@patient
def test_a_decision_before_the_sweep_ends_the_task(db: Conn, due: Held, two_sessions: Sessions) -> None:
    after(db, two_sessions, DECIDE)

    assert (sweep(db), call(db, "next_overdue")) == (0, None)
    assert rows(db, "select state, need from pgwf_sdk.tasks") == [("decided", "human.review")]


@patient
def test_a_decision_after_the_sweep_counts_all_the_same(db: Conn, due: Held, two_sessions: Sessions) -> None:
    assert race(two_sessions, SWEEP, DECIDE)[0] == [1]

    assert rows(db, "select state, need, decided_by from pgwf_sdk.tasks") == [("decided", "human.lead", "ann")]
    assert (len(inbox(db)), status(db)) == (1, "ready")


@pytest.fixture
def held_beyond(db: Conn, clock: Clock, hand: Hand) -> Held:
    """A task that is due while Ann holds it; her claim ends just now."""
    held = opened(db, hand)
    call(db, "claim_task", TASK, "ann", 5400)
    clock.advance(minutes=90)
    return held


@patient
def test_a_release_and_a_sweep_at_once_hand_the_task_on_once(
    db: Conn, clock: Clock, hand: Hand, two_sessions: Sessions
) -> None:
    opened(db, hand)
    call(db, "claim_task", TASK, "ann", 5400)
    clock.advance(minutes=80)

    after(db, two_sessions, act("release_task", TASK, "ann"))

    assert (sweep(db), needs(db)) == (0, [HANDED_ON])
    assert [who for _, who, *_ in traced(db)] == ["human:ann"]


@patient
def test_a_release_after_the_sweep_took_a_claim_that_had_run_out_is_refused(
    db: Conn, held_beyond: Held, two_sessions: Sessions
) -> None:
    assert race(two_sessions, SWEEP, act("release_task", TASK, "ann")) == ([1], "WS012")

    assert needs(db) == [HANDED_ON]


@pytest.mark.parametrize("order", [1, -1], ids=["the sweep of leases first", "the sweep of tasks first"])
def test_a_claim_that_runs_out_and_the_sweep_at_once(
    db: Conn, clock: Clock, held_beyond: Held, two_sessions: Sessions, order: int
) -> None:
    calls: tuple[LiteralString, ...] = ("select pgwf.sweep('w')", "select pgwf_sdk.escalate_tasks('w')")
    one, two = two_sessions
    one.run("begin")

    assert one.run(calls[::order][0]) == [(1,)]
    assert two.run(calls[::order][1]) == [(0,)]
    one.run("commit")

    clock.advance(seconds=1)
    sweep(db)
    assert needs(db) == [HANDED_ON]
    assert rows(db, "select state, holder from pgwf_sdk.tasks") == [("open", None)]


@patient
def test_a_termination_before_the_sweep_closes_the_task(db: Conn, due: Held, two_sessions: Sessions) -> None:
    after(db, two_sessions, act("terminate_run", "order-1", "ann"))

    assert (sweep(db), call(db, "next_overdue")) == (0, None)
    assert rows(db, "select state, need from pgwf_sdk.tasks") == [("cancelled", "human.review")]


@patient
def test_a_termination_after_the_sweep_closes_the_task(db: Conn, due: Held, two_sessions: Sessions) -> None:
    assert race(two_sessions, SWEEP, act("terminate_run", "order-1", "ann")) == ([1], ["terminated"])

    assert rows(db, "select state, need from pgwf_sdk.tasks") == [("cancelled", "human.lead")]
    assert rows(db, "select outcome, need from pgwf.archive order by n desc limit 1") == [("cancelled", "human.lead")]


@patient
def test_an_expiry_by_its_run_before_and_after_the_sweep(
    db: Conn, clock: Clock, hand: Hand, two_sessions: Sessions
) -> None:
    timed_out = entry("review", 1, kind=Kind.HUMAN, phase=Phase.TIMED_OUT, payload=None)
    closing: Any = {"key": "/human:review#1", "close": "expired"}
    for run_id in ("order-1", "order-2"):
        opened(db, hand, run_id)
    for run_id in ("order-1", "order-2"):
        call(db, "signal_run", run_id, "x", b"1", 1)
    first, second = hand.claim(2)
    clock.advance(hours=1)
    items = [
        held.item("keep", timed_out, tasks=[closing], decides=True, inbox_seen=held.claim.inbox[-1].id)
        for held in (first, second)
    ]
    one, two = two_sessions

    one.run("begin")
    assert advance(hand, items[0]).answer(one.run(advance(hand).statement, hand.parameters(items[0]))) == ["ok"]
    assert two.run("select pgwf_sdk.escalate_tasks('w')") == [(1,)]  # The other one, past what is locked.
    one.run("commit")
    assert hand.say(items[1]) == ["ok"]

    assert rows(db, "select state, need from pgwf_sdk.tasks order by task_id") == [
        ("expired", "human.review"),
        ("expired", "human.lead"),
    ]
    assert sweep(db) == 0


def test_two_sweeps_at_once_hand_a_task_on_once(db: Conn, due: Held, two_sessions: Sessions) -> None:
    one, two = two_sessions
    one.run("begin")

    assert one.run("select pgwf_sdk.escalate_tasks('w1')") == [(1,)]
    assert two.run("select pgwf_sdk.escalate_tasks('w2')") == [(0,)]
    one.run("commit")

    assert [who for _, who, *_ in traced(db)] == ["w1"]


def test_a_sweep_waits_for_no_claim_of_the_leasing_core_that_is_under_way(
    db: Conn, clock: Clock, due: Held, two_sessions: Sessions
) -> None:
    one, two = two_sessions
    one.run("begin")
    one.run("select pgwf.get_work('vendor', '{human.review}', 600)")

    assert two.run("select pgwf_sdk.escalate_tasks('w')") == [(0,)]
    one.run("rollback")

    clock.advance(seconds=1)
    assert (sweep(db), needs(db)) == (1, [HANDED_ON])


# -- what it costs, and databases of before --------------------------------------------------------------------------


@pytest.mark.own_session
def test_a_sweep_that_finds_nothing_due_reads_no_task_however_many_are_open(
    db: Conn, hand: Hand, connect: Connect
) -> None:
    opened(db, hand)
    db.execute(
        """
        insert into pgwf_sdk.task
          (n, key, task_id, name, need, encoding, decision_schema, due_at, escalate_need, escalates_at, created_at)
        select t.n, 'key-' || i, 'task-' || i, name, need, 1, '{}', due_at, escalate_need, escalates_at, created_at
        from pgwf_sdk.task t, generate_series(1, 20000) i
        """
    )
    db.execute(
        "insert into pgwf_sdk.seat (seat, n, key)"
        " select -row_number() over (), n, key from pgwf_sdk.task where key like 'key-%'"
    )
    lone = connect()
    with lone.transaction():
        assert sweep(lone) == 0
        assert value(lone, "select pgwf_sdk.next_overdue() is not null")
        read = rows(
            lone,
            """
            select relname, seq_scan, seq_tup_read + idx_tup_fetch from pg_stat_xact_user_tables
            where schemaname = 'pgwf_sdk' and seq_scan + coalesce(idx_scan, 0) > 0
            """,
        )
    db.execute("delete from pgwf_sdk.seat where seat < 0")
    db.execute("delete from pgwf_sdk.task where key like 'key-%'")

    assert all(scans == 0 and count <= 1 for _, scans, count in read), read


def test_a_database_of_before_is_upgraded_with_its_open_tasks_in_place(db: Conn, clock: Clock, hand: Hand) -> None:
    opened(db, hand, escalate=None)
    db.execute("drop view pgwf_sdk.tasks")
    db.execute(
        """
        alter table pgwf_sdk.task
          drop column escalate_need, drop column escalates_at, drop column first_need, drop column escalated_at
        """
    )
    with db.transaction():
        pgwf_sql.install(db)

    opened(db, hand, "order-2")
    db.execute("update pgwf_sdk.task set escalates_at = now() - interval '1 second' where escalates_at is not null")

    assert sweep(db) == 1
    assert needs(db) == [FIRST, HANDED_ON]
    call(db, "decide_task", TASK, "ann", b"true", 1)
