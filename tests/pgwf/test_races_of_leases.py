"""Two sessions, both orders, on leases: the row decides, once, and whoever comes second sees the decision."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from tests.pgwf.leasing import Leasing, held, job_ids
from tests.pgwf.racing import Racer, both_ends
from tests.support import outcome

if TYPE_CHECKING:
    from collections.abc import Callable
    from concurrent.futures import Future

    from tests.support import Clock, Rows, Session

HOLDERS: dict[str, dict[str, Any]] = {
    "extend_lease": {},
    "complete_job": {},
    "reschedule_job": {"next_need": "python"},
    "release_job": {},
}


@pytest.mark.parametrize("function", HOLDERS)
def test_a_sweep_passes_over_a_lease_whose_holder_is_calling(
    pgwf: Leasing, racers: tuple[Racer, Racer], lapsed: dict[str, Any], function: str
) -> None:
    first, second = racers
    first.begin()
    first.call(function, **held(lapsed), **HOLDERS[function])

    assert second.sweep() == 0
    first.commit()

    assert pgwf.status("a") == {"extend_lease": "ACTIVE", "complete_job": "completed"}.get(function, "READY")
    if function == "extend_lease":
        assert pgwf.sweep() == 0


def test_a_sweep_that_is_about_to_end_a_lease_sees_that_it_was_extended(
    pgwf: Leasing, racers: tuple[Racer, Racer], lapsed: dict[str, Any]
) -> None:
    """It has read which leases are past their time when the holder comes."""
    holder, sweeper = racers
    holder.begin()
    holder.session.run("lock table pgwf.lease in exclusive mode")  # which leaves reading to others
    sweeping = sweeper.start_blocked("sweep", worker_id="s")

    holder.call("extend_lease", **held(lapsed))
    holder.commit()

    assert outcome(sweeping) == [(0,)]
    assert (pgwf.status("a"), pgwf.job("a")["lease_expiration_count"]) == ("ACTIVE", 0)


@pytest.mark.parametrize("function", HOLDERS)
def test_a_late_call_waits_for_the_sweep_and_finds_its_lease_lost(
    pgwf: Leasing, racers: tuple[Racer, Racer], lapsed: dict[str, Any], function: str
) -> None:
    first, second = racers
    first.begin()
    assert first.sweep() == 1

    calling = second.start_blocked(function, **held(lapsed), **HOLDERS[function])
    first.commit()

    assert outcome(calling) == "WF002"
    assert (pgwf.status("a"), pgwf.job("a")["lease_expiration_count"]) == ("READY", 1)


@pytest.mark.parametrize("function", HOLDERS)
def test_a_late_call_goes_through_when_the_sweep_is_rolled_back(
    pgwf: Leasing, racers: tuple[Racer, Racer], lapsed: dict[str, Any], function: str
) -> None:
    first, second = racers
    first.begin()
    first.sweep()

    calling = second.start_blocked(function, **held(lapsed), **HOLDERS[function])
    first.rollback()

    assert isinstance(outcome(calling), list)


@pytest.mark.parametrize("function", HOLDERS)
def test_the_same_call_sent_twice_takes_effect_once(pgwf: Leasing, racers: tuple[Racer, Racer], function: str) -> None:
    """As a client does that lost its connection. Extending a lease again is no harm."""
    pgwf.submit("a")
    lease = pgwf.take()
    first, second = racers
    first.begin()
    first.call(function, **held(lease), **HOLDERS[function])

    again = second.start_blocked(function, **held(lease), **HOLDERS[function])
    first.commit()

    assert (outcome(again) == "WF002") == (function != "extend_lease")
    assert len(pgwf.get_work(limit=5)) == (function in ("reschedule_job", "release_job"))


# What calls on many leases do; those that have a lock_timeout, but for that.
SETS = {
    "limit": "select from pgwf.limit_need('python', 'op', p_max_active => 9)",
    "extend": "select status from pgwf._extend(%(ids)s, %(leases)s, 60, 'w', pgwf._now())",
    "complete": "select coalesce(pgwf._complete(%(ids)s, %(leases)s, 'w', pgwf._now()), '{}')",
    "reschedule": "select status from pgwf._reschedule(%(ids)s, %(leases)s, %(ids)s, null, null, 'w', pgwf._now())",
}


@pytest.mark.parametrize("statement", SETS.values(), ids=SETS)
def test_sets_of_leases_in_opposite_orders_do_not_deadlock(
    pgwf: Leasing, session: Callable[[], Session], statement: Any
) -> None:
    """Somebody else holds up the one set while it has some of its leases, and the other comes in between."""
    pgwf.submit_all(*"amz")
    leases = [lease["lease_id"] for lease in pgwf.get_work(limit=3)]
    holder, one, other = (session() for _ in range(3))
    holder.run("begin")
    holder.run("select from pgwf.lease where lease_id::text = %s for update", leases[1:2])

    first = one.start_blocked(SETS["extend"], {"ids": list("amz"), "leases": leases})
    second = other.start_blocked(statement, {"ids": list("zma"), "leases": leases[::-1]})
    holder.run("rollback")

    assert [isinstance(outcome(call), list) for call in (first, second)] == [True, True]


@both_ends
def test_a_cancel_waits_for_a_sweep_that_ends_the_lease_and_releases_who_waits(
    pgwf: Leasing, racers: tuple[Racer, Racer], lapsed: dict[str, Any], committed: bool
) -> None:
    pgwf.submit("waiter", "other", wait_for=["a"])
    first, second = racers
    first.begin()
    assert first.sweep() == 1

    cancelling = second.start_blocked("cancel_job", job_id="a", worker_id="op")
    first.end(committed=committed)

    assert isinstance(outcome(cancelling), list)
    if committed:
        assert (pgwf.status("a"), pgwf.status("waiter")) == ("CANCELLED", "READY")
    pgwf.sweep()
    assert (pgwf.status("a"), pgwf.status("waiter")) == ("cancelled", "READY")


def test_a_sweep_passes_over_a_lapsed_lease_whose_job_is_being_cancelled(
    pgwf: Leasing, clock: Clock, racers: tuple[Racer, Racer]
) -> None:
    pgwf.submit("a")
    pgwf.submit("waiter", "other", wait_for=["a"])
    pgwf.take(seconds=60)
    first, second = racers
    first.begin()
    first.call("cancel_job", job_id="a", worker_id="op")
    clock.advance(seconds=60)

    assert second.sweep() == 0
    first.commit()
    assert (pgwf.status("waiter"), pgwf.sweep()) == ("PENDING_JOBS", 2)

    assert (pgwf.status("a"), pgwf.status("waiter")) == ("cancelled", "READY")


def test_a_cancel_waits_for_a_claim_in_flight_and_sees_its_lease(pgwf: Leasing, racers: tuple[Racer, Racer]) -> None:
    pgwf.submit("a")
    first, second = racers
    first.begin()
    lease = first.take()

    cancelling = second.start_blocked("cancel_job", job_id="a", worker_id="op")
    first.commit()

    assert isinstance(outcome(cancelling), list)
    assert pgwf.status("a") == "ACTIVE"
    assert pgwf.complete(lease)


@both_ends
def test_a_claim_passes_over_a_job_that_is_being_cancelled(
    pgwf: Leasing, racers: tuple[Racer, Racer], committed: bool
) -> None:
    pgwf.submit("a")
    first, second = racers
    first.begin()
    first.call("cancel_job", job_id="a", worker_id="op")

    assert second.claim() == []
    first.end(committed=committed)

    assert job_ids(pgwf.get_work()) == ([] if committed else ["a"])


@pytest.mark.parametrize("function", ["complete_job", "reschedule_job", "release_job"])
def test_a_cancel_waits_for_its_holders_call_and_sees_what_it_did(
    pgwf: Leasing, racers: tuple[Racer, Racer], function: str
) -> None:
    pgwf.submit("a")
    lease = pgwf.take()
    first, second = racers
    first.begin()
    first.call(function, **held(lease), **HOLDERS[function])

    cancelling = second.start_blocked("cancel_job", job_id="a", worker_id="op")
    first.commit()

    if function == "complete_job":
        assert outcome(cancelling) == "WF010"
    else:
        assert isinstance(outcome(cancelling), list)
        assert (pgwf.status("a"), pgwf.get_work()) == ("CANCELLED", [])


@pytest.mark.parametrize(
    ("function", "result"), [("complete_job", "completed"), ("reschedule_job", "WF003"), ("release_job", "cancelled")]
)
def test_a_holders_call_waits_for_a_cancel_and_sees_it(
    pgwf: Leasing, racers: tuple[Racer, Racer], function: str, result: str
) -> None:
    pgwf.submit("a")
    lease = pgwf.take()
    first, second = racers
    first.begin()
    first.call("cancel_job", job_id="a", worker_id="op")

    calling = second.start_blocked(function, **held(lease), **HOLDERS[function])
    first.commit()

    if result.startswith("WF"):
        assert outcome(calling) == result
        assert pgwf.status("a") == "ACTIVE"
    else:
        assert isinstance(outcome(calling), list)
        assert pgwf.status("a") == result


UNHELD: dict[str, dict[str, Any]] = {
    "complete_unheld_job": {},
    "reschedule_unheld_job": {"next_need": "gpu"},
    "lease_job": {},
    "set_priority": {"priority": 1},
}


@pytest.mark.parametrize("function", UNHELD)
@both_ends
def test_an_unheld_call_waits_for_a_claim_in_flight(
    pgwf: Leasing, racers: tuple[Racer, Racer], function: str, committed: bool
) -> None:
    pgwf.submit("a")
    first, second = racers
    first.begin()
    first.claim()

    calling = second.start_blocked(function, job_id="a", worker_id="op", **UNHELD[function])
    first.end(committed=committed)

    if committed and function != "set_priority":
        assert outcome(calling) == "WF005"
        assert pgwf.status("a") == "ACTIVE"
    else:
        assert isinstance(outcome(calling), list)


@pytest.mark.parametrize("function", UNHELD)
def test_a_claim_passes_over_a_job_in_an_unheld_call(pgwf: Leasing, racers: tuple[Racer, Racer], function: str) -> None:
    pgwf.submit("a")
    first, second = racers
    first.begin()
    first.call(function, job_id="a", worker_id="op", **UNHELD[function])

    assert second.claim() == []
    first.commit()


ON_ONE_JOB: dict[str, dict[str, Any]] = UNHELD | {"cancel_job": {}, "clear_crash_concern": {}, "wake_jobs": {}}


def on(name: str, function: str) -> dict[str, Any]:
    """The arguments of a call of ON_ONE_JOB."""
    job: dict[str, Any] = {"job_ids": [name]} if function == "wake_jobs" else {"job_id": name}
    return {**job, "worker_id": "op", **ON_ONE_JOB[function]}


@pytest.mark.parametrize("later", ON_ONE_JOB)
@pytest.mark.parametrize("earlier", ON_ONE_JOB)
@pytest.mark.parametrize("asleep", [False, True], ids=["ready", "asleep"])
def test_two_calls_on_a_job_nobody_holds_do_together_what_they_do_one_after_the_other(
    pgwf: Leasing, clock: Clock, racers: tuple[Racer, Racer], earlier: str, later: str, asleep: bool
) -> None:
    for name in ("raced", "calm"):
        pgwf.submit(name, available_at=clock.now() + timedelta(hours=1) if asleep else None)
    one, two = racers
    answers = [settled(one.start(function, **on("calm", function))) for function in (earlier, later)]

    one.begin()
    first = settled(one.start(earlier, **on("raced", earlier)))
    if first == "done":
        second = two.start_blocked(later, **on("raced", later))
        one.commit()
    else:
        one.rollback()
        second = two.start(later, **on("raced", later))

    assert [first, settled(second)] == answers
    assert state(pgwf, "raced") == state(pgwf, "calm")


def settled(call: Future[Rows]) -> str:
    """`done`, or the SQLSTATE of a refusal."""
    answer = outcome(call)
    return answer if isinstance(answer, str) else "done"


def state(pgwf: Leasing, name: str) -> list[dict[str, Any]]:
    return pgwf.rows(
        "select status, next_need, priority, available_at from pgwf.jobs_with_status where job_id = %(name)s"
        " union all select outcome, next_need, priority, available_at from pgwf.jobs_archive where job_id = %(name)s",
        {"name": name},
    )


@pytest.mark.parametrize("function", ["cancel_job", "wake_jobs"])
def test_a_call_that_meets_a_timer_being_promoted_follows_it(
    pgwf: Leasing, clock: Clock, racers: tuple[Racer, Racer], function: str
) -> None:
    """The call looks at a time before the timer is due; the sweep that promotes it, after."""
    pgwf.submit("a", available_at=clock.now() + timedelta(seconds=1))
    clock.advance(seconds=1)
    first, second = racers
    first.begin()
    assert first.sweep() == 1
    clock.advance(seconds=-1)

    arguments: dict[str, Any] = {"job_ids": ["a"]} if function == "wake_jobs" else {"job_id": "a"}
    calling = second.start_blocked(function, worker_id="op", **arguments)
    clock.advance(seconds=1)
    first.commit()

    assert isinstance(outcome(calling), list)
    assert job_ids(pgwf.get_work(limit=5)) == ([] if function == "cancel_job" else ["a"])


@pytest.mark.parametrize("function", ["wake_jobs", "set_priority", "cancel_job"])
def test_a_sweep_passes_over_a_timer_somebody_is_taking(
    pgwf: Leasing, clock: Clock, racers: tuple[Racer, Racer], function: str
) -> None:
    pgwf.submit("a", available_at=clock.now() + timedelta(seconds=1))
    first, second = racers
    first.begin()
    first.call(function, **on("a", function))
    clock.advance(seconds=1)

    assert second.sweep() == 0
    first.commit()

    assert job_ids(pgwf.get_work(limit=5)) == ([] if function == "cancel_job" else ["a"])


def test_two_workers_never_lease_the_same_job(pgwf: Leasing, racers: tuple[Racer, Racer]) -> None:
    for i in range(10):
        pgwf.submit(f"j{i}")
    first, second = racers
    first.begin()
    second.begin()

    one = first.claim(limit=1)
    other = second.claim()
    first.commit()
    second.commit()

    assert (len(one), len(other), set(one) & set(other)) == (1, 5, set())


def test_an_open_claim_locks_only_what_it_hands_out(pgwf: Leasing, racers: tuple[Racer, Racer]) -> None:
    for i in range(10):
        pgwf.submit(f"j{i}")
    leases = pgwf.get_work(limit=2)
    first, second = racers
    first.begin()
    first.claim(limit=1)

    second.call("extend_lease", **held(leases[0]))
    second.call("complete_job", **held(leases[1]))
    second.call("cancel_job", job_id="j9", worker_id="op")
    assert len(second.claim(limit=10)) == 6
    first.commit()


NEEDS = ["a", "b", "c"]


@pytest.mark.parametrize("settings", [{}, {"max_active": 9}], ids=["unlimited", "limited"])
def test_an_open_claim_of_several_needs_keeps_nobody_from_the_rest(
    pgwf: Leasing, racers: tuple[Racer, Racer], settings: dict[str, Any]
) -> None:
    names = [f"{need}{priority}" for priority in (1, 2, 3, 4) for need in NEEDS]
    for name in names:
        pgwf.submit(name, name[0], priority=int(name[1]))
    if settings:
        pgwf.limit_need("unused", **settings)
    first, second = racers
    first.begin()
    needs = [*NEEDS, "unused"]

    assert first.claim(*needs, limit=5) == names[:5]
    assert second.claim(*needs, limit=1) == names[5:6]
    assert second.claim(*needs, limit=9) == names[6:]
    first.commit()


def test_a_second_sweeper_leaves_at_once(pgwf: Leasing, clock: Clock, racers: tuple[Racer, Racer]) -> None:
    pgwf.submit("a", available_at=clock.now() + timedelta(seconds=1))
    clock.advance(seconds=1)
    first, second = racers
    first.begin()
    assert first.call("sweep", worker_id="s1") == [(1,)]

    assert second.call("sweep", worker_id="s2") == [(0,)]
    first.rollback()

    assert job_ids(pgwf.get_work()) == ["a"]


def test_archive_cancelled_jobs_waits_for_a_sweep(pgwf: Leasing, racers: tuple[Racer, Racer]) -> None:
    pgwf.submit("a")
    pgwf.cancel("a")
    first, second = racers
    first.begin()
    assert first.call("sweep", worker_id="s1") == [(1,)]

    archiving = second.start_blocked("archive_cancelled_jobs", worker_id="op")
    first.rollback()

    assert outcome(archiving) == [(1,)]


def test_a_job_submitted_while_a_claim_is_under_way_is_in_its_answer(
    pgwf: Leasing, racers: tuple[Racer, Racer]
) -> None:
    """The other order is every other claim. A lease that nobody is told of would lapse, and count as a crash."""
    submitter, worker = racers
    submitter.begin()
    submitter.session.run("lock table pgwf.need_setting in access exclusive mode")  # the first table a claim reads
    claiming = worker.start_blocked("get_work", worker_id="w", worker_caps=["python"])

    submitter.call("submit_job", job_id="a", worker_id="s", next_need="python")
    submitter.commit()

    assert [row[0] for row in claiming.result(timeout=20)] == ["a"]
    assert pgwf.status("a") == "ACTIVE"
