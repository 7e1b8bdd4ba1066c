"""Limited singleton keys: as many leases at once and starts a second as the operator says, one at a time otherwise."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from tests.pgwf.leasing import Leasing, job_ids, refused
from tests.pgwf.test_plans import WARM_UP, Plans

if TYPE_CHECKING:
    from tests.support import Clock, Databases


def parked(pgwf: Leasing) -> int:
    (row,) = pgwf.rows("select count(*)::int as count from pgwf.parked")
    count: int = row["count"]
    return count


def test_as_many_jobs_of_a_key_as_its_limit_are_leased_at_once(pgwf: Leasing) -> None:
    pgwf.limit_key(max_active=3)
    pgwf.submit_keyed(*"abcdef")
    pgwf.submit_keyed("x", "y", key="L")

    leases = pgwf.get_work(limit=10)

    assert sorted(job_ids(leases)) == ["a", "b", "c", "x"]
    assert pgwf.get_work(limit=10) == []
    pgwf.complete(leases[0])
    assert job_ids(pgwf.get_work(limit=10)) == ["d"]


def test_the_most_urgent_jobs_get_the_places(pgwf: Leasing) -> None:
    pgwf.limit_key(max_active=2)
    pgwf.submit_keyed("p4", "p4b", priority=4)
    pgwf.submit_keyed("p1", "p1b", priority=1)

    leases = pgwf.get_work(limit=10)

    assert job_ids(leases) == ["p1", "p1b"]
    pgwf.submit_keyed("p2", priority=2)
    assert pgwf.get_work(limit=10) == []
    for lease in leases:
        pgwf.complete(lease)
    assert job_ids(pgwf.get_work(limit=10)) == ["p2", "p4"]


def test_the_places_of_a_key_are_shared_by_all_needs(pgwf: Leasing) -> None:
    pgwf.limit_key(max_active=2)
    pgwf.submit_keyed("a", "b")
    pgwf.submit_keyed("g", "h", need="gpu")
    first = pgwf.take("python")

    assert job_ids(pgwf.get_work("gpu", limit=5)) == ["g"]
    assert pgwf.get_work("python", "gpu", limit=5) == []
    pgwf.complete(first)

    assert job_ids(pgwf.get_work("gpu", limit=5)) == ["h"]
    assert pgwf.get_work("python", limit=5) == []


def test_places_that_become_free_together_are_filled_together(pgwf: Leasing) -> None:
    pgwf.limit_key(max_active=3)
    pgwf.submit_keyed(*"abcdefgh")
    leases = pgwf.get_work(limit=3)
    assert pgwf.get_work(limit=5) == []
    assert parked(pgwf) == 5

    pgwf.call("complete_jobs", worker_id="w", job_ids=job_ids(leases), lease_ids=[x["lease_id"] for x in leases])

    assert parked(pgwf) == 2
    assert job_ids(pgwf.get_work(limit=10)) == ["d", "e", "f"]


def test_raising_a_limit_brings_up_parked_jobs_and_lowering_it_takes_nothing_away(pgwf: Leasing) -> None:
    pgwf.submit_keyed(*"abcdefgh")
    lease = pgwf.take()
    assert pgwf.get_work(limit=10) == []

    pgwf.limit_key(max_active=4)
    leases = pgwf.get_work(limit=10)
    assert job_ids(leases) == ["b", "c", "d"]
    pgwf.limit_key(max_active=2)

    for held in (lease, leases[0]):
        pgwf.extend(held)
        pgwf.complete(held)
    assert pgwf.get_work(limit=10) == []
    pgwf.complete(leases[1])
    assert job_ids(pgwf.get_work(limit=10)) == ["e"]


def test_a_limit_is_lifted_by_leaving_it_out(pgwf: Leasing, clock: Clock) -> None:
    pgwf.limit_key(max_active=3, rate=1, burst=2)
    pgwf.submit_keyed(*"abcd")
    leases = pgwf.get_work(limit=10)
    assert len(leases) == 2

    pgwf.limit_key()

    assert pgwf.rows("select from pgwf.key_setting") == pgwf.rows("select from pgwf.bucket") == []
    clock.advance(seconds=10)
    assert pgwf.get_work(limit=10) == []
    pgwf.complete(leases[0])
    assert pgwf.get_work(limit=10) == []
    pgwf.complete(leases[1])
    assert job_ids(pgwf.get_work(limit=10)) == ["c"]


def test_a_lapsed_lease_frees_one_place(pgwf: Leasing, clock: Clock) -> None:
    pgwf.limit_key(max_active=2)
    pgwf.submit_keyed(*"abcd")
    pgwf.take(seconds=1)
    pgwf.take(seconds=600)
    assert pgwf.get_work(limit=10) == []

    clock.advance(seconds=1)

    assert len(pgwf.get_work(limit=10)) == 1


def test_expired_candidates_bring_up_as_many(pgwf: Leasing, clock: Clock) -> None:
    pgwf.limit_key(max_active=3)
    pgwf.submit_keyed(*"abc")
    leases = pgwf.get_work(limit=3, seconds=600)
    for i in range(3):
        pgwf.submit(f"short-{i}", singleton_key="K", expires_at=clock.now() + timedelta(seconds=10), priority=1)
        pgwf.submit(f"waiter-{i}", "other", wait_for=[f"short-{i}"])
    pgwf.submit_keyed(*"defg")
    assert pgwf.get_work(limit=10) == []
    for lease in leases:
        pgwf.complete(lease)
    clock.advance(seconds=10)

    pgwf.sweep()

    assert [pgwf.status(f"short-{i}") for i in range(3)] == ["expired"] * 3
    assert job_ids(pgwf.get_work(limit=10)) == ["d", "e", "f"]


def test_candidates_that_a_claim_finds_expired_bring_up_as_many(pgwf: Leasing, clock: Clock) -> None:
    pgwf.limit_key(max_active=2)
    pgwf.submit_keyed(*"ab")
    leases = pgwf.get_work(limit=2, seconds=600)
    for i in range(2):
        pgwf.submit(f"short-{i}", singleton_key="K", expires_at=clock.now() + timedelta(seconds=10), priority=1)
    pgwf.submit_keyed(*"cde")
    assert pgwf.get_work(limit=10) == []
    for lease in leases:
        pgwf.complete(lease)
    clock.advance(seconds=10)

    assert job_ids(pgwf.get_work(limit=10)) == ["c", "d"]


def test_lease_job_takes_a_place_and_no_token(pgwf: Leasing) -> None:
    pgwf.limit_key(max_active=2, rate=0.001, burst=1)
    pgwf.submit_keyed(*"abcd")

    (chosen,) = pgwf.call("lease_job", job_id="d", worker_id="jim")
    assert job_ids(pgwf.get_work(limit=5)) == ["a"]
    with refused("WF006", "its singleton key K is held"):
        pgwf.call("lease_job", job_id="b", worker_id="jim")
    pgwf.complete(chosen)

    (row,) = pgwf.call("lease_job", job_id="c", worker_id="jim")
    assert row["job_id"] == "c"


def test_a_rate_allows_its_burst_and_then_its_rate(pgwf: Leasing, clock: Clock) -> None:
    pgwf.limit_key(max_active=100, rate=2, burst=5)
    pgwf.submit_keyed(*(f"j{i:02}" for i in range(30)))

    assert len(pgwf.get_work(limit=30)) == 5
    assert pgwf.get_work(limit=30) == []
    clock.advance(seconds=1)
    assert len(pgwf.get_work(limit=30)) == 2
    assert pgwf.get_work(limit=30) == []
    clock.advance(hours=1)
    pgwf.sweep()
    assert len(pgwf.get_work(limit=30)) == 5


def test_a_rate_alone_leaves_one_at_a_time(pgwf: Leasing, clock: Clock) -> None:
    pgwf.limit_key(rate=0.5)
    pgwf.submit_keyed(*"abc")
    first = pgwf.take()
    clock.advance(seconds=10)
    assert pgwf.get_work(limit=5) == []

    pgwf.complete(first)

    second = pgwf.take()
    pgwf.complete(second)
    assert pgwf.get_work(limit=5) == []
    clock.advance(seconds=2)
    assert job_ids(pgwf.get_work(limit=5)) == ["c"]


def test_a_rolled_back_claim_gives_places_and_tokens_back(pgwf: Leasing) -> None:
    pgwf.limit_key(max_active=9, rate=1, burst=2)
    pgwf.submit_keyed(*"abc")

    with pgwf.conn.transaction(force_rollback=True):
        assert len(pgwf.get_work(limit=5)) == 2

    assert len(pgwf.get_work(limit=5)) == 2


def test_next_wakeup_is_the_next_token_of_a_key_and_the_sweep_acts_on_it(pgwf: Leasing, clock: Clock) -> None:
    pgwf.limit_key(max_active=5, rate=0.5, burst=1)
    pgwf.submit_keyed("a", "b")
    pgwf.submit_keyed("g", need="gpu")
    pgwf.take("python", seconds=600)
    clock.advance(seconds=0.5)
    assert pgwf.get_work("python", "gpu", limit=5) == []

    assert pgwf.value("next_wakeup", worker_caps=["gpu"]) == clock.now() + timedelta(seconds=1.5)
    clock.advance(seconds=1.5)
    assert pgwf.rows("select subject from pgwf.overdue()") == [{"subject": "K"}]
    assert pgwf.sweep() == 2, "one of each need"

    assert pgwf.rows("select from pgwf.overdue()") == []
    assert job_ids(pgwf.get_work("gpu", limit=5)) == ["g"]
    assert pgwf.get_work("python", limit=5) == []
    clock.advance(seconds=2)
    assert job_ids(pgwf.get_work("python", limit=5)) == ["b"]
    assert pgwf.rows("select next_token_at from pgwf.key_setting") == [{"next_token_at": None}]


def test_a_token_that_somebody_else_has_taken_leaves_nobody_waiting_for_ever(pgwf: Leasing, clock: Clock) -> None:
    """Neither the sweep nor a change of the limit finds room for who is parked: the next token must be noted."""
    pgwf.limit_key(max_active=9, rate=1, burst=1)
    pgwf.submit_keyed("a", "b")
    pgwf.take(seconds=600)
    assert pgwf.get_work(limit=5) == []
    pgwf.submit_keyed("c", need="gpu")
    clock.advance(seconds=1)
    assert job_ids(pgwf.get_work("gpu", seconds=600)) == ["c"]

    pgwf.sweep()
    assert pgwf.value("next_wakeup", worker_caps=["python"]) == clock.now() + timedelta(seconds=1)
    pgwf.limit_key(max_active=8, rate=1, burst=1)
    assert pgwf.value("next_wakeup", worker_caps=["python"]) == clock.now() + timedelta(seconds=1)

    clock.advance(seconds=1)
    assert job_ids(pgwf.get_work()) == ["b"]


def test_a_higher_rate_holds_for_those_who_wait_for_a_token_already(pgwf: Leasing, clock: Clock) -> None:
    pgwf.limit_key(max_active=9, rate=0.001, burst=1)
    pgwf.submit_keyed("a", "b")
    pgwf.take(seconds=10_000)
    assert pgwf.get_work(limit=5) == []
    assert pgwf.value("next_wakeup", worker_caps=["python"]) == clock.now() + timedelta(seconds=1000)

    pgwf.limit_key(max_active=9, rate=1, burst=1)

    assert pgwf.value("next_wakeup", worker_caps=["python"]) == clock.now() + timedelta(seconds=1)


def test_while_places_are_what_a_key_lacks_nobody_wakes_for_its_tokens(pgwf: Leasing, clock: Clock) -> None:
    pgwf.limit_key(max_active=1, rate=1000, burst=1000)
    pgwf.submit_keyed(*"abc")
    lease = pgwf.take(seconds=600)
    assert pgwf.get_work(limit=5) == []

    assert pgwf.value("next_wakeup", worker_caps=["python"]) == clock.now() + timedelta(seconds=600)
    pgwf.complete(lease)
    assert job_ids(pgwf.get_work(limit=5)) == ["b"]


def test_a_place_that_becomes_free_without_a_token_is_filled_when_there_is_one(pgwf: Leasing, clock: Clock) -> None:
    pgwf.limit_key(max_active=1, rate=0.1, burst=1)
    pgwf.submit_keyed(*"ab")
    lease = pgwf.take(seconds=600)
    assert pgwf.get_work(limit=5) == []

    pgwf.complete(lease)

    assert pgwf.value("next_wakeup", worker_caps=["python"]) == clock.now() + timedelta(seconds=10)
    clock.advance(seconds=10)
    assert job_ids(pgwf.get_work(limit=5)) == ["b"]


def test_tokens_of_a_key_are_not_those_of_a_need_of_that_name(pgwf: Leasing, clock: Clock) -> None:
    pgwf.limit_need("mail", rate=0.001, burst=1)
    pgwf.limit_key("mail", max_active=9, rate=0.001, burst=3)
    for i in range(5):
        pgwf.submit(f"other-{i}", "python", singleton_key="mail")
        pgwf.submit(f"mail-{i}", "mail")

    assert job_ids(pgwf.get_work("mail", limit=9)) == ["mail-0"]
    assert len(pgwf.get_work("python", limit=9)) == 3
    clock.advance(seconds=2)
    pgwf.sweep()
    assert pgwf.get_work("mail", "python", limit=9) == []


def test_limits_of_the_need_and_of_the_key_both_hold(pgwf: Leasing) -> None:
    pgwf.limit_need("python", max_active=2)
    pgwf.limit_key(max_active=3)
    pgwf.submit_keyed(*"abcd")

    leases = pgwf.get_work(limit=9)
    assert job_ids(leases) == ["a", "b"]
    pgwf.limit_need("python")
    assert job_ids(pgwf.get_work(limit=9)) == ["c"]


def test_old_buckets_of_a_key_are_trimmed_by_the_sweep(pgwf: Leasing, clock: Clock) -> None:
    pgwf.limit_key(max_active=9, rate=1, burst=9)
    pgwf.submit_keyed(*"abcde")
    for _ in range(5):
        pgwf.take(seconds=600)

    clock.advance(seconds=2)
    pgwf.sweep()

    assert len(pgwf.rows("select from pgwf.bucket")) == 1


@pytest.mark.parametrize("limits", [{"rate": 1e-300}, {"rate": 1e300}, {"rate": 1, "burst": 1e300}])
def test_a_rate_may_be_as_low_or_as_high_as_one_likes(pgwf: Leasing, limits: dict[str, Any]) -> None:
    pgwf.limit_key(max_active=2, **limits)
    pgwf.limit_need("python", **limits)
    pgwf.submit_keyed(*"abc")

    leases = pgwf.get_work(limit=9)

    assert job_ids(leases) == ["a", "b"][: 1 if limits["rate"] < 1 else 2]
    assert pgwf.value("next_wakeup", worker_caps=["python"]) is not None
    assert pgwf.get_work(limit=9) == []


@pytest.mark.parametrize(
    ("limits", "message"),
    [
        ({"max_active": 0}, "max_active must be 1 or more, not 0"),
        ({"rate": 0}, "rate must be a positive number, not 0"),
        ({"rate": float("nan")}, "rate must be a positive number, not NaN"),
        ({"rate": float("inf")}, "rate must be a positive number, not Infinity"),
        ({"rate": 5, "burst": 0.5}, "burst must be a number of 1 or more, not 0.5"),
        ({"rate": 5, "burst": float("nan")}, "burst must be a number of 1 or more, not NaN"),
        ({"burst": 3}, "burst 3 is given without a rate"),
        ({"key": ""}, "key must have 1 to 512 bytes, not 0"),
        ({"key": "é" * 257}, "key must have 1 to 512 bytes, not 514"),
    ],
)
def test_limits_and_keys_out_of_range_are_refused(pgwf: Leasing, limits: dict[str, Any], message: str) -> None:
    with refused("WF001", message):
        pgwf.limit_key(**limits)
    assert pgwf.rows("select from pgwf.key_setting") == []


def test_a_missing_key_is_refused(pgwf: Leasing) -> None:
    with refused("23502", "key cannot be null"):
        pgwf.call("limit_key", key=None, worker_id="operator", max_active=2)


def test_the_trace_says_who_limited_which_key(pgwf: Leasing) -> None:
    pgwf.limit_key(max_active=2)

    (row,) = pgwf.rows("select event_type, worker_id, input_data from pgwf.jobs_trace")

    assert (row["event_type"], row["worker_id"]) == ("limit_key", "operator")
    assert (row["input_data"]["key"], row["input_data"]["max_active"]) == ("K", 2)


PARK = """
with new as (
  select nextval('pgwf.pos') as n, g from generate_series(1, 10000) as g
), named as (
  insert into pgwf.name (job_id, n) select 'parked-' || g, n from new
), jobs as (
  insert into pgwf.job (n, job_id, need, priority, singleton_key, available_at, created_at)
  select n, 'parked-' || g, 'python', 2, 'K', now(), now() from new
)
insert into pgwf.parked (singleton_key, need, priority, pos, n, ready_at) select 'K', 'python', 2, n, n, now() from new
"""


@pytest.mark.own_session
@pytest.mark.parametrize("limits", [{"max_active": 3}, {"max_active": 3, "rate": 100000, "burst": 100000}])
def test_a_claim_and_a_release_read_little_with_ten_thousand_jobs_parked(
    databases: Databases, limits: dict[str, Any]
) -> None:
    with databases.fresh() as dsn, psycopg.connect(dsn, autocommit=True) as conn:
        pgwf = Leasing(conn)
        conn.execute("select pgwf.set_trace(false)")
        pgwf.limit_key(**limits)
        for i in range(WARM_UP):
            pgwf.submit_keyed(*(f"warm-{i}-{j}" for j in range(5)))
            while rows := pgwf.get_work(limit=5):
                for lease in rows:
                    pgwf.complete(lease)
        pgwf.submit_keyed(*"abc")
        leases = pgwf.get_work(limit=3)
        assert len(leases) == 3
        conn.execute(PARK)
        plans = Plans(conn)

        for lease in leases:
            pgwf.complete(lease)
        taken = pgwf.get_work(limit=10)
        assert pgwf.get_work(limit=10) == []

        conn.execute("set auto_explain.log_min_duration = -1")
        assert len(taken) == 3
        assert plans.whole() == []
        assert plans.rows_read() <= 60
        assert pgwf.broken() == []
