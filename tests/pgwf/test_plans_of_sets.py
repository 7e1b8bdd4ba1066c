"""Set forms take time in proportion to their lists: no list is gone through once for each element of another."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from psycopg.types.json import Jsonb

from tests.pgwf.leasing import Leasing
from tests.pgwf.test_plans import WARM_UP, Plans, one_of_everything

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

pytestmark = pytest.mark.own_session  # Plans are a session's.

ITEMS = 300
ROWS_PER_ITEM_MAX = 8  # of any one node of a plan; a nested loop over two lists has 300
KEYS_MAX = 100  # A claim tries so many keys, and compares jobs with these, and with the needs of its worker.
LATER = datetime(2090, 1, 1, tzinfo=UTC)

Call = tuple[str, dict[str, Any]]


def names(prefix: str, count: int = ITEMS) -> list[str]:
    return [f"{prefix}{i}" for i in range(count)]


def submit(pgwf: Leasing, ids: list[str], need: str = "python", **arguments: Any) -> None:
    function, given = submission(ids, need, **arguments)
    pgwf.call(function, **given)


def submission(ids: list[str], need: str = "python", **arguments: Any) -> Call:
    return "submit_jobs", {"worker_id": "w", "job_ids": ids, "next_needs": [need] * len(ids), **arguments}


def each_waits_for(children: list[str] | list[str | None]) -> Jsonb:
    return Jsonb([None if child is None else [child] for child in children])


def lease(pgwf: Leasing, *, keys: list[str] | None = None) -> dict[str, Any]:
    """Lease ITEMS jobs, and return the arguments that prove it."""
    submit(pgwf, names("held-"), "held", singleton_keys=keys)
    leases: list[dict[str, Any]] = []
    while len(leases) < ITEMS:
        leases += pgwf.get_work("held", limit=ITEMS - len(leases), seconds=10**6)
    return {
        "worker_id": "w",
        "job_ids": [one["job_id"] for one in leases],
        "lease_ids": [one["lease_id"] for one in leases],
    }


def extend_leases(pgwf: Leasing) -> Call:
    return "extend_leases", lease(pgwf)


def extend_leases_that_are_lost(pgwf: Leasing) -> Call:
    return "extend_leases", lease(pgwf) | {"lease_ids": ["lost"] * ITEMS}


def extend_leases_busy_ok(pgwf: Leasing) -> Call:
    return "extend_leases", {**lease(pgwf), "busy_ok": True}


def submit_jobs(_pgwf: Leasing) -> Call:
    return submission(names("new-"))


def submit_jobs_that_are_there(pgwf: Leasing) -> Call:
    submit(pgwf, names("new-"))
    return submission(names("new-"))


def submit_jobs_in_a_chain(_pgwf: Leasing) -> Call:
    ids = names("new-")
    return submission(ids, wait_for=each_waits_for([None, *ids[:-1]]))


def submit_jobs_in_a_chain_from_an_unknown_one(_pgwf: Leasing) -> Call:
    ids = names("new-")
    return submission(ids, wait_for=each_waits_for(["ghost", *ids[:-1]]))


def submit_jobs_that_wait_for_one(_pgwf: Leasing) -> Call:
    return submission(names("new-"), wait_for=each_waits_for([None, *["new-0"] * (ITEMS - 1)]))


def submit_jobs_of_which_one_waits_for_all(_pgwf: Leasing) -> Call:
    ids = names("new-")
    return submission([*ids, "join"], wait_for=Jsonb([*[None] * ITEMS, ids]))


def submit_jobs_that_wait_for_older_ones(pgwf: Leasing) -> Call:
    submit(pgwf, names("old-"))
    return submission(names("new-"), wait_for=each_waits_for(names("old-")))


def submit_a_job_that_waits_for_many(pgwf: Leasing) -> Call:
    submit(pgwf, names("old-"))
    return "submit_job", {"job_id": "j", "worker_id": "w", "next_need": "python", "wait_for": names("old-")}


def get_work(pgwf: Leasing) -> Call:
    submit(pgwf, names("new-"))
    return "get_work", {"worker_id": "w", "worker_caps": ["python"], "limit_jobs": ITEMS}


def get_work_with_keys(pgwf: Leasing) -> Call:
    submit(pgwf, names("new-"), singleton_keys=names("key-"))
    return "get_work", {"worker_id": "w", "worker_caps": ["python"], "limit_jobs": ITEMS}


def complete_jobs(pgwf: Leasing) -> Call:
    return "complete_jobs", lease(pgwf)


def complete_jobs_with_keys(pgwf: Leasing) -> Call:
    return "complete_jobs", lease(pgwf, keys=names("key-"))


def complete_jobs_of_which_one_is_lost(pgwf: Leasing) -> Call:
    held = lease(pgwf)
    held["lease_ids"][0] = "lost"
    return "complete_jobs", held


def complete_jobs_with_a_waiter_each(pgwf: Leasing) -> Call:
    held = lease(pgwf)
    submit(pgwf, names("wait-"), wait_for=each_waits_for(names("held-")))
    return "complete_jobs", held


def complete_jobs_with_a_waiter_each_busy_ok(pgwf: Leasing) -> Call:
    name, held = complete_jobs_with_a_waiter_each(pgwf)
    return name, {**held, "busy_ok": True}


def complete_jobs_with_keys_busy_ok(pgwf: Leasing) -> Call:
    return "complete_jobs", {**lease(pgwf, keys=names("key-")), "busy_ok": True}


def reschedule_jobs(pgwf: Leasing) -> Call:
    return "reschedule_jobs", {**lease(pgwf, keys=names("key-")), "next_needs": ["next"] * ITEMS}


def reschedule_jobs_busy_ok(pgwf: Leasing) -> Call:
    name, arguments = reschedule_jobs_that_wait_for_one_each(pgwf)
    return name, {**arguments, "busy_ok": True}


def reschedule_jobs_that_wait_for_one_each(pgwf: Leasing) -> Call:
    submit(pgwf, names("old-"))
    return "reschedule_jobs", {
        **lease(pgwf),
        "next_needs": ["next"] * ITEMS,
        "wait_for": each_waits_for(names("old-")),
    }


def reschedule_jobs_in_a_circle(pgwf: Leasing) -> Call:
    held = lease(pgwf)
    ids = held["job_ids"]
    return "reschedule_jobs", {
        **held,
        "next_needs": ["next"] * ITEMS,
        "wait_for": each_waits_for([*ids[1:], ids[0]]),
    }


def reschedule_jobs_that_are_waited_for_and_wait_for_the_head_of_a_chain(pgwf: Leasing) -> Call:
    held = lease(pgwf)
    chain = names("chain-")
    submit(pgwf, chain, wait_for=each_waits_for([None, *chain[:-1]]))
    submit(pgwf, names("wait-"), wait_for=each_waits_for(held["job_ids"]))
    return "reschedule_jobs", {
        **held,
        "next_needs": ["next"] * ITEMS,
        "wait_for": each_waits_for([chain[-1]] * ITEMS),
    }


def reschedule_a_job_that_waits_for_many(pgwf: Leasing) -> Call:
    submit(pgwf, names("old-"))
    pgwf.submit("parent", "parent")
    parent = pgwf.take("parent")
    return "reschedule_job", {
        "job_id": "parent",
        "lease_id": parent["lease_id"],
        "worker_id": "w",
        "next_need": "next",
        "wait_for": names("old-"),
    }


def wake_jobs(pgwf: Leasing) -> Call:
    submit(pgwf, names("asleep-"), available_at=[LATER] * ITEMS)
    return "wake_jobs", {"worker_id": "w", "job_ids": names("asleep-")}


def wake_jobs_that_are_awake(pgwf: Leasing) -> Call:
    submit(pgwf, names("awake-"))
    return "wake_jobs", {"worker_id": "w", "job_ids": names("awake-")}


def sweep_of_lapsed_leases(pgwf: Leasing) -> Call:
    lease(pgwf, keys=names("key-"))
    pgwf.conn.execute("update pgwf.lease set until = now() - interval '1 s'")
    return "sweep", {"worker_id": "w", "limit": ITEMS}


def sweep_of_due_timers(pgwf: Leasing) -> Call:
    submit(pgwf, names("asleep-"), available_at=[LATER] * ITEMS)
    pgwf.conn.execute("update pgwf.timer set due = now()")
    pgwf.conn.execute("update pgwf.job set available_at = now() where need = 'python'")
    return "sweep", {"worker_id": "w", "limit": ITEMS}


def sweep_of_expired_jobs(pgwf: Leasing) -> Call:
    submit(pgwf, names("old-"), singleton_keys=names("key-"))
    submit(pgwf, names("wait-"), wait_for=each_waits_for(names("old-")))
    pgwf.conn.execute("update pgwf.job set expires_at = now() - interval '1 s' where job_id ^@ 'old-'")
    pgwf.conn.execute("update pgwf.ready set expires_at = now() - interval '1 s'")
    return "sweep", {"worker_id": "w", "limit": ITEMS}


def archive_cancelled_jobs(pgwf: Leasing) -> Call:
    submit(pgwf, names("old-"))
    submit(pgwf, names("wait-"), wait_for=each_waits_for(names("old-")))
    pgwf.conn.execute("delete from pgwf.ready")
    pgwf.conn.execute("update pgwf.job set cancel_at = now(), cancel_by = 'w' where job_id ^@ 'old-'")
    return "archive_cancelled_jobs", {"worker_id": "w", "limit": ITEMS}


PREPARATIONS: list[Callable[[Leasing], Call]] = [
    submit_jobs,
    submit_jobs_that_are_there,
    submit_jobs_in_a_chain,
    submit_jobs_in_a_chain_from_an_unknown_one,
    submit_jobs_that_wait_for_one,
    submit_jobs_of_which_one_waits_for_all,
    submit_jobs_that_wait_for_older_ones,
    submit_a_job_that_waits_for_many,
    get_work,
    get_work_with_keys,
    extend_leases,
    extend_leases_that_are_lost,
    extend_leases_busy_ok,
    complete_jobs,
    complete_jobs_with_keys,
    complete_jobs_of_which_one_is_lost,
    complete_jobs_with_a_waiter_each,
    complete_jobs_with_a_waiter_each_busy_ok,
    complete_jobs_with_keys_busy_ok,
    reschedule_jobs,
    reschedule_jobs_busy_ok,
    reschedule_jobs_that_wait_for_one_each,
    reschedule_jobs_in_a_circle,
    reschedule_jobs_that_are_waited_for_and_wait_for_the_head_of_a_chain,
    reschedule_a_job_that_waits_for_many,
    wake_jobs,
    wake_jobs_that_are_awake,
    sweep_of_lapsed_leases,
    sweep_of_due_timers,
    sweep_of_expired_jobs,
    archive_cancelled_jobs,
]


@pytest.fixture(params=["on empty tables", "now"])
def planned(request: pytest.FixtureRequest, db: psycopg.Connection[Any]) -> Iterator[Leasing]:
    """A session that has planned every call on empty tables, or plans it when it comes."""
    worker = Leasing(db)
    if request.param == "on empty tables":
        for i in range(WARM_UP):
            one_of_everything(worker, f"warm-{i}")
    yield worker
    assert worker.broken() == []


@pytest.mark.parametrize("prepare", PREPARATIONS, ids=lambda prepare: prepare.__name__.replace("_", " "))
def test_a_call_about_many_jobs_goes_through_no_list_once_for_each_of_them(
    planned: Leasing, connect: Callable[[], psycopg.Connection[Any]], prepare: Callable[[Leasing], Call]
) -> None:
    name, arguments = prepare(Leasing(connect()))
    plans = Plans(planned.conn, verbose=True)

    planned.call(name, **arguments)
    planned.conn.execute("set auto_explain.log_min_duration = -1")

    if name == "get_work":
        assert plans.rows_passed() <= KEYS_MAX * ITEMS
    else:
        assert plans.rows_passed() <= ROWS_PER_ITEM_MAX * ITEMS
        assert plans.arrays_searched(ITEMS // 10) == []


def test_a_set_of_reschedules_walks_over_what_they_wait_for_once(
    planned: Leasing, connect: Callable[[], psycopg.Connection[Any]]
) -> None:
    """Each item could close a cycle: it is waited for, and waits for a chain. A walk for each would be quadratic."""
    name, arguments = reschedule_jobs_that_are_waited_for_and_wait_for_the_head_of_a_chain(Leasing(connect()))
    plans = Plans(planned.conn)

    planned.call(name, **arguments)
    planned.conn.execute("set auto_explain.log_min_duration = -1")

    assert plans.rows_passed_in_all() <= 150 * ITEMS
