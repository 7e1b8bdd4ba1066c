"""Journals and new code: `pgwf replay` before a deploy, and `pgwf export`."""

from collections.abc import Sequence
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import click

from pgwf_sdk import ops
from pgwf_sdk.cli._exit import CliError, ExitCode
from pgwf_sdk.cli._load import workflows_of
from pgwf_sdk.cli._output import json_object, talk, write_json, write_lines
from pgwf_sdk.cli._session import dsn_option, output_options, session
from pgwf_sdk.cli._text import printable

if TYPE_CHECKING:
    from pgwf_sdk._definition import Workflow


@click.command("replay")
@click.argument("modules", metavar="MODULE[:ATTRIBUTE]...", nargs=-1)
@click.option("--check", "checked", multiple=True, metavar="MODULE[:ATTRIBUTE]", help="The same as MODULE; repeatable.")
@click.option("--finished", is_flag=True, help="Runs that are over too, and not only those that go on.")
@click.option(
    "--blocked", "is_to_mend", is_flag=True, help="The code is to mend runs that are blocked already: they count."
)
@click.option("--limit", type=click.IntRange(1), metavar="N", help="No more than the newest N runs.")
@click.option(
    "--journal", "files", multiple=True, type=click.Path(exists=True, dir_okay=False, path_type=Path), metavar="FILE",
    help="Instead of a database: a journal that `pgwf export` wrote; repeatable.",
)  # fmt: skip
@output_options
def replay(
    modules: tuple[str, ...],
    checked: tuple[str, ...],
    finished: bool,
    is_to_mend: bool,
    limit: int | None,
    files: tuple[Path, ...],
) -> int:
    """Replay recorded runs by the workflows of MODULE, to see before a deploy whether these follow their journals.

    Nothing is leased, executed or written. Exit code 0 if all do, 9 if some run would be blocked or fail at once: what
    differs is printed once for all runs that differ alike. Runs that are blocked already, and would be at the same
    place, are told apart and do not count, except with --blocked.
    """
    references = dict.fromkeys((*modules, *checked))
    if not references:
        raise CliError("no code to replay; expected a module or a file: pgwf replay shop.py", ExitCode.USAGE)
    workflows = [workflow for reference in references for workflow in workflows_of(reference)]
    if files:
        check = _check_files(files, workflows)
    else:
        check = ops.check_runs(session().client, workflows, is_finished_too=finished, limit=limit)
    counted = [found for found in check.differences if is_to_mend or not found.is_blocked_already]
    count = check.differing_count + (check.blocked_count if is_to_mend else 0)
    if session().form == "json":
        write_json([json_object("pgwf.difference/1", found) for found in check.differences])
    elif session().form == "ids":
        for run_id in (run_id for found in counted for run_id in found.run_ids):
            click.echo(printable(run_id))
    else:
        _print_differences(counted)
    runs, entries = ops.count_words(check.run_count, "run"), ops.count_words(check.entry_count, "entry")
    talk(f"replayed {runs} with {entries}: {count or 'none'} would be blocked or fail")
    if check.blocked_count and not is_to_mend:
        _say_blocked(check)
    return int(ExitCode.DIFFERENT if count else ExitCode.OK)


@click.command("export")
@click.argument("run_id", metavar="ID")
@click.option("--to", "file", type=click.Path(dir_okay=False, path_type=Path), help="A file, instead of stdout.")
@dsn_option
def export(run_id: str, file: Path | None) -> None:
    """Write the whole journal of a run as a JSON document, for `pgwf replay … --journal FILE` and for tests."""
    found = ops.get_run(session().client, run_id).run_id
    document = ops.recorded_run(session().client, found).to_json()
    if file is None:
        click.echo(document.decode(), nl=False)
    else:
        file.write_bytes(document)
        talk(f"wrote {file}")


def _check_files(files: Sequence[Path], workflows: "Sequence[Workflow[..., Any]]") -> ops.Check:
    from pgwf_sdk._errors import UndecodableError
    from pgwf_sdk.replay import RecordedRun

    by_name = {workflow.name: workflow for workflow in workflows}
    check, sealing = ops.Check(), session().sealing
    for file in files:
        try:
            recorded = RecordedRun.from_json(file.read_bytes())
            recorded = recorded if sealing is None else recorded.opened(sealing)
        except UndecodableError as error:
            raise CliError(f"{file}: {error}", ExitCode.INVALID_INPUT) from error
        workflow = by_name.get(recorded.workflow)
        if workflow is None:
            raise CliError(
                f"{file}: it is of workflow {recorded.workflow!r}, expected one of {', '.join(sorted(by_name))}",
                ExitCode.INVALID_INPUT,
            )
        check.add(recorded, ops.difference(workflow, recorded))
    return check


def _print_differences(differences: Sequence[ops.Difference]) -> None:
    for found in differences:
        write_lines("\n".join(map(printable, str(found.report["text"]).splitlines()[:-1])))
        if found.run_count > 1:
            named = ", ".join(found.run_ids[1:4])
            more = f" and {found.run_count - 4} more" if found.run_count > 4 else ""
            write_lines(printable(f"  the same in {ops.count_words(found.run_count - 1, 'other run')}: {named}{more}"))
        write_lines("")


def _say_blocked(check: ops.Check) -> None:
    is_one = check.blocked_count == 1
    verbs = "is blocked already, and stays so" if is_one else "are blocked already, and stay so"
    known = [run_id for found in check.differences if found.is_blocked_already for run_id in found.run_ids]
    why = f": `pgwf why {printable(known[0])}`" if known else ""
    talk(f"{ops.count_words(check.blocked_count, 'run')} {verbs}{why}")


COMMANDS = MappingProxyType({"replay": replay, "export": export})
