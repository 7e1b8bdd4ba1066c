"""A call about many runs takes time in proportion to what it says: no list is gone through once for each of another."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from pgwf_journal import Kind, Phase
from tests.pgwf.test_plans import WARM_UP, Plans
from tests.sdk.sql.hand import ADVANCE, Hand, Held, child, entry, signal, start, task
from tests.sdk.sql.test_cost import Day

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.support import Connect

pytestmark = pytest.mark.own_session  # Plans are a session's.

RUNS = 200
ROWS_PER_RUN_MAX = 8  # of any one node of a plan; a nested loop over two lists has 200
HOUR = timedelta(hours=1)

Conn = psycopg.Connection[Any]
Call = tuple[str, Any]  # a statement and its parameters


class Stage:
    """A database with RUNS leased runs, and what is to be said about them."""

    def __init__(self, conn: Conn) -> None:
        self.conn = conn
        self.hand = Hand(conn, "worker-1", ["python"])

    def start(self, count: int = RUNS, prefix: str = "run") -> None:
        with self.conn.transaction():
            for i in range(count):
                start(self.conn, f"{prefix}-{i}")

    def lease(self, count: int = RUNS, prefix: str = "run") -> list[Held]:
        self.start(count, prefix)
        return self.hand.claim(count)

    def family(self, **options: Any) -> tuple[Held, list[Held]]:
        """A leased run and its RUNS leased children, for which it waits."""
        (parent,) = self.lease(1, "parent")
        calls = [entry("ship", i, kind=Kind.CHILD, phase=Phase.OPENED, occurrence=i, payload=None) for i in range(RUNS)]
        children = [child(f"parent/ship#{i}", f"/child:ship#{i}", **options) for i in range(RUNS)]
        assert self.hand.say(parent.item("keep", *calls, children=children)) == ["ok"]
        return parent, self.hand.claim(RUNS)

    def advance(self, *items: Any, **options: Any) -> Call:
        return ADVANCE, self.hand.parameters(*items, **options)


def keep_with_an_entry(stage: Stage) -> Call:
    return stage.advance(*(one.item("keep", entry(), lapsed=True, told=1) for one in stage.lease()))


def keep_with_a_consumed_row(stage: Stage) -> Call:
    stage.start()
    with stage.conn.transaction():
        for i in range(RUNS):
            signal(stage.conn, run_id=f"run-{i}")
    held = stage.hand.claim(RUNS)
    return stage.advance(
        *(one.item("keep", entry(), consumed=[one.claim.inbox[0].id], decides=True, inbox_seen=10**9) for one in held)
    )


def keep_with_a_failed_attempt(stage: Stage) -> Call:
    note: Any = {"key": "/step:charge#1", "no": 1, "next_seconds": 1.0, "error": None}
    return stage.advance(*(one.item("keep", attempts=[note]) for one in stage.lease()))


def keep_with_an_awakeable(stage: Stage) -> Call:
    held = stage.lease()
    opened = [
        entry("paid", kind=Kind.AWAKEABLE, phase=Phase.OPENED, payload=b'{"token_hash": "%064x"}' % i)
        for i in range(RUNS)
    ]
    return stage.advance(*(one.item("keep", opening) for one, opening in zip(held, opened, strict=True)))


def keep_with_a_child(stage: Stage) -> Call:
    held = stage.lease()
    return stage.advance(*(one.item("keep", children=[child(f"{one.run_id}/c")]) for one in held))


def keep_with_a_task(stage: Stage) -> Call:
    held = stage.lease()
    return stage.advance(*(one.item("keep", tasks=[task(f"{one.run_id}/t")]) for one in held))


def close_a_task(stage: Stage) -> Call:
    held = stage.lease()
    stage.hand.say(*(one.item("keep", tasks=[task(f"{one.run_id}/t")]) for one in held))
    closing: Any = {"key": "/human:review#1", "close": "expired"}
    return stage.advance(*(one.item("keep", tasks=[closing]) for one in held))


def attach(stage: Stage) -> Call:
    held = stage.lease()
    stage.start(prefix="other")
    asked: Any = [[{"key": "/attach:x#1", "run_id": f"other-{i}"}] for i in range(RUNS)]
    return stage.advance(*(one.item("park", attaches=ask) for one, ask in zip(held, asked, strict=True)))


def end_what_others_are_attached_to(stage: Stage) -> Call:
    held = stage.lease()
    others = stage.lease(prefix="other")
    asked: Any = [[{"key": "/attach:x#1", "run_id": f"run-{i}"}] for i in range(RUNS)]
    said = stage.hand.say(*(one.item("park", attaches=ask) for one, ask in zip(others, asked, strict=True)))
    assert said == ["ok"] * RUNS
    return stage.advance(*(one.end() for one in held))


def park(stage: Stage) -> Call:
    return stage.advance(*(one.item("park", entry(), delay=HOUR) for one in stage.lease()))


def park_runs_that_have_unread_rows(stage: Stage) -> Call:
    held = stage.lease()
    with stage.conn.transaction():
        for i in range(RUNS):
            signal(stage.conn, run_id=f"run-{i}")
    return stage.advance(*(one.item("park", entry(), delay=HOUR) for one in held))


def hop(stage: Stage) -> Call:
    return stage.advance(
        *(one.item("hop", entry("gpu", kind=Kind.HOP, payload=b'"gpu"'), need="gpu") for one in stage.lease())
    )


def release(stage: Stage) -> Call:
    return stage.advance(*(one.item("release", note="no room") for one in stage.lease()))


def block(stage: Stage) -> Call:
    return stage.advance(*(one.item("block", note="{}") for one in stage.lease()))


def complete(stage: Stage) -> Call:
    return stage.advance(*(one.end() for one in stage.lease()))


def complete_busy_ok(stage: Stage) -> Call:
    return stage.advance(*(one.end() for one in stage.lease()), busy_ok=True)


def complete_with_keys(stage: Stage) -> Call:
    with stage.conn.transaction():
        for i in range(100):
            start(stage.conn, f"run-{i}", singleton_key=f"key-{i}")
    return stage.advance(*(one.end() for one in stage.hand.claim(100)))


def complete_with_open_tasks(stage: Stage) -> Call:
    held = stage.lease()
    stage.hand.say(*(one.item("keep", tasks=[task(f"{one.run_id}/t")]) for one in held))
    return stage.advance(*(one.end() for one in held))


def complete_the_children_of_a_parent(stage: Stage) -> Call:
    parent, children = stage.family()
    assert stage.hand.say(parent.item("park", wake_after=RUNS)) == ["ok"]
    return stage.advance(*(one.end() for one in children))


def complete_the_children_of_a_parent_busy_ok(stage: Stage) -> Call:
    parent, children = stage.family()
    assert stage.hand.say(parent.item("park", wake_after=RUNS)) == ["ok"]
    return stage.advance(*(one.end() for one in children), busy_ok=True)


def complete_a_parent_of_open_children(stage: Stage) -> Call:
    parent, _ = stage.family()
    return stage.advance(parent.end())


def give_up_children(stage: Stage) -> Call:
    parent, _ = stage.family()
    return stage.advance(parent.item("keep", cancels=[f"/child:ship#{i}" for i in range(RUNS)]))


def start_children(stage: Stage) -> Call:
    (parent,) = stage.lease(1, "parent")
    calls = [entry("ship", i, kind=Kind.CHILD, phase=Phase.OPENED, occurrence=i, payload=None) for i in range(RUNS)]
    children = [child(f"parent/ship#{i}", f"/child:ship#{i}") for i in range(RUNS)]
    return stage.advance(parent.item("park", *calls, children=children, wake_after=RUNS))


def start_children_whose_ids_are_taken(stage: Stage) -> Call:
    stage.start(prefix="parent/ship")
    (parent,) = stage.lease(1, "first")[:1]
    children = [child(f"parent/ship-{i}", f"/child:ship#{i}") for i in range(RUNS)]
    return stage.advance(parent.item("park", children=children))


def go_on_as_others(stage: Stage) -> Call:
    last = entry("checkout", 0, kind=Kind.RUN, phase=Phase.CONTINUED, payload=b"{}")
    return stage.advance(*(one.item("continue", last, note="{}") for one in stage.lease()))


def say_of_lost_leases(stage: Stage) -> Call:
    held = stage.lease()
    stage.conn.execute("update pgwf.lease set lease_id = gen_random_uuid()")
    return stage.advance(*(one.item("keep", entry(), children=[child(f"{one.run_id}/c")]) for one in held))


def claim(stage: Stage) -> Call:
    held = stage.lease()
    stage.hand.say(*(one.item("release", entry()) for one in held))
    return stage.advance(slots=RUNS)


def keepalive(stage: Stage) -> Call:
    held = stage.lease()
    return (
        "select * from pgwf_sdk.keepalive('worker-1', %s::bigint[], %s::uuid[], %s::bigint[])",
        [[one.n for one in held], [one.lease_id for one in held], [0] * RUNS],
    )


def stray_leases(stage: Stage) -> Call:
    held = stage.lease()
    return "select * from pgwf_sdk.stray_leases('worker-1', %s::bigint[])", [[one.n for one in held]]


def terminate_a_parent(stage: Stage) -> Call:
    parent, _ = stage.family()
    return "select pgwf_sdk.terminate_run(%s, 'ann')", [parent.run_id]


def resume_runs(stage: Stage) -> Call:
    stage.hand.say(*(one.item("block", note="{}") for one in stage.lease()))
    return "select * from pgwf_sdk.resume_runs('checkout', 'ann', null, 200)", None


def retry_runs(stage: Stage) -> Call:
    stage.hand.say(*(one.end("fail", b"{}") for one in stage.lease()))
    return "select * from pgwf_sdk.retry_runs('checkout', 'ann', null, 200)", None


PREPARATIONS: list[Callable[[Stage], Call]] = [
    keep_with_an_entry,
    keep_with_a_consumed_row,
    keep_with_a_failed_attempt,
    keep_with_an_awakeable,
    keep_with_a_child,
    keep_with_a_task,
    close_a_task,
    attach,
    end_what_others_are_attached_to,
    park,
    park_runs_that_have_unread_rows,
    hop,
    release,
    block,
    complete,
    complete_busy_ok,
    complete_with_keys,
    complete_with_open_tasks,
    complete_the_children_of_a_parent,
    complete_the_children_of_a_parent_busy_ok,
    complete_a_parent_of_open_children,
    give_up_children,
    start_children,
    start_children_whose_ids_are_taken,
    go_on_as_others,
    say_of_lost_leases,
    claim,
    keepalive,
    stray_leases,
    terminate_a_parent,
    resume_runs,
    retry_runs,
]


@pytest.fixture(params=["on empty tables", "now"])
def planned(request: pytest.FixtureRequest, db: Conn) -> Conn:
    """A session that has planned every call on empty tables, or plans it when it comes."""
    if request.param == "on empty tables":
        day = Day(db)
        for _ in range(WARM_UP):
            day.live()
    return db


@pytest.mark.parametrize("prepare", PREPARATIONS, ids=lambda prepare: prepare.__name__.replace("_", " "))
def test_a_call_about_many_runs_goes_through_no_list_once_for_each_of_them(
    planned: Conn, connect: Connect, prepare: Callable[[Stage], Call]
) -> None:
    statement, parameters = prepare(Stage(connect()))
    plans = Plans(planned, verbose=True)

    planned.execute(statement.encode(), parameters)
    planned.execute("set auto_explain.log_min_duration = -1")

    if prepare is not claim:  # It compares jobs with the few keys that somebody is moving.
        assert "\n".join(plans.arrays_searched(RUNS // 10)) == ""
    assert plans.rows_passed() <= ROWS_PER_RUN_MAX * RUNS
