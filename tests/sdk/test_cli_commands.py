"""Commands end to end, in this process, on runs that a real worker works on."""

from __future__ import annotations

import io
import json
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import psycopg
import pytest
from msgspec import Struct

from pgwf_sdk import Client, Worker, ops
from pgwf_sdk.cli._app import run_command
from tests.sdk.cli_shop import WORKFLOWS
from tests.sdk.sql.hand import Hand, start
from tests.sdk.worker.conftest import Running
from tests.support import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

Conn = psycopg.Connection[Any]
SHOP = "tests.sdk.cli_shop"


class Said(Struct):
    """What a command said, and how it ended."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


Pgwf = Callable[..., Said]


@pytest.fixture
def pgwf(dsn: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Pgwf:
    """Runs a command on the test's database."""
    for variable in ("DATABASE_URL", "NO_COLOR", "CLICOLOR_FORCE", "PGWF_USER"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("PGWF_DSN", dsn)

    def run(*arguments: str) -> Said:
        code = run_command(arguments)
        captured = capfd.readouterr()
        return Said(code, captured.out, captured.err)

    return run


@pytest.fixture
def worker(dsn: str) -> Iterator[Running]:
    """A worker that knows the shop's workflows."""
    with Client(dsn) as client:
        running = Running(Worker(client, workflows=WORKFLOWS))
        yield running
        running.stop()


@pytest.mark.usefixtures("worker")
def test_a_run_is_started_and_its_result_printed(pgwf: Pgwf) -> None:
    said = pgwf("start", f"{SHOP}:doubling", "-P", "number=21", "-P", "label=n", "--id", "order-1", "--wait")

    assert (said.code, said.out) == (0, '"n42"\n')
    assert "started run order-1" in said.err
    again = pgwf("start", f"{SHOP}:doubling", "-P", "number:=21", "-P", "label=n", "--id", "order-1")
    assert (again.code, again.out) == (0, "order-1\n")
    assert "had been started with this input before" in again.err
    other = pgwf("start", f"{SHOP}:doubling", "-P", "number=22", "--id", "order-1")
    assert other.code == 5
    assert "order-1" in other.err


@pytest.mark.usefixtures("worker")
@pytest.mark.parametrize(
    "arguments",
    [
        ["-P", "number:=4"],
        ["-i", '{"number": 4}'],
        ["-i", "[4]"],
        ["-i", '{"label": ""}', "-P", "number:=4"],
    ],
)
def test_a_run_is_started_by_the_name_of_its_workflow(pgwf: Pgwf, arguments: list[str]) -> None:
    said = pgwf("start", "doubling", *arguments, "--wait", "--timeout", "20s")

    assert (said.code, said.out) == (0, '"8"\n')


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["start", f"{SHOP}:doubling"], "missing a required argument: 'number'; expected doubling(number: "),
        (["start", f"{SHOP}:doubling", "-P", "number=x"], "argument number: Expected `int`, got `str`"),
        (["start", f"{SHOP}:doubling", "-i", "{"], "-i {: it is not JSON"),
        (["start", f"{SHOP}:doubling", "-i", "3"], "expected a JSON object"),
        (["start", f"{SHOP}:doubling", "-P", "number=1", "--attribute", "ann"], "expected NAME=TEXT, such as"),
        (["start", f"{SHOP}:NUMBER"], "it is an int, expected a workflow"),
        (["start", f"{SHOP}:trebling"], "has no 'trebling'"),
        (["start", f"{SHOP}:WORKFLOWS"], "it has several workflows"),
        (["start", "no.such.module:x"], "no module 'no.such.module'"),
    ],
)
def test_a_wrong_start_says_what_is_wrong_and_starts_nothing(
    pgwf: Pgwf, db: Conn, arguments: list[str], said: str
) -> None:
    answer = pgwf(*arguments)

    assert answer.code == 6
    assert said in answer.err
    assert "Traceback" not in answer.err
    assert ops.list_runs(db).runs == ()


@pytest.mark.parametrize("workflow", ["doubling", f"{SHOP}:doubling"])
def test_a_run_is_found_by_the_attributes_it_was_started_with(pgwf: Pgwf, workflow: str) -> None:
    arguments = ["-P", "number=4", "--id", "order-1", "--attribute", "customer=ann", "--attribute", "note=a=b"]

    assert pgwf("start", workflow, *arguments).code == 0

    (run,) = pgwf("list", "attr:customer=ann", "attr:note=a=b", "-o", "json").json
    assert run["attributes"] == {"customer": "ann", "note": "a=b"}
    assert pgwf("list", "attr:customer=bob", "-o", "json").json == []


@pytest.mark.parametrize("reference", ["shop.py", "shops/checkout"])
def test_a_file_without_its_workflow_is_no_workflow(pgwf: Pgwf, db: Conn, reference: str) -> None:
    said = pgwf("start", reference, "-P", "a=1")

    assert said.code == 2
    assert f"{reference!r} is a file" in said.err
    assert f"expected MODULE:WORKFLOW, such as {reference}:checkout" in said.err
    assert ops.list_runs(db).runs == ()


def test_a_start_says_when_no_worker_offers_what_the_run_needs(pgwf: Pgwf) -> None:
    known = pgwf("start", f"{SHOP}:doubling", "-P", "number=1", "--id", "order-1")
    unknown = pgwf("start", "nosuch")
    routed = pgwf("start", "doubling", "-P", "number:=1", "--need", "gpu")

    assert (known.code, known.out) == (0, "order-1\n")
    assert "no live worker offers 'doubling'" in known.err
    assert f"start one: pgwf worker run {SHOP}\n" in known.err
    assert "check the name 'nosuch', or start one: pgwf worker run MODULE\n" in unknown.err
    assert "pgwf worker run MODULE --capability gpu\n" in routed.err


def test_a_start_is_silent_about_workers_when_there_is_one(pgwf: Pgwf, db: Conn, worker: Running) -> None:
    wait_until(lambda: ops.list_workers(db), "the worker is known")

    assert "no live worker" not in pgwf("start", f"{SHOP}:delivering").err


@pytest.mark.usefixtures("worker")
def test_the_exit_code_says_how_a_run_ended(pgwf: Pgwf) -> None:
    failed = pgwf("start", "failing", "-P", "number:=3", "--id", "failing-1", "--wait")

    assert failed.code == 10
    assert failed.out == ""
    assert "run failing-1 failed: ValueError: 3 is too many" in failed.err
    shown = pgwf("show", "failing-1").out
    assert "ValueError: 3 is too many" in shown
    assert all(", the last: its retry policy" in said for said in (failed.err, shown)), "notes are shown"
    assert pgwf("start", "delivering", "--id", "delivering-1").code == 0
    assert pgwf("result", "delivering-1").code == 7
    assert pgwf("result", "delivering-1", "--wait", "--timeout", "0s").code == 7
    assert pgwf("cancel", "delivering-1", "--reason", "enough").code == 0
    assert pgwf("result", "delivering-1", "--wait").code == 11
    as_json = pgwf("result", "failing-1", "-o", "json")
    assert as_json.code == 10
    assert as_json.json["schema"] == "pgwf.result/1"
    assert as_json.json["payload"]["message"] == "3 is too many"
    assert pgwf("result", "nobody-1").code == 4


@pytest.mark.usefixtures("worker")
def test_a_signal_reaches_the_run_as_the_type_it_expects(pgwf: Pgwf) -> None:
    pgwf("start", "delivering", "--id", "delivering-1")

    wrong = pgwf("signal", "delivering-9", "delivered", "-P", "weight:=1")
    sent = pgwf("signal", "delivering-1", "delivered", "-P", "weight:=2.5", "-P", "code=X1", "--dedup-id", "d")
    again = pgwf("signal", "delivering-1", "delivered", "-P", "weight:=9", "--dedup-id", "d")

    assert (wrong.code, sent.code, again.code) == (4, 0, 0)
    assert "nothing was sent" in again.err
    assert pgwf("result", "delivering-1", "--wait").out == "2.5\n"
    late = pgwf("signal", "delivering-1", "delivered")
    assert late.code == 5
    assert "is over" in late.err


@pytest.mark.usefixtures("worker")
def test_a_person_decides_a_task(pgwf: Pgwf, db: Conn) -> None:
    pgwf("start", f"{SHOP}:refunding", "-P", "cents=1200", "--id", "refund-1")
    wait_until(lambda: ops.list_tasks(db), "the task is open")
    task = pgwf("human", "list", "-o", "ids").out.strip()

    shown = pgwf("human", "show", task).out

    assert "Refund it?" in shown
    assert f"pgwf human decide {task} approve -P cents=… [-P note=…]" in shown
    assert '"cents": 1200' in shown
    wrong = pgwf("human", "decide", task, "approve", "-P", "cents=0")
    assert wrong.code == 6
    assert "cents: expected a value of at least 1, found 0" in wrong.err
    assert pgwf("human", "decide", task).code == 2
    assert pgwf("human", "claim", task, "--as", "ann", "-o", "json").json["holder"] == "ann"
    assert pgwf("human", "claim", task, "--as", "bob").code == 5
    held = pgwf("human", "decide", task, "approve", "-P", "cents=1100", "--as", "bob")
    assert held.code == 5
    assert "ann holds it" in held.err
    assert pgwf("human", "release", task, "--as", "ann").code == 0
    assert pgwf("human", "decide", task, "APPROVE", "-P", "cents=1100", "--as", "bob").code == 0
    assert pgwf("result", "refund-1", "--wait").out == '"bob paid 1100"\n'
    assert pgwf("human", "decide", task, "reject", "-P", "reason=late").code == 5
    assert pgwf("human", "list").err == "no task is open\n"
    assert pgwf("human", "show", "refund-1/nothing").code == 4


@pytest.mark.parametrize(
    ("status", "next_step"), [("blocked", "`pgwf why order-1`"), ("paused", "`pgwf resume order-1`")]
)
def test_the_result_of_a_run_that_is_stuck_says_what_lets_it_go_on(
    pgwf: Pgwf, db: Conn, status: str, next_step: str
) -> None:
    start(db, "order-1")
    if status == "paused":
        pgwf("pause", "order-1")
    else:
        hand = Hand(db, "w-1", ["python"])
        hand.say(hand.take().item("block", note='{"text": "it made another call"}'))

    for arguments in ([], ["--wait", "--timeout", "0s"]):
        said = pgwf("result", "order-1", *arguments)

        assert said.code == 7
        assert f"run order-1 is {status}" in said.err
        assert next_step in said.err
        assert "ask again" not in said.err
    if status == "blocked":
        assert pgwf("pause", "order-1").code == 5


def test_an_id_that_is_taken_is_told_in_one_sentence(pgwf: Pgwf) -> None:
    pgwf("start", "doubling", "-P", "number:=1", "--id", "order-1")

    said = pgwf("start", "doubling", "-P", "number:=2", "--id", "order-1")

    assert said.code == 5
    assert "with another input; ids are never used again; choose one that names this piece of work\n" in said.err


@pytest.mark.usefixtures("worker")
def test_a_task_without_variants_is_decided_as_it_is_shown(pgwf: Pgwf, db: Conn) -> None:
    pgwf("start", f"{SHOP}:rating", "--id", "rating-1")
    wait_until(lambda: ops.list_tasks(db), "the task is open")
    task = pgwf("human", "list", "-o", "ids").out.strip()

    claimed = pgwf("human", "claim", task, "--as", "ann")

    (expires_at,) = (found.expires_at for found in ops.list_tasks(db))
    assert expires_at is not None
    assert f"yours until {expires_at:%Y-%m-%d %H:%M:%S} UTC, when it expires\n" in claimed.err
    assert "state   claimed by ann\n" in claimed.out
    assert f"pgwf human decide {task} -i JSON\n      JSON: integer >= 1, <= 5\n" in claimed.out
    without = pgwf("human", "decide", task, "--as", "ann")
    assert without.code == 2
    assert "give the value with -i" in without.err
    assert pgwf("human", "decide", task, "-i", "9", "--as", "ann").code == 6
    assert pgwf("human", "decide", task, "-i", "4", "--as", "ann").code == 0
    assert pgwf("result", "rating-1", "--wait").out == "4\n"


def test_empty_lists_are_json_too(pgwf: Pgwf) -> None:
    for arguments in (["list"], ["human", "list"], ["worker", "list"], ["needs"]):
        said = pgwf(*arguments, "-o", "json")

        assert (said.code, said.json, said.err) == (0, [], "")


def test_lists_are_data_on_stdout_and_talk_on_stderr(pgwf: Pgwf, db: Conn) -> None:
    for number in range(3):
        start(db, f"order-{number}")

    page = pgwf("list", "-n", "2")
    ids = pgwf("-o", "ids", "list", "status:ready")
    as_json = pgwf("list", "-n", "1", "-o", "json")

    assert [line.split()[0] for line in page.out.splitlines()] == ["RUN", "order-2", "order-1"]
    assert page.err.startswith("more: pgwf list --before ")
    assert ids.out == "order-2\norder-1\norder-0\n"
    (run,) = as_json.json
    assert run["schema"] == "pgwf.run/1"
    assert run["run_id"] == "order-2"
    assert run["created_at"].endswith("Z")
    assert pgwf("list", "status:bogus").code == 2


def test_several_runs_are_steered_at_once_and_each_failure_is_told(
    pgwf: Pgwf, db: Conn, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(3):
        start(db, f"order-{number}")

    said = pgwf("pause", "order-0", "order-9", "order-1")

    assert said.code == 4
    assert "run order-0: paused" in said.err
    assert "\npgwf: no run 'order-9'; " in said.err
    assert [run.status for run in ops.list_runs(db).runs] == ["ready", "paused", "paused"]
    assert "pgwf resume order-0" in pgwf("why", "order-0").out
    monkeypatch.setattr(sys, "stdin", io.StringIO("order-0\norder-1\n"))
    assert pgwf("resume", "-").code == 0
    assert {run.status for run in ops.list_runs(db).runs} == {"ready"}
    assert "nothing was done: it is ready" in pgwf("resume", "order-0").err
    assert pgwf("terminate", "order-0", "--reason", "test").code == 0
    assert ops.get_run(db, "order-0").status == "terminated"
    for command, done in (("pause", "paused"), ("resume", "resumed")):
        late = pgwf(command, "order-0")
        assert late.code == 5
        assert f"order-0: it is over (terminated), so it cannot be {done}; nothing was done" in late.err
    retried = pgwf("retry", "order-0")
    assert (retried.code, retried.out) == (0, "order-0~2\n")
    assert pgwf("retry", "order-1").code == 5


@pytest.mark.usefixtures("worker")
def test_a_run_is_forked_and_its_price_told(pgwf: Pgwf) -> None:
    pgwf("start", f"{SHOP}:doubling", "-P", "number:=4", "--id", "order-1", "--wait")

    price = pgwf("fork", "order-1", "--before", "/step:double#1", "--price")
    forked = pgwf("fork", "order-1", "--before", "/step:double#1", "--id", "order-1-again")

    assert (price.code, price.out) == (
        0,
        "a fork of order-1 before entry 2 takes over 1 entry, 33 bytes\n"
        "  steps that run again: /step:double#1\n"
        "  made anew: none\n"
        "  results of children, awakeables and people taken over: none\n",
    )
    assert (forked.code, forked.out) == (0, "order-1-again\n")
    assert "steps that run again: /step:double#1" in forked.err
    assert pgwf("result", "order-1-again", "--wait").out == '"8"\n'
    wrong = pgwf("fork", "order-1", "--before", "/step:treble#1")
    assert (wrong.code, "cannot be forked before '/step:treble#1'" in wrong.err) == (6, True)


def test_blocked_and_failed_runs_are_set_going_again_at_once(pgwf: Pgwf, db: Conn) -> None:
    hand = Hand(db, "w", ["python"])
    for number in (1, 2):
        start(db, f"order-{number}")
        hand.say(hand.take().item("block", note="{}"))
    start(db, "order-3")
    hand.say(hand.take().end("fail", b'{"type":"x:Y","message":""}'))

    assert pgwf("resume", "--blocked", "--workflow", "refund").err == "0 blocked runs resumed\n"
    assert pgwf("resume", "--blocked").err == "2 blocked runs resumed\n"
    assert pgwf("retry", "--failed", "--workflow", "checkout").err == "1 failed run retried\n"
    assert json.loads(pgwf("list", "status:ready", "-o", "json").out)[0]["run_id"] == "order-3~2"
    for wrong in (["resume"], ["resume", "--workflow", "x"], ["retry", "--failed"], ["retry", "--failed", "order-1"]):
        assert pgwf(*wrong).code == 2


@pytest.mark.usefixtures("worker")
def test_show_tells_a_run_as_picture_journal_and_sentence(pgwf: Pgwf) -> None:
    pgwf("start", "doubling", "-P", "number:=9007199254740993", "--id", "order-1", "--wait")

    drawn = pgwf("show", "order-1")
    journal = pgwf("show", "order-1", "--journal", "-o", "json")

    assert "order-1: workflow doubling, completed; need doubling; 3 entries" in drawn.out
    assert any("double" in line and "█" in line for line in drawn.out.splitlines())
    assert "\x1b" not in drawn.out
    assert pgwf("show", "order-1", "--ascii", "--width", "60").out.isascii()
    assert [entry["key"] for entry in journal.json] == ["/run:doubling#1", "/step:double#1", "/run:doubling#1"]
    assert '"payload": 18014398509481986' in journal.out
    assert pgwf("show", "order-1", "--why").out.startswith("It is over: completed")
    assert pgwf("show", "order-1", "-o", "json").json["schema"] == "pgwf.timeline/1"
    assert pgwf("show", "order-1", "-o", "ids").out == "order-1\n"
    assert pgwf("show", "order-2").code == 4


def test_colours_are_for_terminals_or_who_insists(pgwf: Pgwf, db: Conn, monkeypatch: pytest.MonkeyPatch) -> None:
    start(db, "order-1")
    db.execute("select pgwf_sdk.terminate_run('order-1', 'ann')")

    assert "\x1b" not in pgwf("list").out
    monkeypatch.setenv("CLICOLOR_FORCE", "1")
    assert "\x1b[33mterminated" in pgwf("list").out


def test_a_payload_cannot_drive_the_terminal(pgwf: Pgwf, db: Conn) -> None:
    start(db, "order-1", input_=msgspec.json.encode({"args": ["\x1b]0;pwned\x07\u202e"], "kwargs": {}}))
    db.execute("update pgwf_sdk.run set workflow = e'a\\x1b[31m'")

    for arguments in (["list"], ["show", "order-1"], ["show", "order-1", "--journal"], ["why", "order-1"]):
        out = pgwf(*arguments).out

        assert "\x1b" not in out
        assert "\u202e" not in out


def test_without_a_database_the_next_step_is_named(pgwf: Pgwf, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PGWF_DSN")

    said = pgwf("list")

    assert said.code == 2
    assert "pgwf dev" in said.err


def test_the_connection_is_taken_from_option_then_variables(
    pgwf: Pgwf, dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PGWF_DSN", "postgresql://nobody:s3cret@/x?host=/no/such/folder")

    wrong = pgwf("list")

    assert wrong.code == 1
    assert "no connection to the database" in wrong.err
    assert "s3cret" not in wrong.err
    assert pgwf("list", "--dsn", dsn).code == 0
    assert pgwf("--dsn", dsn, "list").code == 0
    monkeypatch.delenv("PGWF_DSN")
    monkeypatch.setenv("DATABASE_URL", dsn)
    assert pgwf("list").code == 0


def test_migrate_installs_checks_and_prints(pgwf: Pgwf, db: Conn) -> None:
    assert pgwf("migrate", "--check").code == 0
    db.execute("drop schema pgwf cascade; drop schema pgwf_journal cascade; drop schema pgwf_sdk cascade")

    missing = pgwf("migrate", "--check")
    unusable = pgwf("list")
    installed = pgwf("migrate")

    assert (missing.code, unusable.code, installed.code) == (8, 8, 0)
    assert "pgwf migrate" in missing.err
    assert "pgwf migrate" in unusable.err
    assert pgwf("migrate").code == 0
    assert pgwf("list", "-o", "json").json == []
    printed = pgwf("migrate", "--sql")
    assert "create schema if not exists pgwf" in printed.out
    assert printed.err == ""
    assert pgwf("migrate", "--sql", "--check").code == 2


def test_dev_runs_a_database_and_a_worker_and_stops_both(pgwf: Pgwf) -> None:
    home = Path(tempfile.mkdtemp(prefix="pgwf-", dir="/tmp"))  # Short for its socket, and open to the server's account.
    home.chmod(0o755)
    log = home / "dev.log"
    try:
        with (
            log.open("w") as stderr,
            subprocess.Popen(
                [sys.executable, "-m", "pgwf_sdk.cli", "dev", SHOP, "--db", str(home / "db")],
                cwd=Path(__file__).parents[2],
                stderr=stderr,
            ) as process,
        ):
            try:
                wait_until(
                    lambda: "Ctrl-C stops it" in log.read_text() or process.poll(), "the worker runs", seconds=60
                )
                dsn = log.read_text().partition("export PGWF_DSN='")[2].partition("'")[0]
                said = pgwf("--dsn", dsn, "start", "doubling", "-P", "number:=4", "--wait", "--timeout", "30s")
            finally:
                process.send_signal(signal.SIGINT)
            assert process.wait(timeout=60) == 0
        assert (said.code, said.out) == (0, '"8"\n')
        assert pgwf("--dsn", dsn, "list").code == 1
        assert log.read_text().endswith("stopped; the data is kept\n")
    finally:
        shutil.rmtree(home, ignore_errors=True)


def test_every_command_has_help(pgwf: Pgwf) -> None:
    listed = [line.split()[0] for line in pgwf("--help").out.partition("Commands:\n")[2].splitlines() if line[2] != " "]

    assert len(listed) >= 17
    for command in listed:
        assert pgwf(command, "--help").code == 0, command
