"""The benchmark's books at a tiny scale: every job is counted once. Nothing here looks at how long anything takes."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree

import psycopg
import pytest

from bench import engine_cells, history, queue_cells, report
from bench.engines import pgwf as pgwf_engine
from bench.engines._engine import EngineSystem, Order, first_times, noted
from bench.processes import workers
from bench.queues import pgwf
from bench.queues._queue import open_connection
from bench.rounds import JOBS, SERVER_CPU, Cell, Measured, measure

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from bench.queues._queue import Queue
    from bench.rounds import Sample

SYSTEMS = {system.name: system for system in pgwf.systems()}


class SteadyProbe:
    """Stands where the probe of a benchmark's own server would."""

    def commits_per_second(self) -> float:
        return 1.0


@pytest.fixture
def connection(dsn: str) -> Iterator[psycopg.Connection[Any]]:
    with open_connection(dsn) as connection:
        yield connection


def cell_of(**values: list[float]) -> Measured:
    return Measured("a cell", {name: [{JOBS: value} for value in row] for name, row in values.items()})


@pytest.mark.parametrize("name", SYSTEMS)
def test_each_way_of_taking_jobs_completes_every_job_once(
    name: str, connection: psycopg.Connection[Any], db: psycopg.Connection[Any]
) -> None:
    bench = queue_cells.Bench(SYSTEMS[name], connection)
    bench.stand(30)

    submitted = bench.submit_for(0.01, 100)
    taken = [bench.take_for(0.01, batch) for batch in (1, 100)]

    assert all(sample[JOBS] > 0 for sample in (submitted, *taken))
    ((done, *rest),) = db.execute(
        "select count(*), count(distinct job_id), min(outcome), max(outcome) from pgwf.archive"
    ).fetchall()
    assert rest == [done, "completed", "completed"]
    assert db.execute("select count(*) from pgwf.name").fetchone() == (done + bench.queue.left(),)
    assert not db.execute("select * from pgwf.check()").fetchall()


@pytest.mark.parametrize("form", [pgwf.TwoCalls, pgwf.OneCall])
def test_taking_counts_what_is_completed_and_finish_the_rest(
    form: Callable[[psycopg.Connection[Any]], Queue], connection: psycopg.Connection[Any]
) -> None:
    queue = form(connection)
    queue.submit(25)

    counts = [queue.take(10) for _ in range(4)]

    assert sum(counts) + queue.finish() == 25
    assert queue.left() == 0


def test_filling_leaves_the_trace_as_it_was(db: psycopg.Connection[Any]) -> None:
    pgwf.TwoCalls(db).fill(5)

    assert db.execute("select pgwf.is_trace_enabled()").fetchone() == (True,)
    assert db.execute("select count(*) from pgwf.jobs_trace").fetchone() == (0,)


def test_subjects_take_turns_and_one_that_fails_is_left_out() -> None:
    turns: list[str] = []

    def sample(name: str) -> Callable[[], Sample]:
        def one() -> Sample:
            turns.append(name)
            if name == "b" and turns.count("b") == 2:
                raise RuntimeError("b broke\nin two lines")
            return {JOBS: 1.0}

        return one

    measured = measure(Cell("turns", {"a": sample("a"), "b": sample("b")}), rounds=3, probe=SteadyProbe())

    assert turns == ["a", "b", "a", "b", "a"]
    assert measured.faults == {"b": "RuntimeError: b broke"}
    assert [len(samples) for samples in measured.samples.values()] == [3, 1]


def test_ratio_is_the_median_of_the_ratios_within_rounds() -> None:
    cell = cell_of(pgwf=[100.0, 10.0, 1.0], peer=[50.0, 40.0, 2.0])

    assert cell.ratio("peer", "pgwf", JOBS) == 2.0
    assert cell.ratio("absent", "pgwf", JOBS) is None


def test_report_holds_every_sample_and_the_plot_is_well_formed() -> None:
    cell = cell_of(pgwf=[100.0, 120.0], peer=[200.0, 180.0])
    cell.faults["other"] = "it < broke"
    result = report.Result({"plan": "none"}, {"commits": 5.0}, [cell])

    found = report.as_json(result)["cells"][0]["metrics"][0]["subjects"]

    assert found["peer"] == {"median": 190.0, "ratio": 1.75, "samples": [200.0, 180.0]}
    assert "| peer | 190 | 180 to 200 | 1.75 |" in report.as_markdown(result)
    assert "it < broke" in report.as_markdown(result)
    assert ElementTree.fromstring(report.as_plot(result)).tag.endswith("svg")


def test_meter_knows_the_server_process_of_its_connection(connection: psycopg.Connection[Any]) -> None:
    meter = queue_cells.Meter(connection)
    connection.execute("select count(*) from generate_series(1, 200000)")

    sample = meter.sample(1)

    assert sample.get(SERVER_CPU, 1.0) > 0


@pytest.mark.parametrize("system", pgwf_engine.systems(), ids=lambda system: system.name)
def test_worker_processes_work_off_every_run_and_note_what_was_ordered(
    system: EngineSystem, dsn: str, db: psycopg.Connection[Any], tmp_path: Path
) -> None:
    with ExitStack() as stack:
        bench = engine_cells.EngineBench(system, dsn, tmp_path, stack)
        notes = bench.notes()
        with workers(system, dsn, log=bench.log, count=1) as made:
            bench.engine.start(3, Order(count=2, notes=str(notes)))
            made[0].go()
            bench.wait_finished(3)
            signals = bench.notes()
            bench.engine.start(1, order := Order("signals", 2, str(signals)))
            for _ in range(2):
                bench.engine.send(order)
            bench.wait_finished(1)
            bench.engine.start(1, Order("children", 4))
            bench.wait_finished(5)

    assert [len(times) for times in noted(notes)] == [4, 4, 4]
    assert len(first_times(signals)) == 2
    assert db.execute("select status, count(*) from pgwf_sdk.runs group by status").fetchall() == [("completed", 9)]


def test_a_written_past_looks_like_one_that_was_lived(db: psycopg.Connection[Any]) -> None:
    history.write_finished(db, 3)
    history.write_waiting(db, 2)

    statuses = db.execute("select status, count(*) from pgwf_sdk.runs group by status order by status").fetchall()

    assert statuses == [("completed", 3), ("waiting", 2)]
    assert db.execute("select count(*) from pgwf_journal.entries where journal_id like 'past-%'").fetchone() == (10,)
    assert not db.execute("select * from pgwf.check()").fetchall()
    assert not db.execute("select * from pgwf.overdue()").fetchall()
