"""Singleton keys and how much of them may be worked on: `pgwf keys` and its command."""

from types import MappingProxyType

import click

from pgwf_sdk import ops
from pgwf_sdk.cli._limits import filled, limit_options, limit_words, set_limits
from pgwf_sdk.cli._output import write_rows
from pgwf_sdk.cli._session import output_options, session


@click.group("keys", invoke_without_command=True, context_settings={"help_option_names": ["-h", "--help"]})
@output_options
@click.pass_context
def keys(context: click.Context) -> None:
    """List the singleton keys that are held, waited for or limited, or limit one.

    Of the runs with one key one is with a worker at a time, or as many as its limit says.
    """
    if context.invoked_subcommand is not None:
        return
    write_rows(
        "pgwf.key/1",
        ops.list_keys(session().client),
        columns={
            "key": lambda row: row.singleton_key,
            "running": lambda row: str(row.running),
            "waiting": lambda row: f"{ops.COUNT_MAX - 1}+" if row.waiting >= ops.COUNT_MAX else str(row.waiting),
            "limits": lambda row: limit_words(row.max_active, row.rate),
        },
        id_of=lambda row: row.singleton_key,
        empty="no key is held, waited for or limited",
    )


@keys.command("limit")
@click.argument("key", type=filled)
@limit_options(active_min=1)
def limit(key: str, max_active: int | None, rate: float | None, burst: float | None, is_lifted: bool) -> None:
    """Bound how many runs with KEY all workers together work on, instead of one at a time."""
    set_limits(
        key,
        lambda max_active, rate, burst: ops.limit_key(
            session().client, key, max_active=max_active, rate=rate, burst=burst, by=session().user
        ),
        max_active=max_active,
        rate=rate,
        burst=burst,
        is_lifted=is_lifted,
        unlimited="one at a time",
    )


COMMANDS = MappingProxyType({"keys": keys})
