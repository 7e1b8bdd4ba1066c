"""The demo: an audit on several worker processes, of which one is killed in the middle.

Everything a worker knew dies with it; what it had recorded is in the journal, so the run goes on elsewhere. The demo
itself may be killed as well, or PostgreSQL: the same command goes on with the same run.
"""

from __future__ import annotations

import hashlib
import os
import re
import secrets
import shlex
import subprocess
import sys
import time
from collections import Counter
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

import msgspec
import psycopg
from psycopg import sql
from psycopg.conninfo import make_conninfo

import pgwf_sql
from examples.licence_audit import review, tally
from examples.licence_audit.fleet import ROOT, Fleet, WorkerProcess
from examples.licence_audit.report import Report, Written
from examples.licence_audit.review import Dossier
from examples.licence_audit.workflow import AUDIT_NEED, CLASSIFY_NEED, REVIEW_NEED, audit
from pgwf_sdk import Client
from pgwf_sdk.embedded import EmbeddedServer
from pgwf_sdk.ops import count_words

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from pgwf_sdk import Run
    from pgwf_sdk.ops import RunSummary, TaskSummary

REVIEWER = "bot:rule"
CLASSIFY_WORKERS = 2
REPLACEMENTS_MAX = 6  # Of workers that died without our doing, before the demo gives up on them.
PATIENCE_SECONDS = 60.0  # For a database that is being restarted.
PROGRESS_SECONDS = 1.0
LOOK_SECONDS = 0.1
HUNT_SECONDS = 0.01  # Between two looks for a worker to kill: a distribution takes some 50 ms.
STUCK = ("blocked", "crash_concern")
PGWF = shlex.quote(str(Path(sys.executable).with_name("pgwf")))
UNFINISHED = ("ready", "running", "waiting", "paused", "blocked", "crash_concern")

P = ParamSpec("P")
T = TypeVar("T")


class DemoError(Exception):
    """The demo cannot go on; the message says why and what to do."""


@dataclass(frozen=True, slots=True)
class Options:
    folder: str
    output: Path
    dsn: str | None
    is_decided_by_person: bool


@dataclass(frozen=True, slots=True)
class Kill:
    """A worker that was killed, and what it held."""

    worker: str
    pid: int
    held: list[tally.Held]


def run(options: Options) -> None:
    """Audit a folder from wherever an earlier demo left off. DemoError; KeyboardInterrupt leaves nothing behind."""
    began = time.monotonic()
    with (
        _database(options.dsn) as dsn,
        _client(dsn) as client,
        psycopg.connect(dsn, autocommit=True) as connection,
    ):
        pgwf_sql.install(connection)
        handle = _start_or_resume(client, connection, options)
        logs = options.output / handle.run_id / "workers"
        with Fleet(dsn, logs) as fleet:
            written, kill = _Show(client, handle, fleet, options, dsn).play()
        _conclude(client, handle, written, kill, logs, dsn)
    say(f"\n{time.monotonic() - began:.0f} seconds in all. The report: {written.markdown}")
    say(f"The same for programs: {written.json}")


def say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def _client(dsn: str) -> Client:
    try:
        return Client(dsn, name="licence-audit demo")
    except ValueError as error:
        raise DemoError(f"the database cannot be used: {error}") from None


@contextmanager
def _database(dsn: str | None) -> Generator[str]:
    if dsn is not None:
        yield dsn
        return
    with EmbeddedServer() as server:
        say(f"PostgreSQL runs in {server.home} (kept between demos; it stops with the last of them)")
        yield _own_database(server.dsn)


def _own_database(dsn: str) -> str:
    """Return the connection string of the demos' database, made if need be.

    It is named after the schema's text: somebody who works on the SQL gets another database for each state of it.
    """
    name = f"licence_audit_{hashlib.sha256(pgwf_sql.script().encode()).hexdigest()[:8]}"
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("select pg_advisory_lock(hashtextextended(%s, 0))", [name])
        if connection.execute("select from pg_database where datname = %s", [name]).fetchone() is None:
            connection.execute(sql.SQL("create database {}").format(sql.Identifier(name)))
    return make_conninfo(dsn, dbname=name)


def _start_or_resume(client: Client, connection: psycopg.Connection[Any], options: Options) -> Run[Written]:
    """Return an unfinished run of the same folder and output that no other demo looks after, or a new one."""
    digest = hashlib.sha256(f"{options.folder}\0{options.output}".encode()).hexdigest()[:8]
    name = re.sub(r"[^a-z0-9]+", "-", Path(options.folder).name.lower()).strip("-")[:40] or "folder"
    prefix = f"licence-audit-{name}-{digest}-"
    for found in client.list(workflow=audit.name, statuses=UNFINISHED, limit=1000):
        if found.run_id.startswith(prefix) and _adopt(connection, found.run_id):
            say(f"going on with the unfinished run {found.run_id} ({found.status})")
            return client.get(found.run_id, audit)
    run_id = prefix + secrets.token_hex(3)
    _adopt(connection, run_id)
    started = client.start(audit(options.folder, str(options.output / run_id)), run_id=run_id)
    say(f"started run {run_id}: audit of {options.folder}")
    return started


def _adopt(connection: psycopg.Connection[Any], run_id: str) -> bool:
    """Return whether this demo now looks after the run: a lock that PostgreSQL drops when this process ends."""
    row: Any = connection.execute("select pg_try_advisory_lock(hashtextextended(%s, 0))", [run_id]).fetchone()
    return bool(row[0])


class _Show:
    """One performance: looks at the database again and again, and does what is due."""

    def __init__(self, client: Client, handle: Run[Written], fleet: Fleet, options: Options, dsn: str) -> None:
        self._client = client
        self._handle = handle
        self._fleet = fleet
        self._options = options
        self._dsn = dsn
        self._kill: Kill | None = None
        self._replaced_count = 0
        self._asked: set[str] = set()
        self._told: str = ""
        self._told_at: float = 0.0

    def play(self) -> tuple[Written, Kill | None]:
        for capability in (AUDIT_NEED, *(CLASSIFY_NEED for _ in range(CLASSIFY_WORKERS))):
            worker = self._fleet.add(capability)
            say(f"worker {worker.name} (process {worker.pid}) offers {capability}")
        while not (details := patiently(self._handle.details)).is_final:
            children = patiently(self._children)
            self._refuse_the_stuck((details, *children))
            self._tell(details, children)
            self._replace_the_dead()
            if self._is_hunting(children):
                self._hunt(children)
                time.sleep(HUNT_SECONDS)
            else:
                self._answer()
                time.sleep(HUNT_SECONDS if self._kill is None else LOOK_SECONDS)
        return patiently(self._handle.result), self._kill

    def _children(self) -> tuple[RunSummary, ...]:
        """Return the child runs, newest first, up to a thousand: enough to hunt and to tell."""
        return self._client.list(parent_run_id=self._handle.run_id, limit=1000)

    def _refuse_the_stuck(self, runs: tuple[RunSummary, ...]) -> None:
        """DemoError: a run will not go on by itself, which waiting would only hide."""
        stuck = next((run for run in runs if run.status in STUCK), None)
        if stuck is not None:
            raise DemoError(
                f"run {stuck.run_id} is in status {stuck.status} and needs a person: "
                f"PGWF_DSN={shlex.quote(self._dsn)} {PGWF} why {shlex.quote(stuck.run_id)}"
            )

    def _tell(self, details: RunSummary, children: tuple[RunSummary, ...]) -> None:
        done_count = sum(child.is_final for child in children)
        text = f"{done_count} of {len(children)} distributions audited" if children else f"the run is {details.status}"
        now = time.monotonic()
        is_due = now - self._told_at >= PROGRESS_SECONDS or (children and done_count == len(children))
        if text != self._told and is_due:
            self._told, self._told_at = text, now
            say(text)

    def _replace_the_dead(self) -> None:
        for worker in [worker for worker in self._fleet.workers if not worker.is_alive]:
            self._fleet.workers.remove(worker)
            if self._kill is not None and worker.name == self._kill.worker:
                continue
            self._replaced_count += 1
            if self._replaced_count > REPLACEMENTS_MAX:
                raise DemoError(f"workers keep dying; the last one said why in {worker.log}")
            successor = self._fleet.add(worker.capability)
            say(f"worker {worker.name} is gone; {successor.name} (process {successor.pid}) takes its place")

    # -- the kill -------------------------------------------------------------------------------------------------

    def _is_hunting(self, children: tuple[RunSummary, ...]) -> bool:
        """Return whether it is time to kill: a quarter of the distributions are done, and not all."""
        done_count = sum(child.is_final for child in children)
        return self._kill is None and len(children) // 4 <= done_count < len(children)

    def _hunt(self, children: tuple[RunSummary, ...]) -> None:
        """Kill a worker that is in the middle: it has recorded a step of a run that is not over.

        What it has recorded is read while it is frozen. A call it had already sent may still be carried out after its
        death, so what it left unfinished is read once more then; if that is nothing, the hunt goes on.
        """
        for victim in self._fleet.workers:
            if victim.capability != CLASSIFY_NEED or not _in_the_middle(children, victim):
                continue
            with victim.frozen():
                if not _in_the_middle(patiently(self._children), victim):
                    continue
                victim.kill()
            left = {run.run_id for run in _in_the_middle(patiently(self._children), victim)}
            held = patiently(tally.held, self._client, self._handle.run_id, left)
            if not held:
                return
            self._kill = Kill(victim.name, victim.pid, held)
            say(f"killed worker {victim.name} (process {victim.pid}) with SIGKILL in the middle of:")
            for each in held:
                say(f"  {each.label}, {count_words(each.steps, 'step')} recorded")
            return

    # -- the review -----------------------------------------------------------------------------------------------

    def _answer(self) -> None:
        for task in patiently(self._client.human.list, need=REVIEW_NEED, limit=1000):
            if task.run_id != self._handle.run_id:
                continue
            if not self._options.is_decided_by_person:
                dossier = msgspec.json.decode(task.subject or "", type=Dossier)
                patiently(self._client.human.decide, task.task_id, review.suggested(dossier), by=REVIEWER)
                say(f"{task.title}: decided by rule (as {REVIEWER}); with --review you decide")
            elif task.task_id not in self._asked:
                self._asked.add(task.task_id)
                self._ask(task)

    def _ask(self, task: TaskSummary) -> None:
        """Tell a person how to decide. The suggestions lie ready in a file, to be edited and sent."""
        dossier = msgspec.json.decode(task.subject or "", type=Dossier)
        answer = self._options.output / self._handle.run_id / "decision.json"
        answer.write_bytes(msgspec.json.format(msgspec.json.encode(review.suggested(dossier))) + b"\n")
        task_id = shlex.quote(task.task_id)
        say(f"\n{task.title}. In another terminal:\n")
        say(f"  export PGWF_DSN={shlex.quote(self._dsn)}")
        say(f"  {PGWF} human show {task_id}")
        say(f"  {PGWF} human decide {task_id} accept_all -P note='checked by hand'")
        say("\nor edit the suggestions and send them:\n")
        say(f"  ${{EDITOR:-vi}} {shlex.quote(str(answer))}")
        say(f"  {PGWF} human decide {task_id} -i @{shlex.quote(str(answer))}\n")


def _in_the_middle(children: tuple[RunSummary, ...], worker: WorkerProcess) -> list[RunSummary]:
    """Return the unfinished runs a worker holds of which more is recorded than that they began."""
    return [
        child for child in children if child.worker_id == worker.name and not child.is_final and child.entry_count > 1
    ]


def patiently(call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Make a call that may be repeated, again and again while the database cannot be reached, within bounds."""
    until = time.monotonic() + PATIENCE_SECONDS
    is_told = False
    while True:
        try:
            return call(*args, **kwargs)
        except psycopg.OperationalError as error:
            if time.monotonic() > until:
                raise DemoError(
                    f"the database could not be reached for {PATIENCE_SECONDS:.0f} s ({error}); the audit is not lost: "
                    f"run the same command again when it is back"
                ) from error
            if not is_told:
                is_told = True
                say("the database cannot be reached; waiting for it to come back")
            time.sleep(LOOK_SECONDS)


def _conclude(client: Client, handle: Run[Written], written: Written, kill: Kill | None, logs: Path, dsn: str) -> None:
    """Print what happened: the timeline, what was replayed, how often steps were executed and recorded."""
    say("")
    subprocess.run(
        [sys.executable, "-m", "pgwf_sdk.cli", "show", handle.run_id],
        cwd=ROOT,
        env=os.environ | {"PGWF_DSN": dsn},
        check=False,
    )
    say("")
    if kill is not None:
        _tell_replay(client, handle.run_id, kill)
    else:
        say("No worker was killed: the audit was over before one was in the middle of a run.")
    counted = patiently(tally.tally, client, handle.run_id, logs)
    say(
        f"Steps: {counted.executed} attempts began (the workers' own log lines), {counted.recorded} results are in the "
        f"journals (view pgwf_journal.entries), of {counted.distinct} different steps."
    )
    if counted.recorded != counted.distinct:
        raise DemoError(f"{counted.recorded - counted.distinct} steps are recorded twice; this must never happen")
    say("Each step is recorded exactly once.")
    lost = counted.executed - counted.recorded
    if lost:
        say(f"{count_words(lost, 'attempt')} left no result, because the worker died; that work was executed again.")
    _tell_findings(Path(written.json))


def _tell_replay(client: Client, run_id: str, kill: Kill) -> None:
    later = patiently(tally.steps_since, client, run_id, kill.held)
    say(f"What {kill.worker} had recorded was replayed by another worker, and not executed again:")
    for each in kill.held:
        say(f"  {each.label}: {count_words(each.steps, 'step')} replayed, {later[each.run_id]} executed after the kill")


def _tell_findings(path: Path) -> None:
    found = msgspec.json.decode(path.read_bytes(), type=Report)
    categories = ", ".join(f"{count} {category}" for category, count in found.counts.by_category.items())
    say(f"\n{found.counts.distributions} distributions: {categories}.")
    if found.review is not None:
        rulings = Counter(ruled.ruling for ruled in found.review.rulings)
        decided = ", ".join(f"{count} {ruling}" for ruling, count in sorted(rulings.items()))
        say(f"Decided by {found.review.by}: {decided}.")
