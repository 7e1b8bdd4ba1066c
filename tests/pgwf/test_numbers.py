"""Numbers beyond what the database's types hold, in every argument of the clients that is a number."""

from __future__ import annotations

import inspect
from datetime import timedelta
from typing import Any

import pytest

from pgwf import Client, HeldJob, InvalidArgumentError, Lease, NewJob
from pgwf_journal import InvalidEntryError, Journal, Kind, NewEntry, Phase
from tests.pgwf.clients import submit, take

LEASE_ID = "01234567-89ab-7def-8123-456789abcdef"
GIVEN: dict[str, Any] = {
    "job_id": "job-1",
    "worker_id": "worker-1",
    "worker_caps": ["python"],
    "lease_id": LEASE_ID,
    "leases": [HeldJob(job_id="job-1", lease_id=LEASE_ID)],
    "next_need": "python",
    "need": "python",
    "key": "k",
    "capabilities": ["python"],
    "rate": 1.0,
    "burst": 1.0,
    "keep": timedelta(days=1),
}
BEYOND = [2**31, -(2**31) - 1, 2**63, 10**30, -(10**30), 10**400, 10**5000, True, float("inf"), float("nan")]


def numbers_of(owner: type, kind: type) -> list[tuple[str, str]]:
    """The methods of a class, each with an argument of its that takes a number of that kind."""
    return [
        (name, parameter.name)
        for name, method in inspect.getmembers(owner, inspect.isfunction)
        for parameter in inspect.signature(method).parameters.values()
        if not name.startswith("_") and parameter.annotation in (kind, kind | None)
    ]


def called(owner: object, method: str, argument: str, value: object) -> object:
    call = getattr(owner, method)
    needed = [p.name for p in inspect.signature(call).parameters.values() if p.default is inspect.Parameter.empty]
    extra = {"burst"} if argument == "rate" else {"rate"} if argument == "burst" else set()
    return call(**{name: GIVEN[name] for name in {*needed, *extra} - {argument}}, **{argument: value})


@pytest.mark.parametrize(("method", "argument"), numbers_of(Client, int))
def test_a_whole_number_that_is_none_or_beyond_its_type_is_refused(dsn: str, method: str, argument: str) -> None:
    with Client(dsn) as client:
        submit(client)
        for value in BEYOND:
            with pytest.raises(InvalidArgumentError, match=f"^{argument} is .*, expected a (whole )?number"):
                called(client, method, argument, value)


@pytest.mark.parametrize(("method", "argument"), numbers_of(Client, float))
@pytest.mark.parametrize("value", [10**400, float("inf"), float("nan"), -1.0], ids=["long", "inf", "nan", "negative"])
def test_a_number_beyond_all_bounds_is_refused(dsn: str, method: str, argument: str, value: float) -> None:
    with Client(dsn) as client, pytest.raises(InvalidArgumentError):
        called(client, method, argument, value)


def test_the_numbers_of_many_jobs_are_refused_before_one_is_made(dsn: str) -> None:
    with (
        Client(dsn) as client,
        pytest.raises(InvalidArgumentError, match=r"^priority is 1000.*, expected a number from"),
    ):
        client.submit_jobs(
            worker_id="shop",
            jobs=[NewJob(job_id="a", next_need="python"), NewJob(job_id="b", next_need="python", priority=10**12)],
        )


def test_a_lease_is_kept_alive_by_no_length_that_none_has(dsn: str) -> None:
    with Client(dsn) as client:
        submit(client)
        lease: Lease = take(client)

        for value in (0, -1, 10**30, 10**5000, float("inf"), float("nan")):
            told = pytest.raises(InvalidArgumentError, match=r"^lease_seconds is .*, expected more than 0")
            with told, lease.keep_alive(lease_seconds=value):
                raise AssertionError


def test_a_journal_refuses_numbers_that_no_entry_has(dsn: str) -> None:
    def an_entry(**changed: Any) -> NewEntry:
        fields = {"call": 1, "kind": Kind.STEP, "phase": Phase.COMPLETED, "scope": "", "name": "a", "occurrence": 1}
        return NewEntry(**{**fields, **changed})

    with Journal(dsn) as journal:
        journal.open("order-17")
        for field in ("call", "occurrence", "encoding", "code"):
            for value in BEYOND:
                with pytest.raises(InvalidEntryError, match=f"^{field} is .*, expected a (whole )?number"):
                    journal.append("order-17", [an_entry(**{field: value})], expected_seq=None)
        for beyond in (2**63, 10**30, 10**5000):
            with pytest.raises(InvalidEntryError, match=r"^expected_seq is "):
                journal.append("order-17", [an_entry()], expected_seq=beyond)
            with pytest.raises(InvalidEntryError, match=r"^after_seq is "):
                journal.read("order-17", after_seq=beyond)
            with pytest.raises(InvalidEntryError, match=r"^limit is "):
                journal.read("order-17", limit=beyond)

        assert journal.head("order-17") == 0
