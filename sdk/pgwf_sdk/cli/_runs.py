"""Looking at runs: `pgwf list`, `show`, `why` and `result`."""

import re
import shlex
import shutil
import sys
from collections.abc import Iterable
from datetime import timedelta
from types import MappingProxyType

import click

from pgwf_sdk import ops
from pgwf_sdk.cli._durations import duration
from pgwf_sdk.cli._output import (
    json_object,
    talk,
    write_explanation,
    write_json,
    write_lines,
    write_object,
    write_rows,
    write_sentence,
)
from pgwf_sdk.cli._results import print_result, wait_until_over
from pgwf_sdk.cli._session import output_options, session
from pgwf_sdk.cli._text import fitted, printable
from pgwf_sdk.cli.timeline import WIDTH_MIN, render_timeline

WIDTH_PIPED = 100
"""Cells a timeline takes where no terminal says how wide it is."""

_NEGATED = re.compile("-[a-z]+:")


class _ListCommand(click.Command):
    """Takes `-status:failed` for the filter it is, not for the options s, t, a and so on."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        end = args.index("--") if "--" in args else len(args)
        negated = [word for word in args[:end] if _NEGATED.match(word)]
        others = [word for word in args[:end] if not _NEGATED.match(word)]
        return super().parse_args(ctx, [*others, "--", *negated, *args[end + 1 :]])


@click.command("list", cls=_ListCommand)
@click.argument("filters", nargs=-1, metavar="[FILTER]...")
@click.option("-n", "--limit", type=click.IntRange(1, 1000), default=50, show_default=True)
@click.option("--before", type=int, metavar="N", help="Go on after an earlier page, as its last line says.")
@output_options
def list_command(filters: tuple[str, ...], limit: int, before: int | None) -> None:
    """List runs, newest first; children of other runs only on request.

    Filters: status:failed,cancelled workflow:refund attr:NAME=VALUE need:gpu worker:NAME build:ID id:order-*
    parent:ID|any root:ID 'age:<1h' 'dur:>5m'. Words are joined by and, values by or. A leading - means not:
    -status:failed. A word without a key is the beginning of an id.
    """
    page = ops.list_runs(session().client, ops.parse_filter(filters), before=before, limit=limit)
    write_rows(
        "pgwf.run/1",
        page.runs,
        columns={
            "run": lambda run: run.run_id,
            "workflow": lambda run: run.workflow,
            "status": lambda run: run.status,
            "need": lambda run: run.current_need or run.need,
            "worker": lambda run: run.worker_id or "",
            "entries": lambda run: str(run.entry_count),
            "created": lambda run: run.created_at.strftime("%Y-%m-%d %H:%M:%S"),
            "took": _took,
        },
        id_of=lambda run: run.run_id,
        empty="no run passes the filter" if filters else "no runs yet; `pgwf start` starts one",
    )
    if page.next_before is not None:
        talk(f"more: pgwf list --before {page.next_before} {shlex.join(filters)}".rstrip())


@click.command("show")
@click.argument("run_id", metavar="ID")
@click.option(
    "--timeline", "view", flag_value="timeline", default="timeline", help="Draw what happened when (default)."
)
@click.option("--journal", "view", flag_value="journal", help="Print every entry.")
@click.option("--why", "view", flag_value="why", help="Say what the run waits for.")
@click.option("--unfolded", is_flag=True, help="Draw equal calls one by one.")
@click.option("--ascii", "ascii_only", is_flag=True, help="Draw with ASCII only.")
@click.option("--width", type=click.IntRange(WIDTH_MIN, 1000), help="Cells to draw in, instead of the terminal's.")
@output_options
def show(run_id: str, view: str, unfolded: bool, ascii_only: bool, width: int | None) -> None:
    """Show a run; the first six characters of its id are enough if no other begins alike."""
    if view == "journal":
        _show_journal(run_id)
    elif view == "why":
        _show_why(run_id)
    else:
        _show_timeline(run_id, fold=not unfolded, ascii_only=ascii_only, width=width)


@click.command("why")
@click.argument("run_id", metavar="ID")
@output_options
def why(run_id: str) -> None:
    """Say what a run waits for, since when, who could take it, and what to do about it."""
    _show_why(run_id)


@click.command("result")
@click.argument("run_id", metavar="ID")
@click.option("--wait", is_flag=True, help="Wait until the run is over; Ctrl-C stops the waiting, not the run.")
@click.option("--timeout", type=duration, help="Wait no longer than this, such as 30s or 5m; exit 7 after it.")
@output_options
def result(run_id: str, wait: bool, timeout: timedelta | None) -> int:
    """Print what a run returned, as JSON.

    Exit code 0 if it completed, 10 if it failed (its error is printed), 11 if it was cancelled or terminated, 7 if it
    is not over.
    """
    run = ops.get_run(session().client, run_id)
    if wait or timeout is not None:
        wait_until_over(run.run_id, timeout)
    return print_result(run.run_id)


def _show_timeline(run_id: str, *, fold: bool, ascii_only: bool, width: int | None) -> None:
    client = session().client
    found = ops.timeline(client, run_id, fold=fold)
    if session().form != "table":
        write_object("pgwf.timeline/1", found, text="", id_=found.run.run_id)
        return
    run = found.run
    write_sentence(_headline(run))
    if run.singleton_key is not None:
        write_sentence(f"singleton key: {run.singleton_key}")
    if run.attributes:
        write_sentence(f"attributes: {', '.join(f'{name}={value}' for name, value in sorted(run.attributes.items()))}")
    if not run.is_final:
        write_explanation(ops.why_not_running(client, run.run_id))
    elif (failure := _failure(run)) is not None:
        for text in (failure.line(), *failure.notes):
            write_explanation(text)
    write_lines("")
    write_lines(
        render_timeline(
            found,
            width=width or (shutil.get_terminal_size().columns if sys.stdout.isatty() else WIDTH_PIPED),
            ascii_only=ascii_only or session().is_ascii,
            colour=session().is_coloured,
        )
    )


def _headline(run: ops.RunSummary) -> str:
    parts = [f"{run.run_id}: workflow {run.workflow}, {run.status}", f"need {run.current_need or run.need}"]
    parts += [f"build {run.build}"] if run.build else []
    parts += [f"child of {run.parent_run_id}"] if run.parent_run_id else []
    parts += [f"retry of {run.retry_of_run_id}"] if run.retry_of_run_id else []
    parts += [f"continues {run.continues_run_id}"] if run.continues_run_id else []
    if run.successor_run_id is not None:
        parts.append(f"{'goes on' if run.status == 'continued' else 'retried'} as {run.successor_run_id}")
    parts.append(ops.count_words(run.entry_count, "entry"))
    parts += [ops.count_words(run.lapses, "lost lease")] if run.lapses else []
    return "; ".join(parts)


def _failure(run: ops.RunSummary) -> ops.Failure | None:
    """Why a run did not complete."""
    if run.status in {"completed", "continued"}:
        return None
    # Of this run, not of the one it was retried as: its own journal ends with the error.
    last = next(ops.read_journal(session().client, run.run_id, after_seq=run.entry_count - 1, limit=1), None)
    return ops.failure_of(last.payload) if last is not None and last.kind == "run" else None


def _show_journal(run_id: str) -> None:
    entries = ops.read_journal(session().client, run_id)
    if session().form == "json":
        write_json([json_object("pgwf.entry/1", entry) for entry in entries])
    elif session().form == "ids":
        for entry in entries:
            click.echo(printable(f"{entry.seq} {entry.key}"))
    else:
        _print_entries(entries)


def _print_entries(entries: Iterable[ops.JournalEntry]) -> None:
    """A line an entry, printed while they are read; long payloads are cut on a terminal only."""
    room = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
    for entry in entries:
        when = entry.recorded_at.strftime("%Y-%m-%d %H:%M:%S.%f")[:-3]
        place = f"  ({entry.code_file}:{entry.code_line})" if entry.code_file else ""
        line = printable(f"{entry.seq:>5}  {when}  {entry.key}  {entry.phase}  {entry.payload or ''}{place}")
        click.echo(
            line.rstrip() if room is None or len(line) <= room else fitted(line, room, ascii_only=session().is_ascii)
        )


def _show_why(run_id: str) -> None:
    run = ops.get_run(session().client, run_id)
    sentence = ops.why_not_running(session().client, run.run_id)
    write_object(
        "pgwf.why/1",
        {"run_id": run.run_id, "status": run.status, "sentence": sentence},
        text=printable(sentence, keep_layout=True),
        id_=run.run_id,
    )


def _took(run: ops.RunSummary) -> str:
    if run.finished_at is None:
        return ""
    return ops.duration_words((run.finished_at - run.created_at).total_seconds())


COMMANDS = MappingProxyType({"list": list_command, "show": show, "why": why, "result": result})
