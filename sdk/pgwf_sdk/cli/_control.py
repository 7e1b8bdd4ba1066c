"""Acting on runs: `pgwf start`, `signal`, `cancel`, `terminate` and `pause`."""

import os
import sys
from collections.abc import Callable, Collection, Sequence
from datetime import datetime, timedelta
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, cast

import click
import msgspec

from pgwf_sdk import ops
from pgwf_sdk._wording import shell_word
from pgwf_sdk.cli._durations import duration, instant
from pgwf_sdk.cli._exit import CliError, ExitCode, code_of
from pgwf_sdk.cli._output import talk, write_object
from pgwf_sdk.cli._parameters import assembled, parse_parameters, read_input
from pgwf_sdk.cli._results import print_result, wait_until_over
from pgwf_sdk.cli._session import dsn_option, output_options, session
from pgwf_sdk.cli._text import printable

if TYPE_CHECKING:
    from pgwf_sdk._definition import Workflow
    from pgwf_sdk._errors import PgwfError

IDS_MAX = 10_000
"""Ids one command takes from standard input."""


@click.command("start")
@click.argument("workflow", metavar="WORKFLOW|MODULE:WORKFLOW")
@click.option("-P", "parameters", multiple=True, metavar="NAME=TEXT|NAME:=JSON", help="One argument; repeatable.")
@click.option("-i", "--input", "input_", metavar="JSON|@FILE|-", help="All arguments: an object, or a list in order.")
@click.option("--id", "run_id", help="Id of the run (default: a new one). Starting twice with one id is starting once.")
@click.option("--need", help="What a worker must offer, if WORKFLOW is given by name and no run of it exists yet.")
@click.option("--priority", type=click.IntRange(1, 4), default=3, show_default=True, help="1 is most urgent.")
@click.option(
    "--start-at",
    type=instant,
    metavar="TIME|DURATION",
    help="Begin no sooner, such as 2026-12-01T09:00Z or 2h from now.",
)
@click.option("--deadline", type=instant, metavar="TIME|DURATION", help="Cancel it if it is not over by then.")
@click.option("--key", "singleton_key", help="Of runs with one key one is with a worker at a time.")
@click.option(
    "--attribute",
    "attributes",
    multiple=True,
    metavar="NAME=TEXT",
    help="What lists find it by, as attr:NAME=TEXT; repeatable.",
)
@click.option("--wait", is_flag=True, help="Wait for the end and print the result.")
@click.option("--timeout", type=duration, help="Wait no longer than this, such as 30s or 5m.")
@output_options
def start(
    workflow: str,
    parameters: tuple[str, ...],
    input_: str | None,
    run_id: str | None,
    need: str | None,
    priority: int,
    start_at: datetime | timedelta | None,
    deadline: datetime | timedelta | None,
    singleton_key: str | None,
    attributes: tuple[str, ...],
    wait: bool,
    timeout: timedelta | None,
) -> int:
    """Start a run and print its id.

    With MODULE:WORKFLOW the arguments are checked against the function before anything is started; with the bare name
    of a workflow nothing of it need be installed here, and the worker checks them.
    """
    _require_workflow_name(workflow)
    args, kwargs = _arguments(parameters, input_)
    options: dict[str, Any] = {
        "priority": priority,
        "start_at": _instant(start_at),
        "deadline": _instant(deadline),
        "attributes": _attributes(attributes),
        "singleton_key": singleton_key,
    }
    if ":" in workflow:
        texts = {parameter.path[0] for parameter in parse_parameters(parameters) if parameter.is_text}
        started_id, is_new = _start_call(workflow, args, kwargs, texts, run_id=run_id, **options)
    else:
        from pgwf_sdk._client._identity import new_run_id

        started_id = run_id or new_run_id()
        payload = msgspec.json.encode({"args": args, "kwargs": kwargs})
        is_new = ops.start_from_json(
            session().client, workflow, payload, run_id=started_id, need=need, by=session().user, **options
        )
    talk(f"started run {started_id}" if is_new else f"run {started_id} had been started with this input before")
    _warn_without_worker(started_id, workflow)
    if wait or timeout is not None:
        wait_until_over(started_id, timeout)
        return print_result(started_id)
    write_object("pgwf.run/1", ops.get_run(session().client, started_id), text=printable(started_id), id_=started_id)
    return int(ExitCode.OK)


@click.command("signal")
@click.argument("run_id", metavar="ID")
@click.argument("name")
@click.option("-P", "parameters", multiple=True, metavar="NAME=TEXT|NAME:=JSON", help="One field; repeatable.")
@click.option("-i", "--input", "input_", metavar="JSON|@FILE|-", help="The whole value.")
@click.option("--dedup-id", help="A second signal to the run with the same one is ignored.")
@dsn_option
def signal(run_id: str, name: str, parameters: tuple[str, ...], input_: str | None, dedup_id: str | None) -> None:
    """Send the signal NAME to a run; it keeps until the run asks for it."""
    if parameters and input_ is not None:
        raise click.UsageError("-P and -i exclude each other")
    payload = read_input(input_) or msgspec.json.encode(assembled(parse_parameters(parameters)) or None)
    run = ops.get_run(session().client, run_id)
    is_new = ops.signal_json(session().client, run.run_id, name, payload, dedup_id=dedup_id)
    talk(f"sent {name} to run {run.run_id}" if is_new else f"run {run.run_id} had this {name} before; nothing was sent")


def for_each(run_ids: Sequence[str], act: Callable[[str, str | None], str], reason: str | None = None) -> int:
    """Do one thing to each id, and go on to the next when one cannot be done; the exit code of the first failure."""
    from pgwf_sdk._errors import PgwfError

    first_failure = ExitCode.OK
    for run_id in _ids(run_ids):
        try:
            run = ops.get_run(session().client, run_id)
            talk(f"run {run.run_id}: {act(run.run_id, reason)}")
        except PgwfError as error:
            talk(f"pgwf: {error}")
            first_failure = first_failure or code_of(error)
    return int(first_failure)


def _id_command(name: str, doc: str, *, reason: bool, act: Callable[[str, str | None], str]) -> click.Command:
    """A command that does one thing to each id it is given, and goes on to the next when one cannot be done."""

    def callback(run_ids: tuple[str, ...], **options: str | None) -> int:
        return for_each(run_ids, act, options.get("reason"))

    command: Any = callback
    if reason:
        command = click.option("--reason", help="Why; it is recorded.")(command)
    command = click.argument("run_ids", metavar="ID...", nargs=-1, required=True)(command)
    return click.command(name, help=doc)(dsn_option(command))


@click.command("cancel")
@click.argument("run_ids", metavar="ID...", nargs=-1, required=True)
@click.option("--reason", help="Why; it is recorded.")
@click.option(
    "--grace",
    type=duration,
    help="How long they may clean up, such as 30s, before they are terminated. [5m]",
)
@dsn_option
def cancel(run_ids: tuple[str, ...], reason: str | None, grace: timedelta | None) -> int:
    """Ask runs to stop: their code sees RunCancelled and may clean up. `-` reads ids from standard input."""

    def act(run_id: str, reason: str | None) -> str:
        was_over = _is_over(run_id)
        answer = session().client.cancel(run_id, reason=reason, by=session().user, grace=grace)
        if answer == "cancelled" and not was_over:
            return "cancelled before it began"
        return {"requested": "asked to stop", "already_requested": "was asked to stop before"}.get(
            answer, f"was over already: {answer}"
        )

    return for_each(run_ids, act, reason)


def _terminate(run_id: str, reason: str | None) -> str:
    was_over = _is_over(run_id)
    answer = session().client.terminate(run_id, reason=reason, by=session().user)
    return answer if not was_over else f"was over already: {answer}"


def _is_over(run_id: str) -> bool:
    return ops.get_run(session().client, run_id).is_final


def _pause(run_id: str, _reason: str | None) -> str:
    answer = session().client.pause(run_id, by=session().user)
    if answer != "paused":
        raise cannot(run_id, answer, "paused")
    return answer


def cannot(run_id: str, status: str, done: str) -> "PgwfError":
    """The error for a run that is not in the state to be `done` with."""
    from pgwf_sdk._errors import RaceError, RunFinishedError

    if status in ops.FINAL_STATUSES:
        return RunFinishedError(f"run {run_id}: it is over ({status}), so it cannot be {done}; nothing was done")
    see = f"`pgwf why {shell_word(run_id)}`"
    return RaceError(f"run {run_id}: it is {status}, so it cannot be {done}; nothing was done. See {see}")


def _require_workflow_name(reference: str) -> None:
    """UsageError when `reference` is a file where a workflow is meant: a run of that name would wait for ever."""
    if ":" not in reference and (reference.endswith(".py") or os.sep in reference):
        raise click.UsageError(
            f"{reference!r} is a file, not a workflow; expected MODULE:WORKFLOW, such as {reference}:checkout,"
            " or the bare name of a workflow"
        )


def _warn_without_worker(run_id: str, reference: str) -> None:
    """Say so when the run would wait for a worker that is not there."""
    need = ops.unoffered_need(session().client, run_id)
    if need is None:
        return
    module, colon, name = reference.rpartition(":")
    offers = "" if need == name else f" --capability {need}"
    check = "" if colon else f"check the name {name!r}, or "
    talk(
        f"no live worker offers {need!r}, so the run waits for one; "
        f"{check}start one: pgwf worker run {module or 'MODULE'}{offers}"
    )


def _ids(run_ids: Sequence[str]) -> list[str]:
    """The ids; `-` stands for those on standard input, one a line."""
    found: list[str] = []
    for run_id in run_ids:
        if run_id == "-":
            found += [line.strip() for _, line in zip(range(IDS_MAX), sys.stdin, strict=False) if line.strip()]
        else:
            found.append(run_id)
    return found


def _arguments(parameters: Sequence[str], input_: str | None) -> tuple[list[Any], dict[str, Any]]:
    """The positional and the named arguments of a workflow."""
    given = read_input(input_)
    if given is None:
        return [], assembled(parse_parameters(parameters))
    value: Any = msgspec.json.decode(given)
    if isinstance(value, list) and not parameters:
        return list(cast("Sequence[Any]", value)), {}
    if not isinstance(value, dict):
        raise CliError(
            "-i: expected a JSON object with the arguments by name, or (without -P) a list of them in order",
            ExitCode.INVALID_INPUT,
        )
    return [], {**cast("dict[str, Any]", value), **assembled(parse_parameters(parameters))}


def _instant(given: datetime | timedelta | None) -> datetime | None:
    return ops.now(session().client) + given if isinstance(given, timedelta) else given


def _attributes(texts: Sequence[str]) -> dict[str, str]:
    found: dict[str, str] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not name or not equals:
            raise CliError(f"--attribute {text!r}: expected NAME=TEXT, such as customer=17", ExitCode.INVALID_INPUT)
        found[name] = value
    return found


def _start_call(
    reference: str,
    args: list[Any],
    kwargs: dict[str, Any],
    texts: Collection[str],
    **options: Any,
) -> tuple[str, bool]:
    """Start a workflow that can be imported here: its arguments are turned into what the function declares.

    `texts` are the arguments that were given as text, or have a part that was.
    """
    from pgwf_sdk._errors import SerialisationError, UndecodableError
    from pgwf_sdk.cli._load import workflow_of

    workflow = workflow_of(reference)
    try:
        workflow.parameters.check(tuple(args), kwargs)
        kwargs |= {name: _typed(name, kwargs[name], workflow) for name in texts}
        typed_args, typed_kwargs = workflow.decode_call(msgspec.json.encode({"args": args, "kwargs": kwargs}))
        call = workflow(*typed_args, **typed_kwargs)
        run = session().client.start(call, **options)
    except (UndecodableError, SerialisationError, TypeError) as error:
        raise CliError(str(error), ExitCode.INVALID_INPUT) from error
    return run.run_id, run.created


def _typed(name: str, value: Any, workflow: "Workflow[..., Any]") -> Any:
    """A text from the command line as what the parameter declares (`-P count=3` for an int), and so the texts inside an
    object (`-P order.cents=990` for a dataclass).
    """
    from pgwf_sdk._parameters import annotations_of

    declared = annotations_of(workflow.fn).get(name)
    if declared is None:
        return value
    try:
        return msgspec.to_builtins(msgspec.convert(value, declared, strict=False))
    except msgspec.ValidationError as error:
        raise CliError(f"workflow {workflow.name}: argument {name}: {error}", ExitCode.INVALID_INPUT) from error
    except TypeError:  # A type that JSON knows nothing of; whether the text fits is for the workflow to say.
        return value


COMMANDS = MappingProxyType(
    {
        "start": start,
        "signal": signal,
        "cancel": cancel,
        "terminate": _id_command(
            "terminate", "Stop runs at once: none of their code runs any more.", reason=True, act=_terminate
        ),
        "pause": _id_command(
            "pause", "Keep runs from being worked on; a step under way ends and is recorded.", reason=False, act=_pause
        ),
    }
)
