"""Two sessions, both orders, on ids and wake-up, and batches that meet busy rows."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from tests.pgwf.leasing import Leasing, held, job_ids
from tests.pgwf.racing import Racer, both_ends
from tests.support import outcome

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.support import Clock, Connect, Session


def submission(job_id: str = "a") -> dict[str, Any]:
    return {"job_id": job_id, "worker_id": "w", "next_need": "python"}


def batch(*ids: str) -> dict[str, Any]:
    return {"worker_id": "w", "job_ids": list(ids), "next_needs": ["python"] * len(ids)}


@both_ends
def test_of_two_submitters_of_one_id_the_second_waits_and_sees_the_first(
    pgwf: Leasing, racers: tuple[Racer, Racer], committed: bool
) -> None:
    first, second = racers
    first.begin()
    first.call("submit_job", **submission())

    submitting = second.start_blocked("submit_job", **submission())
    first.end(committed=committed)

    if committed:
        assert outcome(submitting) == "23505"
    else:
        assert isinstance(outcome(submitting), list)
    assert job_ids(pgwf.get_work(limit=5)) == ["a"]


@both_ends
def test_an_id_whose_completion_is_in_flight_is_refused_without_waiting(
    pgwf: Leasing, racers: tuple[Racer, Racer], committed: bool
) -> None:
    pgwf.submit("a")
    lease = pgwf.take()
    first, second = racers
    first.begin()
    first.call("complete_job", **held(lease))

    assert outcome(second.start("submit_job", **submission())) == "23505"
    if committed:
        first.commit()
        assert outcome(second.start("submit_job", **submission())) == "WF010"
    else:
        first.rollback()
        assert pgwf.complete(lease)


def test_batches_with_the_same_ids_in_opposite_orders_do_not_deadlock(
    pgwf: Leasing, session: Callable[[], Session]
) -> None:
    """Somebody else holds up the one batch while it has taken some of its ids, and the other comes in between."""
    holder, first, second = (Racer(session()) for _ in range(3))
    holder.begin()
    holder.call("submit_job", **submission("m"))

    one = first.start_blocked("submit_jobs", **batch("a", "m", "z"))
    other = second.start_blocked("submit_jobs", **batch("z", "m", "b", "a"))
    holder.rollback()

    answers = [[row[3] for row in rows if isinstance(row, tuple)] for rows in (outcome(one), outcome(other))]
    assert answers == [["ok", "ok", "ok"], ["live", "live", "ok", "live"]]
    assert sorted(job_ids(pgwf.get_work(limit=5))) == ["a", "b", "m", "z"]


@both_ends
def test_a_submitter_waits_for_an_id_that_is_being_forgotten(
    pgwf: Leasing, clock: Clock, racers: tuple[Racer, Racer], committed: bool
) -> None:
    pgwf.submit("a")
    pgwf.complete(pgwf.take())
    clock.advance(days=2)
    first, second = racers
    first.begin()
    first.session.run("select pgwf._forget(pgwf._now() - interval '1 day', 10)")

    submitting = second.start_blocked("submit_job", **submission())
    first.end(committed=committed)

    answer = outcome(submitting)
    assert (isinstance(answer, list), answer == "WF010") == (committed, not committed)
    assert pgwf.status("a") == ("READY" if committed else "completed")


def test_a_job_that_commits_late_is_found_although_later_ones_were_leased(
    pgwf: Leasing, racers: tuple[Racer, Racer]
) -> None:
    late, early = racers
    late.begin()
    late.call("submit_job", **submission("late"))
    for i in range(20):
        early.call("submit_job", **submission(f"early-{i}"))
    assert len(pgwf.get_work(limit=50)) == 20

    late.commit()

    assert job_ids(pgwf.get_work(limit=50)) == ["late"]


def test_a_job_submitted_in_a_savepoint_is_there_or_not_with_it(pgwf: Leasing, racers: tuple[Racer, Racer]) -> None:
    first, _ = racers
    first.begin()
    first.session.run("savepoint kept")
    first.call("submit_job", **submission("kept"))
    first.session.run("release savepoint kept")
    first.session.run("savepoint dropped")
    first.call("submit_job", **submission("dropped"))
    first.session.run("rollback to savepoint dropped")
    first.call("submit_job", **submission("dropped"))
    first.session.run("rollback to savepoint dropped")
    first.commit()

    assert job_ids(pgwf.get_work(limit=5)) == ["kept"]


def test_a_sweep_inside_a_users_transaction_is_undone_with_it(
    pgwf: Leasing, clock: Clock, racers: tuple[Racer, Racer]
) -> None:
    pgwf.submit("a", available_at=clock.now() + timedelta(seconds=1))
    clock.advance(seconds=1)
    first, _ = racers
    first.begin()
    assert first.call("sweep", worker_id="s") == [(1,)]
    first.rollback()

    assert job_ids(pgwf.get_work()) == ["a"]


def heard(sleeper: Leasing) -> int:
    sleeper.conn.execute("select")
    return len(list(sleeper.conn.notifies(timeout=0)))


def listening(connect: Connect) -> Leasing:
    sleeper = Leasing(connect())
    sleeper.conn.execute('listen "pgwf.need.python"')
    return sleeper


def past_horizon(sleeper: Leasing, xid: object) -> bool:
    (row,) = sleeper.rows("select pg_snapshot_xmin(pg_current_snapshot()) >= %s::xid8 as past", [str(xid)])
    return bool(row["past"])


def test_a_submission_before_the_request_is_seen_by_the_second_look(pgwf: Leasing, connect: Connect) -> None:
    sleeper = listening(connect)
    pgwf.submit("a")

    xid = sleeper.value("sleep_on", listener="w1", channels=["need.python"])

    assert past_horizon(sleeper, xid)
    assert job_ids(sleeper.get_work()) == ["a"]


@pytest.mark.own_session
def test_a_submission_after_the_request_notifies(pgwf: Leasing, connect: Connect) -> None:
    sleeper = listening(connect)
    xid = sleeper.value("sleep_on", listener="w1", channels=["need.python"])
    assert (past_horizon(sleeper, xid), sleeper.get_work()) == (True, [])

    pgwf.submit("a")

    assert heard(sleeper) == 1


def test_a_submission_that_did_not_see_the_request_keeps_the_sleeper_awake(
    pgwf: Leasing, connect: Connect, racers: tuple[Racer, Racer]
) -> None:
    sleeper = listening(connect)
    first, _ = racers
    first.begin()
    first.call("submit_job", **submission())
    xid = sleeper.value("sleep_on", listener="w1", channels=["need.python"])

    assert (past_horizon(sleeper, xid), sleeper.get_work()) == (False, [])
    first.commit()

    assert heard(sleeper) == 0
    assert past_horizon(sleeper, xid)
    assert job_ids(sleeper.get_work()) == ["a"]


@pytest.mark.parametrize("change", ["resume_need", "limit_need"])
def test_a_change_of_settings_that_did_not_see_the_request_keeps_the_sleeper_awake(
    pgwf: Leasing, connect: Connect, racers: tuple[Racer, Racer], change: str
) -> None:
    pgwf.pause_need("python")
    pgwf.limit_need("python", max_active=0)
    pgwf.call("limit_need" if change == "resume_need" else "resume_need", need="python", worker_id="op")
    pgwf.submit("a")
    sleeper = listening(connect)
    first, _ = racers
    first.begin()
    first.call(change, need="python", worker_id="op")
    xid = sleeper.value("sleep_on", listener="w1", channels=["need.python"])

    assert (past_horizon(sleeper, xid), sleeper.get_work()) == (False, [])
    first.commit()

    assert heard(sleeper) == 0
    assert past_horizon(sleeper, xid)
    assert job_ids(sleeper.get_work()) == ["a"]


def test_a_long_writer_elsewhere_keeps_a_sleeper_from_sleeping_deeply(
    pgwf: Leasing, connect: Connect, racers: tuple[Racer, Racer]
) -> None:
    first, _ = racers
    first.begin()
    first.session.run("select pg_current_xact_id()")
    sleeper = listening(connect)

    xid = sleeper.value("sleep_on", listener="w1", channels=["need.python"])

    assert not past_horizon(sleeper, xid)
    first.rollback()
    assert past_horizon(sleeper, xid)


@pytest.mark.own_session
def test_submitters_never_wait_for_sleepers_or_for_each_other(
    pgwf: Leasing, connect: Connect, racers: tuple[Racer, Racer]
) -> None:
    sleeper = listening(connect)
    sleeper.value("sleep_on", listener="w1", channels=["need.python"])
    first, second = racers
    first.begin()
    first.call("submit_job", **submission("a"))

    second.call("submit_job", **submission("b"))
    sleeper.call("wake_up", listener="w1")
    sleeper.value("sleep_on", listener="w1", channels=["need.python"])
    first.commit()

    assert heard(sleeper) >= 1


BUSY: dict[str, dict[str, Any]] = {
    "complete_jobs": {},
    "extend_leases": {},
    "reschedule_jobs": {"next_needs": ["python", "python"]},
}


@pytest.mark.parametrize(
    ("function", "table"),
    [(function, "lease") for function in BUSY] + [("complete_jobs", "job"), ("reschedule_jobs", "job")],
)
def test_one_busy_row_stalls_a_batch_for_a_moment_and_is_then_left_out(
    pgwf: Leasing, racers: tuple[Racer, Racer], function: str, table: str
) -> None:
    pgwf.submit_all("busy", "free")
    leases = pgwf.get_work(limit=2)
    arguments = {"worker_id": "w", "job_ids": job_ids(leases), "lease_ids": [x["lease_id"] for x in leases]}
    first, second = racers
    first.begin()
    first.session.run(f"select from pgwf.{table} where n = (select n from pgwf.job where job_id = 'busy') for update")

    assert outcome(second.start(function, **arguments, **BUSY[function])) == "55P03"
    rows = second.call(function, **arguments, **BUSY[function], busy_ok=True)

    assert [row[2] for row in rows] == ["busy", "ok"]
    first.commit()
    retried = second.call(function, **{name: value[:1] if isinstance(value, list) else value
                                       for name, value in (arguments | BUSY[function]).items()})  # fmt: skip
    assert [row[2] for row in retried] == ["ok"]


def test_a_reschedule_whose_key_is_busy_is_left_out_without_its_new_edges(
    pgwf: Leasing, racers: tuple[Racer, Racer]
) -> None:
    pgwf.submit("child", "child")
    pgwf.submit("busy", singleton_key="K")
    lease = pgwf.take()
    pgwf.submit("parked", "other", singleton_key="K")
    first, second = racers
    first.begin()
    first.claim("other")

    rows = second.call(
        "reschedule_jobs",
        worker_id="w",
        job_ids=["busy"],
        lease_ids=[lease["lease_id"]],
        next_needs=["python"],
        wait_for='[["child"]]',
        busy_ok=True,
    )

    assert [row[2] for row in rows] == ["busy"]
    assert pgwf.status("busy") == "ACTIVE"
    first.commit()


@pytest.mark.parametrize("what", ["waiter", "key"])
def test_a_completion_whose_waiter_or_key_is_busy_is_left_out_and_stays_leased(
    pgwf: Leasing, racers: tuple[Racer, Racer], what: str
) -> None:
    pgwf.submit("busy", singleton_key="K")
    pgwf.submit("free")
    leases = pgwf.get_work(limit=2)
    pgwf.submit("waiter", "other", wait_for=["busy"])
    pgwf.submit("parked", "other", singleton_key="K")
    arguments = {"worker_id": "w", "job_ids": job_ids(leases), "lease_ids": [x["lease_id"] for x in leases]}
    first, second = racers
    first.begin()
    if what == "waiter":
        first.lock_job("waiter")
    else:
        first.claim("other")

    assert outcome(second.start("complete_jobs", **arguments)) == "55P03"
    rows = second.call("complete_jobs", **arguments, busy_ok=True)

    assert [row[2] for row in rows] == ["busy", "ok"]
    assert pgwf.status("busy") == "ACTIVE"
    first.commit()
    assert pgwf.complete(leases[0])


def test_a_reschedule_whose_dependency_is_busy_is_left_out(pgwf: Leasing, racers: tuple[Racer, Racer]) -> None:
    pgwf.submit("done")
    pgwf.complete(pgwf.take())
    pgwf.submit("child", "other")
    pgwf.submit_all(*"ab")
    leases = pgwf.get_work(limit=2)
    first, second = racers
    first.begin()
    first.lock_job("child")

    rows = second.call(
        "reschedule_jobs",
        worker_id="w",
        job_ids=job_ids(leases),
        lease_ids=[lease["lease_id"] for lease in leases],
        next_needs=["python", "python"],
        wait_for='[["done", "child"], ["done"]]',
        busy_ok=True,
    )

    assert [row[2] for row in rows] == ["busy", "ok"]
    first.commit()
    assert (pgwf.status("a"), pgwf.status("b")) == ("ACTIVE", "READY")
