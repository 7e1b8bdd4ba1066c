"""What is asked for and offered, and holding some of it back: `pgwf needs` and its commands."""

from collections.abc import Callable
from types import MappingProxyType

import click

from pgwf_sdk import ops
from pgwf_sdk._names import HUMAN_PREFIX
from pgwf_sdk.cli._limits import filled, limit_options, limit_words, set_limits
from pgwf_sdk.cli._output import talk, write_rows
from pgwf_sdk.cli._session import dsn_option, output_options, session
from pgwf_sdk.cli._text import when


@click.group("needs", invoke_without_command=True, context_settings={"help_option_names": ["-h", "--help"]})
@output_options
@click.pass_context
def needs(context: click.Context) -> None:
    """List what runs ask for and workers offer, or hold some of it back.

    Ready runs that no worker offers anything for stand out. A need that is paused or limited is so for all workers,
    until somebody says otherwise.
    """
    if context.invoked_subcommand is not None:
        return
    write_rows(
        "pgwf.need/1",
        ops.list_needs(session().client),
        columns={
            "need": lambda row: row.need,
            "ready": lambda row: f"{ops.COUNT_MAX - 1}+" if row.ready >= ops.COUNT_MAX else str(row.ready),
            "oldest": lambda row: when(row.oldest_ready_at),
            "running": lambda row: str(row.running),
            "workers": _workers,
            "limits": _limits,
        },
        id_of=lambda row: row.need,
        empty="nothing is asked for, and no worker offers anything",
    )


@needs.command("limit")
@click.argument("need", type=filled)
@limit_options(active_min=0)
def limit(need: str, max_active: int | None, rate: float | None, burst: float | None, is_lifted: bool) -> None:
    """Bound how much of NEED all workers together do, instead of the bounds it had."""
    set_limits(
        need,
        lambda max_active, rate, burst: ops.limit_need(
            session().client, need, max_active=max_active, rate=rate, burst=burst, by=session().user
        ),
        max_active=max_active,
        rate=rate,
        burst=burst,
        is_lifted=is_lifted,
        unlimited="no limit",
    )


def _workers(row: ops.NeedSummary) -> str:
    """How many live workers offer it; what people answer needs none."""
    if row.workers:
        return str(row.workers)
    if row.need.startswith(HUMAN_PREFIX):
        return "people"
    return "none!" if row.ready else "0"


def _each(act: Callable[[str], None], said: str) -> Callable[[tuple[str, ...]], None]:
    def callback(needs: tuple[str, ...]) -> None:
        for need in needs:
            act(need)
            talk(f"{need}: {said}")

    return callback


def _need_command(name: str, doc: str, act: Callable[[str], None], said: str) -> None:
    command = click.argument("needs", metavar="NEED...", type=filled, nargs=-1, required=True)(_each(act, said))
    needs.command(name, help=doc)(dsn_option(command))


_need_command(
    "pause",
    "Hand out no run that asks for NEED; those that are with a worker go on.",
    lambda need: ops.pause_need(session().client, need, by=session().user),
    "paused",
)
_need_command(
    "resume",
    "Hand out the runs of a paused NEED again.",
    lambda need: ops.resume_need(session().client, need, by=session().user),
    "handed out",
)


def _limits(row: ops.NeedSummary) -> str:
    return "paused" if row.is_paused else limit_words(row.max_active, row.rate)


COMMANDS = MappingProxyType({"needs": needs})
