"""The set forms: rows in, a status per row out, and one bad row fails alone."""

from __future__ import annotations

import json
import re
from datetime import timedelta
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from psycopg.types.json import Jsonb

from tests.pgwf.leasing import Leasing, job_ids, refused

if TYPE_CHECKING:
    from tests.support import Clock

REFERENCE = Path(__file__).parents[2] / "docs" / "sql-reference.md"
LOST = "00000000-0000-4000-8000-000000000000"


def submit_jobs(pgwf: Leasing, ids: list[str] | list[str | None], **arguments: Any) -> list[str]:
    if "wait_for" in arguments:
        arguments["wait_for"] = Jsonb(arguments["wait_for"])
    rows = pgwf.call(
        "submit_jobs", worker_id="client", job_ids=ids, **({"next_needs": ["python"] * len(ids)} | arguments)
    )
    assert [row["ord"] for row in rows] == list(range(1, len(ids) + 1))
    assert [row["job_id"] for row in rows] == ids
    return [row["status"] for row in rows]


def leased(pgwf: Leasing, *ids: str, seconds: int = 60) -> dict[str, dict[str, Any]]:
    pgwf.submit_all(*ids)
    return {lease["job_id"]: lease for lease in pgwf.get_work(limit=len(ids), seconds=seconds)}


def pairs(*leases: dict[str, Any]) -> dict[str, list[str | None]]:
    return {"job_ids": [x["job_id"] for x in leases], "lease_ids": [x["lease_id"] for x in leases]}


def statuses(rows: list[dict[str, Any]]) -> list[str]:
    return [row["status"] for row in rows]


def test_submit_jobs_submits_in_the_order_given(pgwf: Leasing) -> None:
    assert submit_jobs(pgwf, ["c", "a", "b"]) == ["ok", "ok", "ok"]

    assert job_ids(pgwf.get_work(limit=3)) == ["c", "a", "b"]


def test_submit_jobs_takes_every_attribute_per_job(pgwf: Leasing, clock: Clock) -> None:
    later = clock.now() + timedelta(hours=1)
    submit_jobs(
        pgwf,
        ["a", "b"],
        next_needs=["python", "gpu"],
        wait_for=[None, ["a"]],
        singleton_keys=["K", None],
        available_at=[None, later],
        expires_at=[later, None],
        priorities=[1, 4],
    )

    a, b = pgwf.job("a"), pgwf.job("b")
    assert (a["next_need"], a["singleton_key"], a["expires_at"], a["priority"]) == ("python", "K", later, 1)
    assert (b["next_need"], b["wait_for"], b["available_at"], b["priority"]) == ("gpu", ["a"], later, 4)


def test_submit_jobs_answers_for_each_job_what_became_of_it(pgwf: Leasing) -> None:
    pgwf.submit("live")
    pgwf.submit("finished", "other")
    pgwf.complete(pgwf.take("other"))

    ids = ["new", "live", "finished", "new", None, "", "x" * 513, "unknown"]
    waits = [None, None, None, None, None, None, None, ["ghost"]]
    rows = pgwf.call("submit_jobs", worker_id="w", job_ids=ids, next_needs=["python"] * len(ids), wait_for=Jsonb(waits))

    assert statuses(rows) == [
        "ok", "live", "finished", "duplicate", "invalid", "invalid", "invalid", "unknown",
    ]  # fmt: skip
    assert rows[1]["n"] == pgwf.job("live")["n"]
    assert rows[2]["n"] == pgwf.archived("finished")["n"]
    assert [pgwf.status(job_id) for job_id in ("new", "unknown")] == ["READY", None]


def test_jobs_of_a_batch_may_wait_for_earlier_jobs_of_it(pgwf: Leasing) -> None:
    assert submit_jobs(pgwf, ["a", "b", "c"], wait_for=[[], ["a"], ["b", "a"]]) == ["ok"] * 3

    for job_id in "abc":
        lease = pgwf.take()
        assert lease["job_id"] == job_id
        pgwf.complete(lease)


def test_jobs_of_a_batch_may_not_wait_for_later_ones_or_themselves(pgwf: Leasing) -> None:
    assert submit_jobs(pgwf, ["a", "b", "c"], wait_for=[["b"], ["b"], []]) == ["unknown", "unknown", "ok"]

    assert [pgwf.status(job_id) for job_id in "abc"] == [None, None, "READY"]


def test_a_job_that_waits_for_a_refused_job_of_its_batch_is_refused_too(pgwf: Leasing) -> None:
    waits = [["ghost"], ["a"], ["b"], None]

    assert submit_jobs(pgwf, ["a", "b", "c", "d"], wait_for=waits) == ["unknown", "unknown", "unknown", "ok"]


def test_a_refusal_runs_through_a_long_chain_of_a_batch_at_once(pgwf: Leasing, db: psycopg.Connection[Any]) -> None:
    ids = [f"j{i:04}" for i in range(1500)]
    db.execute("set statement_timeout = '20s'")  # A pass over the batch for each refused item takes minutes.

    assert set(submit_jobs(pgwf, ids, wait_for=[["ghost"], *([before] for before in ids[:-1])])) == {"unknown"}
    assert submit_jobs(pgwf, ids[:2]) == ["ok", "ok"]


def test_a_batch_of_one_thousand_jobs_is_one_call(pgwf: Leasing) -> None:
    ids = [f"j{i:04}" for i in range(1000)]
    waits = [None if i % 2 == 0 else [ids[i - 1]] for i in range(1000)]

    assert set(submit_jobs(pgwf, ids, wait_for=waits)) == {"ok"}

    leases = pgwf.get_work(limit=1000)
    assert job_ids(leases) == ids[::2]
    assert set(statuses(pgwf.call("complete_jobs", worker_id="w", **pairs(*leases)))) == {"ok"}
    assert job_ids(pgwf.get_work(limit=1000)) == ids[1::2]


def test_extend_leases_answers_for_each_lease(pgwf: Leasing, clock: Clock) -> None:
    leases = leased(pgwf, "kept", "cancelled", "done")
    pgwf.cancel("cancelled")
    pgwf.complete(leases["done"])
    given: list[dict[str, str | None]] = [
        *(leases["kept"], leases["cancelled"], leases["done"], leases["kept"]),
        *({"job_id": "kept", "lease_id": lease} for lease in (LOST, None)),
        *({"job_id": job, "lease_id": LOST} for job in (None, "ghost")),
    ]

    rows = pgwf.call("extend_leases", worker_id="w", **pairs(*given), additional_seconds=120)

    assert statuses(rows) == [
        "ok", "cancelled", "lease_lost", "duplicate", "lease_lost", "invalid", "invalid", "lease_lost",
    ]  # fmt: skip
    assert rows[0]["lease_expires_at"] == clock.now() + timedelta(seconds=120)
    assert {row["lease_expires_at"] for row in rows[1:]} == {None}
    assert pgwf.job("kept")["lease_expires_at"] == clock.now() + timedelta(seconds=120)


def test_complete_jobs_completes_the_good_ones_and_answers_for_the_others(pgwf: Leasing) -> None:
    leases = leased(pgwf, "a", "b", "lost")
    pgwf.submit("waiter", "other", wait_for=["a", "b"])
    given = [
        leases["a"],
        {"job_id": "lost", "lease_id": LOST},
        leases["b"],
        leases["a"],
        leases["b"] | {"lease_id": None},
    ]

    rows = pgwf.call("complete_jobs", worker_id="w", **pairs(*given))

    assert statuses(rows) == ["ok", "lease_lost", "ok", "duplicate", "invalid"]
    assert [pgwf.status(x) for x in ("a", "b", "lost", "waiter")] == ["completed", "completed", "ACTIVE", "READY"]


@pytest.mark.parametrize("busy_ok", [False, True])
@pytest.mark.parametrize(
    ("function", "more"),
    [("extend_leases", {}), ("complete_jobs", {}), ("reschedule_jobs", {"next_needs": ["gpu", "gpu", "gpu"]})],
)
def test_a_lease_opens_no_other_job_of_its_set(
    pgwf: Leasing, function: str, more: dict[str, Any], busy_ok: bool
) -> None:
    leases = leased(pgwf, "a", "b", "c")
    crossed = [leases["a"], leases["b"] | {"job_id": "c"}, leases["c"] | {"job_id": "b"}]

    rows = pgwf.call(function, worker_id="w", **pairs(*crossed), **more, busy_ok=busy_ok)

    assert statuses(rows) == ["ok", "lease_lost", "lease_lost"]
    assert (pgwf.status("b"), pgwf.status("c")) == ("ACTIVE", "ACTIVE")
    assert statuses(pgwf.call("complete_jobs", worker_id="w", **pairs(leases["b"], leases["c"]))) == ["ok", "ok"]


def test_the_statement_of_the_reference_completes_a_batch_and_takes_the_next(pgwf: Leasing) -> None:
    (statement,) = re.findall(r"```sql complete and claim\n(.*?)```", REFERENCE.read_text(encoding="utf-8"), re.DOTALL)
    held = leased(pgwf, "a", "b")
    lost = {**held["b"], "lease_id": LOST}
    pgwf.submit_all("c", "d")
    given = pairs(held["a"], lost)

    with psycopg.RawCursor(pgwf.conn) as cursor:
        rows = cursor.execute(statement, ["worker", given["job_ids"], given["lease_ids"], ["python"]]).fetchall()
        empty = cursor.execute(statement, ["worker", [], [], ["python"]]).fetchall()

    assert [row[:2] for row in rows] == [(1, "c"), (1, "d")]
    assert empty == [(0, None, None)]
    assert (pgwf.status("a"), pgwf.status("b")) == ("completed", "ACTIVE")


@pytest.mark.parametrize("seed", range(30))
def test_a_set_of_reschedules_refuses_what_would_close_a_cycle_one_after_the_other(pgwf: Leasing, seed: int) -> None:
    """As if each were called alone: of those that close a cycle together the last is refused, and no other."""
    random = Random(seed)
    names = [f"h{number}" for number in range(10)]
    leases = leased(pgwf, *names)
    graph: dict[str, set[str]] = {}
    for number in range(random.randrange(8)):
        graph[f"o{number}"] = set(random.sample([*names, *graph], random.randrange(3)))
        pgwf.submit(f"o{number}", "other", wait_for=sorted(graph[f"o{number}"]))
    random.shuffle(names)
    waits = {name: sorted(random.sample([*names, *graph], random.choice([0, 1, 1, 2]))) for name in names}

    rows = pgwf.call(
        "reschedule_jobs",
        worker_id="w",
        **pairs(*(leases[name] for name in names)),
        next_needs=["python"] * len(names),
        wait_for=Jsonb(list(waits.values())),
    )

    expected = []
    for name in names:
        is_cycle = name in below(graph, waits[name])
        graph |= {} if is_cycle else {name: set(waits[name])}
        expected.append("cycle" if is_cycle else "ok")
    assert statuses(rows) == expected
    edges = pgwf.rows(
        "select w.job_id as waiter, c.job_id as child from pgwf.edge e"
        " join pgwf.job w on w.n = e.waiter join pgwf.job c on c.n = e.child"
    )
    assert {(edge["waiter"], edge["child"]) for edge in edges} == {
        (waiter, child) for waiter, children in graph.items() for child in children
    }


def below(graph: dict[str, set[str]], names: list[str]) -> set[str]:
    """These jobs, and what they wait for, directly or through others."""
    found: set[str] = set()
    left = list(names)
    while left:
        if (name := left.pop()) not in found:
            found.add(name)
            left += graph.get(name, ())
    return found


def test_reschedule_jobs_moves_the_good_ones_and_leaves_the_others_leased(pgwf: Leasing, clock: Clock) -> None:
    leases = leased(pgwf, "sleeps", "hops", "waits", "cycles", "unknown", "cancelled", "invalid")
    pgwf.submit("child", "child")
    pgwf.cancel("cancelled")
    names = list(leases)
    waits = [None, None, ["child", "cycles"], ["waits"], ["ghost"], None, None]

    rows = pgwf.call(
        "reschedule_jobs",
        worker_id="w",
        **pairs(*leases.values()),
        next_needs=["python", "gpu", "python", "python", "python", "python", None],
        wait_for=Jsonb(waits),
        available_at=[clock.now() + timedelta(hours=1), *[None] * 6],
        singleton_keys=["K", *[None] * 6],
    )

    assert dict(zip(names, statuses(rows), strict=True)) == {
        "sleeps": "ok",
        "hops": "ok",
        "waits": "ok",
        "cycles": "cycle",
        "unknown": "unknown",
        "cancelled": "cancelled",
        "invalid": "invalid",
    }
    assert (pgwf.status("sleeps"), pgwf.job("sleeps")["singleton_key"]) == ("AWAITING_FUTURE", "K")
    assert (pgwf.status("hops"), pgwf.job("hops")["next_need"]) == ("READY", "gpu")
    assert (pgwf.status("waits"), pgwf.job("waits")["wait_for"]) == ("PENDING_JOBS", ["child", "cycles"])
    assert {pgwf.status(x) for x in ("cycles", "unknown", "cancelled", "invalid")} == {"ACTIVE"}


@pytest.mark.parametrize(
    ("function", "arguments"),
    [
        ("submit_jobs", {"job_ids": ["a", "b"], "next_needs": ["python"]}),
        ("submit_jobs", {"job_ids": ["a"], "next_needs": ["python"], "priorities": [1, 2]}),
        ("submit_jobs", {"job_ids": ["a"], "next_needs": ["python"], "wait_for": Jsonb([None, None])}),
        ("complete_jobs", {"job_ids": ["a"], "lease_ids": [LOST, LOST]}),
        ("extend_leases", {"job_ids": ["a"], "lease_ids": ["x", "y"]}),
        ("reschedule_jobs", {"job_ids": ["a"], "lease_ids": [LOST], "next_needs": ["x", "y"]}),
    ],
)
def test_arrays_of_unequal_length_are_refused(pgwf: Leasing, function: str, arguments: dict[str, Any]) -> None:
    with refused("WF021", "parallel arrays differ in length"):
        pgwf.call(function, worker_id="w", **arguments)


@pytest.mark.parametrize("ids", ["[0:1]={new,live}", "[2:3]={new,live}", "{{new,live}}"])
@pytest.mark.parametrize(
    ("function", "arguments"),
    [
        ("submit_jobs", {"next_needs": ["python", "python"], "wait_for": Jsonb([["nobody"], None])}),
        ("complete_jobs", {"lease_ids": [LOST, LOST]}),
        ("extend_leases", {"lease_ids": [LOST, LOST]}),
        ("reschedule_jobs", {"lease_ids": [LOST, LOST], "next_needs": ["x", "y"]}),
    ],
)
def test_ids_in_an_array_whose_places_are_not_its_subscripts_are_refused(
    pgwf: Leasing, function: str, arguments: dict[str, Any], ids: str
) -> None:
    pgwf.submit("live")

    with refused("WF001", "an array must have one dimension and begin at 1"):
        pgwf.call(function, worker_id="w", job_ids=ids, **arguments)
    assert pgwf.status("live") == "READY"


@pytest.mark.parametrize("names", ["[0:1]={a,b}", "{{a,b}}"])
def test_other_arrays_whose_places_are_not_their_subscripts_are_refused(pgwf: Leasing, names: str) -> None:
    for function, arguments in (
        ("get_work", {"worker_caps": names}),
        ("worker_heartbeat", {"capabilities": names}),
        ("submit_job", {"job_id": "c", "next_need": "x", "wait_for": names}),
        ("submit_jobs", {"job_ids": ["a", "b"], "next_needs": names}),
        ("reschedule_unheld_job", {"job_id": "c", "next_need": "x", "wait_for": names}),
        ("reschedule_job", {"job_id": "c", "lease_id": LOST, "next_need": "x", "wait_for": names}),
    ):
        with refused("WF001", "an array must have one dimension and begin at 1"):
            pgwf.call(function, worker_id="w", **arguments)


@pytest.mark.parametrize("wait_for", ["a", 1, {}, [["a"], "b"], [1, None]])
def test_wait_for_that_is_not_an_array_of_arrays_is_refused(pgwf: Leasing, wait_for: Any) -> None:
    expected = "wait_for must be an array that holds, for each job, an array of job ids or null"
    with refused("WF001", f"{expected}, not {json.dumps(wait_for)}"):
        pgwf.call("submit_jobs", worker_id="w", job_ids=["a", "b"], next_needs=["x", "y"], wait_for=Jsonb(wait_for))


def test_empty_batches_are_answered_with_no_rows(pgwf: Leasing) -> None:
    none: dict[str, Any] = {"worker_id": "w", "job_ids": []}

    assert pgwf.call("submit_jobs", **none, next_needs=[]) == []
    assert pgwf.call("complete_jobs", **none, lease_ids=[]) == []
    assert pgwf.call("extend_leases", **none, lease_ids=[]) == []
    assert pgwf.call("reschedule_jobs", **none, lease_ids=[], next_needs=[]) == []
    assert pgwf.call("wake_jobs", **none) == []


@pytest.mark.parametrize("function", ["submit_jobs", "complete_jobs", "extend_leases", "reschedule_jobs"])
def test_set_forms_refuse_a_missing_array_of_ids(pgwf: Leasing, function: str) -> None:
    more = {"submit_jobs": {"next_needs": ["x"]}, "reschedule_jobs": {"lease_ids": ["x"], "next_needs": ["x"]}}

    with refused("23502", "the array of job ids cannot be null"):
        pgwf.call(function, worker_id="w", job_ids=None, **more.get(function, {"lease_ids": ["x"]}))
