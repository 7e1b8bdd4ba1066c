"""Workers by hand, and what must hold after each test."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

import pytest

from tests.sdk.sql.hand import Hand

if TYPE_CHECKING:
    from collections.abc import Iterator

    import psycopg

    from tests.support import Connect

BROKEN = """
    select rule, subject from pgwf.check()
    union all
    select 'the entries of a journal are numbered from 1 without gaps', n::text
    from pgwf_journal.entry group by n having min(seq) <> 1 or max(seq) <> count(*)
    union all
    select 'an entry is of the lease of the one before it, or of a later one', format('%s, %s', n, seq)
    from (select n, seq, lease_no, max(lease_no) over (partition by n order by seq) as latest from pgwf_journal.entry) e
    where lease_no < latest
    union all
    select 'a run that is over has no job, and one that goes on has one', r.run_id
    from pgwf_sdk.run r
    where (r.finished_at is null) <> exists (select from pgwf.job j where j.n = r.n)
    union all
    select 'a run that is over has a last entry that says so', r.run_id
    from pgwf_sdk.run r
    where r.finished_at is not null and not exists (
      select from pgwf_journal.entry e
      where e.n = r.n and e.kind = 1 and e.phase > 1
        and e.seq = (select max(x.seq) from pgwf_journal.entry x where x.n = r.n))
    union all
    select 'a run that is over has an empty inbox and no open task', r.run_id
    from pgwf_sdk.run r
    where r.finished_at is not null and (
      exists (select from pgwf_sdk.inbox i where i.n = r.n)
      or exists (select from pgwf_sdk.task t where t.n = r.n and t.state = 'open'))
    union all
    select 'the seat of a task is a job as long as the task is open', t.task_id
    from pgwf_sdk.task t
    join pgwf_sdk.seat s on s.n = t.n and s.key = t.key
    where (t.state = 'open') <> exists (select from pgwf.job j where j.n = s.seat)
    union all
    select 'a run has the job, the journal and the name of its id', r.run_id
    from pgwf_sdk.run r
    where not exists (select from pgwf.name m where m.job_id = r.run_id and m.n = r.n)
      or not exists (select from pgwf_journal.journal j where j.journal_id = r.run_id and j.n = r.n)
"""


class MakeHand(Protocol):
    """Makes a worker by hand, on a connection of its own."""

    def __call__(self, worker_id: str = "worker-1", *capabilities: str) -> Hand: ...


@pytest.fixture
def make_hand(connect: Connect) -> MakeHand:
    def make(worker_id: str = "worker-1", *capabilities: str) -> Hand:
        return Hand(connect(), worker_id, capabilities or ("python",))

    return make


@pytest.fixture
def hand(make_hand: MakeHand) -> Hand:
    """A worker that offers `python`."""
    return make_hand()


@pytest.fixture
def patient(db: psycopg.Connection[Any]) -> None:
    """`advance` waits for a lock as long as it takes, so that a forced order does not hang on the machine's speed."""
    db.execute(
        """
        do $$
        begin
          execute (
            select format('alter function %s reset lock_timeout', p.oid::regprocedure)
            from pg_proc p
            where p.oid = 'pgwf_sdk.advance'::regproc);
        end
        $$
        """
    )


@pytest.fixture(autouse=True)
def invariants(connect: Connect) -> Iterator[None]:
    """What the tables say fits together after every test."""
    yield

    assert connect().execute(BROKEN).fetchall() == []
