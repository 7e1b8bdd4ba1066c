"""Claims that begin at a position: they do not walk over what is finished, and nothing below the position is lost."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

import pytest

from tests.pgwf.leasing import Leasing, held

if TYPE_CHECKING:
    from collections.abc import Callable

    import psycopg

    from tests.pgwf.racing import Racer
    from tests.support import Connect

DEAD_ROWS: Final = 50_000
BLOCKS_MAX: Final = 200  # for a claim of one job, whatever lies behind it
CAPS: Final = ("python", "gpu")
LANES: Final = 4 * len(CAPS)
BEYOND: Final = 10**12  # a position no sequence of ours reaches

CLAIM = """
select
  array(
    select j.job_id from unnest(w.n) with ordinality as c(n, ord) join pgwf.job as j on j.n = c.n order by c.ord
  ) as job_ids,
  w.next_position,
  w.is_whole
from pgwf._claim('worker', %(caps)s, %(limit)s, 60, pgwf._now(), %(position)s) as w
"""


class Worker:
    """Claims as a worker does: each from where the last one said."""

    def __init__(self, conn: psycopg.Connection[Any]) -> None:
        self.conn = conn
        self.pgwf = Leasing(conn)
        self.position: list[int] | None = []
        self.is_whole = True

    def claim(self, limit: int = 10) -> list[str]:
        (row,) = self.pgwf.rows(CLAIM, self._parameters(limit))
        self.position = row["next_position"] or []
        self.is_whole = row["is_whole"]
        return list(row["job_ids"])

    def blocks_of_claim(self, limit: int = 1) -> int:
        """What such a claim reads; the claim is undone."""
        with self.conn.transaction(force_rollback=True):
            row = self.conn.execute(
                "explain (analyze, buffers, format json)"
                " select * from pgwf._claim('worker', %(caps)s, %(limit)s, 60, pgwf._now(), %(position)s)",
                self._parameters(limit),
            ).fetchone()
        assert row is not None
        plan = row[0][0]["Plan"]
        return int(plan["Shared Hit Blocks"] + plan["Shared Read Blocks"])

    def begin_at(self, *starts: int) -> None:
        """As if a slow look just had been: the position of each lane, or one for all."""
        self.position = [self._milliseconds(30), *(starts if len(starts) > 1 else starts * LANES)]

    def due(self) -> None:
        """As if the time until the next whole look were over."""
        assert self.position, "there is a position"
        self.position[0] = self._milliseconds(-1)

    def drain(self) -> list[str]:
        found: list[str] = []
        while more := self.claim():
            found += more
        return found

    def _milliseconds(self, seconds: int) -> int:
        row = self.conn.execute(
            "select ((extract(epoch from clock_timestamp()) + %s) * 1000)::bigint", [seconds]
        ).fetchone()
        assert row is not None
        return int(row[0])

    def _parameters(self, limit: int) -> dict[str, Any]:
        return {"caps": list(CAPS), "limit": limit, "position": self.position}


@pytest.fixture
def worker(pgwf: Leasing) -> Worker:
    return Worker(pgwf.conn)


@pytest.fixture
def graveyard(pgwf: Leasing, connect: Connect) -> Callable[[], None]:
    """Makes tens of thousands of finished jobs whose dead index entries nobody may clear away: a snapshot is held."""

    def bury() -> None:
        reader = connect()
        reader.execute("begin isolation level repeatable read")
        reader.execute("select count(*) from pgwf.ready")
        pgwf.conn.execute(
            "insert into pgwf.ready (pos, n, priority, need, ready_at)"
            " select nextval('pgwf.pos'), currval('pgwf.pos'), 3, 'python', '-infinity' from generate_series(1, %s)",
            [DEAD_ROWS],
        )
        pgwf.conn.execute("delete from pgwf.ready where ready_at = '-infinity'")

    return bury


# -- Cost --------------------------------------------------------------------------------------------------------------


def test_under_a_held_snapshot_a_claim_at_its_position_reads_a_bounded_number_of_pages(
    pgwf: Leasing, worker: Worker, graveyard: Callable[[], None]
) -> None:
    graveyard()
    fill(pgwf, 30)
    # Plans are made and the catalogue is read before anything is counted.
    worker.blocks_of_claim()
    whole = worker.blocks_of_claim()

    assert worker.claim(1) == ["python-0"]
    assert (worker.is_whole, worker.position != []) == (True, True), "a slow look says where the next may begin"
    at_position = worker.blocks_of_claim()

    assert whole > 3 * BLOCKS_MAX, "a whole look walks over the dead entries"
    assert at_position <= BLOCKS_MAX
    assert worker.drain() == [f"python-{i}" for i in range(1, 30)]
    assert not worker.is_whole
    assert worker.blocks_of_claim() <= BLOCKS_MAX, "so does a claim that finds nothing"


def blocks_of_get_work(conn: psycopg.Connection[Any]) -> int:
    """What such a call reads; it is undone."""
    with conn.transaction(force_rollback=True):
        row = conn.execute(
            "explain (analyze, buffers, format json) select * from pgwf.get_work('worker', %s, 60, 1)", [list(CAPS)]
        ).fetchone()
    assert row is not None
    plan = row[0][0]["Plan"]
    return int(plan["Shared Hit Blocks"] + plan["Shared Read Blocks"])


def test_under_a_held_snapshot_callers_of_sql_share_a_position(
    pgwf: Leasing, connect: Connect, graveyard: Callable[[], None]
) -> None:
    other = connect()
    graveyard()
    fill(pgwf, 30)
    blocks_of_get_work(other)
    whole = blocks_of_get_work(other)

    (first,) = pgwf.get_work(*CAPS)
    at_position = blocks_of_get_work(other)

    assert first["job_id"] == "python-0"
    assert whole > 3 * BLOCKS_MAX, "a whole look walks over the dead entries"
    assert at_position <= BLOCKS_MAX
    assert [lease["job_id"] for lease in pgwf.get_work(*CAPS, limit=10)] == [f"python-{i}" for i in range(1, 11)]


def test_a_caller_of_sql_who_gets_less_than_he_asked_for_has_looked_at_everything(
    pgwf: Leasing, graveyard: Callable[[], None], racers: tuple[Racer, Racer]
) -> None:
    racers[0].begin()
    racers[0].call("submit_job", job_id="late", worker_id="client", next_need="python")
    graveyard()
    fill(pgwf, 12)
    pgwf.get_work(*CAPS, limit=10)
    racers[0].commit()

    assert [lease["job_id"] for lease in pgwf.get_work(*CAPS, limit=10)] == ["python-10", "python-11", "late"]


def test_a_position_moves_on_over_what_finished_since(
    pgwf: Leasing, worker: Worker, graveyard: Callable[[], None]
) -> None:
    worker.begin_at(0)
    graveyard()
    fill(pgwf, 30)

    assert worker.claim(10) == [f"python-{i}" for i in range(10)]
    worker.blocks_of_claim()

    assert worker.blocks_of_claim() <= BLOCKS_MAX
    assert worker.claim(10) == [f"python-{i}" for i in range(10, 20)]


def test_a_claim_left_open_does_not_keep_the_position_at_its_place(
    pgwf: Leasing, worker: Worker, graveyard: Callable[[], None], racers: tuple[Racer, Racer]
) -> None:
    fill(pgwf, 1)
    racers[0].begin()
    assert len(racers[0].claim(limit=1)) == 1
    worker.begin_at(0)
    graveyard()
    fill(pgwf, 10, tag="late")

    assert worker.claim(5) == [f"late-{i}" for i in range(5)]
    worker.blocks_of_claim()
    assert worker.blocks_of_claim() <= BLOCKS_MAX

    racers[0].rollback()
    worker.due()
    assert worker.claim(1) == ["python-0"], "the claim that was undone left its job below the position"


def test_a_cheap_look_leaves_no_position(pgwf: Leasing, worker: Worker) -> None:
    fill(pgwf, 60)
    for _ in range(20):  # Plans are made in the first calls, and a busy machine may slow a call down.
        worker.claim(1)
        if not worker.position:
            break
        worker.due()

    assert (worker.position, worker.is_whole) == ([], True)


def test_a_caller_that_passes_no_position_gets_none(pgwf: Leasing, graveyard: Callable[[], None]) -> None:
    graveyard()
    worker = Worker(pgwf.conn)
    worker.position = None

    (row,) = pgwf.rows(CLAIM, worker._parameters(1))

    assert (row["next_position"], row["is_whole"]) == (None, True)


# -- Nothing is lost ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("end", ["commit", "savepoint", "prepared transaction"])
def test_a_late_commit_below_the_position_is_found_by_the_next_whole_look(
    pgwf: Leasing, worker: Worker, racers: tuple[Racer, Racer], end: str
) -> None:
    submitter = racers[0]
    submitter.begin()
    if end == "savepoint":
        submitter.session.run("savepoint a")
    submitter.call("submit_job", job_id="late", worker_id="c", next_need="python")
    if end == "savepoint":
        submitter.session.run("release a")
    elif end == "prepared transaction":
        submitter.session.run("prepare transaction 'late'")
    fill(pgwf, 3)
    worker.begin_at(0)
    assert worker.drain() == ["python-0", "python-1", "python-2"]

    submitter.session.run("commit prepared 'late'" if end == "prepared transaction" else "commit")

    assert (worker.claim(), worker.is_whole) == ([], False), "it lies below the position"
    worker.due()
    assert (worker.claim(), worker.is_whole) == (["late"], True)
    assert worker.drain() == []


@pytest.mark.parametrize("end", ["commit", "savepoint", "prepared transaction"])
def test_a_commit_before_the_claim_is_found_at_once(
    pgwf: Leasing, worker: Worker, racers: tuple[Racer, Racer], end: str
) -> None:
    submitter = racers[0]
    fill(pgwf, 1)
    worker.begin_at(0)
    assert worker.drain() == ["python-0"]
    submitter.begin()
    if end == "savepoint":
        submitter.session.run("savepoint a")
    submitter.call("submit_job", job_id="timely", worker_id="c", next_need="python")
    if end == "savepoint":
        submitter.session.run("release a")
    elif end == "prepared transaction":
        submitter.session.run("prepare transaction 'timely'")

    assert worker.claim() == []
    submitter.session.run("commit prepared 'timely'" if end == "prepared transaction" else "commit")

    assert (worker.claim(), worker.is_whole) == (["timely"], False)


def test_a_job_rolled_back_to_its_savepoint_leaves_nothing_to_find(
    pgwf: Leasing, worker: Worker, racers: tuple[Racer, Racer]
) -> None:
    submitter = racers[0]
    submitter.begin()
    submitter.session.run("savepoint a")
    submitter.call("submit_job", job_id="undone", worker_id="c", next_need="python")
    submitter.session.run("rollback to a")
    submitter.call("submit_job", job_id="late", worker_id="c", next_need="python")
    fill(pgwf, 1)
    worker.begin_at(0)
    assert worker.drain() == ["python-0"]

    submitter.commit()
    worker.due()

    assert worker.drain() == ["late"]


def test_a_position_ahead_of_the_sequence_holds_until_the_next_whole_look(pgwf: Leasing, worker: Worker) -> None:
    """After a failover the sequence may be behind what a worker has seen."""
    worker.begin_at(BEYOND)
    fill(pgwf, 3)

    assert worker.claim() == []
    worker.due()

    assert worker.claim(2) == ["python-0", "python-1"]
    _, *starts = worker.position or [0]
    assert all(start < BEYOND for start in starts)
    assert worker.claim() == ["python-2"]


def test_a_look_before_the_first_job_passes_nothing(pgwf: Leasing, worker: Worker) -> None:
    """A sequence nobody drew from says 1, as one that gave out 1."""
    looked = "select pgwf._next_position(%s, '{}', true, 1, '{}', '{}', '{}', false, true) as position"

    (before,) = pgwf.rows(looked, [list(CAPS)])
    worker.begin_at(*before["position"][1:])
    pgwf.submit("first")

    assert worker.claim() == ["first"]
    (after,) = pgwf.rows(looked, [list(CAPS)])
    assert (set(before["position"][1:]), set(after["position"][1:])) == ({0}, {1})


def test_a_position_that_would_hold_for_hours_is_not_believed(pgwf: Leasing, worker: Worker) -> None:
    """The server's clock was set back."""
    fill(pgwf, 1)
    worker.begin_at(BEYOND)
    assert worker.position is not None
    worker.position[0] += 3_600_000

    assert (worker.claim(), worker.is_whole) == (["python-0"], True)


def test_a_position_that_fits_other_needs_loses_nothing(pgwf: Leasing, worker: Worker) -> None:
    fill(pgwf, 1)
    worker.begin_at(0)
    worker.position = (worker.position or [])[:3]

    assert worker.claim() == ["python-0"]


def test_work_that_a_claim_had_to_leave_is_not_passed(pgwf: Leasing, worker: Worker) -> None:
    """The need has no room: its jobs are seen, and not taken."""
    pgwf.limit_need("gpu", max_active=1)
    fill(pgwf, 3, need="gpu")
    worker.begin_at(0)

    assert worker.claim() == ["gpu-0"]
    assert worker.claim() == []
    (lease,) = pgwf.rows("select 'gpu-0' as job_id, lease_id::text from pgwf.lease")
    pgwf.complete(lease)

    assert (worker.claim(), worker.is_whole) == (["gpu-1"], False)


def test_work_that_a_whole_look_had_to_leave_is_not_passed(
    pgwf: Leasing, worker: Worker, graveyard: Callable[[], None]
) -> None:
    pgwf.limit_need("gpu", max_active=0)
    fill(pgwf, 1, need="gpu")
    graveyard()
    assert (worker.claim(), worker.is_whole, worker.position != []) == ([], True, True)

    pgwf.limit_need("gpu", max_active=1)

    assert (worker.claim(), worker.is_whole) == (["gpu-0"], False)


def test_a_job_whose_key_is_just_being_moved_is_not_passed(
    pgwf: Leasing, worker: Worker, racers: tuple[Racer, Racer]
) -> None:
    pgwf.submit("a", singleton_key="K")
    lease = pgwf.take()
    pgwf.submit("b", singleton_key="K")
    fill(pgwf, 1)
    worker.begin_at(0)
    racers[0].begin()
    racers[0].call("complete_job", **held(lease))

    assert worker.claim() == ["python-0"], "the key is being given up: job b is left where it is"
    racers[0].commit()

    assert (worker.claim(), worker.is_whole) == (["b"], False)


# -- Order -------------------------------------------------------------------------------------------------------------


def test_priorities_age_as_they_do_without_a_position(pgwf: Leasing, worker: Worker, clock: Any) -> None:
    pgwf.submit("old", priority=4)
    clock.advance(seconds=170)
    pgwf.submit("middle", priority=1)
    clock.advance(seconds=20)
    worker.begin_at(0)

    pgwf.submit("young", priority=1)

    assert [worker.claim(1), worker.claim(1), worker.claim(1)] == [["middle"], ["old"], ["young"]]
    assert not worker.is_whole


def test_a_lane_that_is_not_reached_keeps_its_work(pgwf: Leasing, worker: Worker) -> None:
    fill(pgwf, 2, tag="low", priority=4)
    fill(pgwf, 4, tag="high", priority=1)
    worker.begin_at(0)

    assert worker.claim(2) == ["high-0", "high-1"]
    assert worker.claim(2) == ["high-2", "high-3"]

    assert (worker.claim(2), worker.is_whole) == (["low-0", "low-1"], False)


def test_two_workers_share_the_work_between_their_positions(pgwf: Leasing, connect: Connect) -> None:
    fill(pgwf, 40)
    one, two = Worker(connect()), Worker(connect())
    one.begin_at(0)
    two.begin_at(0)

    found = [job_id for _ in range(10) for job_id in (*one.claim(3), *two.claim(1))]

    assert found == [f"python-{i}" for i in range(40)]


def fill(pgwf: Leasing, count: int, *, need: str = "python", tag: str | None = None, priority: int = 3) -> None:
    pgwf.call(
        "submit_jobs",
        worker_id="client",
        job_ids=[f"{tag or need}-{i}" for i in range(count)],
        next_needs=[need] * count,
        priorities=json.dumps([priority] * count).replace("[", "{").replace("]", "}"),
    )
