"""The demo as a user runs it, in processes of its own; whatever is killed, the audit ends and nothing is doubled."""

from __future__ import annotations

import json
import os
import pty
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from pgwf_sdk.embedded import EmbeddedServer
from tests.examples.distributions import install, text
from tests.support import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

ROOT = Path(__file__).resolve().parents[2]
DISTRIBUTIONS_COUNT = 24
END_SECONDS_MAX = 90.0

pytestmark = [
    pytest.mark.timeout(240),
    pytest.mark.skipif("PGWF_TEST_PG_BIN" in os.environ, reason="the demo brings the embedded PostgreSQL"),
]


class Demo:
    """One call of the demo. Its output is read as it comes."""

    def __init__(self, arguments: list[str], home: Path, *, terminal: int | None = None) -> None:
        self.lines: list[str] = []
        self._process = subprocess.Popen(
            [sys.executable, "-m", "examples.licence_audit", *arguments],
            cwd=ROOT,
            env={name: value for name, value in os.environ.items() if name != "DATABASE_URL"}
            | {"PGWF_HOME": str(home)},
            stdin=subprocess.DEVNULL if terminal is None else terminal,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    @property
    def output(self) -> str:
        return "\n".join(self.lines)

    @property
    def run_id(self) -> str:
        return self.await_line(r"(?:started run|unfinished run) (licence-audit-[\w-]+)")[1]

    def workers(self) -> dict[str, int]:
        """Return the process ids of the workers it has told of, by name."""
        return {name: int(pid) for name, pid in re.findall(r"worker ([\w-]+) \(process (\d+)\) offers", self.output)}

    def await_line(self, pattern: str) -> re.Match[str]:
        def found() -> re.Match[str] | None:
            match = re.search(pattern, self.output)
            assert match or self._process.poll() is None or self._reader.is_alive(), self.output
            return match

        match = wait_until(found, f"the demo prints {pattern!r}", seconds=END_SECONDS_MAX)
        assert match is not None
        return match

    def await_middle(self) -> None:
        """Wait until some of the audit is done, and not all of it: what the killed worker held waits for its lease."""
        self.await_line("with SIGKILL in the middle of")

    def send(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    def end(self) -> int:
        code = self._process.wait(END_SECONDS_MAX)
        self._reader.join()
        return code

    def _read(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as output:
            for line in output:
                self.lines.append(line.rstrip("\n"))


@pytest.fixture(scope="module")
def server() -> Iterator[EmbeddedServer]:
    """A server for all demos of this module, which each of them joins."""
    home = Path(tempfile.mkdtemp(prefix="pgwf-demo-", dir="/tmp"))
    home.chmod(0o755)
    try:
        with EmbeddedServer(home) as server:
            yield server
    finally:
        shutil.rmtree(home, ignore_errors=True)


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """Two dozen distributions: mild ones, copyleft, a broken one and one without a licence."""
    site = tmp_path / "site"
    licences = ["MIT", "BSD-3-Clause", "Apache-2.0", "ISC"] * 5
    for number, licence in enumerate(licences):
        headers = (f"License-Expression: {licence}",)
        install(site, f"mild{number:02}", headers=headers, files={"licenses/LICENSE": text(licence)})
    install(site, "weak", headers=("License-Expression: MPL-2.0",), files={"LICENSE": text("MPL-2.0")})
    install(site, "strong", headers=("License-Expression: GPL-3.0-only",), files={"COPYING": text("GPL-3.0")})
    install(site, "silent")
    (install(site, "broken") / "METADATA").write_bytes(b"\0\xff")
    return site


@pytest.fixture
def start(server: EmbeddedServer, site: Path, tmp_path: Path) -> Iterator[Callable[..., Demo]]:
    """Starts demos of `site` on the module's server; what is left of them at the end of the test is killed."""
    started: list[Demo] = []

    def start(*arguments: str, terminal: int | None = None) -> Demo:
        demo = Demo([str(site), f"--output={tmp_path / 'out'}", *arguments], server.home, terminal=terminal)
        started.append(demo)
        return demo

    yield start
    for demo in started:
        for pid in [demo._process.pid, *demo.workers().values()]:
            if _is_alive(pid):
                os.kill(pid, signal.SIGKILL)
        demo.end()


def report_of(demo: Demo, tmp_path: Path) -> dict[str, Any]:
    """Return the report without what differs between two audits of the same folder."""
    document: dict[str, Any] = json.loads((tmp_path / "out" / demo.run_id / "report.json").read_text())
    assert document.pop("run_id") == demo.run_id
    document.pop("audited_at")
    document["review"].pop("at")
    return document


def assert_is_whole(demo: Demo, tmp_path: Path) -> None:
    """Assert that a demo ended well: everything audited and decided, each step recorded once, no process left."""
    assert demo.end() == 0, demo.output
    assert "Each step is recorded exactly once." in demo.output
    document = report_of(demo, tmp_path)
    assert document["counts"]["distributions"] == DISTRIBUTIONS_COUNT
    by_name = {each["name"]: each for each in document["distributions"]}
    assert by_name["mild00"]["findings"] == []
    assert by_name["broken"]["findings"][0]["code"] == "no-licence"
    rulings = {each["distribution"]: each["ruling"] for each in document["review"]["rulings"]}
    assert rulings == {"broken 1.0": "later", "silent 1.0": "later", "strong 1.0": "reject", "weak 1.0": "accept"}
    assert_nothing_left(demo)


def assert_nothing_left(demo: Demo) -> None:
    """Assert that no worker of a demo is alive any more; one whose parent died may need a moment to drain."""
    wait_until(lambda: not any(map(_is_alive, demo.workers().values())), "the demo's workers are gone")


def _is_alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


def test_the_demo_kills_a_worker_and_another_finishes_its_work(start: Callable[..., Demo], tmp_path: Path) -> None:
    demo = start()

    assert_is_whole(demo, tmp_path)
    assert "with SIGKILL in the middle of" in demo.output
    assert "was replayed by another worker" in demo.output
    executed, recorded, distinct = map(
        int, re.findall(r"Steps: (\d+) attempts.*?(\d+) results.*?of (\d+) diff", demo.output)[0]
    )
    assert recorded == distinct == 3 * DISTRIBUTIONS_COUNT + 2
    assert executed >= recorded


def test_a_demo_that_was_killed_is_gone_on_with_and_reports_the_same(
    start: Callable[..., Demo], tmp_path: Path
) -> None:
    killed = start()
    killed.await_middle()
    killed.send(signal.SIGKILL)
    killed.end()
    assert_nothing_left(killed)

    resumed = start()

    assert_is_whole(resumed, tmp_path)
    assert resumed.run_id == killed.run_id
    undisturbed = start()
    assert_is_whole(undisturbed, tmp_path)
    assert undisturbed.run_id != killed.run_id
    assert report_of(resumed, tmp_path) == report_of(undisturbed, tmp_path)


def test_all_workers_at_once_may_die(start: Callable[..., Demo], tmp_path: Path) -> None:
    demo = start()
    demo.await_middle()
    for pid in demo.workers().values():
        if _is_alive(pid):
            os.kill(pid, signal.SIGKILL)

    assert_is_whole(demo, tmp_path)
    assert "takes its place" in demo.output


def test_postgres_may_die_under_a_demo(start: Callable[..., Demo], server: EmbeddedServer, tmp_path: Path) -> None:
    demo = start()
    demo.await_middle()
    os.kill(_postmaster(server), signal.SIGKILL)

    assert_is_whole(demo, tmp_path)


def test_postgres_and_the_demo_may_die_together(
    start: Callable[..., Demo], server: EmbeddedServer, tmp_path: Path
) -> None:
    killed = start()
    killed.await_middle()
    os.kill(_postmaster(server), signal.SIGKILL)
    killed.send(signal.SIGKILL)
    killed.end()

    resumed = start()

    assert_is_whole(resumed, tmp_path)
    assert resumed.run_id == killed.run_id
    assert_nothing_left(killed)


def test_two_demos_at_once_have_runs_and_workers_of_their_own(start: Callable[..., Demo], tmp_path: Path) -> None:
    first, second = start(), start()

    assert_is_whole(first, tmp_path)
    assert_is_whole(second, tmp_path)
    assert first.run_id != second.run_id
    assert not set(first.workers()) & set(second.workers())
    assert report_of(first, tmp_path) == report_of(second, tmp_path)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_demo_that_is_stopped_leaves_no_process_and_no_lock(
    start: Callable[..., Demo], server: EmbeddedServer, tmp_path: Path, number: signal.Signals
) -> None:
    stopped = start()
    stopped.await_middle()

    stopped.send(number)

    assert stopped.end() == 130
    assert "Traceback" not in stopped.output
    assert not any(map(_is_alive, stopped.workers().values()))
    # The module's own server has no other clients, and locks of all databases are seen from any.
    with psycopg.connect(server.dsn) as connection:
        held = connection.execute("select count(*) from pg_locks where locktype = 'advisory'").fetchone()
        sleeping = connection.execute(
            "select count(*) from pg_stat_activity where pid <> pg_backend_pid() and backend_type = 'client backend'"
        ).fetchone()
    assert (held, sleeping) == ((0,), (0,))
    resumed = start()
    assert_is_whole(resumed, tmp_path)
    assert resumed.run_id == stopped.run_id


def test_a_person_decides_with_the_command_that_the_demo_prints(start: Callable[..., Demo], tmp_path: Path) -> None:
    controller, terminal = pty.openpty()
    try:
        demo = start("--review", terminal=terminal)
        export = demo.await_line(r"\n  (export PGWF_DSN=.*)")[1]
        decide = demo.await_line(r"\n  (\S+ human decide .* accept_all -P .*)")[1]
        decided = subprocess.run(
            ["bash", "-c", f"{export}; {decide}"],
            env=os.environ | {"PGWF_USER": "ada"},
            capture_output=True,
            text=True,
            check=False,
        )

        assert decided.returncode == 0, decided.stderr
        assert demo.end() == 0, demo.output
    finally:
        os.close(controller)
        os.close(terminal)
    document = report_of(demo, tmp_path)
    assert document["review"]["by"] == "ada"
    assert {each["ruling"] for each in document["review"]["rulings"]} == {"accept"}
    assert {each["note"] for each in document["review"]["rulings"]} == {"checked by hand"}


def test_a_person_may_edit_the_suggestions_and_send_them(start: Callable[..., Demo], tmp_path: Path) -> None:
    controller, terminal = pty.openpty()
    try:
        demo = start("--review", terminal=terminal)
        export = demo.await_line(r"\n  (export PGWF_DSN=.*)")[1]
        decide = demo.await_line(r"\n  (\S+ human decide \S+ -i @\S+)")[1]
        answer = tmp_path / "out" / demo.run_id / "decision.json"
        answer.write_text(answer.read_text().replace('"reject"', '"accept"'))
        subprocess.run(["bash", "-c", f"{export}; {decide}"], check=True, capture_output=True)

        assert demo.end() == 0, demo.output
    finally:
        os.close(controller)
        os.close(terminal)
    rulings = {each["distribution"]: each["ruling"] for each in report_of(demo, tmp_path)["review"]["rulings"]}
    assert rulings["strong 1.0"] == "accept"


def test_review_without_a_terminal_is_decided_by_rule(start: Callable[..., Demo], tmp_path: Path) -> None:
    demo = start("--review")

    assert_is_whole(demo, tmp_path)
    assert "--review needs a terminal" in demo.output


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda folder: [str(folder / "missing")], "no such folder"),
        (lambda folder: [str(_file(folder))], "is not a folder"),
        (lambda folder: [str(folder)], "no Python distribution found"),
        (lambda folder: [str(_site(folder)), f"--output={_file(folder)}"], "reports cannot be written there"),
        (lambda folder: [str(folder), "--sideways"], "unrecognized arguments"),
    ],
)
def test_unusable_arguments_are_refused_in_one_line(
    server: EmbeddedServer, tmp_path: Path, make: Callable[[Path], list[str]], says: str
) -> None:
    demo = Demo(make(tmp_path), server.home)

    assert demo.end() == 2
    assert says in demo.lines[-1]
    assert "Traceback" not in demo.output


@pytest.mark.parametrize("dsn", ["postgresql://nobody@127.0.0.1:1/none", "no such thing"])
def test_a_database_that_does_not_answer_is_an_error_in_one_line(site: Path, tmp_path: Path, dsn: str) -> None:
    demo = Demo([str(site), f"--output={tmp_path / 'out'}", f"--dsn={dsn}"], tmp_path)

    assert demo.end() == 1
    assert len(demo.lines) == 2
    assert "the database cannot be used" in demo.lines[-1]


def _postmaster(server: EmbeddedServer) -> int:
    return int((server.home / "data" / "postmaster.pid").read_text().split()[0])


def _file(folder: Path) -> Path:
    (folder / "file").touch()
    return folder / "file"


def _site(folder: Path) -> Path:
    install(folder / "site", "zeta")
    return folder / "site"
