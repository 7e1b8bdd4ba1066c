"""`pgwf dev`: all that development needs, in one terminal."""

import signal
from contextlib import suppress
from pathlib import Path
from types import FrameType, MappingProxyType
from typing import TYPE_CHECKING, Any

import click

from pgwf_sdk.cli._load import workflows_of
from pgwf_sdk.cli._output import talk
from pgwf_sdk.cli._serve import WorkerOptions, configure_logging, serve
from pgwf_sdk.cli._session import session

if TYPE_CHECKING:
    from pgwf_sdk._definition import Workflow


@click.command("dev")
@click.argument("references", metavar="[MODULE[:ATTRIBUTE]]...", nargs=-1)
@click.option("--db", "folder", type=click.Path(path_type=Path), help="Where the embedded database keeps its data.")
@click.option("--dsn", help="Use this database instead of an embedded one.")
@click.option("--capability", "capabilities", multiple=True, help="What the worker offers too; repeatable.")
@click.option(
    "--log-level", type=click.Choice(["debug", "info", "warning", "error"]), default="info", show_default=True
)
def dev(
    references: tuple[str, ...],
    folder: Path | None,
    dsn: str | None,
    capabilities: tuple[str, ...],
    log_level: str,
) -> None:
    """Start an embedded PostgreSQL, install the schema and run a worker for the workflows of MODULE.

    The worker offers what its workflows need; steps with a need of their own want a --capability. Without MODULE only
    the database runs. Its connection string is printed for other terminals. Ctrl-C stops everything; the data stays
    for the next time.
    """
    if dsn is not None and folder is not None:
        raise click.UsageError("--db is about the embedded database; give no --dsn with it")
    configure_logging(log_level)
    workflows = [workflow for reference in references for workflow in workflows_of(reference)]
    if dsn is not None:
        _run(dsn, workflows, capabilities)
        return
    from pgwf_sdk.embedded import EmbeddedServer

    with EmbeddedServer(folder) as server:
        talk(f"PostgreSQL runs in {server.home}; in other terminals:\n  export PGWF_DSN='{server.dsn}'")
        _run(server.dsn, workflows, capabilities)
    talk("stopped; the data is kept")


def _run(dsn: str, workflows: "list[Workflow[..., Any]]", capabilities: tuple[str, ...]) -> None:
    import psycopg

    import pgwf_sql

    with psycopg.connect(dsn, autocommit=True) as connection:
        pgwf_sql.install(connection)
    if workflows:
        session().dsn_option = dsn
        offered = sorted({*capabilities, *(workflow.need for workflow in workflows)})
        serve(workflows, WorkerOptions(capabilities=offered, detects=True))
        return
    talk("no MODULE was given, so no worker runs; Ctrl-C stops the database")
    with suppress(KeyboardInterrupt):
        signal.signal(signal.SIGTERM, _interrupt)
        while True:
            signal.pause()


def _interrupt(_number: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt


COMMANDS = MappingProxyType({"dev": dev})
