"""Workers: `pgwf worker run`, `list` and `drain`."""

import logging
import math
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeVar

import click

from pgwf_sdk import ops
from pgwf_sdk.cli._exit import ExitCode
from pgwf_sdk.cli._load import workflows_of
from pgwf_sdk.cli._memory import settle_collector
from pgwf_sdk.cli._output import talk, write_rows
from pgwf_sdk.cli._session import dsn_option, output_options, session
from pgwf_sdk.cli._text import when

if TYPE_CHECKING:
    from pgwf_sdk._definition import Workflow


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
@click.option("--name", help="Its name in the worker list (default: host and process).")
@click.option("--detect", is_flag=True, help="Warn of clocks, randomness and I/O in workflow code; for development.")
@click.option(
    "--log-level", type=click.Choice(["debug", "info", "warning", "error"]), default="info", show_default=True
)
@dsn_option
def run(
    references: tuple[str, ...],
    capabilities: tuple[str, ...],
    concurrency: int | None,
    limits: tuple[str, ...],
    name: str | None,
    detect: bool,
    log_level: str,
) -> None:
    """Run a worker for the workflows of MODULE, until SIGTERM or Ctrl-C.

    MODULE is a dotted name or a path to a .py file. It is handed runs of its workflows, and whatever else asks for a
    --capability. When told to stop it takes nothing new, ends the steps under way and gives its runs back.
    """
    configure_logging(log_level)
    workflows = [workflow for reference in references for workflow in workflows_of(reference)]
    serve(workflows, capabilities, concurrency=concurrency, limits=_parsed(limits), name=name, detect=detect)


@worker.command("list")
@output_options
def list_command() -> None:
    """List workers, the one heard of last on top."""
    write_rows(
        "pgwf.worker/1",
        ops.list_workers(session().client),
        columns={
            "worker": lambda row: row.worker_id,
            "status": lambda row: "draining" if row.draining and row.is_live else ("live" if row.is_live else "gone"),
            "capabilities": lambda row: " ".join(row.capabilities),
            "leases": lambda row: str(row.leases) if row.slots is None else f"{row.leases}/{row.slots}",
            "build": lambda row: row.build or "",
            "seen": lambda row: when(row.last_seen_at),
        },
        id_of=lambda row: row.worker_id,
        empty="no worker has been heard of; `pgwf worker run MODULE` runs one",
    )


@worker.command("drain")
@click.argument("worker_ids", metavar="WORKER...", nargs=-1, required=True)
@click.option("--wait", is_flag=True, help="Wait until they have stopped.")
@click.option("--timeout", metavar="DURATION", help="Wait no longer than this, such as 30s or 5m.")
@dsn_option
def drain(worker_ids: tuple[str, ...], wait: bool, timeout: str | None) -> int:
    """Ask workers, wherever they are, to stop: they end the steps under way, give their runs back and exit with 0.

    Each learns so from its next heartbeat, a third of its lease away at most. `pgwf worker list -o ids` has the names.
    """
    patience = ops.parse_duration(timeout) if timeout is not None else None
    first_failure = ExitCode.OK
    asked: list[str] = []
    for worker_id in worker_ids:
        if ops.drain_worker(session().client, worker_id):
            asked.append(worker_id)
            talk(f"worker {worker_id}: asked to drain")
        else:
            talk(f"no worker {worker_id!r} has been heard of; `pgwf worker list` shows those that are there")
            first_failure = ExitCode.NOT_FOUND
    if wait or patience is not None:
        first_failure = first_failure or _wait_until_gone(asked, patience)
    return int(first_failure)


def _wait_until_gone(worker_ids: Sequence[str], patience: timedelta | None) -> ExitCode:
    """Wait until none of the workers is live."""
    end = math.inf if patience is None else time.monotonic() + patience.total_seconds()
    while left := {row.worker_id for row in ops.list_workers(session().client) if row.is_live}.intersection(worker_ids):
        if time.monotonic() > end:
            talk(f"still there: {', '.join(sorted(left))}")
            return ExitCode.TIMED_OUT
        time.sleep(_LOOK_SECONDS)
    talk("stopped")
    return ExitCode.OK


def serve(
    workflows: "Sequence[Workflow[..., Any]]",
    capabilities: Sequence[str],
    *,
    concurrency: int | None = None,
    limits: Mapping[str, int] | None = None,
    name: str | None = None,
    detect: bool = False,
) -> None:
    """Run a worker on the session's database until it is told to stop."""
    from pgwf_sdk.worker import Worker

    options: dict[str, Any] = {"concurrency": concurrency, "limits": limits, "worker_id": name, "detect": detect}
    worker_ = Worker(
        session().client,
        workflows=list(workflows),
        capabilities=list(capabilities),
        **{option: value for option, value in options.items() if value is not None},
    )
    settle_collector()
    for workflow in workflows:
        if workflow.need not in worker_.capabilities:
            talk(
                f"workflow {workflow.name} needs {workflow.need!r}, which this worker does not offer, so it is never "
                f"handed one; add --capability {workflow.need} if it should be"
            )
    talk(f"worker {worker_.worker_id} runs {', '.join(sorted(w.name for w in workflows))}; Ctrl-C stops it")
    worker_.run()


def _parsed(limits: Sequence[str]) -> dict[str, int]:
    """`gpu=1` and the like, by capability."""
    parsed: dict[str, int] = {}
    for text in limits:
        capability, _, number = text.rpartition("=")
        if not capability or not number.isdecimal():
            raise click.UsageError(f"--limit {text}: expected CAPABILITY=N, such as gpu=1")
        parsed[capability] = int(number)
    return parsed


def configure_logging(level: str) -> None:
    """Log lines of this process go to stderr; OpenTelemetry, when installed, sees them as well."""
    logging.basicConfig(
        stream=sys.stderr,
        level=level.upper(),
        format="%(asctime)s %(levelname)s %(name)s: %(message)s",
        datefmt="%H:%M:%S",
    )


COMMANDS = MappingProxyType({"worker": worker})
