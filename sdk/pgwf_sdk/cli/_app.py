"""The root command: which commands there are, and how any of them ends."""

import errno
import importlib
import os
import sys
from collections.abc import Sequence
from types import MappingProxyType
from typing import Any, NoReturn

import click

from pgwf_sdk.cli._exit import CliError, ExitCode, as_cli_error
from pgwf_sdk.cli._output import talk
from pgwf_sdk.cli._session import Session, output_options

# Command, its one-line help, and the module that has it: help must not import them.
_COMMANDS = MappingProxyType(
    {
        "dev": ("An embedded PostgreSQL, the schema and a worker, all in one; Ctrl-C stops them.", "_dev"),
        "migrate": ("Install or upgrade the schema.", "_migrate"),
        "worker": ("Run workers, see which there are, drain them.", "_worker"),
        "needs": ("What is asked for and offered; pause it, limit it.", "_needs"),
        "keys": ("Singleton keys that are held or waited for; limit one.", "_keys"),
        "start": ("Start a run.", "_control"),
        "list": ("List runs, newest first.", "_runs"),
        "show": ("Show a run: its timeline, its journal, or why it is not running.", "_runs"),
        "why": ("Say what a run waits for and what to do about it.", "_runs"),
        "result": ("Print what a run returned.", "_runs"),
        "signal": ("Send a run a signal.", "_control"),
        "cancel": ("Ask runs to stop; their code may clean up.", "_control"),
        "terminate": ("Stop runs at once, without running any more of their code.", "_control"),
        "pause": ("Keep runs from being worked on.", "_control"),
        "resume": ("Let paused or blocked runs go on.", "_again"),
        "retry": ("Run failed runs again from where they failed.", "_again"),
        "fork": ("Start a new run with what another one had recorded up to some entry.", "_again"),
        "lint": ("Look in code for what a replay would not bear.", "_lint"),
        "replay": ("Before a deploy: replay recorded runs by the new code.", "_replay"),
        "export": ("Write the whole journal of a run as a JSON document.", "_replay"),
        "human": ("See, claim and decide the questions runs put to people.", "_human"),
        "version": ("Print the version.", "_version"),
    }
)


class _LazyGroup(click.Group):
    """Imports a command's module when the command is used."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _COMMANDS:
            return None
        module = importlib.import_module(f"pgwf_sdk.cli.{_COMMANDS[cmd_name][1]}")
        command: click.Command = module.COMMANDS[cmd_name]
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (text, _) in _COMMANDS.items()])


@click.group(cls=_LazyGroup, context_settings={"help_option_names": ["-h", "--help"], "obj": None})
@click.version_option(package_name="pgwf", prog_name="pgwf")
@output_options
@click.pass_context
def pgwf(context: click.Context) -> None:
    """Durable Python functions on PostgreSQL: run workers, start runs, look at them, answer what they ask."""
    context.ensure_object(Session)


def main() -> NoReturn:
    """Run the command line and end the process; also answers a shell that asks for completions."""
    if "_PGWF_COMPLETE" in os.environ:
        pgwf.main(prog_name="pgwf")
    sys.exit(run_command())


def run_command(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code. Only errors of pgwf itself pass as exceptions."""
    try:
        # Not `pgwf.main`: it would end the process with 1 when the reader of stdout has gone.
        with pgwf.make_context("pgwf", list(sys.argv[1:] if arguments is None else arguments)) as context:
            code: Any = pgwf.invoke(context)
        sys.stdout.flush()
    except click.exceptions.Exit as end:
        return end.exit_code
    except click.ClickException as error:
        return _show(error)
    except CliError as error:
        return _report(error)
    except (click.Abort, KeyboardInterrupt):
        return int(ExitCode.INTERRUPTED)
    except OSError as error:
        if error.errno != errno.EPIPE:
            raise
        return _silence()
    except Exception as error:
        known = as_cli_error(error)
        if known is None:
            raise
        return _report(known)
    return code if isinstance(code, int) else int(ExitCode.OK)


def _show(error: click.ClickException) -> int:
    """As click does, but that it is pgwf who speaks."""
    if isinstance(error, click.UsageError) and error.ctx is not None:
        talk(f"{error.ctx.get_usage()}\nTry '{error.ctx.command_path} --help' for help.\n")
    talk(f"pgwf: {error.format_message()}")
    return error.exit_code


def _report(error: CliError) -> int:
    talk(f"pgwf: {error}")
    return int(error.code)


def _silence() -> int:
    """The reader of stdout has gone: say nothing, not even when the interpreter flushes at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return int(ExitCode.BROKEN_PIPE)
