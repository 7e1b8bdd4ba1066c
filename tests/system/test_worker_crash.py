"""Worker processes killed, stopped and drained; a database that goes away. Nothing is lost, nothing doubled."""

from __future__ import annotations

import signal
import subprocess
import sys
from contextlib import ExitStack
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from pgwf_sdk import Client, RunFailedError
from tests.support import wait_for_status, wait_until
from tests.system import flows

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

ROOT = Path(__file__).resolve().parents[2]
SOON = timedelta(seconds=60)
LEASE_SECONDS = 4.0  # A busy machine may hold a process up for a second or two; that must not cost its lease.
LONG_LEASE_SECONDS = 60.0

WorkerProcess = subprocess.Popen[bytes]


@pytest.fixture
def start_process(dsn: str, db: psycopg.Connection[Any], tmp_path: Path) -> Iterator[Callable[..., WorkerProcess]]:
    """Starts worker processes on the test's database; kills those that are left."""
    db.execute(flows.SCHEMA)
    with ExitStack() as started:

        def start(*capabilities: str, lease_seconds: float = LEASE_SECONDS) -> WorkerProcess:
            log = started.enter_context((tmp_path / f"worker-{len(list(tmp_path.iterdir()))}.log").open("wb"))
            process = subprocess.Popen(
                [sys.executable, "-m", "tests.system.flows", dsn, str(lease_seconds), *(capabilities or ("python",))],
                cwd=ROOT,
                stdout=log,
                stderr=subprocess.STDOUT,
            )
            started.callback(_end, process)
            return process

        yield start


def _end(process: WorkerProcess) -> None:
    if process.poll() is None:
        process.send_signal(signal.SIGCONT)
        process.kill()
    process.wait()


@pytest.fixture
def client(dsn: str) -> Iterator[Client]:
    with Client(dsn) as client:
        yield client


def effects(db: psycopg.Connection[Any]) -> list[str]:
    return [name for (name,) in db.execute("select name from effect order by id").fetchall()]


def recorded_more_than_once(db: psycopg.Connection[Any]) -> list[Any]:
    return db.execute(
        "select n, key, phase from pgwf_journal.entries group by n, key, phase having count(*) > 1"
    ).fetchall()


@pytest.mark.parametrize("dies_at", range(flows.STEPS_COUNT))
def test_a_worker_killed_in_any_step_is_replaced_and_only_that_step_runs_again(
    dies_at: int, client: Client, db: psycopg.Connection[Any], start_process: Callable[..., WorkerProcess]
) -> None:
    names = [f"s{i}" for i in range(flows.STEPS_COUNT)]
    db.execute("insert into deaths_due values (%s)", [names[dies_at]])
    first = start_process()
    run = client.start(flows.line(names))
    wait_until(lambda: first.poll() is not None, "the first worker is dead", seconds=60)

    start_process()

    assert run.result(timeout=SOON) == [name.upper() for name in names]
    assert effects(db) == names[: dies_at + 1] + names[dies_at:]
    assert recorded_more_than_once(db) == []
    assert db.execute("select * from pgwf.check()").fetchall() == []


@pytest.mark.parametrize(
    ("dies_at", "again"),
    [("b", "abCdE"), ("C", "abCdE"), ("d", "dE"), ("E", "dE")],
    ids=["in a deferred step", "before its record", "after it", "before the last record"],
)
def test_a_worker_killed_before_deferred_steps_are_recorded_does_them_again_and_loses_nothing_after_them(
    dies_at: str, again: str, client: Client, db: psycopg.Connection[Any], start_process: Callable[..., WorkerProcess]
) -> None:
    names = list("abCdE")
    db.execute("insert into deaths_due values (%s)", [dies_at])
    first = start_process()
    run = client.start(flows.pondered(names))
    wait_until(lambda: first.poll() is not None, "the first worker is dead", seconds=60)
    recorded = [key for (key,) in db.execute("select key from pgwf_journal.entries order by seq").fetchall()]
    assert recorded[1:] == (["/step:ponder#1", "/step:ponder#2", "/step:work#1"] if again == "dE" else [])

    start_process()

    assert run.result(timeout=SOON) == [name.upper() for name in names]
    assert effects(db) == [*names[: names.index(dies_at) + 1], *again]
    assert recorded_more_than_once(db) == []
    keys = db.execute("select key from pgwf_journal.entries where kind = 'step' order by seq").fetchall()
    assert [key for (key,) in keys] == [
        *("/step:ponder#1", "/step:ponder#2", "/step:work#1"),
        *("/step:ponder#3", "/step:work#2"),
    ]
    assert db.execute("select * from pgwf.check()").fetchall() == []


@pytest.mark.parametrize("dies_at", ["exit", "undo C", "undo B", "undo A"])
def test_a_worker_killed_while_a_saga_is_undone_is_replaced_and_each_step_is_undone_once(
    dies_at: str, client: Client, db: psycopg.Connection[Any], start_process: Callable[..., WorkerProcess]
) -> None:
    db.execute("insert into deaths_due values (%s)", [dies_at])
    first = start_process()
    run = client.start(flows.saga(["a", "b", "c"]), run_id="saga")
    wait_until(lambda: first.poll() is not None, "the first worker is dead", seconds=60)

    start_process()

    with pytest.raises(RunFailedError, match="the saga is to be undone"):
        run.result(timeout=SOON)
    done = ["a", "b", "c", "exit", "undo C", "undo B", "undo A"]
    again = done.index(dies_at)
    assert effects(db) == done[: again + 1] + done[again:]
    assert recorded_more_than_once(db) == []
    keys = db.execute(
        "select key from pgwf_journal.entries where kind = 'compensation' and phase = 'completed' order by seq"
    ).fetchall()
    assert [key for (key,) in keys] == ["/compensation:work#1", *(f"/compensation:take_back#{n}" for n in (1, 2, 3))]
    assert db.execute("select * from pgwf.check()").fetchall() == []


@pytest.mark.parametrize(("dies_at", "attempts"), [("f 1", [1, 1, 2, 3]), ("f 3", [1, 2, 3, 3]), ("", [1, 2, 3])])
def test_attempts_that_failed_are_counted_across_workers_that_are_killed(
    dies_at: str,
    attempts: list[int],
    client: Client,
    db: psycopg.Connection[Any],
    start_process: Callable[..., WorkerProcess],
) -> None:
    """Killed in an attempt, or ('') in the pause between two: a crash is none of the step's attempts."""
    if dies_at:
        db.execute("insert into deaths_due values (%s)", [dies_at])
    first = start_process()
    run = client.start(flows.stubborn())
    if not dies_at:
        wait_until(lambda: db.execute("select no from pgwf_sdk.attempt").fetchone() == (1,), "one failed", seconds=60)
        first.kill()
    wait_until(lambda: first.poll() is not None, "the first worker is dead", seconds=60)

    start_process()

    assert run.result(timeout=SOON) == "F"
    assert [attempt for (attempt,) in db.execute("select attempt from effect order by id").fetchall()] == attempts
    assert recorded_more_than_once(db) == []


@pytest.mark.parametrize("seconds", [0.9, 5.0], ids=["waited for by its worker", "parked"])
def test_a_timer_whose_worker_is_killed_fires_once(
    seconds: float, client: Client, db: psycopg.Connection[Any], start_process: Callable[..., WorkerProcess]
) -> None:
    first = start_process()
    run = client.start(flows.napping(seconds), run_id="n")
    timer = "select phase from pgwf_journal.entries where kind = 'timer' order by seq"
    wait_until(lambda: db.execute(timer).fetchall(), "the timer is set", seconds=60)
    first.kill()
    first.wait()

    start_process()

    assert run.result(timeout=SOON) == ["BEFORE", "AFTER"]
    assert db.execute(timer).fetchall() == [("opened",), ("completed",)]
    assert effects(db).count("before") == 1
    assert recorded_more_than_once(db) == []


@pytest.mark.parametrize(
    ("dies_at", "booked"),
    [("first", []), ("second", ["first"]), ("third", ["first", "second"])],
    ids=["before the first commit", "before the second commit", "after both"],
)
def test_the_sql_of_a_step_whose_worker_is_killed_is_there_if_and_only_if_its_record_is(
    dies_at: str,
    booked: list[str],
    client: Client,
    db: psycopg.Connection[Any],
    start_process: Callable[..., WorkerProcess],
) -> None:
    db.execute("insert into deaths_due values (%s)", [dies_at])
    first = start_process()
    run = client.start(flows.booking())
    wait_until(lambda: first.poll() is not None, "the first worker is dead", seconds=60)
    left = "select from pg_stat_activity where application_name = 'pgwf worker transactions' and xact_start is not null"
    wait_until(lambda: not db.execute(left).fetchall(), "its transactions have ended")
    assert (rows_booked(db), rows_recorded(db)) == (booked, booked)

    start_process()

    assert run.result(timeout=SOON) == ["FIRST", "SECOND", "THIRD"]
    assert (rows_booked(db), rows_recorded(db)) == (["first", "second"], ["first", "second"])
    assert recorded_more_than_once(db) == []


def rows_booked(db: psycopg.Connection[Any]) -> list[str]:
    return [name for (name,) in db.execute("select name from booked order by id").fetchall()]


def rows_recorded(db: psycopg.Connection[Any]) -> list[str]:
    statement = (
        "select convert_from(e.payload, 'UTF8')::jsonb from pgwf_journal.entry e where e.name = 'book' order by seq"
    )
    return [name.lower() for (name,) in db.execute(statement).fetchall()]


def test_all_workers_killed_at_once_lose_nothing(
    client: Client, db: psycopg.Connection[Any], start_process: Callable[..., WorkerProcess]
) -> None:
    workers = [start_process(), start_process()]
    runs = [client.start(flows.pair([f"r{i}a", f"r{i}b"])) for i in range(6)]
    wait_until(lambda: len(effects(db)) >= 5, "the runs are under way", seconds=60)

    for worker in workers:
        worker.kill()
    start_process()

    for i, run in enumerate(runs):
        assert run.result(timeout=SOON) == [f"R{i}A", f"R{i}B", f"R{i}A-CHILD", f"R{i}B-CHILD"]
    assert recorded_more_than_once(db) == []
    assert db.execute("select * from pgwf.check()").fetchall() == []


def test_a_token_given_away_by_a_worker_that_was_killed_is_good_and_the_next_worker_gives_away_the_same(
    client: Client, db: psycopg.Connection[Any], start_process: Callable[..., WorkerProcess]
) -> None:
    db.execute("insert into deaths_due values ('awk\\_%')")
    first = start_process()
    run = client.start(flows.answered())
    wait_until(lambda: first.poll() is not None, "the first worker is dead", seconds=60)
    (token,) = effects(db)

    assert client.complete_awakeable(token, "paid"), "nobody works on the run, and its promise is recorded"
    start_process()

    assert run.result(timeout=SOON) == "paid"
    assert effects(db) == [token, token]
    assert recorded_more_than_once(db) == []


def is_attached(db: psycopg.Connection[Any]) -> bool:
    return bool(db.execute("select from pgwf_sdk.attachment").fetchall())


def heard_once(db: psycopg.Connection[Any]) -> bool:
    """Whether all that came of the attached call is one result in the journal, and nothing is left to be read."""
    heard = db.execute("select phase from pgwf_journal.entries where kind = 'attach' and phase <> 'opened'").fetchall()
    left = db.execute("select from pgwf_sdk.inbox union all select from pgwf_sdk.attachment").fetchall()
    return (heard, left) == ([("completed",)], [])


@pytest.mark.parametrize("dies", ["before it attaches", "while it holds the run", "when it has parked it", "after it"])
def test_a_run_whose_worker_is_killed_while_the_run_it_is_attached_to_ends_hears_of_that_once(
    dies: str, client: Client, db: psycopg.Connection[Any], start_process: Callable[..., WorkerProcess]
) -> None:
    db.execute("insert into held values ('a')")
    start_process("python")
    target = client.start(flows.line(["a", "b"]), run_id="target")
    wait_until(lambda: effects(db) == ["a"], "the target is under way", seconds=60)
    if dies == "while it holds the run":
        db.execute("insert into held values ('beside')")
    elif dies != "when it has parked it":
        db.execute("insert into deaths_due values (%s)", ["before" if dies == "before it attaches" else "after"])
    first = start_process("watch")
    run = client.start(flows.watching("target"), run_id="watching")
    if dies == "while it holds the run":
        wait_until(lambda: "beside" in effects(db) and is_attached(db), "it is attached, and in a step", seconds=60)
        first.kill()
    elif dies == "when it has parked it":
        wait_for_status(run, "waiting", seconds=60)
        first.kill()
    elif dies == "after it":
        wait_until(lambda: is_attached(db), "it is attached", seconds=60)
        db.execute("delete from held where name = 'a'")
    wait_until(lambda: first.poll() is not None, "its worker is dead", seconds=60)
    db.execute("delete from held")
    assert target.result(timeout=SOON) == ["A", "B"]

    start_process("watch")

    assert run.result(timeout=SOON) == ["BEFORE", "A", "B", "BESIDE", "AFTER"]
    assert heard_once(db)
    assert effects(db).count("a") == effects(db).count("b") == 1
    assert recorded_more_than_once(db) == []
    assert db.execute("select * from pgwf.check()").fetchall() == []


@pytest.mark.parametrize("is_lonely", [False, True], ids=["and the other does not", "and so does the other"])
def test_a_run_hears_once_of_the_end_of_another_whose_worker_is_killed(
    is_lonely: bool, client: Client, db: psycopg.Connection[Any], start_process: Callable[..., WorkerProcess]
) -> None:
    db.execute("insert into held values ('a')")
    db.execute("insert into deaths_due values ('b')")
    first = start_process("python")
    target = client.start(flows.line(["a", "b"]), run_id="target")
    watcher = start_process("watch")
    run = client.start(flows.watching("target"), run_id="watching")
    wait_until(lambda: is_attached(db) and "a" in effects(db), "one waits for the other", seconds=60)
    db.execute("delete from held")
    wait_until(lambda: first.poll() is not None, "the worker of the other is dead", seconds=60)
    assert target.status() in {"running", "ready"}
    if is_lonely:
        watcher.kill()
        watcher.wait()
        start_process("watch")

    start_process("python")

    assert run.result(timeout=SOON) == ["BEFORE", "A", "B", "BESIDE", "AFTER"]
    assert heard_once(db)
    assert effects(db).count("b") == 2
    assert recorded_more_than_once(db) == []
    assert db.execute("select * from pgwf.check()").fetchall() == []


def test_a_worker_that_was_suspended_beyond_its_lease_cannot_write_any_more(
    client: Client, db: psycopg.Connection[Any], start_process: Callable[..., WorkerProcess]
) -> None:
    db.execute("insert into held values ('a')")
    zombie = start_process()
    run = client.start(flows.line(["a", "b"]), run_id="z")
    wait_until(lambda: effects(db) == ["a"], "the first worker is in the step", seconds=60)
    zombie.send_signal(signal.SIGSTOP)
    db.execute("delete from held")

    start_process()
    assert run.result(timeout=SOON) == ["A", "B"]
    zombie.send_signal(signal.SIGCONT)
    zombie.terminate()

    assert zombie.wait(timeout=60) == 0
    assert effects(db) == ["a", "a", "b"]
    assert recorded_more_than_once(db) == []


def test_sigterm_lets_the_step_end_records_it_and_hands_the_run_to_another_worker_at_once(
    client: Client, db: psycopg.Connection[Any], start_process: Callable[..., WorkerProcess]
) -> None:
    db.execute("insert into held values ('a')")
    first = start_process(lease_seconds=LONG_LEASE_SECONDS)
    run = client.start(flows.line(["a", "b"]), run_id="d")
    wait_until(lambda: effects(db) == ["a"], "the first worker is in the step", seconds=60)
    second = start_process(lease_seconds=LONG_LEASE_SECONDS)
    wait_until(lambda: len(db.execute("select from pgwf.worker").fetchall()) == 2, "the second is there", seconds=60)

    first.terminate()

    assert first.wait(timeout=60) == 0
    assert run.result(timeout=SOON) == ["A", "B"]
    assert db.execute("select name, pid from effect order by id").fetchall() == [("a", first.pid), ("b", second.pid)]
    assert db.execute("select lapses from pgwf_sdk.runs where run_id = 'd'").fetchone() == (0,)
