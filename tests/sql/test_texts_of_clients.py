"""Any text goes through a client and comes back exactly, or is refused with the room's own error."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import pgwf
import pgwf_journal
import pgwf_sdk
from pgwf_journal import Kind, NewEntry, Phase

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.support import Databases

TEXTS = st.text(max_size=40) | st.sampled_from(["x" * 600, "\0", "\ud800", "'; drop table pgwf.job; --", "%s\\ $1 {}"])
# Databases are fast, but not as fast as Hypothesis expects.
EXAMPLES = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@pgwf_sdk.workflow
def say(ctx: pgwf_sdk.Context, text: str) -> str:
    return text


class Rooms:
    """A client of each room, on one database."""

    def __init__(self, dsn: str) -> None:
        self.leasing = pgwf.Client(dsn)
        self.journal = pgwf_journal.Journal(dsn)
        self.runs = pgwf_sdk.Client(dsn)

    def close(self) -> None:
        for client in (self.leasing, self.journal, self.runs):
            client.close()


@pytest.fixture(scope="module")
def rooms(databases: Databases) -> Iterator[Rooms]:
    with databases.fresh() as dsn:
        rooms = Rooms(dsn)
        rooms.journal.open("own")
        yield rooms
        rooms.close()


def attempt(call: Callable[[], Any], *refusals: type[Exception]) -> bool:
    """Whether a call was taken; otherwise it must be refused as one of `refusals`."""
    try:
        call()
    except refusals:
        return False
    return True


@EXAMPLES
@given(job_id=TEXTS, need=TEXTS)
def test_ids_and_needs_of_jobs(rooms: Rooms, job_id: str, need: str) -> None:
    def submit() -> Any:
        return rooms.leasing.submit_job(job_id=job_id, worker_id="w", next_need=need)

    if attempt(submit, pgwf.InvalidArgumentError, pgwf.JobExistsError, pgwf.JobFinishedError):
        (lease,) = rooms.leasing.get_work(worker_id="w", worker_caps=[need])
        assert (lease.job_id, lease.next_need) == (job_id, need)
        lease.complete()


@EXAMPLES
@given(name=TEXTS, scope=TEXTS, payload=st.binary(max_size=40))
def test_entries_of_journals(rooms: Rooms, name: str, scope: str, payload: bytes) -> None:
    new = NewEntry(
        call=1, kind=Kind.STEP, phase=Phase.COMPLETED, scope=scope, name=name, occurrence=1, payload=payload, encoding=1
    )
    head = rooms.journal.head("own")

    if attempt(lambda: rooms.journal.append("own", [new], expected_seq=head), pgwf_journal.InvalidEntryError):
        (entry,) = rooms.journal.read("own", after_seq=head)
        assert (entry.name, entry.scope, entry.payload) == (name, scope, payload)
    else:
        assert rooms.journal.head("own") == head


@EXAMPLES
@given(run_id=TEXTS, text=TEXTS, name=TEXTS, dedup_id=TEXTS)
def test_ids_inputs_and_signals_of_runs(rooms: Rooms, run_id: str, text: str, name: str, dedup_id: str) -> None:
    refusals = (pgwf_sdk.InvalidArgumentError, pgwf_sdk.SerialisationError, pgwf_sdk.RunConflictError)
    if attempt(lambda: rooms.runs.start(say(text), run_id=run_id), *refusals):
        assert rooms.runs.get(run_id).run_id == run_id
        attempt(lambda: rooms.runs.signal(run_id, name, text, dedup_id=dedup_id), *refusals)
    else:
        attempt(lambda: rooms.runs.get(run_id), pgwf_sdk.RunNotFoundError, *refusals)
