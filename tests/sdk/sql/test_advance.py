"""pgwf_sdk.advance, one item: what its disposition does, and when it is refused."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any, get_args
from uuid import uuid4

import psycopg
import pytest

from pgwf_journal import Kind, Phase
from pgwf_sdk.worker._advance import Disposition
from tests.sdk.sql.hand import ADVANCE, Hand, entry, inbox, journal, rows, signal, start, status, value

if TYPE_CHECKING:
    from tests.sdk.sql.conftest import MakeHand
    from tests.support import Clock

Conn = psycopg.Connection[Any]

HOUR = timedelta(hours=1)
DISPOSITIONS = get_args(Disposition)
STEPS = pytest.mark.parametrize("steps", [0, 2], ids=["without entries", "with entries"])


def charges(count: int) -> list[Any]:
    return [entry("charge", call, occurrence=call) for call in range(1, count + 1)]


def charged(count: int) -> list[tuple[int, str, str]]:
    return [
        (1, "/run:checkout#1", "opened"),
        *((call + 1, f"/step:charge#{call}", "completed") for call in range(1, count + 1)),
    ]


def leases(db: Conn) -> int:
    return int(value(db, "select count(*) from pgwf.lease"))


@STEPS
def test_keep_appends_and_the_lease_goes_on(db: Conn, hand: Hand, steps: int) -> None:
    start(db)
    held = hand.take()

    assert hand.say(held.item("keep", *charges(steps))) == ["ok"]

    assert journal(db) == charged(steps)
    assert status(db) == "running"
    assert hand.say(held.item("keep")) == ["ok"]


@STEPS
def test_park_for_ever_gives_the_lease_back_until_the_run_is_woken(
    db: Conn, clock: Clock, hand: Hand, steps: int
) -> None:
    start(db)
    held = hand.take()

    assert hand.say(held.item("park", *charges(steps))) == ["ok"]

    assert journal(db) == charged(steps)
    assert (status(db), leases(db)) == ("waiting", 0)
    clock.advance(days=1000)
    db.execute("select pgwf.sweep('sweeper')")
    assert hand.claim(1) == []
    signal(db)
    again = hand.take()
    assert (again.head, len(again.claim.history), [row.name for row in again.claim.inbox]) == (
        1 + steps,
        1 + steps,
        ["delivered"],
    )


def test_park_gives_the_lease_back_until_an_instant_or_for_a_delay_whichever_comes_first(
    db: Conn, clock: Clock, hand: Hand
) -> None:
    start(db)
    for until, delay in [(HOUR, None), (None, HOUR), (HOUR, 2 * HOUR), (2 * HOUR, HOUR)]:
        now = clock.now()
        held = hand.take()

        hand.say(held.item("park", until=None if until is None else now + until, delay=delay))

        assert value(db, "select available_at from pgwf.job") == now + HOUR
        assert hand.claim(1) == []
        clock.advance(HOUR)
        db.execute("select pgwf.sweep('sweeper')")


def test_park_until_an_instant_that_has_passed_leaves_the_run_ready(db: Conn, clock: Clock, hand: Hand) -> None:
    start(db)

    hand.say(hand.take().item("park", until=clock.START - HOUR))

    assert status(db) == "ready"
    assert hand.take().run_id == "order-1"


@STEPS
def test_hop_gives_the_run_to_workers_of_another_need(db: Conn, hand: Hand, make_hand: MakeHand, steps: int) -> None:
    start(db)

    assert hand.say(hand.take().item("hop", *charges(steps), need="gpu")) == ["ok"]

    assert rows(db, "select need, current_need, status from pgwf_sdk.runs") == [("python", "gpu", "ready")]
    assert hand.claim(1) == []
    assert make_hand("worker-2", "gpu").take().head == 1 + steps


@STEPS
def test_release_gives_the_lease_back_for_a_delay_with_the_reason(
    db: Conn, clock: Clock, hand: Hand, steps: int
) -> None:
    start(db)

    hand.say(hand.take().item("release", *charges(steps), delay=HOUR, note="no workflow checkout here"))

    assert rows(db, "select status, note, available_at from pgwf_sdk.runs") == [
        ("waiting", "no workflow checkout here", clock.START + HOUR)
    ]
    assert journal(db) == charged(steps)


def test_release_without_a_delay_is_leasable_at_once(db: Conn, hand: Hand) -> None:
    start(db)

    hand.say(hand.take().item("release", delay=None))

    assert hand.take().run_id == "order-1"


def test_release_needs_no_expected_seq(db: Conn, hand: Hand) -> None:
    start(db)

    assert hand.say(hand.take().item("release", expected_seq=None)) == ["ok"]
    assert status(db) == "ready"


def test_items_other_than_release_without_an_expected_seq_are_a_conflict(db: Conn, hand: Hand) -> None:
    start(db)
    held = hand.take()

    for disposition in DISPOSITIONS:
        if disposition != "release":
            assert hand.say(held.item(disposition, expected_seq=None, note="{}")) == ["conflict"], disposition

    assert journal(db) == charged(0)
    assert leases(db) == 1


def test_a_release_with_entries_needs_an_expected_seq(db: Conn, hand: Hand) -> None:
    start(db)

    assert hand.say(hand.take().item("release", entry(), expected_seq=None)) == ["conflict"]


@STEPS
@pytest.mark.parametrize(
    ("disposition", "phase", "final"),
    [("complete", "completed", "completed"), ("fail", "failed", "failed"), ("cancel", "cancelled", "cancelled")],
)
def test_complete_fail_and_cancel_end_the_run_with_its_last_entry(
    db: Conn, clock: Clock, hand: Hand, steps: int, disposition: Any, phase: str, final: str
) -> None:
    n, _, _ = start(db)
    signal(db)

    assert hand.say(hand.take().end(disposition, b'{"x": 1}', entries=charges(steps))) == ["ok"]

    assert journal(db) == [*charged(steps), (2 + steps, "/run:checkout#1", phase)]
    assert rows(db, "select status, finished_at, entry_count, lapses from pgwf_sdk.runs") == [
        (final, clock.START, 2 + steps, 0)
    ]
    assert rows(db, "select n, outcome from pgwf.archive") == [(n, "completed")]
    assert inbox(db) == []


@STEPS
def test_block_parks_for_ever_with_a_report_until_somebody_resumes(db: Conn, hand: Hand, steps: int) -> None:
    n, _, _ = start(db)

    assert hand.say(hand.take().item("block", *charges(steps), note='{"found": "step b"}')) == ["ok"]

    assert (status(db), hand.claim(1)) == ("blocked", [])
    assert rows(db, "select n, report from pgwf_sdk.blocked") == [(n, {"found": "step b"})]
    signal(db)
    assert (status(db), hand.claim(1)) == ("blocked", [])
    assert value(db, "select pgwf_sdk.resume_run('order-1', 'ann')") == "resumed"
    assert value(db, "select count(*) from pgwf_sdk.blocked") == 0
    again = hand.take()
    assert (again.head, [row.name for row in again.claim.inbox]) == (1 + steps, ["delivered"])


def test_an_item_with_another_lease_id_is_fenced_and_writes_nothing(db: Conn, hand: Hand) -> None:
    start(db)
    held = hand.take()

    assert hand.say(held.item("keep", entry(), lease_id=uuid4())) == ["fenced"]
    assert hand.say(held.item("keep", entry(), n=held.n + 1)) == ["fenced"]

    assert journal(db) == charged(0)


def test_an_item_is_accepted_after_its_lease_has_ended_until_a_sweep_takes_it(
    db: Conn, clock: Clock, hand: Hand
) -> None:
    start(db)
    held = hand.take()
    clock.advance(hours=1)
    assert hand.say(held.item("keep", entry())) == ["ok"]
    db.execute("select pgwf.sweep('sweeper')")

    assert hand.say(held.item("keep", entry("refund", 2))) == ["fenced"]
    assert hand.say(held.end()) == ["fenced"]

    assert journal(db) == charged(1)
    assert status(db) == "ready"


def test_an_item_of_a_worker_whose_run_another_holds_is_fenced(
    db: Conn, clock: Clock, hand: Hand, make_hand: MakeHand
) -> None:
    start(db)
    late = hand.take()
    clock.advance(hours=1)
    db.execute("select pgwf.sweep('sweeper')")
    held = make_hand("worker-2").take()

    assert hand.say(late.end()) == ["fenced"]
    assert hand.say(held.item("keep", entry())) == ["ok"]


def test_an_item_at_another_seq_than_the_journal_is_a_conflict_and_writes_nothing(db: Conn, hand: Hand) -> None:
    start(db)
    held = hand.take()

    for disposition in DISPOSITIONS:
        for seq in (0, 2, 99):
            item = held.item(disposition, entry(), expected_seq=seq, need="gpu", note="{}")
            assert hand.say(item) == ["conflict"], (disposition, seq)

    assert journal(db) == charged(0)
    assert (status(db), leases(db)) == ("running", 1)


def test_the_same_item_sent_twice_is_a_conflict_the_second_time(db: Conn, hand: Hand) -> None:
    start(db)
    held = hand.take()
    item = held.item("keep", entry())

    assert [hand.say(item), hand.say(item)] == [["ok"], ["conflict"]]
    assert journal(db) == charged(1)


def test_a_run_named_twice_in_one_call_is_served_once(db: Conn, hand: Hand) -> None:
    start(db)
    held = hand.take()

    assert hand.say(held.item("keep", entry()), held.item("park", entry())) == ["ok", "conflict"]

    assert journal(db) == charged(1)
    assert status(db) == "running"


def test_one_bad_item_among_good_ones_fails_alone(db: Conn, hand: Hand) -> None:
    for index in range(1, 6):
        start(db, f"order-{index}")
    one, two, three, four, five = hand.claim(5)
    signal(db, run_id="order-4")

    answers, _ = hand.call(
        one.item("keep", entry()),
        two.item("keep", entry(), expected_seq=7),
        three.end("complete", lease_id=uuid4()),
        four.item("park", entry()),
        five.end(),
    )

    assert [answer.status for answer in answers] == ["ok", "conflict", "fenced", "unread", "ok"]
    assert [len(journal(db, f"order-{index}")) for index in range(1, 6)] == [2, 1, 1, 2, 2]
    assert [status(db, f"order-{index}") for index in range(1, 6)] == ["running"] * 4 + ["completed"]
    assert [[row.name for row in answer.inbox] for answer in answers] == [[], [], [], ["delivered"], []]


def test_a_paused_run_stays_parked_whatever_its_worker_asks(db: Conn, clock: Clock, hand: Hand) -> None:
    for index, options in enumerate(
        [("park", {"until": clock.START}), ("hop", {"need": "gpu"}), ("release", {"delay": timedelta(0)})]
    ):
        run_id = f"order-{index}"
        start(db, run_id)
        held = hand.take()
        db.execute("select pgwf_sdk.pause_run(%s, 'ann')", [run_id])

        assert hand.say(held.item(options[0], entry(), **options[1])) == ["ok"]  # type: ignore[arg-type]  # see the list

        assert (status(db, run_id), len(journal(db, run_id))) == ("paused", 2)
        assert value(db, "select available_at = 'infinity' from pgwf.job where n = %s", held.n)


def test_park_is_refused_while_the_inbox_has_rows_the_worker_has_not_seen(db: Conn, hand: Hand) -> None:
    start(db)
    held = hand.take()
    signal(db, "delivered", payload=b'"x"')

    answer = hand.answer(held.item("park", entry()))

    assert (answer.status, status(db), journal(db)) == ("unread", "running", charged(1))
    (row,) = answer.inbox
    assert (row.kind, row.name, row.phase, row.payload, row.encoding) == (
        Kind.SIGNAL,
        "delivered",
        Phase.COMPLETED,
        b'"x"',
        1,
    )
    assert hand.say(held.item("park", inbox_seen=row.id)) == ["ok"]
    assert status(db) == "waiting"


def test_a_decision_is_refused_as_a_whole_while_the_inbox_has_rows_the_worker_has_not_seen(
    db: Conn, hand: Hand
) -> None:
    start(db)
    held = hand.take()
    signal(db)

    answer = hand.answer(held.item("keep", entry(kind=Kind.SIGNAL, phase=Phase.TIMED_OUT), decides=True))

    assert (answer.status, [row.name for row in answer.inbox]) == ("undecided", ["delivered"])
    assert journal(db) == charged(0)
    assert hand.say(held.item("keep", entry(), decides=True, inbox_seen=answer.inbox[0].id)) == ["ok"]


def test_consumed_rows_leave_the_inbox_with_the_entries_that_consume_them(db: Conn, hand: Hand) -> None:
    start(db)
    for name in ("one", "two", "three"):
        signal(db, name)
    held = hand.take()
    ids = {row.name: row.id for row in held.claim.inbox}

    assert hand.say(held.item("keep", entry(), expected_seq=9, consumed=[ids["one"]])) == ["conflict"]
    assert len(inbox(db)) == 3
    assert hand.say(held.item("keep", entry(), consumed=[ids["one"], ids["three"]])) == ["ok"]

    assert inbox(db) == [("signal", "two", "completed")]


def test_a_run_whose_job_was_cancelled_in_the_leasing_core_is_over_once_it_is_given_back(db: Conn, hand: Hand) -> None:
    start(db)
    held = hand.take()
    db.execute("select pgwf.cancel_job('order-1', 'ops', 'wrong queue')")

    assert hand.say(held.item("park", entry())) == ["ok"]

    assert status(db) == "terminated"
    assert value(db, "select pgwf_sdk.result('order-1') -> 'error' ->> 'message'") == "terminated by ops: wrong queue"
    assert value(db, "select outcome from pgwf.archive") == "cancelled"


def test_advance_refuses_other_isolation_levels_than_read_committed(db: Conn) -> None:
    for level in ("repeatable read", "serializable"):
        db.execute(f"set default_transaction_isolation = '{level}'".encode())
        with pytest.raises(psycopg.Error, match=f"read committed, found {level}") as error:
            db.execute("select pgwf_sdk.advance('worker-1')")
        assert error.value.sqlstate == "WS004"


def test_advance_refuses_arrays_that_do_not_fit_together(db: Conn, hand: Hand) -> None:
    start(db)
    held = hand.take()
    wrong: list[dict[str, Any]] = [
        {"notes": [None, "more than there are items"]},
        {"lapsed": None},
        {"told": [0, 1]},
        {"entry_names": []},
        {"child_items": [1]},
        {"consumed_ids": [1]},
        {"dispositions": ["stay"]},
    ]

    for change in wrong:
        with pytest.raises(psycopg.Error) as error:
            db.execute(ADVANCE, {**hand.parameters(held.item("keep", entry())), **change})
        assert error.value.sqlstate == "WS004", change

    assert journal(db) == charged(0)


def test_what_the_code_was_told_before_bears_the_time_of_the_entry_it_follows(
    db: Conn, clock: Clock, hand: Hand
) -> None:
    start(db)
    held = hand.take()
    clock.advance(seconds=5)
    hand.say(held.item("keep", *charges(1)))
    clock.advance(seconds=5)

    first, second = entry("pure", 2), entry("pure", 3, occurrence=2)
    assert hand.say(held.item("keep", first, second, entry("charge", 4, occurrence=2), told=2)) == ["ok"]

    times = [at for (at,) in db.execute("select recorded_at from pgwf_journal.entry order by seq").fetchall()]
    start_at = times[0]
    assert [(at - start_at).total_seconds() for at in times] == [0, 5, 5, 5, 10]


def test_entries_that_only_the_code_knew_may_be_said_alone_and_beside_other_items(
    db: Conn, clock: Clock, hand: Hand
) -> None:
    start(db, "a")
    start(db, "b")
    one, two = hand.claim(2)
    clock.advance(seconds=5)

    assert hand.say(two.item("keep", *charges(1)), one.item("keep", *charges(2), told=2)) == ["ok", "ok"]

    spent = db.execute(
        "select e.n, extract(epoch from e.recorded_at - r.recorded_at)::int from pgwf_journal.entry e"
        " join pgwf_journal.entry r on r.n = e.n and r.seq = 1 where e.seq > 1 order by e.n, e.seq"
    ).fetchall()
    assert sorted(spent) == sorted([(one.n, 0), (one.n, 0), (two.n, 5)])
