"""Workers: `pgwf worker run`, `list`, `drain` and `health`."""

import functools
import math
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from http import HTTPStatus
from types import MappingProxyType
from typing import Any, TypeVar

import click

from pgwf_sdk import ops
from pgwf_sdk.cli._durations import duration
from pgwf_sdk.cli._exit import TOLD_CODE, CliError, ExitCode
from pgwf_sdk.cli._health import Address, ask
from pgwf_sdk.cli._load import workflows_of
from pgwf_sdk.cli._output import talk, write_object, write_rows
from pgwf_sdk.cli._serve import WorkerOptions, configure_logging, serve, supervise
from pgwf_sdk.cli._session import dsn_option, output_options, session
from pgwf_sdk.cli._supervisor import end_with_parent, python_command
from pgwf_sdk.cli._text import printable, when

_LOOK_SECONDS = 0.5

F = TypeVar("F", bound=Callable[..., Any])


def log_level_option(command: F) -> F:
    """Adds --log-level."""
    levels = click.Choice(["debug", "info", "warning", "error"])
    return click.option("--log-level", type=levels, default="info", show_default=True)(command)


@click.group("worker", context_settings={"help_option_names": ["-h", "--help"]})
def worker() -> None:
    """Run workers, and see which there are."""


@worker.command("run")
@click.argument("references", metavar="MODULE[:ATTRIBUTE]...", nargs=-1, required=True)
@click.option("--capability", "capabilities", multiple=True, help="What it offers besides its workflows; repeatable.")
@click.option("--concurrency", type=click.IntRange(1, 10_000), help="Runs it works on at once.")
@click.option(
    "--limit", "limits", multiple=True, metavar="CAPABILITY=N", help="What it does for one at once; repeatable."
)
@click.option("--step-threads", type=click.IntRange(1, 10_000), help="Plain (not async) steps it runs at once.")
@click.option(
    "--grace",
    type=duration,
    help="How long steps may go on once it is told to stop (default: 30s).",
)
@click.option("--build", help="Version of this code, for runs that are pinned to one.")
@click.option("--name", help="Its name in the worker list (default: host and process).")
@click.option("--processes", type=click.IntRange(1, 1000), help="Run so many of it, and start again those that die.")
@click.option("--health", metavar="HOST:PORT|unix:PATH", help="Serve /live and /ready there.")
@click.option("--detect", is_flag=True, help="Warn of clocks, randomness and I/O in workflow code; for development.")
@click.option("--uvloop", is_flag=True, help="Use uvloop's event loop.")
@click.option("--parent", type=int, hidden=True)
@log_level_option
@dsn_option
@click.pass_context
def run(context: click.Context, /, references: tuple[str, ...], processes: int | None, **options: Any) -> int:
    """Run a worker for the workflows of MODULE, until SIGTERM or Ctrl-C.

    MODULE is a dotted name or a path to a .py file. It is handed runs of its workflows, and whatever else asks for a
    --capability. When told to stop it takes nothing new, ends the steps under way and gives its runs back; told so a
    second time, it gives them back at once. Ends with 0 if it was told to stop or was drained.
    """
    configure_logging(options["log_level"])
    health = None if options["health"] is None else Address.parse(options["health"])
    if processes is not None:
        return supervise(processes, functools.partial(_command_of_one, context), health)
    told_code: int = ExitCode.OK
    if options["parent"] is not None:
        end_with_parent(options["parent"])
        told_code = TOLD_CODE
    serve(
        [workflow for reference in references for workflow in workflows_of(reference)],
        WorkerOptions(
            capabilities=options["capabilities"],
            concurrency=options["concurrency"],
            limits=_parsed(options["limits"]),
            step_threads=options["step_threads"],
            grace=options["grace"],
            build=options["build"],
            name=options["name"],
            health=health,
            uses_uvloop=options["uvloop"],
            detects=options["detect"],
            told_code=told_code,
        ),
    )
    return int(told_code)


def _command_of_one(context: click.Context, number: int, watched: int, health: Address | None) -> list[str]:
    """The command line of one of several worker processes: what was typed, with a name and a health of its own."""
    name = context.params["name"]
    own: dict[str, Any] = {
        "processes": None,
        "parent": watched,
        "name": None if name is None else f"{name}-{number}",
        "health": health,
    }
    arguments = ["worker", "run"]
    for parameter in context.command.params:
        value: Any = {**context.params, **own}.get(parameter.name or "")
        if not isinstance(parameter, click.Option) or value is None or value is False:
            continue
        for text in value if parameter.multiple else (value,):
            arguments += [parameter.opts[0]] if parameter.is_flag else [parameter.opts[0], _typed(text)]
    return python_command(*arguments, "--", *context.params["references"])


def _typed(value: object) -> str:
    """What is typed for the value of an option."""
    return f"{value.total_seconds():f}s" if isinstance(value, timedelta) else str(value)


@worker.command("health")
@click.argument("address", metavar="HOST:PORT|unix:PATH")
@click.option("--live", is_flag=True, help="Whether it can go on by itself, instead of whether it takes runs.")
@output_options
def health(address: str, live: bool) -> int:
    """Ask the worker that serves its --health at an address how it is; ends with 8 unless it is well."""
    where = Address.parse(address)
    try:
        status, report = ask(where, "/live" if live else "/ready")
    except OSError as error:
        raise CliError(f"{where}: no answer: {error}", ExitCode.UNHEALTHY) from error
    write_object("pgwf.health/1", report, text=printable(str(report.get("state"))))
    return int(ExitCode.OK if status == HTTPStatus.OK else ExitCode.UNHEALTHY)


@worker.command("list")
@click.option("--live", is_flag=True, help="Those only that are there now.")
@output_options
def list_command(live: bool) -> None:
    """List workers, the one heard of last on top."""
    write_rows(
        "pgwf.worker/1",
        ops.list_workers(session().client, only_live=live),
        columns={
            "worker": lambda row: row.worker_id,
            "status": lambda row: "draining" if row.draining and row.is_live else ("live" if row.is_live else "gone"),
            "capabilities": lambda row: " ".join(row.capabilities),
            "leases": lambda row: str(row.leases) if row.slots is None else f"{row.leases}/{row.slots}",
            "build": lambda row: row.build or "",
            "seen": lambda row: when(row.last_seen_at),
        },
        id_of=lambda row: row.worker_id,
        empty=f"no worker {'is there now' if live else 'has been heard of'}; `pgwf worker run MODULE` runs one",
    )


@worker.command("drain")
@click.argument("worker_ids", metavar="WORKER...", nargs=-1, required=True)
@click.option("--wait", is_flag=True, help="Wait until they have stopped.")
@click.option("--timeout", type=duration, help="Wait no longer than this, such as 30s or 5m.")
@dsn_option
def drain(worker_ids: tuple[str, ...], wait: bool, timeout: timedelta | None) -> int:
    """Ask workers, wherever they are, to stop: they end the steps under way, give their runs back and exit with 0.

    Each learns so from its next heartbeat, a third of its lease away at most. `pgwf worker list -o ids` has the names.
    """
    first_failure = ExitCode.OK
    asked: list[str] = []
    for worker_id in worker_ids:
        if ops.drain_worker(session().client, worker_id):
            asked.append(worker_id)
            talk(f"worker {worker_id}: asked to drain")
        else:
            talk(f"pgwf: no worker {worker_id!r} has been heard of; `pgwf worker list` shows those that are there")
            first_failure = ExitCode.NOT_FOUND
    if wait or timeout is not None:
        first_failure = first_failure or _wait_until_gone(asked, timeout)
    return int(first_failure)


def _wait_until_gone(worker_ids: Sequence[str], timeout: timedelta | None) -> ExitCode:
    """Wait until none of the workers is live."""
    end = math.inf if timeout is None else time.monotonic() + timeout.total_seconds()
    asked = set(worker_ids)
    while left := asked.intersection(row.worker_id for row in ops.list_workers(session().client, only_live=True)):
        if time.monotonic() > end:
            talk(f"pgwf: still there: {', '.join(sorted(left))}")
            return ExitCode.TIMED_OUT
        time.sleep(_LOOK_SECONDS)
    talk("stopped")
    return ExitCode.OK


def _parsed(limits: Sequence[str]) -> dict[str, int]:
    """`gpu=1` and the like, by capability."""
    parsed: dict[str, int] = {}
    for text in limits:
        capability, _, number = text.rpartition("=")
        if not capability or not number.isdecimal():
            raise click.UsageError(f"--limit {text}: expected CAPABILITY=N, such as gpu=1")
        parsed[capability] = int(number)
    return parsed


COMMANDS = MappingProxyType({"worker": worker})
