"""Getting runs to go on, or over again: `pgwf resume`, `retry` and `fork`."""

from collections.abc import Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import click

from pgwf_sdk import ops
from pgwf_sdk._wording import shell_word
from pgwf_sdk.cli._control import cannot, for_each
from pgwf_sdk.cli._exit import ExitCode
from pgwf_sdk.cli._output import talk, write_object
from pgwf_sdk.cli._session import dsn_option, output_options, session
from pgwf_sdk.cli._text import printable

if TYPE_CHECKING:
    from pgwf_sdk import ForkPrice, Run

KEYS_SHOWN = 10
"""Keys of calls that the price of a fork names."""


@click.command("resume")
@click.argument("run_ids", metavar="ID...", nargs=-1)
@click.option("--blocked", is_flag=True, help="All runs that are blocked, as after a deploy.")
@click.option("--workflow", help="With --blocked: only runs of this workflow.")
@dsn_option
def resume(run_ids: tuple[str, ...], blocked: bool, workflow: str | None) -> int:
    """Let paused or blocked runs go on; with --blocked all of them."""
    if not blocked and workflow is None:
        return for_each(_given(run_ids, "or --blocked"), _resume)
    if run_ids or not blocked:
        raise click.UsageError("expected ids, or --blocked with or without --workflow")
    count = session().client.resume_all(workflow=workflow, by=session().user)
    talk(f"{ops.count_words(count, 'blocked run')} resumed")
    return int(ExitCode.OK)


@click.command("retry")
@click.argument("run_ids", metavar="ID...", nargs=-1)
@click.option("--failed", is_flag=True, help="All runs of --workflow that failed and were not retried yet.")
@click.option("--workflow", help="With --failed: the workflow.")
@dsn_option
def retry(run_ids: tuple[str, ...], failed: bool, workflow: str | None) -> int:
    """Run failed runs again from where they failed; with --failed all of a workflow."""
    if not failed and workflow is None:
        return for_each(_given(run_ids, "or --failed --workflow NAME"), _retry)
    if run_ids or not failed or workflow is None:
        raise click.UsageError("expected ids, or --failed --workflow NAME")
    count = session().client.retry_all(workflow=workflow, by=session().user)
    talk(f"{ops.count_words(count, 'failed run')} retried")
    return int(ExitCode.OK)


@click.command("fork")
@click.argument("run_id", metavar="ID")
@click.option("--before", required=True, metavar="KEY|N", help="The call, or the number of the entry, to begin at.")
@click.option("--id", "new_id", help="Id of the new run (default: <ID>~fork1, ~fork2 …).")
@click.option("--price", is_flag=True, help="Only say what it would take over and do again.")
@output_options
def fork(run_id: str, before: str, new_id: str | None, price: bool) -> None:
    """Start a new run with what another one had recorded before an entry, and print its id.

    `pgwf show ID --journal` has the keys. The other run is left as it is, whatever it is doing.
    """
    source = ops.get_run(session().client, run_id).run_id
    costs = session().client.fork_price(source, before=before)
    if price:
        write_object("pgwf.fork/1", costs, text=_price_words(costs), id_=source)
        return
    talk(_price_words(costs))
    forked: Run[Any] = session().client.fork(source, before=before, run_id=new_id, by=session().user)
    talk(f"run {forked.run_id} begins with entries of {source}" if forked.created else "was forked before")
    write_object(
        "pgwf.run/1", ops.get_run(session().client, forked.run_id), text=printable(forked.run_id), id_=forked.run_id
    )


def _resume(run_id: str, _reason: str | None) -> str:
    answer = session().client.resume(run_id, by=session().user)
    if answer in ops.FINAL_STATUSES:
        raise cannot(run_id, answer, "resumed")
    if answer != "resumed":
        return f"nothing was done: it is {answer}, neither paused nor blocked"
    return f"resumed; it is {ops.get_run(session().client, run_id).status}"


def _retry(run_id: str, _reason: str | None) -> str:
    from pgwf_sdk._errors import RunFinishedError

    retried_id = session().client.retry(run_id, by=session().user).run_id
    status = ops.get_run(session().client, retried_id).status
    if status == "completed":
        raise RunFinishedError(f"run {run_id} went on as {retried_id}, which is completed: there is nothing to retry")
    click.echo(printable(retried_id))
    return f"goes on as {retried_id}"


def _price_words(price: "ForkPrice") -> str:
    lines = [
        f"a fork of {price.run_id} before entry {price.before_seq} takes over"
        f" {ops.count_words(price.entry_count, 'entry')}, {ops.count_words(price.payload_bytes, 'byte')}"
    ]
    for what, keys, count in (
        ("steps that run again", price.steps_again, price.steps_again_count),
        ("made anew", price.calls_again, price.calls_again_count),
        ("results of children, awakeables and people taken over", price.results_kept, price.results_kept_count),
    ):
        more = f" and {count - KEYS_SHOWN} more" if count > KEYS_SHOWN else ""
        lines.append(f"  {what}: {', '.join(keys[:KEYS_SHOWN]) or 'none'}{more}")
    if any(key.rpartition("/")[2].startswith("compensation:") for key in price.steps_again):
        lines.append(
            "  it has cleaned up after itself: what it has undone, the fork may undo again if it takes over the step's"
            f" result; `pgwf retry {shell_word(price.run_id)}` would begin before the first step that was undone"
        )
    return "\n".join(map(printable, lines))


def _given(run_ids: Sequence[str], otherwise: str) -> Sequence[str]:
    if not run_ids:
        raise click.UsageError(f"no run was named: expected ids, - for those on standard input, {otherwise}")
    return run_ids


COMMANDS = MappingProxyType({"resume": resume, "retry": retry, "fork": fork})
