"""The query layer on real runs, moved by hand while the clock stands still."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from pgwf_journal import Kind, NewEntry, Phase
from pgwf_sdk import InvalidArgumentError, RunNotFoundError, TaskNotFoundError, ops
from pgwf_sdk.ops import Look
from pgwf_sdk.ops._statements import runs_statement
from pgwf_sql import query
from tests.sdk.sql.hand import Hand, begin, child, entry, start, task
from tests.sdk.sql.test_chains import continuing

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support import Clock, Connect

Conn = psycopg.Connection[Any]
MakeWorker = Callable[..., Hand]


@pytest.fixture
def worker(connect: Connect) -> MakeWorker:
    """Makes workers that offer needs and have sent a heartbeat."""

    def make(name: str, *needs: str) -> Hand:
        connection = connect()
        connection.execute(
            "insert into pgwf.worker (worker_id, capabilities, started_at, heartbeat_at)"
            " values (%s, %s, pgwf._now(), pgwf._now())",
            [name, list(needs)],
        )
        return Hand(connection, name, needs)

    return make


def test_runs_are_listed_newest_first_page_by_page(db: Conn, clock: Clock) -> None:
    for number in range(5):
        start(db, f"order-{number}")

    first = ops.list_runs(db, limit=2)
    second = ops.list_runs(db, limit=2, before=first.next_before)
    third = ops.list_runs(db, limit=2, before=second.next_before)

    listed = [[run.run_id for run in page.runs] for page in (first, second, third)]
    assert listed == [["order-4", "order-3"], ["order-2", "order-1"], ["order-0"]]
    assert third.next_before is None


MANY_FINISHED_RUNS = """
    insert into pgwf_sdk.run (n, run_id, workflow, need, seed, root, status, created_at, finished_at)
    select g, 'old-' || g, 'refund', 'python', g, g, 'completed', pgwf._now(), pgwf._now()
    from generate_series(100001, 103000) g;
    insert into pgwf.archive
      (n, job_id, outcome, need, priority, available_at, lapses, created_at, archived_at)
    select n, run_id, 'completed', need, 3, created_at, 0, created_at, finished_at from pgwf_sdk.run;
    analyze pgwf_sdk.run;
    analyze pgwf.archive;
"""


@pytest.mark.parametrize("words", ["", "status:completed", "-status:failed", "workflow:refund", "need:python", "old-"])
def test_a_page_looks_up_the_details_of_its_own_runs_only(db: Conn, words: str) -> None:
    db.execute(MANY_FINISHED_RUNS)
    statement = runs_statement(ops.parse_filter(words.split()), before=None, limit=20)

    plan = db.execute(f"explain (analyze, timing off) {query(statement.query)}".encode(), statement.parameters)

    entry_scans = [line for (line,) in plan if "entry" in line and "loops=" in line]
    assert entry_scans
    assert max(int(line.rpartition("loops=")[2].rstrip(")")) for line in entry_scans) <= 21


@pytest.mark.parametrize(
    ("words", "found"),
    [
        ("", ["lonely", "old", "new"]),
        ("parent:any", ["old/ship#1", "lonely", "old", "new"]),
        ("parent:old", ["old/ship#1"]),
        ("root:old", ["old/ship#1", "old"]),
        ("status:running", ["old"]),
        ("-status:running,waiting", ["lonely", "new"]),
        ("workflow:refund", ["lonely"]),
        ("-type:refund", ["old", "new"]),
        ("need:gpu", ["lonely"]),
        ("-need:gpu", ["old", "new"]),
        ("worker:w-1", ["old"]),
        ("id:ol*", ["old"]),
        ("lone", ["lonely"]),
        ("age:>30m", ["lonely", "old"]),
        ("age:<30m", ["new"]),
        ("dur:>30m", ["lonely", "old"]),
        ("status:running need:gpu", []),
        ("parent:nobody", []),
        ("%", []),
    ],
)
def test_a_filter_narrows_a_list(db: Conn, clock: Clock, worker: MakeWorker, words: str, found: list[str]) -> None:
    hand = worker("w-1", "python")
    start(db, "old")
    start(db, "lonely", workflow="refund", need="gpu")
    clock.advance(hours=1)
    held = hand.take()
    assert hand.say(held.item("keep", children=[child("old/ship#1", need="trucks")])) == ["ok"]
    start(db, "new")

    page = ops.list_runs(db, ops.parse_filter(words.split()))

    assert sorted(run.run_id for run in page.runs) == sorted(found)


def test_a_run_is_found_by_its_id_or_by_a_beginning_that_fits_no_other(db: Conn) -> None:
    start(db, "order-17")
    start(db, "order-18")
    start(db, "refund-3")

    assert ops.get_run(db, "order-17").run_id == "order-17"
    assert ops.get_run(db, "refund").run_id == "refund-3"
    with pytest.raises(InvalidArgumentError, match=r"order-17.*order-18"):
        ops.get_run(db, "order-1")
    for unknown in ("refun", "order-19", "", "order-17%", "\x00"[:0]):
        with pytest.raises(RunNotFoundError):
            ops.get_run(db, unknown)


def test_a_journal_is_read_in_order_over_its_pages(
    db: Conn, worker: MakeWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    hand = worker("w-1", "python")
    start(db)
    held = hand.take()
    entries = [entry(call=number, occurrence=number, payload=b"%d" % number) for number in range(1, 8)]
    assert hand.say(held.item("keep", *entries)) == ["ok"]
    monkeypatch.setattr("pgwf_sdk.ops._queries._JOURNAL_PAGE_ROWS", 3)

    everything = list(ops.read_journal(db, "order-1"))
    some = list(ops.read_journal(db, "order-1", after_seq=2, limit=4))

    assert [found.seq for found in everything] == list(range(1, 9))
    assert [found.payload for found in some] == ["2", "3", "4", "5"]
    assert everything[1].key == "/step:charge#1"
    assert everything[1].lease_no == 1


def test_the_timeline_shows_who_lost_a_lease_and_who_went_on(db: Conn, clock: Clock, worker: MakeWorker) -> None:
    first, second = worker("w-1", "python"), worker("w-2", "python")
    start(db)
    clock.advance(seconds=1)
    held = first.take(timedelta(seconds=15))
    clock.advance(seconds=2)
    first.say(held.item("keep", entry("charge")))
    clock.advance(seconds=20)
    db.execute("select pgwf.sweep(p_worker_id => 'w-2')")
    clock.advance(seconds=1)
    held = second.take()
    clock.advance(seconds=3)
    second.say(held.end(entries=[entry("ship", 2)]))

    drawn = ops.timeline(db, "order-1")

    rows = {row.label: row for row in drawn.rows}
    assert list(rows) == ["order-1", "w-1", "w-2", "charge", "ship"]
    assert rows["w-1"].note == "lost its lease"
    assert rows["w-2"].note == "replayed 1 entry"
    assert [segment.look for segment in rows["w-2"].segments] == [Look.LEASE, Look.REPLAY]
    assert rows["charge"].seconds == 2
    cut_off, shipped = rows["ship"].segments
    assert (cut_off.look, cut_off.seconds) == (Look.FAILED, 20)
    assert (shipped.look, shipped.seconds) == (Look.RUN, 3)
    assert rows["ship"].note == "3.0 s, cut off before"
    assert rows["order-1"].note == "completed after 27.0 s"


def test_a_child_is_drawn_from_when_somebody_had_it(db: Conn, clock: Clock, worker: MakeWorker) -> None:
    hand, other = worker("w-1", "python"), worker("w-2", "trucks")
    start(db)
    held = hand.take()
    opened = entry("ship", kind=Kind.CHILD, phase=Phase.OPENED, payload=None)
    hand.say(held.item("park", opened, children=[child("order-1/ship#1", need="trucks")]))
    clock.advance(seconds=60)
    shipping = other.take()
    clock.advance(seconds=5)
    other.say(shipping.end())

    rows = {row.kind: row for row in ops.timeline(db, "order-1").rows}

    assert [segment.look for segment in rows["child"].segments] == [Look.QUEUED, Look.CHILD]
    assert rows["child"].seconds == 5


def test_a_timeline_needs_no_trace(db: Conn, clock: Clock, worker: MakeWorker) -> None:
    db.execute("select pgwf.set_trace(false)")
    hand = worker("w-1", "python")
    start(db)
    held = hand.take()
    clock.advance(seconds=2)
    hand.say(held.end(entries=[entry("charge")]))

    labels = [row.label for row in ops.timeline(db, "order-1").rows]

    assert labels == ["order-1", "worker unknown", "charge"]


def test_why_a_ready_run_is_not_taken(db: Conn, clock: Clock, worker: MakeWorker) -> None:
    start(db, "order-1", need="gpu")

    assert "no live worker offers 'gpu'" in ops.why_not_running(db, "order-1")
    worker("w-1", "gpu")
    start(db, "order-0", need="gpu", priority=1)
    assert "1 worker offers 'gpu', and 1 other run of the same need" in ops.why_not_running(db, "order-1")
    db.execute("select pgwf.pause_need('gpu', 'ann')")
    assert "the need 'gpu' is paused" in ops.why_not_running(db, "order-1")
    clock.advance(minutes=1)
    db.execute("select pgwf.resume_need('gpu', 'ann')")
    assert "no live worker offers 'gpu'; one that ended without a word was last seen 1m 0s ago" in ops.why_not_running(
        db, "order-1"
    )


def test_why_a_run_waits_names_each_wait(db: Conn, clock: Clock, worker: MakeWorker) -> None:
    hand = worker("w-1", "python")
    start(db)
    held = hand.take()
    opened = [
        entry("sleep", 1, kind=Kind.TIMER, phase=Phase.OPENED, payload=b'{"microseconds":3600000000}'),
        entry("ship", 2, kind=Kind.CHILD, phase=Phase.OPENED, payload=None),
        entry("review", 3, kind=Kind.HUMAN, phase=Phase.OPENED, payload=None),
        entry("delivered", 4, kind=Kind.SIGNAL, phase=Phase.OPENED, payload=None),
    ]
    hand.say(
        held.item(
            "park",
            *opened,
            until=clock.now() + timedelta(hours=1),
            tasks=[task("order-1/human:review#1", due_seconds=60.0)],
        )
    )
    clock.advance(seconds=90)

    why = ops.why_not_running(db, "order-1")

    assert "a person to decide 'review', open for 1m 30s, which nobody has claimed" in why
    assert "overdue by 30.0 s" in why
    assert "a timer set 1m 30s ago, fires in 58m 30s;" in why
    assert "child run 'ship'" in why
    assert "1 more call" in why
    assert "It looks again" not in why, "that is when the timer fires"


def test_why_a_run_waits_names_the_step_that_is_tried_again_and_its_last_error(
    db: Conn, clock: Clock, worker: MakeWorker
) -> None:
    hand = worker("w-1", "python")
    start(db)
    error = '{"type":"shop.bank:Refused","message":"no\\nfunds"}'
    note = {"key": "/step:charge#1", "no": 2, "next_seconds": 30.0, "error": error, "heartbeat": None}
    hand.say(hand.take().item("park", until=clock.now() + timedelta(seconds=30), attempts=[note]))
    clock.advance(seconds=10)

    assert ops.why_not_running(db, "order-1") == (
        "It waits for the next attempt of /step:charge#1, in 20.0 s, after 2 attempts failed, the last with"
        " Refused: no funds."
    )


def test_why_a_run_waits_tells_what_its_last_worker_said(db: Conn, clock: Clock, worker: MakeWorker) -> None:
    hand = worker("w-1", "python")
    start(db)
    hand.say(hand.take().item("release", delay=timedelta(seconds=30), note="no key"))

    assert ops.why_not_running(db, "order-1") == (
        "It waits to be taken again. It looks again in 30.0 s. The last worker gave it back with: no key."
    )


def test_why_a_parent_waits_names_its_child_and_how_far_that_is(db: Conn, clock: Clock, worker: MakeWorker) -> None:
    hand = worker("w-1", "python")
    start(db)
    held = hand.take()
    opened = entry("ship", kind=Kind.CHILD, phase=Phase.OPENED, payload=None)
    hand.say(held.item("park", opened, children=[child("order-1/ship#1", need="trucks")]))

    alone = ops.why_not_running(db, "order-1")
    worker("w-2", "trucks").take()
    held_by_another = ops.why_not_running(db, "order-1")
    db.execute("select pgwf_sdk.pause_run('order-1/ship#1', 'ann')")

    assert "child run 'order-1/ship#1', since 0 ms, which is ready, but no live worker offers 'trucks'" in alone
    assert "which is running on w-2" in held_by_another
    assert "which is paused (`pgwf why order-1/ship#1`)" in ops.why_not_running(db, "order-1")


def test_why_tells_what_a_person_has_to_do(db: Conn, clock: Clock, worker: MakeWorker) -> None:
    hand = worker("w-1", "python")
    begin(db)
    assert "running on w-1" in _why_while(hand, db)
    db.execute("select pgwf_sdk.pause_run('order-1', 'ann')")
    assert "paused by ann" in ops.why_not_running(db, "order-1")
    db.execute("select pgwf_sdk.resume_run('order-1', 'ann')")
    db.execute("select pgwf_sdk.cancel_run('order-1', 'bob', 'no longer wanted')")
    assert "cancellation was requested by bob 0 ms ago: no longer wanted." in ops.why_not_running(db, "order-1")
    assert "pgwf terminate" not in ops.why_not_running(db, "order-1")
    db.execute("select pgwf_sdk.terminate_run('order-1', 'bob')")
    clock.advance(minutes=5)
    assert ops.why_not_running(db, "order-1") == "It is over: terminated 5m 0s ago."


def test_why_names_what_ends_a_cancelled_run_that_no_worker_offers_to_take(db: Conn) -> None:
    begin(db, "order-1", need="gpu")

    assert "pgwf terminate" not in ops.why_not_running(db, "order-1")
    db.execute("select pgwf_sdk.cancel_run('order-1', 'bob')")
    assert ops.why_not_running(db, "order-1").endswith("; `pgwf terminate order-1` ends it without one.")


@pytest.mark.parametrize("status", ["paused", "blocked"])
def test_why_says_that_a_run_that_is_held_back_does_not_hear_of_its_cancellation(
    db: Conn, worker: MakeWorker, status: str
) -> None:
    hand = worker("w-1", "python")
    begin(db)
    if status == "paused":
        db.execute("select pgwf_sdk.pause_run('order-1', 'ann')")
    else:
        hand.say(hand.take().item("block", note='{"text": "it differs"}'))
    db.execute("select pgwf_sdk.cancel_run('order-1', 'bob')")

    sentence = ops.why_not_running(db, "order-1")

    assert ops.get_run(db, "order-1").status == status
    assert "It hears of that when it goes on; `pgwf terminate order-1` ends it at once." in sentence


def test_why_names_what_ends_a_cancelled_run_that_workers_do_not_know(db: Conn, worker: MakeWorker) -> None:
    hand = worker("w-1", "python")
    begin(db)
    db.execute("select pgwf_sdk.cancel_run('order-1', 'bob')")
    assert "pgwf terminate" not in ops.why_not_running(db, "order-1")

    hand.say(hand.take().item("release", note="worker w-1 does not know workflow 'checkout'"))

    sentence = ops.why_not_running(db, "order-1")
    assert "It takes a worker that knows it to hear of that; `pgwf terminate order-1` ends it without one." in sentence
    assert "The last worker gave it back with: worker w-1 does not know workflow 'checkout'." in sentence


def test_why_names_the_run_that_a_run_went_on_as(db: Conn, worker: MakeWorker) -> None:
    hand = worker("w-1", "python")
    start(db, "failed")
    hand.say(hand.take().end("fail"))
    start(db, "continued")
    hand.say(continuing(hand.take()))
    assert "`pgwf retry failed` tries again" in ops.why_not_running(db, "failed")
    db.execute("select pgwf_sdk.retry_run('failed', 'bob')")

    assert ops.why_not_running(db, "continued").endswith("It goes on as continued~2 (`pgwf why continued~2`).")
    assert ops.why_not_running(db, "failed").endswith("It was retried as failed~2 (`pgwf why failed~2`).")


def _why_while(hand: Hand, db: Conn) -> str:
    held = hand.take()
    try:
        return ops.why_not_running(db, "order-1")
    finally:
        hand.say(held.item("release"))


def test_needs_show_what_nobody_offers(db: Conn, clock: Clock, worker: MakeWorker) -> None:
    hand = worker("w-1", "python", "gpu")
    start(db, "a")
    start(db, "b")
    start(db, "c", need="trucks")
    hand.take()

    needs = {need.need: (need.ready, need.running, need.workers) for need in ops.list_needs(db)}

    assert needs == {"python": (1, 1, 1), "gpu": (0, 0, 1), "trucks": (1, 0, 0)}
    clock.advance(hours=1)
    oldest = {need.need: need.oldest_ready_at for need in ops.list_needs(db)}
    assert oldest == {"python": clock.START, "trucks": clock.START}, "what nobody takes grows older"


def test_workers_that_fell_silent_are_not_live(db: Conn, clock: Clock, worker: MakeWorker) -> None:
    worker("w-1", "python")
    clock.advance(minutes=1)
    hand = worker("w-2", "python")
    start(db)
    hand.take()

    assert [(row.worker_id, row.is_live, row.leases) for row in ops.list_workers(db)] == [
        ("w-2", True, 1),
        ("w-1", False, 0),
    ]
    assert [row.worker_id for row in ops.list_workers(db, only_live=True)] == ["w-2"]


def test_tasks_are_listed_by_due_time_and_found_by_a_beginning(db: Conn, clock: Clock, worker: MakeWorker) -> None:
    hand = worker("w-1", "python")
    for run_id, due_seconds in (("order-1", 3600.0), ("order-2", 60.0)):
        start(db, run_id)
        held = hand.take()
        asked = entry("review", 1, kind=Kind.HUMAN, phase=Phase.OPENED, payload=None)
        hand.say(held.item("park", asked, tasks=[task(f"{run_id}/human:review#1", due_seconds=due_seconds)]))
    db.execute("select pgwf_sdk.claim_task('order-1/human:review#1', 'bob')")
    clock.advance(minutes=2)

    assert [found.run_id for found in ops.list_tasks(db)] == ["order-2", "order-1"]
    assert [found.run_id for found in ops.list_tasks(db, holder="bob")] == ["order-1"]
    assert [found.run_id for found in ops.list_tasks(db, is_overdue=True)] == ["order-2"]
    assert [found.is_overdue for found in ops.list_tasks(db)] == [True, False]
    assert ops.get_task(db, "order-2/human:review#1").is_overdue
    assert ops.list_tasks(db, need="human.other") == ()
    assert ops.get_task(db, "order-2/").task_id == "order-2/human:review#1"
    with pytest.raises(InvalidArgumentError, match="more than one task id"):
        ops.get_task(db, "order-")
    with pytest.raises(TaskNotFoundError):
        ops.get_task(db, "order-3/human:review#1")
    ops.decide_json(db, "order-1/human:review#1", b"true", by="bob")
    assert [found.run_id for found in ops.list_tasks(db)] == ["order-2"]
    assert {found.run_id for found in ops.list_tasks(db, states=None)} == {"order-1", "order-2"}
    clock.advance(hours=2)
    overdue = {found.run_id: found.is_overdue for found in ops.list_tasks(db, states=None)}
    assert overdue == {"order-1": False, "order-2": True}, "what is decided is not overdue"


def test_answers_come_from_one_lent_connection(dsn: str, db: Conn) -> None:
    start(db)
    lender = _Lender(db)

    ops.timeline(lender, "order-1")
    ops.why_not_running(lender, "order-1")

    assert lender.lent_count == 2


class _Lender:
    def __init__(self, connection: Conn) -> None:
        self._connection = connection
        self.lent_count = 0

    @contextmanager
    def connection(self) -> Iterator[Conn]:
        self.lent_count += 1
        yield self._connection


def test_a_failed_run_keeps_its_error_as_recorded(db: Conn, worker: MakeWorker) -> None:
    hand = worker("w-1", "python")
    start(db)
    envelope = b'{"type":"shop:CardDeclined","message":"no funds","traceback":"  File ..."}'
    hand.say(hand.take().end("fail", envelope))

    ending = ops.get_ending(db, "order-1")

    assert (ending.status, ending.payload) == ("failed", envelope.decode())
    failure = ops.failure_of(ending.payload)
    assert failure is not None
    assert failure.line() == "CardDeclined: no funds"


def test_a_number_reaches_the_reader_digit_by_digit(db: Conn, worker: MakeWorker) -> None:
    hand = worker("w-1", "python")
    start(db)
    exact = b"[9223372036854775807,0.1,1e400,12345678901234567890.123456789]"
    hand.say(hand.take().end(entries=[NewEntry(1, Kind.STEP, Phase.COMPLETED, "", "sum", 1, exact, 1)]))

    assert list(ops.read_journal(db, "order-1"))[1].payload == exact.decode()
