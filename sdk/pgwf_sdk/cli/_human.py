"""Questions to people: `pgwf human list`, `show`, `claim`, `release` and `decide`."""

from collections.abc import Callable
from datetime import datetime, timedelta
from types import MappingProxyType
from typing import Any, TypeVar

import click
import msgspec

from pgwf_sdk import ops
from pgwf_sdk._wording import instant_words, shell_word
from pgwf_sdk.cli._durations import duration
from pgwf_sdk.cli._exit import CliError, ExitCode
from pgwf_sdk.cli._output import talk, write_object, write_rows
from pgwf_sdk.cli._parameters import assembled, parse_parameters, read_input
from pgwf_sdk.cli._session import output_options, session
from pgwf_sdk.cli._text import printable, when

F = TypeVar("F", bound=Callable[..., Any])

_SUBJECT_CHARACTERS_MAX = 20_000


def _as_option(command: F) -> F:
    return click.option("--as", "name", metavar="NAME", help="Who acts (default: PGWF_USER, else your account).")(
        command
    )


@click.group("human", context_settings={"help_option_names": ["-h", "--help"]})
def human() -> None:
    """See, claim and decide the questions runs put to people."""


@human.command("list")
@click.option("--need", help="Only tasks that ask for this, such as human.review.")
@click.option("--mine", is_flag=True, help="Only those you hold.")
@click.option("--overdue", is_flag=True, help="Only those past their due time.")
@click.option("--all", "with_decided", is_flag=True, help="Decided, expired and cancelled ones too.")
@click.option("-n", "--limit", type=click.IntRange(1, 1000), default=50, show_default=True)
@_as_option
@output_options
def list_command(need: str | None, mine: bool, overdue: bool, with_decided: bool, limit: int, name: str | None) -> None:
    """List tasks, the one due first on top."""
    tasks = ops.list_tasks(
        session().client,
        states=None if with_decided else ops.OPEN_TASK_STATES,
        need=need,
        holder=(name or session().user) if mine else None,
        is_overdue=overdue,
        limit=limit,
    )
    write_rows(
        "pgwf.task/1",
        tasks,
        columns={
            "task": lambda task: task.task_id,
            "title": lambda task: task.title or task.name,
            "need": _need,
            "status": lambda task: f"{task.state}, overdue" if task.is_overdue else task.state,
            "holder": lambda task: task.decided_by or task.holder or "",
            "due": lambda task: when(task.due_at),
            "opened": lambda task: when(task.created_at),
        },
        id_of=lambda task: task.task_id,
        empty="no task is open",
    )


@human.command("show")
@click.argument("task_id", metavar="TASK")
@output_options
def show(task_id: str) -> None:
    """Show a task: what it is about, and each way to decide it with the fields it takes."""
    task = ops.get_task(session().client, task_id)
    write_object("pgwf.task/1", task, text=_description(task), id_=task.task_id)


@human.command("claim")
@click.argument("task_id", metavar="TASK")
@click.option(
    "--for",
    "length",
    default="4h",
    show_default=True,
    type=duration,
    help="How long you keep it.",
)
@_as_option
@output_options
def claim(task_id: str, length: timedelta, name: str | None) -> None:
    """Take a task, so that nobody else decides it meanwhile."""
    task = ops.get_task(session().client, task_id)
    until = session().client.human.claim(task.task_id, by=name or session().user, duration=length)
    claimed = ops.get_task(session().client, task.task_id)
    is_capped = claimed.expires_at is not None and claimed.expires_at < until
    ends = f"{_when(claimed.expires_at)}, when it expires" if is_capped else _when(until)
    talk(f"task {task.task_id} is yours until {ends}")
    write_object("pgwf.task/1", claimed, text=_description(claimed), id_=task.task_id)


@human.command("release")
@click.argument("task_id", metavar="TASK")
@_as_option
@output_options
def release(task_id: str, name: str | None) -> None:
    """Give a task back undecided."""
    task = ops.get_task(session().client, task_id)
    session().client.human.release(task.task_id, by=name or session().user)
    talk(f"task {task.task_id} is open again")


@human.command("decide")
@click.argument("task_id", metavar="TASK")
@click.argument("variant", metavar="[VARIANT]", required=False)
@click.option("-P", "parameters", multiple=True, metavar="FIELD=TEXT|FIELD:=JSON", help="One field; repeatable.")
@click.option("-i", "--input", "input_", metavar="JSON|@FILE|-", help="The whole decision as JSON, without VARIANT.")
@_as_option
@output_options
def decide(
    task_id: str, variant: str | None, parameters: tuple[str, ...], input_: str | None, name: str | None
) -> None:
    """Decide a task: VARIANT is one of those that `pgwf human show` lists, -P gives its fields.

    A task that nobody holds is claimed and decided in one. Nothing is sent unless the decision fits.
    """
    task = ops.get_task(session().client, task_id)
    decision = _decision(task, variant, parameters, input_)
    ops.decide_json(session().client, task.task_id, decision, by=name or session().user)
    talk(f"task {task.task_id} is decided; run {task.run_id} goes on")
    if session().form != "table":
        decided = ops.get_task(session().client, task.task_id)
        write_object("pgwf.task/1", decided, text="", id_=task.task_id)


def _decision(
    task: ops.TaskSummary, variant_name: str | None, parameters: tuple[str, ...], input_: str | None
) -> bytes:
    """The decision as JSON, checked against the task's schema. CliError (invalid input) names the field at fault."""
    form = ops.DecisionForm(task.decision_schema or "{}")
    whole = read_input(input_)
    if whole is not None and (parameters or variant_name is not None):
        raise click.UsageError("-i gives the whole decision; give neither VARIANT nor -P with it")
    try:
        if whole is not None:
            return msgspec.json.encode(form.check(msgspec.json.decode(whole)))
        variant = form.variant(_chosen(form, task, variant_name))
        return msgspec.json.encode(form.build(variant, assembled(parse_parameters(parameters))))
    except ops.DecisionError as error:
        raise CliError(
            f"task {task.task_id}: {error}; `pgwf human show {shell_word(task.task_id)}` lists what it takes",
            ExitCode.INVALID_INPUT,
        ) from error


def _chosen(form: ops.DecisionForm, task: ops.TaskSummary, name: str | None) -> str:
    if name is not None:
        return name
    if len(form.variants) == 1:
        if form.whole_types:
            raise _is_whole(form, task)
        return form.variants[0].name
    names = ", ".join(variant.name for variant in form.variants if variant.name)
    if not names:
        raise _is_whole(form, task)
    raise CliError(f"task {task.task_id}: say how to decide it: one of {names}", ExitCode.USAGE)


def _is_whole(form: ops.DecisionForm, task: ops.TaskSummary) -> CliError:
    return CliError(
        f"task {task.task_id}: its decision has no fields; give the value with -i, as JSON: "
        f"{' or '.join(form.whole_types)}",
        ExitCode.USAGE,
    )


def _description(task: ops.TaskSummary) -> str:
    lines = [
        f"{task.title or task.name}",
        f"  task    {task.task_id}",
        f"  run     {task.run_id}",
        f"  need    {_need(task)}",
        f"  state   {task.state}{f' by {task.decided_by or task.holder}' if task.decided_by or task.holder else ''}"
        f"{', overdue' if task.is_overdue else ''}",
        f"  opened  {_when(task.created_at)}",
    ]
    lines += [f"  for     {task.assigned}"] if task.assigned else []
    lines += [f"  not by  {', '.join(task.excluded)}"] if task.excluded else []
    lines += [f"  due     {_due(task)}"] if task.due_at else []
    lines += [f"  expires {_when(task.expires_at)}"] if task.expires_at else []
    lines += ["", "Subject:", _indented(task.subject)] if task.subject else []
    lines += ["", "Proposed decision:", _indented(task.prefill)] if task.prefill and not task.decision else []
    lines += ["", "Decision:", _indented(task.decision)] if task.decision else _ways(task)
    return printable("\n".join(lines), keep_layout=True)


def _ways(task: ops.TaskSummary) -> list[str]:
    lines = ["", "Decide with:"]
    form = ops.DecisionForm(task.decision_schema or "{}")
    for variant in form.variants:
        if not variant.name and form.whole_types:
            continue
        ordered = sorted(variant.fields, key=lambda field: (not field.is_required, field.name))
        fields = " ".join(f"-P {field.name}=…" if field.is_required else f"[-P {field.name}=…]" for field in ordered)
        lines.append(" ".join(filter(None, ("  pgwf human decide", shell_word(task.task_id), variant.name, fields))))
        lines += [f"      {variant.help}"] if variant.help else []
        lines += [f"      {field.name}: {field.type}{f' - {field.title}' if field.title else ''}" for field in ordered]
    if form.whole_types:
        lines.append(f"  pgwf human decide {shell_word(task.task_id)} -i JSON")
        lines.append(f"      JSON: {' or '.join(form.whole_types)}")
    return lines


def _indented(json_text: str) -> str:
    shown = msgspec.json.format(json_text, indent=2)
    if len(shown) > _SUBJECT_CHARACTERS_MAX:
        shown = f"{shown[:_SUBJECT_CHARACTERS_MAX]}\n… cut; -o json has all of it"
    return "\n".join(f"  {line}" for line in shown.splitlines())


def _need(task: ops.TaskSummary) -> str:
    return task.need if task.escalated_at is None else f"{task.need} (first {task.first_need})"


def _due(task: ops.TaskSummary) -> str:
    if task.escalated_at is not None:
        return f"{_when(task.due_at)}, handed on {_when(task.escalated_at)}"
    return _when(task.due_at) + (f", then {task.escalate_need}" if task.escalate_need else "")


def _when(instant: datetime | None) -> str:
    return instant_words(instant) if instant is not None else ""


COMMANDS = MappingProxyType({"human": human})
